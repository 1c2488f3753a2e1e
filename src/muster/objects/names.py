"""Which names, label keys and values Kubernetes accepts, and how it makes names up.

Every `validate_*` returns what is wrong with one text as a list of messages, empty when nothing is; the caller adds the field
and the value. Pure: randomness is handed in as a source of bytes (`os.urandom` at the edge, a seeded one in simulations).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

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


def _remembered(validate: Validate) -> Validate:
    """`validate` with a memory: the same keys, variables and containers come with every pod."""
    known = functools.lru_cache(maxsize=_REMEMBERED_MAX)(lambda text: tuple(validate(text)))

    @functools.wraps(validate)
    def remembered(text: str) -> list[str]:
        return [*known(text)] if len(text) <= SUBDOMAIN_LEN_MAX else validate(text)

    return remembered


@_remembered
def validate_label_name(text: str) -> list[str]:
    """A DNS label as in RFC 1123: what namespaces, parties and containers are called."""
    return _check(
        text,
        _DNS1123_LABEL,
        LABEL_LEN_MAX,
        "lower case letters, digits and '-', with a letter or digit at both ends, as in 'my-name'",
    )


@_remembered
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


@_remembered
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


@_remembered
def validate_label_value(text: str) -> list[str]:
    """Empty is a value."""
    if not text:
        return []
    return _check(text, _QUALIFIED, LABEL_LEN_MAX, "letters, digits, '-', '_' and '.', with a letter or digit at both ends")


def validate_labels(labels: Mapping[str, Any]) -> list[tuple[str, str]]:
    """All that is wrong with a map of labels, as (key, message)."""
    problems = [(key, f"key {problem}") for key in labels for problem in validate_label_key(key)]
    for key, value in labels.items():
        if not isinstance(value, str):
            problems.append((key, f"value must be a string, not {type(value).__name__}; quote it"))
        else:
            problems += [(key, f"value {value[:80]!r} {problem}") for problem in validate_label_value(value)]
    return problems


def validate_annotations(annotations: Mapping[str, Any]) -> list[tuple[str, str]]:
    """All that is wrong with a map of annotations, as (key, message). Keys are compared without case, values are free text."""
    problems = [(key, f"key {problem}") for key in annotations for problem in validate_qualified_name(key.lower())]
    size_bytes = 0
    for key, value in annotations.items():
        if not isinstance(value, str):
            problems.append((key, f"value must be a string, not {type(value).__name__}; quote it"))
        else:
            size_bytes += len(key.encode("utf-8", "surrogatepass")) + len(value.encode("utf-8", "surrogatepass"))
    if size_bytes > ANNOTATIONS_BYTES_MAX:
        problems.append(("", f"annotations hold {size_bytes} bytes together; the limit is {ANNOTATIONS_BYTES_MAX}"))
    return problems


def validate_config_key(text: str) -> list[str]:
    """A key of a ConfigMap or Secret, which may become a file name."""
    if text in (".", ".."):
        return [f"may not be '{text}'"]
    problems = _check(text, _CONFIG_KEY, SUBDOMAIN_LEN_MAX, "letters, digits, '-', '_' and '.'")
    return problems or (["may not begin with '..'"] if text.startswith("..") else [])


@_remembered
def validate_env_name(text: str) -> list[str]:
    """The name of an environment variable."""
    if text == "." or text.startswith(".."):
        return ["may not be '.' or begin with '..'"]
    return _check(text, _ENV_NAME, None, "letters, digits, '-', '_' and '.', and may not begin with a digit")


@_remembered
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
