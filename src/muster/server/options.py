"""Query parameters and option bodies, read into the store's own option types.

Pure. Everything a client can get wrong here is a 400 or 422 that names the parameter, its value and what is accepted.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import msgspec

from muster.objects.status import BadRequest, Cause, Invalid
from muster.server.config import ServerLimits
from muster.server.exchange import Query, Request
from muster.store.contract import PatchType, Preconditions, Propagation, WriteOptions

_MANAGER_CHARS_MAX = 128
_PROPAGATION = ("Background", "Foreground", "Orphan")
_VALIDATION = ("Ignore", "Warn", "Strict")
_MATCHES = ("Exact", "NotOlderThan")


def write_options(request: Request, patch_type: PatchType | None = None) -> WriteOptions:
    """dryRun, fieldManager, fieldValidation, force."""
    query = request.query
    is_apply = patch_type is PatchType.APPLY
    manager = query.text("fieldManager")
    if len(manager) > _MANAGER_CHARS_MAX or not manager.isprintable():
        raise BadRequest(f"fieldManager={manager[:40]!r}: at most {_MANAGER_CHARS_MAX} printable characters are allowed")
    if is_apply and not manager:
        raise _invalid_option(
            "PatchOptions", "fieldManager", "Required value: is required for apply patch", "FieldValueRequired"
        )
    force = query.flag("force")
    if force and not is_apply:
        raise _invalid_option(
            "PatchOptions", "force", "Forbidden: may not be specified for non-apply patch", "FieldValueForbidden"
        )
    validation = query.choice("fieldValidation", _VALIDATION, "Warn")
    return WriteOptions(
        dry_run=dry_run(query),
        field_manager=manager or default_manager(request.header("user-agent")),
        force=force,
        field_validation=cast(Literal["Ignore", "Warn", "Strict"], validation),
    )


def dry_run(query: Query) -> bool:
    return query.choice("dryRun", ("All",)) == "All"


def default_manager(user_agent: str) -> str:
    """Who owns the fields of a write that does not say: the program's name, as Kubernetes takes it from the User-Agent."""
    name = user_agent.partition("/")[0].strip()[:_MANAGER_CHARS_MAX]
    return name if name and name.isprintable() else "unknown"


def _invalid_option(kind: str, field: str, message: str, reason: str) -> Invalid:
    return Invalid(
        f'{kind}.meta.k8s.io "" is invalid: {field}: {message}',
        kind=kind,
        group="meta.k8s.io",
        causes=[Cause(field, message, reason)],
    )


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
    if given.dry_run and given.dry_run != ["All"]:
        raise BadRequest(f"dryRun={given.dry_run!r} is not supported; use All or leave it out")
    policy = given.propagation_policy or query.text("propagationPolicy")
    orphan = given.orphan_dependents
    if orphan is None and "orphanDependents" in query:
        orphan = query.flag("orphanDependents")
    if policy and orphan is not None:
        raise _invalid_option(
            "DeleteOptions", "propagationPolicy", "Invalid value: orphanDependents and it exclude each other", ""
        )
    if orphan is not None:
        policy = "Orphan" if orphan else "Background"
    if policy and policy not in _PROPAGATION:
        raise BadRequest(f"propagationPolicy={policy[:80]!r} is not supported; use one of: {', '.join(_PROPAGATION)}")
    grace_s = given.grace_period_seconds if given.grace_period_seconds is not None else query.integer("gracePeriodSeconds")
    if grace_s is not None and grace_s < 0:
        raise _invalid_option(
            "DeleteOptions", "gracePeriodSeconds", f"Invalid value: {grace_s}: must be 0 or more", "FieldValueInvalid"
        )
    conditions = given.preconditions
    return DeleteOptions(
        write=WriteOptions(dry_run=bool(given.dry_run) or dry_run(query)),
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
    limit = query.integer("limit") or 0
    version = version_text(query)
    match = query.choice("resourceVersionMatch", _MATCHES)
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
        timeout_s=float(timeout_s) if timeout_s else None,
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
