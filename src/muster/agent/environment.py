"""The environment of a container, and `$(VARIABLE)` in its command, as Kubernetes has them. Pure, given what it names.

`resolve` needs the ConfigMaps and Secrets of the pod's namespace that `references` lists; None stands for one that is not
there. AgentError `CreateContainerConfigError` names the variable, the object and the key.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from muster.agent.contracts import AgentError
from muster.objects.kinds.containers import Container, EnvVarSource, ObjectFieldSelector, ResourceFieldSelector
from muster.objects.kinds.pods import PodSpec
from muster.objects.meta import annotations_of, labels_of, metadata_of
from muster.objects.quantity import Quantity
from muster.objects.status import Raw

ENV_BYTES_MAX: Final = 1 << 20
"""All variables of a container together; the kernel's own limit on arguments and environment is about two of these."""
_NAME: Final = re.compile(r"[^=\x00]+")
_VARIABLE: Final = re.compile(r"\$(\$|\(([^()\s]*)\))")
_MAP_KEY: Final = re.compile(r"(metadata\.(?:labels|annotations))\['([^']+)'\]")

SourceKey = tuple[str, str]
"""Kind (`ConfigMap`, `Secret`) and name, in the pod's namespace."""
Sources = Mapping[SourceKey, Raw | None]
Decoded = dict[SourceKey, dict[str, bytes]]
"""What was decoded of them so far."""


class PodFields(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod can be told about itself besides its own manifest."""

    pod: Raw
    spec: PodSpec
    node: str = ""
    pod_ip: str = ""
    host_ip: str = ""
    allocatable: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The node's: stands in for limits that a container does not have."""
    tokens: Mapping[tuple[str, int], bytes | str] = msgspec.field(default_factory=dict)
    """Of its service account, for its volumes (`pod_tokens`)."""


def config_error(message: str) -> AgentError:
    return AgentError("CreateContainerConfigError", message)


def references(container: Container) -> Iterator[SourceKey]:
    """The ConfigMaps and Secrets that its environment names."""
    for many in container.env_from:
        if many.config_map_ref is not None:
            yield "ConfigMap", many.config_map_ref.name
        if many.secret_ref is not None:
            yield "Secret", many.secret_ref.name
    for one in container.env:
        if one.value_from is not None and (ref := one.value_from.config_map_key_ref) is not None:
            yield "ConfigMap", ref.name
        if one.value_from is not None and (key := one.value_from.secret_key_ref) is not None:
            yield "Secret", key.name


def resolve(container: Container, fields: PodFields, sources: Sources) -> dict[str, str]:
    """All variables in order; `env` wins over `envFrom`, later ones over earlier ones."""
    found: dict[str, str] = {}
    known: Decoded = {}
    for many in container.env_from:
        for kind, ref in (("ConfigMap", many.config_map_ref), ("Secret", many.secret_ref)):
            if ref is not None:
                for key, value in _all_keys(
                    container, (kind, ref.name), sources, known, is_optional=bool(ref.optional)
                ).items():
                    name = many.prefix + key
                    if _NAME.fullmatch(name):
                        found[name] = value
        _check_size(container, found)
    size = 0
    for index, one in enumerate(container.env):
        where = f"container {container.name}: env[{index}] {one.name}"
        if not _NAME.fullmatch(one.name):
            raise config_error(f"{where}: a variable's name has no = and is not empty")
        if one.value_from is not None:
            value_or_none = _value_from(where, one.value_from, container, fields, sources, known=known)
            if value_or_none is None:
                continue
            found[one.name] = value_or_none
        else:
            found[one.name] = expand(one.value, found)
        size += len(one.name) + len(found[one.name])
        if size > ENV_BYTES_MAX:  # before it grows any further
            raise config_error(f"{where}: with it the environment has more than {ENV_BYTES_MAX} characters")
    _check_size(container, found)
    return found


def expand(text: str, variables: Mapping[str, str], len_max: int = ENV_BYTES_MAX) -> str:
    """`$(NAME)` becomes the variable, `$$` a dollar; a name that nobody set stays as it is written.

    Variables that name each other grow without end in a few lines: what would be longer than `len_max` is refused before it
    is made."""
    grown = 0

    def replaced(match: re.Match[str]) -> str:
        nonlocal grown
        value = "$" if match[1] == "$" else variables.get(match[2], match[0])
        grown += len(value)
        if grown > len_max:
            raise config_error(f"{text[:80]!r}: with its variables filled in it has more than {len_max} characters")
        return value

    return _VARIABLE.sub(replaced, text)


def expand_all(texts: Sequence[str], variables: Mapping[str, str]) -> tuple[str, ...]:
    """Together they are no longer than one may be."""
    left = ENV_BYTES_MAX
    found: list[str] = []
    for text in texts:
        found.append(expand(text, variables, left))
        left = max(0, left - len(found[-1]))
    return tuple(found)


def data_once(key: SourceKey, raw: Raw, known: Decoded) -> dict[str, bytes]:
    """`data_of`, decoded once: a manifest may name the same large object thousands of times."""
    found = known.get(key)
    if found is None:
        found = known[key] = data_of(key[0], raw)
    return found


def data_of(kind: str, raw: Raw) -> dict[str, bytes]:
    """The keys of a ConfigMap or Secret with their contents. What is not base64 there is left out."""
    found: dict[str, bytes] = {}
    data = raw.get("data")
    for key, value in data.items() if isinstance(data, dict) else ():
        if kind == "ConfigMap":
            found[str(key)] = str(value).encode("utf-8", "surrogateescape")
        elif (decoded := _decoded(value)) is not None:
            found[str(key)] = decoded
    binary = raw.get("binaryData")
    for key, value in binary.items() if isinstance(binary, dict) and kind == "ConfigMap" else ():
        if (decoded := _decoded(value)) is not None:
            found[str(key)] = decoded
    return found


def field_value(where: str, ref: ObjectFieldSelector, fields: PodFields) -> str:
    """A field of the pod, as text."""
    path, meta = ref.field_path, metadata_of(fields.pod)
    if match := _MAP_KEY.fullmatch(path):
        owned = labels_of(fields.pod) if match[1] == "metadata.labels" else annotations_of(fields.pod)
        return owned.get(match[2], "")
    if path in ("metadata.labels", "metadata.annotations"):
        owned = labels_of(fields.pod) if path == "metadata.labels" else annotations_of(fields.pod)
        return "\n".join(f"{key}={msgspec.json.encode(value).decode()}" for key, value in sorted(owned.items()))
    values = {
        "metadata.name": meta.get("name"),
        "metadata.namespace": meta.get("namespace"),
        "metadata.uid": meta.get("uid"),
        "spec.nodeName": fields.spec.node_name or fields.node,
        "spec.serviceAccountName": fields.spec.service_account_name,
        "status.podIP": fields.pod_ip or fields.host_ip,
        "status.podIPs": fields.pod_ip or fields.host_ip,
        "status.hostIP": fields.host_ip,
        "status.hostIPs": fields.host_ip,
    }
    if path not in values:
        raise config_error(f"{where}: fieldPath {path!r} is not one of {', '.join(sorted(values))}, or a label or annotation")
    return str(values[path] or "")


def resource_value(where: str, ref: ResourceFieldSelector, container: Container | None, fields: PodFields) -> str:
    """A request or limit in whole units of the divisor, rounded up."""
    word, _, name = ref.resource.partition(".")
    if ref.container_name:
        every = (*fields.spec.containers, *fields.spec.init_containers)
        container = next((c for c in every if c.name == ref.container_name), None)
    if container is None or word not in ("limits", "requests") or not name:
        raise config_error(
            f"{where}: {ref.resource!r} of container {ref.container_name!r}: write limits.cpu or requests.memory"
        )
    resources = container.resources
    amounts: Mapping[str, Any] = {} if resources is None else resources.limits if word == "limits" else resources.requests
    amount = amounts.get(name)
    if amount is None:
        amount = fields.allocatable.get(name, "0") if word == "limits" else "0"
    try:
        divisor = Quantity.parse(ref.divisor) if ref.divisor not in (None, "", "0", 0) else Quantity.parse("1")
        return str(-(-Quantity.parse(amount).fraction() // divisor.fraction()))
    except (ValueError, ZeroDivisionError) as e:
        raise config_error(f"{where}: {ref.resource} {amount!r} by divisor {ref.divisor!r}: {e}") from e


def _value_from(
    where: str, source: EnvVarSource, container: Container, fields: PodFields, sources: Sources, *, known: Decoded
) -> str | None:
    """None: optional and not there."""
    if source.field_ref is not None:
        return field_value(where, source.field_ref, fields)
    if source.resource_field_ref is not None:
        return resource_value(where, source.resource_field_ref, container, fields)
    for kind, ref in (("ConfigMap", source.config_map_key_ref), ("Secret", source.secret_key_ref)):
        if ref is None:
            continue
        raw = sources.get((kind, ref.name))
        data = data_once((kind, ref.name), raw, known) if raw is not None else {}
        if ref.key in data:
            return _text(where, f"{kind} {ref.name} key {ref.key}", data[ref.key])
        if ref.optional:
            return None
        lacking = f"has no key {ref.key!r}" if raw is not None else "is not there"
        raise config_error(f"{where}: {kind} {ref.name!r} {lacking}; create it, or mark the reference as optional")
    raise config_error(f"{where}: valueFrom names no source that this node knows")


def _all_keys(container: Container, key: SourceKey, sources: Sources, known: Decoded, *, is_optional: bool) -> dict[str, str]:
    raw = sources.get(key)
    if raw is None:
        if is_optional:
            return {}
        raise config_error(
            f"container {container.name}: envFrom: {key[0]} {key[1]!r} is not there; create it, or mark it as optional"
        )
    where = f"container {container.name}: envFrom"
    data = data_once(key, raw, known)
    return {name: _text(where, f"{key[0]} {key[1]} key {name}", value) for name, value in sorted(data.items())}


def _text(where: str, what: str, value: bytes) -> str:
    if b"\x00" in value:
        raise config_error(f"{where}: {what} has a zero byte, which no variable can hold")
    return value.decode("utf-8", "surrogateescape")


def _check_size(container: Container, variables: Mapping[str, str]) -> None:
    size = sum(len(name) + len(value) + 2 for name, value in variables.items())
    if size > ENV_BYTES_MAX:
        raise config_error(
            f"container {container.name}: its environment has {size} characters; at most {ENV_BYTES_MAX} are possible"
        )
    for name, value in variables.items():
        if "\x00" in value:
            raise config_error(f"container {container.name}: variable {name} has a zero byte")


def _decoded(value: object) -> bytes | None:
    try:
        return base64.b64decode(str(value), validate=True)
    except (binascii.Error, ValueError):
        return None
