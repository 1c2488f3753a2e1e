"""Which names, label keys and values Kubernetes accepts, and how it makes names up.

Every `validate_*` returns what is wrong with one text as a list of messages, empty when nothing is; the caller adds the field
and the value. Pure: randomness is handed in as a source of bytes (`os.urandom` at the edge, a seeded one in simulations).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from muster.objects.labels import Kubernetes

Entropy = Callable[[int], bytes]
"""Gives that many random bytes."""

LABEL_LEN_MAX: Final = 63
SUBDOMAIN_LEN_MAX: Final = 253
ANNOTATIONS_BYTES_MAX: Final = 256 * 1024
FIELD_MANAGER_LEN_MAX: Final = 128
_REMEMBERED_MAX: Final = 4096
"""Texts whose judgement is remembered, of each kind; none is longer than `SUBDOMAIN_LEN_MAX`."""

NAMESPACE_DEFAULT: Final = "default"
NAMESPACE_SYSTEM: Final = "kube-system"
NAMESPACE_PUBLIC: Final = "kube-public"
NAMESPACE_NODE_LEASE: Final = "kube-node-lease"
KUBERNETES_NAMESPACES: Final = (NAMESPACE_DEFAULT, NAMESPACE_SYSTEM, NAMESPACE_PUBLIC, NAMESPACE_NODE_LEASE)
"""Those that every cluster has."""
NAMESPACE_CROSS_DOMAIN: Final = "cross-domain"
"""Where what several parties share lives: KusciaJob, KusciaTask, KusciaDeployment."""

_GENERATED_LEN: Final = 5
# Vowels and the digits that look like them are left out, so that no word comes about by accident.
_GENERATED_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"

_DNS1123_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_DNS1123_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_DNS1035_LABEL: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_QUALIFIED: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_CONFIG_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+")
_ENV_NAME: Final = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_PORT_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


Validate = Callable[[str], list[str]]


def _quick(good: re.Pattern[str]) -> Callable[[Validate], Validate]:
    """`validate` for names of which most are `good`.

    The same keys, variables and containers come with every pod, so they are remembered; and an object may have tens of
    thousands of them, each another one, so those that are not are told by one look too.
    """
    is_good = good.fullmatch

    def quicker(validate: Validate) -> Validate:
        known: set[str] = set()

        @functools.wraps(validate)
        def quick(text: str) -> list[str]:
            if text in known:
                return []
            if not is_good(text):
                return validate(text)
            if len(known) >= _REMEMBERED_MAX:
                known.clear()
            known.add(text)
            return []

        return quick

    return quicker


@_quick(re.compile(rf"(?=.{{1,{LABEL_LEN_MAX}}}\Z){_DNS1123_LABEL.pattern}"))
def validate_label_name(text: str) -> list[str]:
    """A DNS label as in RFC 1123: what namespaces, parties and containers are called."""
    return _check(
        text,
        _DNS1123_LABEL,
        LABEL_LEN_MAX,
        "lower case letters, digits and '-', with a letter or digit at both ends, as in 'my-name'",
    )


@_quick(re.compile(rf"(?=.{{1,{SUBDOMAIN_LEN_MAX}}}\Z){_DNS1123_SUBDOMAIN.pattern}"))
def validate_subdomain(text: str) -> list[str]:
    """DNS labels joined by dots: what most objects are called."""
    return _check(
        text,
        _DNS1123_SUBDOMAIN,
        SUBDOMAIN_LEN_MAX,
        "lower case letters, digits, '-' and '.', with a letter or digit at both ends of each part, as in 'example.com'",
    )


def validate_dns1035_label(text: str) -> list[str]:
    """A DNS label that begins with a letter: what services are called."""
    return _check(
        text,
        _DNS1035_LABEL,
        LABEL_LEN_MAX,
        "lower case letters, digits and '-', beginning with a letter and ending with a letter or digit, as in 'my-name'",
    )


def validate_path_segment(text: str) -> list[str]:
    """What may stand in a URL path as it is: roles, bindings and custom resource definitions have such names."""
    if not text:
        return ["must not be empty"]
    problems = []
    if text in (".", ".."):
        problems.append(f"may not be '{text}'")
    problems += [f"may not contain '{char}'" for char in "/%" if char in text]
    if len(text) > SUBDOMAIN_LEN_MAX:
        problems.append(f"must be no more than {SUBDOMAIN_LEN_MAX} characters")
    return problems


@_quick(
    re.compile(
        rf"(?:(?=[^/]{{1,{SUBDOMAIN_LEN_MAX}}}/){_DNS1123_SUBDOMAIN.pattern}/)?(?=[^/]{{1,{LABEL_LEN_MAX}}}\Z){_QUALIFIED.pattern}"
    )
)
def validate_qualified_name(text: str) -> list[str]:
    """`name` or `prefix/name`: label keys, annotation keys, finalizers, resource names."""
    prefix, slash, name = text.rpartition("/")
    problems = []
    if slash and not prefix:
        problems.append("the part before '/' must not be empty")
    elif slash:
        problems += [f"the part before '/' {problem}" for problem in validate_subdomain(prefix)]
    allowed = "letters, digits, '-', '_' and '.', with a letter or digit at both ends, as in 'MyName' or 'example.com/my.name'"
    return problems + _check(name, _QUALIFIED, LABEL_LEN_MAX, allowed)


def validate_label_key(text: str) -> list[str]:
    return validate_qualified_name(text)


@_quick(re.compile(rf"(?=.{{1,{LABEL_LEN_MAX}}}\Z){_QUALIFIED.pattern}"))
def validate_label_value(text: str) -> list[str]:
    """Empty is a value."""
    if not text:
        return []
    return _check(text, _QUALIFIED, LABEL_LEN_MAX, "letters, digits, '-', '_' and '.', with a letter or digit at both ends")


def validate_labels(labels: Mapping[str, Any]) -> list[tuple[str, str]]:
    """All that is wrong with a map of labels, as (key, message)."""
    return list(label_problems(labels))


def label_problems(labels: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """`validate_labels`, one by one."""
    for key in labels:
        for problem in validate_label_key(key):
            yield key, f"key {problem}"
    for key, value in labels.items():
        if not isinstance(value, str):
            yield key, f"value must be a string, not {type(value).__name__}; quote it"
        else:
            for problem in validate_label_value(value):
                yield key, f"value {value[:80]!r} {problem}"


def validate_annotations(annotations: Mapping[str, Any]) -> list[tuple[str, str]]:
    """All that is wrong with a map of annotations, as (key, message). Keys are compared without case, values are free text."""
    return list(annotation_problems(annotations))


def annotation_problems(annotations: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """`validate_annotations`, one by one."""
    for key in annotations:
        for problem in validate_qualified_name(key.lower()):
            yield key, f"key {problem}"
    size_bytes = 0
    for key, value in annotations.items():
        if not isinstance(value, str):
            yield key, f"value must be a string, not {type(value).__name__}; quote it"
        else:
            size_bytes += len(key.encode("utf-8", "surrogatepass")) + len(value.encode("utf-8", "surrogatepass"))
    if size_bytes > ANNOTATIONS_BYTES_MAX:
        hint = (
            "; 'kubectl apply --server-side' keeps no copy of the object there"
            if Kubernetes.LAST_APPLIED in annotations
            else ""
        )
        yield "", f"annotations hold {size_bytes} bytes together; the limit is {ANNOTATIONS_BYTES_MAX}{hint}"


def validate_config_key(text: str) -> list[str]:
    """A key of a ConfigMap or Secret, which may become a file name."""
    if text in (".", ".."):
        return [f"may not be '{text}'"]
    problems = _check(text, _CONFIG_KEY, SUBDOMAIN_LEN_MAX, "letters, digits, '-', '_' and '.'")
    return problems or (["may not begin with '..'"] if text.startswith("..") else [])


@_quick(re.compile(rf"(?!\.)(?=.{{1,{SUBDOMAIN_LEN_MAX}}}\Z){_ENV_NAME.pattern}"))
def validate_env_name(text: str) -> list[str]:
    """The name of an environment variable."""
    if text == "." or text.startswith(".."):
        return ["may not be '.' or begin with '..'"]
    return _check(text, _ENV_NAME, None, "letters, digits, '-', '_' and '.', and may not begin with a digit")


@_quick(re.compile(rf"(?=.{{1,15}}\Z)(?=[0-9-]*[a-z]){_PORT_NAME.pattern}"))
def validate_port_name(text: str) -> list[str]:
    """The name of a port, as IANA has them."""
    problems = _check(text, _PORT_NAME, 15, "lower case letters, digits and single '-' between them")
    if not any("a" <= char <= "z" for char in text):
        problems.append("must contain at least one letter")
    return problems


def validate_field_manager(text: str) -> list[str]:
    """The name under which a client owns fields."""
    problems = []
    if len(text) > FIELD_MANAGER_LEN_MAX:
        problems.append(f"must be no more than {FIELD_MANAGER_LEN_MAX} characters")
    if not text.isprintable():
        problems.append("must consist of printable characters")
    return problems


def validate_generate_name(prefix: str, validate: Callable[[str], list[str]] = validate_subdomain) -> list[str]:
    """Whether `prefix` can begin a name that `validate` accepts: it may end in '-', since more follows."""
    return validate(prefix[:-1] + "a") if prefix.endswith("-") else validate(prefix)


def generated_name(prefix: str, entropy: Entropy) -> str:
    """`prefix` and five random characters, at most 63 in all; a longer prefix is cut."""
    number = int.from_bytes(entropy(8), "big")
    suffix = []
    for _ in range(_GENERATED_LEN):
        number, digit = divmod(number, len(_GENERATED_ALPHABET))
        suffix.append(_GENERATED_ALPHABET[digit])
    return prefix[: LABEL_LEN_MAX - _GENERATED_LEN] + "".join(suffix)


def random_uid(entropy: Entropy) -> str:
    """A random UUID (version 4)."""
    octets = bytearray(entropy(16))
    octets[6], octets[8] = octets[6] & 0x0F | 0x40, octets[8] & 0x3F | 0x80
    text = octets.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _check(text: str, pattern: re.Pattern[str], len_max: int | None, allowed: str) -> list[str]:
    if not text:
        return ["must not be empty"]
    problems = []
    if len_max is not None and len(text) > len_max:
        problems.append(f"must be no more than {len_max} characters")
    # The length bounds the work of the pattern as well: its repetitions may be walked more than once.
    if not pattern.fullmatch(text if len_max is None else text[: SUBDOMAIN_LEN_MAX + 1]):
        problems.append(f"must consist of {allowed}")
    return problems
