"""From what a client sent to what may be stored: defaults, unknown fields, hooks, validation, managed fields.

The order is Kubernetes': defaults, mutating hooks, defaults again for what they added, validation, validating hooks, and last
the record of who set which field. Everything but the hooks is pure. On the loop.

An object's size is looked at before each step that costs more than writing it as JSON, so that what is too large to be stored
holds up nobody else. Between the steps of a large one others get to run (`WriteContext.pause`): the transaction notices what
they change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from muster.objects.kinds.defaults import apply_defaults
from muster.objects.patch.common import is_same_json
from muster.objects.patch.managed import track_update
from muster.objects.resources import Resource
from muster.objects.schema import NATIVE, NULL_IS_ABSENT
from muster.objects.status import BadRequest, Cause, Raw
from muster.objects.structural import CAUSES_MAX, Structural
from muster.objects.structural_check import NOT_NULL, TYPE_INVALID
from muster.objects.time import Clock
from muster.objects.unread import unread_fields
from muster.objects.validation import validate_object
from muster.store.embedded.admission import Admission, AdmissionOperation, AdmissionRequest, BodyAdmission
from muster.store.embedded.context import WARNINGS_MAX, WriteContext
from muster.store.embedded.parts import replace_part
from muster.store.embedded.registry import Served
from muster.store.embedded.rules import conform, invalid, not_json, refusal, replace, replace_status, too_large, unreadable

KindHook = Callable[[Raw, Raw | None, WriteContext], Raw]
"""What a kind adds of its own to a valid object before it is stored: (new, old, context) -> new."""

_encode = msgspec.json.Encoder().encode

_METADATA: Final = Structural({"type": "object", NATIVE: True, NULL_IS_ABSENT: True})
"""What all kinds have in common."""


class Shaper:
    def __init__(self, clock: Clock, admission: Admission | None, object_bytes_max: int) -> None:
        self._clock = clock
        self._object_bytes_max = object_bytes_max
        self.admission = admission
        self.body_admission: BodyAdmission | None = None
        self.kind_hooks: dict[str, KindHook] = {}
        """By kind (`Resource.qualified`)."""

    async def shape(
        self,
        served: Served,
        resource: Resource,
        raw: Raw,
        old: Raw | None,
        context: WriteContext,
        *,
        subresource: str = "",
        asked: Resource | None = None,
        is_sent: bool = False,
    ) -> Raw:
        """`raw` ready to be stored but for its version and managed fields. Raises what the client is to hear. `asked` is the
        version that the client has written in, where that is not `resource`.

        `is_sent`: it is what a client sent. Wrong types make that no object of its kind (400), where a patch or a hook that
        puts them into one makes it invalid (422). A custom kind is its metadata to Kubernetes; the rest is for its schema.
        """
        given, structural = raw, served.structural(resource)
        context.size_bytes = self._check_size(resource, raw)
        await context.pause()
        raw = self._fields(served, resource, raw, context)
        await context.pause()
        is_status = subresource == "status"
        raw = self._with_defaults(structural, resource, raw, old, is_status=is_status)
        operation: AdmissionOperation = "CREATE" if old is None else "UPDATE"
        request: AdmissionRequest | None = None
        context.unhooked = None
        if self.admission is not None:
            before = raw

            def refill(changed: Raw) -> Raw:
                kept = _kept(resource, before, conform(resource, changed), subresource)
                if served.is_from_crd and structural is not None:
                    kept, _ = structural.prune(kept)
                self._check_size(resource, kept)
                return self._with_defaults(structural, resource, kept, old, is_status=False, settled=before)

            request = admission_request(operation, resource, context, raw=raw, old=old, subresource=subresource)
            request.refill, request.asked = refill, asked
            changed = await self.admission.mutate(request)
            if changed is not None:
                context.unhooked = raw
                raw = refill(changed)
        await context.pause()
        # What stays as it is, is the very same from here on: it need not be checked, compared or encoded again.
        raw = _sharing(raw, old) if old is not None else raw
        of_rules = validate_object(resource, raw, old, subresource)
        if of_rules and old is not None and structural is not None and not served.is_from_crd:
            # What was stored before a default or a spelling of quantities was settled is no change by this write.
            of_rules = validate_object(resource, raw, structural.default(old), subresource)
        await context.pause()
        # What a CRD's schema says may have changed since the object was stored; ours is the same for ever.
        known = None if served.is_from_crd else old
        of_schema = structural.validate(raw, known) if structural is not None else []
        if of_schema and structural is not None and any(cause.message.endswith(NOT_NULL) for cause in of_schema):
            whole = structural.with_items(given)
            if whole != given:
                return await self.shape(
                    served, resource, whole, old, context, subresource=subresource, asked=asked, is_sent=is_sent
                )
        if of_schema or of_rules:
            refuse = unreadable if is_sent and _is_mistyped(of_schema, metadata_only=served.is_custom) else invalid
            raise refuse(resource, str(raw["metadata"].get("name") or ""), _together(of_schema, of_rules))
        await context.pause()
        if request is not None and self.admission is not None:
            request.object = raw
            await self.admission.validate(request)
        return raw

    def check_dropped(self, served: Served, resource: Resource, name: str, parts: Raw) -> None:
        """`parts` of a new object are not stored; what has them of wrong types is no object of its kind all the same. The
        status of a custom kind is for its schema to judge, when somebody writes it."""
        causes = _METADATA.validate({"metadata": parts["metadata"]}) if "metadata" in parts else []
        structural = None if served.is_custom else served.structural(resource)
        if structural is not None and "status" in parts:
            causes += structural.validate({"status": structural.with_items(parts)["status"]})
        if mistyped := [cause for cause in causes if cause.reason == TYPE_INVALID]:
            raise unreadable(resource, name, mistyped)

    def _with_defaults(
        self,
        structural: Structural | None,
        resource: Resource,
        raw: Raw,
        old: Raw | None,
        *,
        is_status: bool,
        settled: Raw | None = None,
    ) -> Raw:
        """`settled` has its defaults; what `raw` has of it is left alone."""
        if structural is not None:
            filled = structural.default(raw, settled)
            if filled is not raw:
                self._check_size(resource, filled)
            raw = filled
        return apply_defaults(resource, raw, old, is_status=is_status)

    def check_patch_size(self, resource: Resource, name: str, patch: Any, current_bytes: int, context: WriteContext) -> None:
        """Before a merge: what only adds and is too large alone makes an object that is too large.

        A patch that takes something away may be as large as it likes. It is then the object that counts, when it is made.
        """
        try:
            text = _encode(patch)
        except (TypeError, ValueError, OverflowError):
            return  # for the one who merges to say
        context.size_bytes = max(len(text), current_bytes)
        if len(text) > self._object_bytes_max and b"null" not in text and b'"$' not in text:
            raise too_large(resource, name, len(text), self._object_bytes_max)

    def _check_size(self, resource: Resource, raw: Raw) -> int:
        name = str(raw["metadata"].get("name") or "")
        try:
            size = len(_encode(raw))
        except (TypeError, ValueError, OverflowError) as error:
            raise not_json(resource, name, error) from None
        if size > self._object_bytes_max:
            raise too_large(resource, name, size, self._object_bytes_max)
        return size

    def _fields(self, served: Served, resource: Resource, raw: Raw, context: WriteContext) -> Raw:
        """Unknown fields: kinds from a CRD lose them, others keep them; the client may ask to be told, or to be refused."""
        mode = context.options.field_validation
        if mode == "Ignore" and not served.is_from_crd:
            return raw
        structural = served.structural(resource)
        if structural is None:
            return raw
        pruned, unknown = structural.prune(raw)
        if unknown and mode == "Strict":
            listed = ", ".join(f'unknown field "{path}"' for path in unknown[:WARNINGS_MAX])
            name = str(raw["metadata"].get("name") or "")
            raise refusal(BadRequest, resource, name, f"strict decoding error: {listed}")
        if mode == "Warn":
            for path in unknown:
                context.warn(f'unknown field "{path}"')
        if mode != "Ignore":
            for sentence in unread_fields(resource, raw):
                context.warn(sentence)
        return pruned if served.is_from_crd else raw

    def hooked(self, served: Served, raw: Raw, old: Raw | None, context: WriteContext) -> Raw:
        """`raw`, valid, with what its kind adds of its own."""
        hook = self.kind_hooks.get(served.stored.qualified)
        return hook(raw, old, context) if hook is not None else raw

    async def pause(self, served: Served, context: WriteContext) -> None:
        """`WriteContext.pause`, but not for kinds with a hook of their own: it has looked at what others have, and nobody may
        come between that and the submission."""
        if served.stored.qualified not in self.kind_hooks:
            await context.pause()

    def track(
        self, served: Served, resource: Resource, raw: Raw, old: Raw | None, context: WriteContext, *, subresource: str = ""
    ) -> Raw:
        """`raw` with managed fields that say what this write set, as the version `resource` names it."""
        shaped = served.shaped_as(resource)
        if shaped is not resource:
            seen, before = shaped.converted(raw, resource), None if old is None else shaped.converted(old, resource)
            if context.unhooked is not None:
                context.unhooked = shaped.converted(context.unhooked, resource)
            return _managed_as(raw, self._track(served, resource, seen, before, context, subresource))
        return self._track(served, resource, raw, old, context, subresource)

    def _track(  # noqa: PLR0917 - the order of `track`
        self, served: Served, resource: Resource, raw: Raw, old: Raw | None, context: WriteContext, subresource: str
    ) -> Raw:
        schema, beside = served.schema(resource), served.beside(resource)
        # Nobody owns what hooks add, nor the status that a new object begins with: Kubernetes settles the managers before.
        sent, context.unhooked = context.unhooked or raw, None
        if old is None and resource.has_status and "status" in sent and resource.qualified != "nodes":
            sent = {name: value for name, value in sent.items() if name != "status"}
        tracked = track_update(old, sent, context.options.field_manager, schema, self._clock(), subresource, beside)
        return tracked if sent is raw else _managed_as(raw, tracked)

    async def validate_delete(self, resource: Resource, old: Raw, context: WriteContext) -> None:
        if self.admission is not None:
            await self.admission.validate(admission_request("DELETE", resource, context, raw=None, old=old))

    def asks_about(self, operation: AdmissionOperation, resource: Resource, subresource: str) -> bool:
        """Whether anybody wants to see what is sent to this subresource, before it is made into a write."""
        return self.body_admission is not None and self.body_admission.concerns(operation, resource, subresource)

    async def admit_body(
        self,
        operation: AdmissionOperation,
        resource: Resource,
        context: WriteContext,
        *,
        body: Raw,
        old: Raw | None = None,
        subresource: str,
    ) -> Raw:
        """What becomes of a Binding, an Eviction or a Scale. Only after `asks_about`."""
        assert self.body_admission is not None
        request = admission_request(operation, resource, context, raw=body, old=old, subresource=subresource)
        admitted = await self.body_admission.admit(request)
        self._check_size(resource, admitted)
        return admitted


def admission_request(
    operation: AdmissionOperation,
    resource: Resource,
    context: WriteContext,
    *,
    raw: Raw | None,
    old: Raw | None,
    subresource: str = "",
) -> AdmissionRequest:
    meta = (raw or old or {}).get("metadata") or {}
    return AdmissionRequest(
        operation=operation,
        resource=resource,
        namespace=str(meta.get("namespace") or ""),
        name=str(meta.get("name") or ""),
        old=old,
        object=raw,
        subresource=subresource,
        actor=context.actor,
        dry_run=context.options.dry_run,
        warn=context.warn,
        is_judged=context.is_judged,
    )


def _together(of_schema: Sequence[Cause], of_rules: Sequence[Cause]) -> list[Cause]:
    """What schema and rules hold against an object, each field once: the schema's word goes first.

    A rule takes a value of the wrong type for an absent one, so what it says of the inside of such a value is left out.
    """
    fields = {_plain(cause.field) for cause in of_schema}
    mistyped = tuple(f"{cause.field}{mark}" for cause in of_schema if cause.reason == TYPE_INVALID for mark in ".[")
    added = (cause for cause in of_rules if _plain(cause.field) not in fields and not cause.field.startswith(mistyped))
    return [*of_schema, *added][:CAUSES_MAX]


def _managed_as(raw: Raw, other: Raw) -> Raw:
    """`raw` with the managed fields of `other`."""
    metadata = {name: value for name, value in raw["metadata"].items() if name != "managedFields"}
    if "managedFields" in other["metadata"]:
        metadata["managedFields"] = other["metadata"]["managedFields"]
    return {**raw, "metadata": metadata}


def _is_mistyped(causes: Sequence[Cause], *, metadata_only: bool) -> bool:
    return any(cause.reason == TYPE_INVALID and (not metadata_only or cause.field.startswith("metadata.")) for cause in causes)


def _plain(field: str) -> str:
    """A path in one spelling: what the schema calls `limits.cpu` is `limits[cpu]` to rules, as it is in Kubernetes."""
    return field.replace("[", ".").replace("]", "")


def _kept(resource: Resource, before: Raw, after: Raw, subresource: str) -> Raw:
    """`after` as far as a hook may have its way: in the part of the object that this write is about."""
    after = _same_object(resource, before, after)
    if subresource == "status":
        return replace_status(resource, before, after)
    return replace_part(before, after, subresource) if subresource else replace(resource, before, after)


def _sharing(raw: Raw, old: Raw) -> Raw:
    """`raw` with the members of `old` where they are equal. Not the metadata: the rest of the write has things to set there."""
    shared = {
        name: old[name]
        for name, member in raw.items()
        if name != "metadata" and name in old and member is not old[name] and is_same_json(member, old[name])
    }
    return {**raw, **shared} if shared else raw


def _same_object(resource: Resource, before: Raw, after: Raw) -> Raw:
    """A hook may change an object, but not turn it into another one."""
    for field in ("name", "namespace", "uid", "resourceVersion"):
        if after["metadata"].get(field) != before["metadata"].get(field):
            raise BadRequest(
                f"an admission hook changed metadata.{field} of {resource.qualified} "
                f'"{before["metadata"].get("name", "")}", which no hook may'
            )
    return after
