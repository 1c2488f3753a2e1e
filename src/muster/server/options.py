"""Query parameters and option bodies, read into the store's own option types.

Pure. Everything a client can get wrong here is refused with the parameter, its value and what is accepted: 400 what can't be
read as its type, 422 what can and is not allowed, as Kubernetes tells them apart.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import msgspec

from muster.objects.status import BadRequest, Cause, Invalid, shown
from muster.server.config import ServerLimits
from muster.server.exchange import Query, Request
from muster.store.contract import PatchType, Preconditions, Propagation, WriteOptions

_MANAGER_BYTES_MAX = 128
_PROPAGATION = ("Foreground", "Background", "Orphan")
_VALIDATION = ("Ignore", "Warn", "Strict")
_MATCHES = ("Exact", "NotOlderThan")
_INVALID, _NOT_SUPPORTED, _TOO_LONG = "FieldValueInvalid", "FieldValueNotSupported", "FieldValueTooLong"
_KINDS = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions"}
"""What Kubernetes calls the options of a write, by its method."""


def write_options(request: Request, patch_type: PatchType | None = None) -> WriteOptions:
    """dryRun, fieldManager, fieldValidation, force."""
    query = request.query
    kind = _KINDS.get(request.method, "CreateOptions")
    is_apply = patch_type is PatchType.APPLY
    manager = query.text("fieldManager")
    if len(manager.encode()) > _MANAGER_BYTES_MAX:
        message = f"Too long: {shown(manager)}: must have at most {_MANAGER_BYTES_MAX} bytes"
        raise _invalid_option(kind, "fieldManager", message, _TOO_LONG)
    if not manager.isprintable():
        message = f"Invalid value: {manager!r}: only printable characters are allowed"
        raise _invalid_option(kind, "fieldManager", message, _INVALID)
    if is_apply and not manager:
        raise _invalid_option(
            "PatchOptions", "fieldManager", "Required value: is required for apply patch", "FieldValueRequired"
        )
    force = request.method == "PATCH" and query.flag("force")
    if force and not is_apply:
        raise _invalid_option(
            "PatchOptions", "force", "Forbidden: may not be specified for non-apply patch", "FieldValueForbidden"
        )
    validation = query.text("fieldValidation") or "Warn"
    if validation not in _VALIDATION:
        raise _unsupported(kind, "fieldValidation", validation, _VALIDATION)
    return WriteOptions(
        dry_run=_dry_run(kind, query.texts("dryRun")),
        field_manager=manager or default_manager(request.header("user-agent")),
        force=force,
        field_validation=cast(Literal["Ignore", "Warn", "Strict"], validation),
    )


def _dry_run(kind: str, values: list[str]) -> bool:
    if values and set(values) != {"All"}:
        raise _unsupported(kind, "dryRun", values, ("All",))
    return bool(values)


def default_manager(user_agent: str) -> str:
    """Who owns the fields of a write that does not say: the program's name, as Kubernetes takes it from the User-Agent."""
    name = user_agent.partition("/")[0].strip()[:_MANAGER_BYTES_MAX]
    return name if name and name.isprintable() else "unknown"


def _invalid_option(kind: str, field: str, message: str, reason: str) -> Invalid:
    return Invalid(
        f'{kind}.meta.k8s.io "" is invalid: {field}: {message}',
        kind=kind,
        group="meta.k8s.io",
        causes=[Cause(field, message, reason)],
    )


def _unsupported(kind: str, field: str, value: Any, supported: tuple[str, ...]) -> Invalid:
    listed = ", ".join(f'"{word}"' for word in supported)
    return _invalid_option(kind, field, f"Unsupported value: {shown(value)}: supported values: {listed}", _NOT_SUPPORTED)


class DeleteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a delete asks for, from its body and its query; the body wins."""

    write: WriteOptions
    propagation: Propagation | None = None
    grace_period_s: int | None = None
    preconditions: Preconditions | None = None


class _Preconditions(msgspec.Struct, rename="camel"):
    uid: str | None = None
    resource_version: str | None = None


class _DeleteBody(msgspec.Struct, rename="camel"):
    api_version: str | None = None
    kind: str | None = None
    dry_run: list[str] | None = None
    grace_period_seconds: int | None = None
    orphan_dependents: bool | None = None
    propagation_policy: str | None = None
    preconditions: _Preconditions | None = None


def delete_options(request: Request, body: Any) -> DeleteOptions:
    """`body` is the decoded body, None when there was none."""
    query = request.query
    try:
        given = msgspec.convert(body or {}, _DeleteBody)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the body of a delete must be DeleteOptions: {error}") from None
    if given.kind not in (None, "", "DeleteOptions"):
        raise BadRequest(f"the body of a delete must be DeleteOptions, not {given.kind[:80]!r}")
    is_dry_run = _dry_run("DeleteOptions", given.dry_run or query.texts("dryRun"))
    policy = given.propagation_policy
    if policy is None and "propagationPolicy" in query:
        policy = query.text("propagationPolicy")
    orphan = given.orphan_dependents
    if orphan is None and "orphanDependents" in query:
        orphan = query.flag("orphanDependents")
    if policy is not None and orphan is not None:
        message = f"Invalid value: {shown(policy)}: orphanDependents and propagationPolicy exclude each other"
        raise _invalid_option("DeleteOptions", "propagationPolicy", message, _INVALID)
    if orphan is not None:
        policy = "Orphan" if orphan else "Background"
    if policy is not None and policy not in _PROPAGATION:
        raise _unsupported("DeleteOptions", "propagationPolicy", policy, _PROPAGATION)
    grace_s = given.grace_period_seconds
    if grace_s is None:
        grace_s = query.integer("gracePeriodSeconds")
    conditions = given.preconditions
    return DeleteOptions(
        write=WriteOptions(dry_run=is_dry_run),
        propagation=cast(Propagation, policy) if policy else None,
        grace_period_s=grace_s,
        preconditions=Preconditions(conditions.uid, conditions.resource_version) if conditions else None,
    )


class ListOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a list or watch asks for. Selectors stay text: the store reads them."""

    label_selector: str = ""
    field_selector: str = ""
    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    version_match: Literal["", "Exact", "NotOlderThan"] = ""
    timeout_s: float | None = None
    bookmarks: bool = False
    send_initial_events: bool | None = None


def list_options(query: Query, limits: ServerLimits, *, is_watch: bool = False) -> ListOptions:
    limit = max(query.integer("limit") or 0, 0)
    version = version_text(query)
    match = query.text("resourceVersionMatch")
    if match and match not in _MATCHES:
        raise _unsupported("ListOptions", "resourceVersionMatch", match, _MATCHES)
    token = query.text("continue")
    initial = query.flag("sendInitialEvents") if "sendInitialEvents" in query else None
    timeout_s = query.integer("timeoutSeconds")
    if is_watch:
        if initial is not None and match != "NotOlderThan":
            raise _invalid_list(
                "resourceVersionMatch", "Forbidden: sendInitialEvents requires resourceVersionMatch=NotOlderThan"
            )
        if initial is None and match:
            raise _invalid_list("resourceVersionMatch", "Forbidden: it is for watches with sendInitialEvents only")
    else:
        if initial is not None:
            raise _invalid_list("sendInitialEvents", "Forbidden: it is for watches only")
        if match and not version:
            raise _invalid_list("resourceVersionMatch", "Forbidden: it needs a resourceVersion")
        if match == "Exact" and version == "0":
            raise _invalid_list("resourceVersionMatch", 'Forbidden: "Exact" is not possible with resourceVersion "0"')
        if token and (match or version not in ("", "0")):
            raise BadRequest("specifying resource version is not allowed when using continue; leave it out")
    return ListOptions(
        label_selector=query.text("labelSelector"),
        field_selector=query.text("fieldSelector"),
        limit=min(limit, limits.list_chunk_max),
        continue_token=token,
        resource_version=version,
        version_match=cast(Literal["", "Exact", "NotOlderThan"], match),
        timeout_s=float(max(timeout_s, 0)) if timeout_s else None,
        bookmarks=query.flag("allowWatchBookmarks"),
        send_initial_events=initial,
    )


def version_text(query: Query) -> str:
    """The resourceVersion parameter, checked for its form."""
    version = query.text("resourceVersion")
    if version and not (version.isascii() and version.isdigit() and len(version) <= 19):
        raise BadRequest(f"resourceVersion={version[:80]!r} is invalid: use one that this server gave out, or 0")
    return version


def _invalid_list(field: str, message: str) -> Invalid:
    return _invalid_option("ListOptions", field, message, "FieldValueForbidden")
