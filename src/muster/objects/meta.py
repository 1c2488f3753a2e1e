"""Object metadata: typed views, and helpers that read it from raw objects of any shape.

The raw helpers never raise: what is missing or has the wrong type reads as empty, because they also look at objects that
have not been validated yet. They return new containers or immutable values, so a caller can't change the object by accident;
the dicts inside `owners_of` are the object's own and are for reading.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from muster.objects.status import Raw
from muster.objects.time import Timestamp
from muster.objects.view import View


class OwnerReference(View):
    """Who this object belongs to; when the last owner goes, so does the object."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ManagedFieldsEntry(View):
    """Which fields one manager has set with one operation. `fields_v1` is a set of paths: see `patch.fieldset`."""

    manager: str = ""
    operation: str = ""
    api_version: str = ""
    time: Timestamp = ""
    fields_type: str = ""
    fields_v1: Annotated[dict[str, Any], msgspec.Meta(extra_json_schema={"x-kubernetes-preserve-unknown-fields": True})] = (
        msgspec.field(default_factory=dict, name="fieldsV1")
    )
    subresource: str = ""


class ListMeta(View):
    """Metadata of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None
    self_link: str = ""


OwnerReferences = Annotated[
    list[OwnerReference],
    msgspec.Meta(
        extra_json_schema={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["uid"],
            "x-kubernetes-patch-merge-key": "uid",
            "x-kubernetes-patch-strategy": "merge",
        }
    ),
]
Finalizers = Annotated[
    list[str], msgspec.Meta(extra_json_schema={"x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge"})
]
ManagedFields = Annotated[list[ManagedFieldsEntry], msgspec.Meta(extra_json_schema={"x-kubernetes-list-type": "atomic"})]


class ObjectMeta(View):
    """What every object carries. Times stay text here: `muster.objects.time.parse_time` reads them where they matter."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    self_link: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Timestamp = ""
    deletion_timestamp: Timestamp = ""
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    owner_references: OwnerReferences = msgspec.field(default_factory=list)
    finalizers: Finalizers = msgspec.field(default_factory=list)
    managed_fields: ManagedFields = msgspec.field(default_factory=list)


def metadata_of(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metadata of `raw` for reading; empty when there is none."""
    meta = raw.get("metadata")
    return meta if isinstance(meta, dict) else {}


def name_of(raw: Mapping[str, Any]) -> str:
    return _text(metadata_of(raw).get("name"))


def namespace_of(raw: Mapping[str, Any]) -> str:
    """Empty for cluster-wide objects."""
    return _text(metadata_of(raw).get("namespace"))


def uid_of(raw: Mapping[str, Any]) -> str:
    return _text(metadata_of(raw).get("uid"))


def resource_version_of(raw: Mapping[str, Any]) -> str:
    return _text(metadata_of(raw).get("resourceVersion"))


def generation_of(raw: Mapping[str, Any]) -> int:
    generation = metadata_of(raw).get("generation")
    return generation if isinstance(generation, int) and not isinstance(generation, bool) else 0


def labels_of(raw: Mapping[str, Any]) -> dict[str, str]:
    return _texts(metadata_of(raw).get("labels"))


def annotations_of(raw: Mapping[str, Any]) -> dict[str, str]:
    return _texts(metadata_of(raw).get("annotations"))


def finalizers_of(raw: Mapping[str, Any]) -> list[str]:
    finalizers = metadata_of(raw).get("finalizers")
    return [f for f in finalizers if isinstance(f, str)] if isinstance(finalizers, list) else []


def owners_of(raw: Mapping[str, Any]) -> list[Raw]:
    """The owner references as they stand; entries that are no objects are left out."""
    owners = metadata_of(raw).get("ownerReferences")
    return [o for o in owners if isinstance(o, dict)] if isinstance(owners, list) else []


def controller_of(raw: Mapping[str, Any]) -> Raw | None:
    """The reference to the one owner that manages this object, if there is one."""
    return next((owner for owner in owners_of(raw) if owner.get("controller") is True), None)


def is_controlled_by(raw: Mapping[str, Any], owner: Mapping[str, Any]) -> bool:
    """Whether `owner` (an object with a uid) is the controller of `raw`. Names may be reused, uids never are."""
    reference = controller_of(raw)
    return reference is not None and bool(uid_of(owner)) and reference.get("uid") == uid_of(owner)


def is_deleting(raw: Mapping[str, Any]) -> bool:
    return bool(metadata_of(raw).get("deletionTimestamp"))


def owner_reference(raw: Mapping[str, Any], *, controller: bool = True, block: bool = True) -> Raw:
    """The reference by which others name `raw` as their owner. ValueError when `raw` lacks what a reference needs."""
    reference: Raw = {
        "apiVersion": _text(raw.get("apiVersion")),
        "kind": _text(raw.get("kind")),
        "name": name_of(raw),
        "uid": uid_of(raw),
    }
    missing = [field for field, value in reference.items() if not value]
    if missing:
        raise ValueError(
            f"{reference['kind'] or 'an object'} {reference['name']!r} can't own others: it has no {', '.join(missing)}; "
            "read it back from the store first"
        )
    if controller:
        reference["controller"] = True
    if block:
        reference["blockOwnerDeletion"] = True
    return reference


def describe(raw: Mapping[str, Any]) -> str:
    """`Pod default/web-0`: how messages name an object."""
    where = f"{namespace_of(raw)}/{name_of(raw)}" if namespace_of(raw) else name_of(raw)
    return f"{_text(raw.get('kind')) or 'object'} {where or '(unnamed)'}"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {k: v for k, v in value.items() if isinstance(k, str) and isinstance(v, str)}
