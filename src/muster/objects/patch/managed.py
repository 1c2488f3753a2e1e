"""Server-side apply, and the upkeep of field ownership on all other writes.

Every write says who made it. An *apply* states all that its manager wants: what it states, it owns; what it stated before and
now leaves out is removed unless somebody else owns it; what another manager owns with another value is a conflict, unless
forced. Any other write (create, update, patch) makes its manager the owner of what it changed, and takes that from the others.

Pure: `now` is handed in. Arguments are never changed. `apply_server_side` shares nothing with them; `track_update`, which runs
on every write, returns a new object with a new `metadata` around the parts of `new`; entries share parts with those of `old`.

Invariants: applying the same again changes nothing, not even times; managers of disjoint fields never conflict; a manager that
owns nothing has no entry; failures are ApiErrors and leave everything as it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from muster.objects.names import validate_field_manager
from muster.objects.patch.common import STORED_DEPTH_MAX, check_depth, clone, clone_bounded, holds_null, is_same_json
from muster.objects.patch.empties import empty_object
from muster.objects.patch.fieldset import Fields, Path, difference, intersection, path_text, paths, union, union_all
from muster.objects.patch.managers import (
    Entry,
    Managers,
    entry_key,
    is_reset,
    join_oldest,
    read_managers,
    write_managers,
)
from muster.objects.patch.shape import Schema, Shape, root_shape
from muster.objects.patch.typed import (
    collapse_atomic,
    compare,
    field_set,
    merge,
    prune,
    without_nulls,
)
from muster.objects.patch.versions import NO_VERSIONS, Comparison, Versions, remembered, terms_here
from muster.objects.status import BadRequest, Cause, Conflict, Raw, shown
from muster.objects.steps import Steps, done_at_once
from muster.objects.time import format_time

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
"""Where client-side `kubectl apply` keeps what it applied."""
_KUBECTL: Final = "kubectl"
_BEFORE: Final = "before-first-apply"
_CAUSES_MAX: Final = 100

_SYSTEM_FIELDS: Final = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "selfLink",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
"""Metadata that only the store sets; in an applied configuration they say nothing."""

_UNOWNED: Final[Fields] = {
    "f:apiVersion": {},
    "f:kind": {},
    "f:metadata": {
        ".": {},
        **{f"f:{name}": {} for name in ("name", "namespace", "clusterName", "managedFields", *_SYSTEM_FIELDS)},
    },
}
"""What nobody owns: an object's identity, and what the store sets."""


def apply_server_side(  # noqa: PLR0917 - the order of a sentence: who applies what onto what
    live: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    manager: str,
    schema: Schema,
    now: float,
    force: bool = False,
    *,
    subresource: str = "",
    beside: Versions = NO_VERSIONS,
) -> Raw:
    """The object after `manager` has applied `config`; `live` is None when there is no object yet.

    Conflict lists each field that another manager owns with another value (cause FieldManagerConflict). BadRequest and Invalid
    name the field of a configuration that can't be applied. The caller leaves out what `subresource` does not cover. `beside`
    are the kind's other versions, if they differ by more than their names.
    """
    return done_at_once(apply_steps(live, config, manager, schema, now, force, subresource=subresource, beside=beside))


def apply_steps(  # noqa: PLR0917 - as above
    live: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    manager: str,
    schema: Schema,
    now: float,
    force: bool = False,
    *,
    subresource: str = "",
    beside: Versions = NO_VERSIONS,
) -> Steps[Raw]:
    """`apply_server_side`, stopping between its walks through the object: for large ones, each takes a while."""
    wanted = _checked_config(live, config, manager)
    shape = root_shape(schema)
    plain = _without_managers(live)
    check_depth(plain, "the object", STORED_DEPTH_MAX)
    # A Scale has no annotations, so it knows nothing of what kubectl keeps in one.
    is_kubectl = manager == _KUBECTL and subresource != "scale"
    work = _Apply(plain, wanted, shape, force, is_kubectl=is_kubectl)
    managers = read_managers(_entries(live)) if live is not None else {}
    if live is not None and not managers:
        managers = _claimed_by_nobody_known(work.live, shape, now)
    managers = remembered(managers, beside)
    key = entry_key(manager, "Apply", "", subresource)
    before = managers.get(key)
    yield

    claimed = field_set(wanted, shape, strict=True)
    owned = difference(claimed, _UNOWNED)
    others = {
        k: e.owning(collapse_atomic(e.fields, version.shape if (version := beside.get(e.api_version)) else shape))
        for k, e in managers.items()
        if k != key
    }
    yield
    merged = merge(work.live, wanted, shape)
    if before is not None:
        dropped = terms_here(before.fields, before.api_version, work.live, shape, beside, owned)
        # In the common case all that was stated before is stated again, and nothing is to be removed.
        if dropped != owned:
            theirs = (
                e.fields if e.api_version not in beside else terms_here(e.fields, e.api_version, work.live, shape, beside)
                for e in others.values()
            )
            everyone = union_all([claimed, *theirs])
            merged = prune(merged, dropped, everyone, shape)
    yield
    changes = Comparison(work.live, merged, shape, beside)
    others = work.settle(others, changes)
    after: Managers = {k: e.owning(difference(e.fields, changes.of(e.api_version).removed)) for k, e in others.items()}

    yield
    if holds_null(wanted):
        merged = without_nulls(merged, wanted, shape)
    result: Raw = clone(merged)
    if is_kubectl:
        _sync_last_applied(result, wanted)
    entry = Entry(manager, "Apply", wanted["apiVersion"], subresource, format_time(now), owned)
    is_same = before is not None and before.fields == owned and before.api_version == entry.api_version
    # An apply that changes nothing leaves even its time alone, so that it needs no write.
    after[key] = before if before is not None and is_same and is_same_json(result, work.live) else entry
    _put_entries(result, clone_bounded(write_managers(after)))
    return result


def track_update(  # noqa: PLR0917 - the same order
    old: Mapping[str, Any] | None,
    new: Mapping[str, Any],
    manager: str,
    schema: Schema,
    now: float,
    subresource: str = "",
    beside: Versions = NO_VERSIONS,
) -> Raw:
    """`new`, about to replace `old` (None on create), with `metadata.managedFields` brought up to date.

    A client may set managedFields itself: a valid list is taken as it stands before this write's own changes are added; an
    empty list forgets all ownership. BadRequest when `new` is nested too deeply or its metadata is no object.
    """
    metadata = new.get("metadata", {})
    if not isinstance(metadata, dict):
        raise BadRequest(f"metadata is {shown(metadata)}; it must be an object")
    result: Raw = {**new, "metadata": {name: value for name, value in metadata.items() if name != "managedFields"}}
    check_depth(result, "the object")
    given = metadata.get("managedFields") if not subresource else None
    if old is not None and is_reset(given):
        return result
    shape = root_shape(schema)
    before = _without_managers(old) if old is not None else _empty_like(new)
    managers = _managers_for_update(old, given)
    if not managers and old is not None and _has_content(before, shape):
        # Nobody owns anything of what there is. Owning this change alone would let the next apply overwrite the rest unasked.
        return result
    comparison = Comparison(before, result, shape, beside)
    after: Managers = {}
    for key, entry in remembered(managers, beside).items():
        changes = comparison.of(entry.api_version)
        kept = difference(difference(entry.fields, changes.written), changes.removed)
        if kept:
            after[key] = entry.owning(kept)
    api_version = _text(new.get("apiVersion"))
    key = entry_key(manager, "Update", api_version, subresource)
    mine = difference(comparison.here.written, _UNOWNED)
    previous = after.get(key)
    owned = union(previous.fields, mine) if previous is not None else mine
    if owned:
        former = managers.get(key)
        entry = Entry(key[0], "Update", api_version, subresource, format_time(now), owned)
        after[key] = former if former is not None and former.fields == owned else entry
    _put_entries(result, write_managers(join_oldest(after)))
    return result


class _Apply:
    """One application: what it starts from, and how it settles with the managers of the fields that it changes."""

    def __init__(self, live: Raw, wanted: Raw, shape: Shape, force: bool, *, is_kubectl: bool) -> None:
        """`is_kubectl`: the annotation in which kubectl keeps what it applied counts."""
        self.live = live
        self._wanted = wanted
        self._shape = shape
        self._force = force
        self._is_kubectl = is_kubectl

    def settle(self, others: Managers, changes: Comparison) -> Managers:
        """`others` without the fields that this application takes from them. Conflict unless it may."""
        conflicts = {key: intersection(entry.fields, changes.of(entry.api_version).written) for key, entry in others.items()}
        conflicts = {key: fields for key, fields in conflicts.items() if fields}
        if conflicts and not self._force:
            allowed = self._allowed_by_last_applied()
            found = [(others[key], path) for key in sorted(conflicts) for path in paths(difference(conflicts[key], allowed))]
            if found:
                raise _conflict(found, self._wanted)
        return {key: entry.owning(difference(entry.fields, conflicts.get(key, {}))) for key, entry in others.items()}

    def _allowed_by_last_applied(self) -> Fields:
        """What kubectl may take over from its client-side self: fields that are as it last applied them."""
        if not self._is_kubectl:
            return {}
        annotations = _annotations(self.live)
        try:
            last = json.loads(_text(annotations.get(LAST_APPLIED)))
        except (ValueError, RecursionError):
            return {}
        if not isinstance(last, dict) or last.get("apiVersion") != self._wanted["apiVersion"]:
            return {}
        try:
            check_depth(last, "the last applied configuration")
        except BadRequest:
            return {}
        changes = compare(last, self.live, self._shape)
        allowed = field_set(last, self._shape)
        for changed in changes:
            allowed = difference(allowed, changed)
        # The annotation itself passes from the client side to this manager.
        return union(allowed, {"f:metadata": {"f:annotations": {f"f:{LAST_APPLIED}": {}}}})


def _checked_config(live: Mapping[str, Any] | None, config: Any, manager: str) -> Raw:
    """What is applied, without what only the store sets."""
    if not manager:
        raise BadRequest("apply needs a field manager: name one with fieldManager")
    for problem in validate_field_manager(manager):
        raise BadRequest(f"field manager {manager[:80]!r} {problem}")
    if not isinstance(config, Mapping):
        raise BadRequest(f"what is applied must be an object, not {shown(config)}")
    wanted: Raw = dict(config)
    check_depth(wanted, "the applied object")
    for name in ("apiVersion", "kind"):
        if not isinstance(wanted.get(name), str) or not wanted[name]:
            raise BadRequest(f"{name} is {shown(wanted.get(name))}; what is applied must name its {name}")
        if live is not None and live.get(name) not in (None, "", wanted[name]):
            raise BadRequest(
                f"{name} is {shown(wanted[name])}, but the object has {shown(live.get(name))}; apply the same {name}"
            )
    metadata = wanted.get("metadata", {})
    if not isinstance(metadata, dict):
        raise BadRequest(f"metadata is {shown(metadata)}; it must be an object")
    wanted["metadata"] = metadata = dict(metadata)
    if metadata.get("managedFields") is not None:
        raise BadRequest("metadata.managedFields must be nil; leave it out of what is applied")
    metadata.pop("managedFields", None)
    for name in ("uid", "resourceVersion"):
        wish, current = metadata.get(name), _metadata(live).get(name)
        if wish and live is not None and wish != current:
            raise Conflict(
                f"metadata.{name} is {shown(wish)}, but the object has {shown(current)}; read it again, or leave {name} out",
                name=_text(metadata.get("name")),
            )
    for name in _SYSTEM_FIELDS:
        metadata.pop(name, None)
    return wanted


def _managers_for_update(old: Mapping[str, Any] | None, given: Any) -> Managers:
    """The client's own list if it sent a good one; else the stored one, which clients that know nothing of it must not lose."""
    stored = _entries(old)
    if isinstance(given, list) and given and given != stored:
        try:
            managers = read_managers(given, strict=True)
        except ValueError:
            managers = {}
        if managers:
            return managers
    return read_managers(stored)


def _empty_like(new: Mapping[str, Any]) -> Raw:
    return empty_object(_text(new.get("apiVersion")).rpartition("/")[0], new.get("kind"))


def _has_content(raw: Raw, shape: Shape) -> bool:
    check_depth(raw, "the stored object")
    return bool(difference(field_set(raw, shape), _UNOWNED))


def _claimed_by_nobody_known(live: Raw, shape: Shape, now: float) -> Managers:
    """One entry for all that was there before anybody applied, so that a first apply does not overwrite it unasked."""
    fields = difference(compare(_empty_like(live), live, shape).written, _UNOWNED)
    entry = Entry(_BEFORE, "Update", _text(live.get("apiVersion")), "", format_time(now), fields)
    return {entry.key: entry} if fields else {}


def _sync_last_applied(result: Raw, wanted: Raw) -> None:
    """Keeps the annotation of client-side apply in step, so that one may go back to it."""
    annotations = _annotations(result)
    if LAST_APPLIED not in annotations:
        return
    config: Raw = clone(wanted)
    own = _annotations(config)
    own.pop(LAST_APPLIED, None)
    annotations[LAST_APPLIED] = json.dumps(config, separators=(",", ":"), sort_keys=True, ensure_ascii=False) + "\n"


def _conflict(found: list[tuple[Entry, Path]], wanted: Raw) -> Conflict:
    count = len(found)
    listed = [(entry.described(), path_text(path)) for entry, path in found[:_CAUSES_MAX]]
    causes = [Cause(field=path, message=f"conflict with {who}", reason="FieldManagerConflict") for who, path in listed]
    if count == 1:
        details = f"conflict with {listed[0][0]}: {listed[0][1]}"
    else:
        by_manager: dict[str, list[str]] = {}
        for who, path in listed:
            by_manager.setdefault(who, []).append(f"- {path}")
        details = "\n".join(f"conflicts with {who}:\n" + "\n".join(lines) for who, lines in by_manager.items())
        if count > _CAUSES_MAX:
            details += f"\nand {count - _CAUSES_MAX} more"
    plural = "conflict" if count == 1 else "conflicts"
    return Conflict(
        f"Apply failed with {count} {plural}: {details}",
        kind=_text(wanted.get("kind")),
        name=_text(_metadata(wanted).get("name")),
        causes=causes,
    )


def _put_entries(result: Raw, entries: list[Raw]) -> None:
    if entries:
        result.setdefault("metadata", {})["managedFields"] = entries


def _without_managers(raw: Mapping[str, Any] | None) -> Raw:
    """The object without managedFields: what is merged and compared."""
    if raw is None:
        return {}
    plain: Raw = dict(raw)
    if isinstance(raw.get("metadata"), dict):
        plain["metadata"] = {name: value for name, value in raw["metadata"].items() if name != "managedFields"}
    return plain


def _metadata(raw: Mapping[str, Any] | None) -> Mapping[str, Any]:
    metadata = raw.get("metadata") if raw is not None else None
    return metadata if isinstance(metadata, dict) else {}


def _annotations(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The annotations themselves, not a copy; a new dict when there are none."""
    annotations = _metadata(raw).get("annotations")
    return annotations if isinstance(annotations, dict) else {}


def _entries(raw: Mapping[str, Any] | None) -> Any:
    return _metadata(raw).get("managedFields")


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
