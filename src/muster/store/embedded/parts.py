"""Which part of an object a patch or a subresource may touch. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.objects.patch import apply_json_patch, apply_merge_patch, apply_strategic
from muster.objects.resources import Resource
from muster.objects.status import BadRequest, Raw
from muster.store.contract import PatchType


def patched_with(current: Raw, patch: Raw | Sequence[Raw], patch_type: PatchType, schema: Raw | None) -> Raw:
    """`current` after a patch of any kind but apply. Neither is changed; a merge patch shares what it leaves alone."""
    if patch_type is PatchType.JSON:
        if isinstance(patch, Mapping):
            raise BadRequest("a JSON patch is a list of operations, not an object; for an object send a merge patch")
        return apply_json_patch(current, patch)
    if not isinstance(patch, Mapping):
        raise BadRequest(f"a {patch_type.value} must be an object, not {type(patch).__name__}")
    if patch_type is PatchType.STRATEGIC:
        return apply_strategic(current, dict(patch), schema)
    return apply_merge_patch(current, dict(patch), is_shared=True)


def applied_part(resource: Resource, config: Raw, subresource: str) -> Raw:
    """What of an applied configuration counts: status only through its subresource, and nothing else there."""
    if subresource == "status":
        part = {key: value for key, value in config.items() if key in ("apiVersion", "kind", "metadata", "status")}
        part["metadata"] = {key: value for key, value in config["metadata"].items() if key not in resource.status_keeps}
        return part
    return {key: value for key, value in config.items() if key != "status"} if resource.has_status else config


def replace_part(current: Raw, raw: Raw, subresource: str) -> Raw:
    """`finalize` writes a namespace's spec.finalizers, `approval` a request's conditions; nothing else of the object."""
    field, part = ("spec", "finalizers") if subresource == "finalize" else ("status", "conditions")
    sent = raw.get(field) or {}
    result = {**current, "metadata": dict(current["metadata"])}
    # What can't have the part is left for the schema to refuse.
    result[field] = {**(current.get(field) or {}), part: sent.get(part) or []} if isinstance(sent, dict) else sent
    return result
