"""What Kubernetes makes of an object when it is created, replaced or given a status. Pure: time and identity are handed in.

Functions take what a client sent and what is stored, and return what shall be stored, before defaults, schemas and admission.
Nothing that is passed in is changed; parts of it may be shared with the result, which is encoded before anyone else sees it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from muster.objects.names import NAMESPACE_DEFAULT, NAMESPACE_PUBLIC, NAMESPACE_SYSTEM
from muster.objects.resources import Resource
from muster.objects.status import (
    ApiError,
    BadRequest,
    Cause,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Raw,
    RequestEntityTooLarge,
    shown,
)
from muster.store.contract import Preconditions
from muster.store.embedded.records import Key, Record

E = TypeVar("E", bound=ApiError)

_canonical = msgspec.json.Encoder(order="sorted").encode

SYSTEM_FIELDS = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink")
"""Metadata that only the store sets."""
_SYSTEM_FIELDS = frozenset(SYSTEM_FIELDS)
_OWN_FIELDS = (*SYSTEM_FIELDS, "resourceVersion")

_EMPTY_IS_ABSENT = frozenset(
    {"labels", "annotations", "finalizers", "ownerReferences", "generateName", "namespace", "resourceVersion", "selfLink"}
)
"""Metadata that Kubernetes never shows empty."""

NAMESPACES_KEPT = frozenset({NAMESPACE_DEFAULT, NAMESPACE_SYSTEM, NAMESPACE_PUBLIC})
"""Namespaces that nobody may delete."""


def same(a: Any, b: Any) -> bool:
    """Equal as JSON. Python alone would take true for 1."""
    return bool(a == b) and _canonical(a) == _canonical(b)


def refusal(cls: type[E], resource: Resource, name: str, message: str, *, causes: Sequence[Cause] = ()) -> E:
    """An error about one object."""
    return cls(message, kind=resource.plural, group=resource.group, name=name, causes=causes)


def not_found(resource: Resource, name: str) -> NotFound:
    return refusal(NotFound, resource, name, f'{resource.qualified} "{name}" not found')


def conflict(resource: Resource, name: str, why: str) -> Conflict:
    return refusal(Conflict, resource, name, f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}')


def stale(resource: Resource, name: str) -> Conflict:
    return conflict(
        resource, name, "the object has been modified; please apply your changes to the latest version and try again"
    )


def invalid(resource: Resource, name: str, causes: list[Cause]) -> Invalid:
    """All that is wrong with one object, in one message."""
    text = _listed(causes)
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    # Kubernetes names the kind here, where its other refusals name the resource: kubectl prints `The Pod "x" is invalid`.
    return Invalid(f'{kind} "{name}" is invalid: {text}', kind=resource.kind, group=resource.group, name=name, causes=causes)


def _listed(causes: list[Cause]) -> str:
    text = ", ".join(f"{c.field}: {c.message}" if c.field else c.message for c in causes)
    return f"[{text}]" if len(causes) > 1 else text


def too_large(resource: Resource, name: str, size: int, limit: int) -> RequestEntityTooLarge:
    message = (
        f'{resource.qualified} "{name}" has {size} bytes as JSON and the limit is {limit}; '
        "make it smaller, or keep large data elsewhere and refer to it"
    )
    return refusal(RequestEntityTooLarge, resource, name, message)


def not_json(resource: Resource, name: str, error: Exception) -> BadRequest:
    """Only a caller in this process can bring that about."""
    return refusal(BadRequest, resource, name, f'{resource.qualified} "{name}" can\'t be written as JSON: {error}')


def other_uid(resource: Resource, record: Record, uid: str) -> Conflict:
    """The object that is meant is gone, and `record` is another one under its name."""
    return conflict(resource, record.name, f"Precondition failed: UID in precondition: {uid}, UID in object meta: {record.uid}")


def unreadable(resource: Resource, name: str, causes: list[Cause]) -> BadRequest:
    """What has values of wrong types is no object of this kind. Worded as in Kubernetes."""
    kind, text = resource.kind, _listed(causes)
    return refusal(
        BadRequest,
        resource,
        name,
        f'{kind} in version "{resource.version}" cannot be handled as a {kind}: {text}',
        causes=causes,
    )


# --- what a client sent ------------------------------------------------------------------------------------------


def conform(resource: Resource, obj: Mapping[str, Any]) -> Raw:
    """`obj` as an object of this kind, with a top level and metadata that may be changed without touching the caller's."""
    if not isinstance(obj, Mapping):
        raise BadRequest(f"a {resource.kind} must be a JSON object, not {type(obj).__name__}")
    for field, expected in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        given = obj.get(field)
        if given and given != expected:
            raise BadRequest(
                f"{field} of the object ({given!r}) does not match the request ({expected!r})", kind=resource.plural
            )
    meta = obj.get("metadata")
    if meta is not None and not isinstance(meta, Mapping):
        raise BadRequest(f"metadata of the {resource.kind} must be an object, not {type(meta).__name__}")
    raw: Raw = {"apiVersion": resource.api_version, "kind": resource.kind}
    raw["metadata"] = {k: v for k, v in meta.items() if v or (v is not None and k not in _EMPTY_IS_ABSENT)} if meta else {}
    for field in ("labels", "annotations"):
        texts = raw["metadata"].get(field)
        if isinstance(texts, dict) and None in texts.values():  # `key:` without a value, in YAML
            raw["metadata"][field] = {key: "" if text is None else text for key, text in texts.items()}
    for key, value in obj.items():
        if key not in raw:
            raw[key] = value
    return raw


def check_same_kind(resource: Resource, patched: Mapping[str, Any]) -> None:
    """A patch can't make an object one of another kind."""
    expected = {"apiVersion": resource.api_version, "kind": resource.kind}
    causes = [
        Cause(field, f"Invalid value: {shown(given)}: must be {wanted}")
        for field, wanted in expected.items()
        if (given := patched.get(field)) and given != wanted
    ]
    if causes:
        meta = patched.get("metadata")
        raise invalid(resource, str(meta.get("name") or "") if isinstance(meta, Mapping) else "", causes)


def check_namespace(resource: Resource, raw: Raw, namespace: str | None) -> str:
    """The namespace of a write, set in `raw`; "" for kinds without. The request and the object must not disagree."""
    meta = raw["metadata"]
    given = meta.get("namespace")
    if given is not None and not isinstance(given, str):
        raise BadRequest(f"metadata.namespace must be a string, not {type(given).__name__}")
    if not resource.namespaced:
        if given:
            raise BadRequest(f"{resource.qualified} are not namespaced, but metadata.namespace is {given!r}; leave it out")
        if namespace:
            raise BadRequest(f"{resource.qualified} are not namespaced, but the request names namespace {namespace!r}")
        meta.pop("namespace", None)
        return ""
    if namespace and given and given != namespace:
        raise BadRequest(
            "the namespace of the provided object does not match the namespace sent on the request "
            f"({given!r} and {namespace!r})"
        )
    chosen = namespace or given
    if not chosen:
        raise BadRequest(f"{resource.qualified} are namespaced: the request or metadata.namespace must name the namespace")
    meta["namespace"] = chosen
    return str(chosen)


def key_of(resource: Resource, name: str, namespace: str | None) -> Key:
    """Where a request says that the object is."""
    if not resource.namespaced:
        return ("", name)
    if not namespace:
        raise BadRequest(
            f'{resource.qualified} are namespaced: name the namespace of "{name}"', kind=resource.plural, name=name
        )
    return (namespace, name)


def require_name(resource: Resource, raw: Raw) -> str:
    name = raw["metadata"].get("name")
    if not isinstance(name, str) or not name:
        raise invalid(resource, "", [Cause("metadata.name", "Required value: name is required", "FieldValueRequired")])
    return name


def check_same_name(resource: Resource, raw: Raw, key: Key) -> None:
    """The object is the one that the request names."""
    if raw["metadata"].get("name") != key[1]:
        raise BadRequest(
            f"the name of the object ({raw['metadata'].get('name')!s:.100}) does not match the name on the URL ({key[1]})"
        )
    check_namespace(resource, raw, key[0] or None)


def check_preconditions(resource: Resource, record: Record, preconditions: Preconditions | None) -> None:
    if preconditions is None:
        return
    if preconditions.uid and preconditions.uid != record.uid:
        why = f"the UID in the precondition ({preconditions.uid}) does not match the UID in record ({record.uid}). "
        raise conflict(resource, record.name, why + "The object might have been deleted and then recreated")
    wanted = preconditions.resource_version
    if wanted and wanted != str(record.rv):
        why = f"the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({record.rv}). "
        raise conflict(resource, record.name, why + "The object might have been modified")


def check_version(resource: Resource, raw: Raw, record: Record, *, required: bool, is_patched: bool = False) -> None:
    """Optimistic concurrency: a resourceVersion in the object must be the stored one. Likewise the uid, which a patch might
    change, where a whole object that names another one is meant for another one."""
    meta = raw["metadata"]
    given = meta.get("resourceVersion")
    if given is not None and not isinstance(given, str):
        raise BadRequest(f"metadata.resourceVersion must be a string, not {type(given).__name__}")
    if given:
        if given != str(record.rv):
            raise stale(resource, record.name)
    elif required:
        cause = Cause("metadata.resourceVersion", "Invalid value: 0x0: must be specified for an update")
        raise invalid(resource, record.name, [cause])
    uid = meta.get("uid")
    if uid and uid != record.uid:
        if is_patched:
            cause = Cause("metadata.uid", f"Invalid value: {shown(uid)}: field is immutable")
            raise invalid(resource, record.name, [cause])
        raise other_uid(resource, record, uid)


# --- create ------------------------------------------------------------------------------------------------------


def dropped(raw: Raw, *, drop_status: bool) -> Raw:
    """What of a new object `stamp_new` drops though somebody sent it: most send nothing of it."""
    meta, parts = raw["metadata"], {}
    if not _SYSTEM_FIELDS.isdisjoint(meta):
        parts["metadata"] = {field: meta[field] for field in SYSTEM_FIELDS if field in meta}
    if drop_status and raw.get("status"):
        parts["status"] = raw["status"]
    return parts


def stamp_new(resource: Resource, raw: Raw, *, uid: str, now_text: str, drop_status: bool) -> None:
    """Set what only the store sets, in an object that `conform` returned."""
    meta = raw["metadata"]
    if meta.get("resourceVersion"):
        raise BadRequest(
            "resourceVersion should not be set on objects to be created", kind=resource.plural, group=resource.group
        )
    for field in ("resourceVersion", *SYSTEM_FIELDS):
        meta.pop(field, None)
    meta["uid"] = uid
    meta["creationTimestamp"] = now_text
    if resource.generation_tracked:
        meta["generation"] = 1
    if drop_status:
        raw.pop("status", None)


def check_content_allowed(resource: Resource, name: str, namespace: Record | None, namespace_name: str) -> None:
    """Whether something new may come into a namespace."""
    if namespace is None:
        raise NotFound(f'namespaces "{namespace_name}" not found', kind="namespaces", name=namespace_name)
    if namespace.deleting:
        cause = Cause("metadata.namespace", f"namespace {namespace_name} is being terminated", "NamespaceTerminating")
        message = (
            f'{resource.qualified} "{name}" is forbidden: unable to create new content in namespace {namespace_name} '
            "because it is being terminated"
        )
        raise refusal(Forbidden, resource, name, message, causes=[cause])


# --- update ------------------------------------------------------------------------------------------------------


def replace(resource: Resource, current: Raw, raw: Raw) -> Raw:
    """The object after a client's replacement `raw`: its own metadata and status are kept from `current`."""
    _keep(current["metadata"], raw["metadata"], _OWN_FIELDS)
    if resource.has_status:
        raw.pop("status", None)
        if "status" in current:
            raw["status"] = current["status"]
    return raw


def _keep(old: Raw, meta: Raw, fields: Iterable[str]) -> None:
    """Has `meta` say of `fields` what `old` says."""
    for field in fields:
        if field in old:
            meta[field] = old[field]
        else:
            meta.pop(field, None)


def replace_status(resource: Resource, current: Raw, raw: Raw) -> Raw:
    """The object after a client's write to its status: the rest is kept from `current`.

    But metadata of Kubernetes' own kinds are taken from the client here too, except for what `resource.status_keeps` names.
    """
    result = dict(current)
    if "status" in raw:
        result["status"] = raw["status"]
    else:
        result.pop("status", None)
    if not resource.is_custom:
        result["metadata"] = raw["metadata"]
        _keep(current["metadata"], raw["metadata"], (*_OWN_FIELDS, *resource.status_keeps))
        return result
    result["metadata"] = dict(current["metadata"])
    # What the client says about its fields travels along; the tracker takes it from here.
    if "managedFields" in raw["metadata"]:
        result["metadata"]["managedFields"] = raw["metadata"]["managedFields"]
    return result


def advance_generation(resource: Resource, current: Raw, raw: Raw, *, is_status: bool = False) -> None:
    """`generation` moves when anything outside metadata and status differs; status counts where it is no subresource.

    Where annotations count too (`Resource.generation_counts_annotations`), they don't in a write to the status.
    """
    if not resource.generation_tracked:
        return
    before = current["metadata"].get("generation") or 0
    ignored = ("metadata", "status", "apiVersion") if resource.has_status else ("metadata", "apiVersion")
    before_parts, parts = _outside(current, ignored), _outside(raw, ignored)
    # A write to the status takes the other parts over as they are.
    is_shared = before_parts.keys() == parts.keys() and all(part is parts[key] for key, part in before_parts.items())
    changed = not is_shared and not same(before_parts, parts)
    if resource.generation_counts_annotations and not is_status and not changed:
        changed = current["metadata"].get("annotations") != raw["metadata"].get("annotations")
    raw["metadata"]["generation"] = before + 1 if changed else (before or 1)


def _outside(raw: Raw, ignored: tuple[str, ...]) -> Raw:
    return {key: value for key, value in raw.items() if key not in ignored}


def is_unchanged(current: Raw, raw: Raw) -> bool:
    """Whether storing `raw` would store what is there. When managed fields differ only in their times, nothing changed."""
    if same(current, raw):
        return True
    a, b = current["metadata"], raw["metadata"]
    if _outside(current, ("metadata",)) != _outside(raw, ("metadata",)):
        return False
    if not same(_outside(a, ("managedFields",)), _outside(b, ("managedFields",))):
        return False
    if not same(_outside(current, ("metadata",)), _outside(raw, ("metadata",))):
        return False
    return same(_timeless(a.get("managedFields")), _timeless(b.get("managedFields")))


def _timeless(entries: Any) -> Any:
    if not isinstance(entries, list):
        return entries
    return [{k: v for k, v in e.items() if k != "time"} if isinstance(e, dict) else e for e in entries]
