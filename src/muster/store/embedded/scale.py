"""Scale: the number of replicas of an object, in the one shape that autoscalers know, whatever the kind calls it.

Reading is pure. Writing is a step inside a transaction, as those of `patches.py`; on the loop. It becomes a patch of the one
field that holds the number, so it meets all that any other patch of the object meets.
"""

from __future__ import annotations

from typing import Any

from muster.objects.jsonpath import compile as compile_path
from muster.objects.resources import Resource
from muster.objects.status import BadRequest, Cause, NotFound, Raw, shown
from muster.store.contract import PatchType, Preconditions
from muster.store.embedded import rules
from muster.store.embedded.context import WriteContext
from muster.store.embedded.patches import Patches
from muster.store.embedded.records import Record
from muster.store.embedded.registry import Registry
from muster.store.embedded.selection import query_of
from muster.store.embedded.shaping import Shaper
from muster.store.embedded.transaction import Result, Transaction


class Scales:
    def __init__(self, registry: Registry, shaper: Shaper, patches: Patches) -> None:
        self._registry = registry
        self._shaper = shaper
        self._patches = patches

    async def put(
        self,
        txn: Transaction,
        resource: Resource,
        scale: Raw,
        context: WriteContext,
        *,
        namespace: str | None,
        name: str,
        is_applied: bool = False,
    ) -> Result:
        """Set the number of replicas; with a resourceVersion in `scale`, only if it is current."""
        served = self._registry.find(resource)
        spec_path, _, _ = scale_paths(resource)
        version = _version(scale)
        replicas = _replicas(resource, name, scale)
        record = txn.require(resource, served.collection, (namespace or "", name))
        context.is_judged = True
        if self._shaper.asks_about("UPDATE", resource, "scale"):
            before = scale_of(resource, record)
            wanted = {**before, "spec": {"replicas": replicas}}
            body = await self._shaper.admit_body("UPDATE", resource, context, body=wanted, old=before, subresource="scale")
            replicas = _replicas(resource, name, body)
        patch: Raw = {}
        if is_applied:
            patch = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}}
        node = patch
        parts = spec_path.strip(".").split(".")
        for part in parts[:-1]:
            node = node.setdefault(part, {})
        node[parts[-1]] = replicas
        return await self._patches.patch(
            txn,
            resource,
            name,
            patch,
            context,
            namespace=namespace,
            patch_type=PatchType.APPLY if is_applied else PatchType.MERGE,
            tracked_as="scale",
            preconditions=Preconditions(resource_version=version or None),
        )


def scale_of(resource: Resource, record: Record) -> Raw:
    """The object as `autoscaling/v1 Scale`."""
    raw = record.raw()
    spec_path, status_path, selector_path = scale_paths(resource)
    meta = {
        key: raw["metadata"][key]
        for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        if key in raw["metadata"]
    }
    status: Raw = {"replicas": _number_at(raw, status_path)}
    selector = _value_at(raw, selector_path)
    if isinstance(selector, str) and selector:
        status["selector"] = selector
    elif isinstance(selector, dict):
        status["selector"] = str(query_of(selector))
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": meta,
        "spec": {"replicas": _number_at(raw, spec_path)},
        "status": status,
    }


def scale_paths(resource: Resource) -> tuple[str, str, str]:
    """Where the kind keeps its number, the number there is, and its selector. NotFound for kinds without a Scale."""
    if "scale" not in resource.subresources:
        raise NotFound(
            f"the server could not find the requested resource: {resource.qualified} have no scale", kind=resource.plural
        )
    return resource.scale_paths or (".spec.replicas", ".status.replicas", ".spec.selector")


def _version(scale: Raw) -> str:
    """The version that a Scale must find, "" for any. BadRequest for what is no Scale: nobody's replicas become 0 by a typo."""
    for part in ("metadata", "spec"):
        if not isinstance(scale.get(part) or {}, dict):
            raise BadRequest(f"the Scale's {part} must be an object, not {shown(scale[part])}")
    version = (scale.get("metadata") or {}).get("resourceVersion") or ""
    if not isinstance(version, str):
        raise BadRequest(f"the Scale's metadata.resourceVersion must be a string, not {shown(version)}")
    return version


def _replicas(resource: Resource, name: str, scale: Raw) -> int:
    spec = scale.get("spec")
    replicas = spec.get("replicas", 0) if isinstance(spec, dict) else 0
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
        cause = Cause("spec.replicas", f"Invalid value: {replicas!r}: must be a whole number, 0 or more")
        raise rules.invalid(resource, name, [cause])
    return replicas


def _value_at(raw: Raw, path: str) -> Any:
    found = compile_path(path).find(raw) if path else []
    return found[0] if found else None


def _number_at(raw: Raw, path: str) -> int:
    value = _value_at(raw, path)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
