"""Binding: a pod gets its node, once, with the condition and the annotations that come with it.

A step inside a transaction, as those of `updates.py`; on the loop. Whoever is asked about bindings sees the `Binding` that a
client would send, and then hooks see the pod. Most bindings need no general update (`quick_binding.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.objects.conditions import set_condition
from muster.objects.resources import Resource
from muster.objects.status import ApiError, BadRequest, Cause, Raw
from muster.store.embedded import rules
from muster.store.embedded.context import WriteContext
from muster.store.embedded.core import Core
from muster.store.embedded.quick_binding import QuickBinder
from muster.store.embedded.records import decode, encode
from muster.store.embedded.registry import Registry
from muster.store.embedded.shaping import Shaper, admission_request
from muster.store.embedded.transaction import Result, Transaction
from muster.store.embedded.updates import Updates


class Bindings:
    def __init__(self, core: Core, registry: Registry, shaper: Shaper, updates: Updates) -> None:
        self._core = core
        self._registry = registry
        self._shaper = shaper
        self._updates = updates
        self._quick = QuickBinder()

    async def bind(
        self,
        txn: Transaction,
        name: str,
        namespace: str,
        node: str,
        context: WriteContext,
        *,
        uid: str = "",
        annotations: Mapping[str, str] | None = None,
    ) -> Result:
        served = self._registry.pods()
        pods = served.stored
        context.is_judged = True
        if self._shaper.asks_about("CREATE", pods, "binding"):
            body = _binding(name, namespace, node, uid, annotations)
            body = await self._shaper.admit_body("CREATE", pods, context, body=body, subresource="binding")
            node, annotations = _read_binding(body)
        if not node:
            cause = Cause("target.name", "Required value: the node to bind to", "FieldValueRequired")
            raise rules.invalid(pods, name, [cause])
        record = txn.require(pods, served.collection, (namespace, name))
        if uid and uid != record.uid:
            raise rules.other_uid(_of(pods, "binding"), record, uid)
        if record.deleting:
            raise rules.conflict(_of(pods, "binding"), name, f"pod {name} is being deleted, cannot be assigned to a host")
        quick = self._quick.bound(
            record.value,
            node,
            annotations,
            manager=context.options.field_manager,
            schema=served.schema(pods),
            now=self._core.clock(),
        )
        if quick is not None:
            if self._shaper.admission is not None:
                await self._admit_binding(pods, decode.decode(encode(quick)), record.raw(), context)
            fields = {**record.fields, "spec.nodeName": node}
            return txn.write_parts(pods, served.collection, quick, was=record, fields=fields)
        current = record.raw()
        spec = current.get("spec") or {}
        if spec.get("nodeName"):
            raise self.already_bound(name, spec["nodeName"])
        raw = {**current, "metadata": dict(current["metadata"]), "spec": {**spec, "nodeName": node}}
        if annotations:
            raw["metadata"]["annotations"] = {**(raw["metadata"].get("annotations") or {}), **annotations}
        status = current.get("status") or {}
        conditions = set_condition(status.get("conditions"), type_="PodScheduled", status="True", now=self._core.clock())
        raw["status"] = {**status, "conditions": [_without_empty(condition) for condition in conditions]}
        await self._admit_binding(pods, raw, current, context)
        raw = self._shaper.track(served, pods, raw, current, context, subresource="binding")
        return self._updates.put(txn, served, pods, record, current, raw)

    async def _admit_binding(self, pods: Resource, raw: Raw, old: Raw, context: WriteContext) -> None:
        if self._shaper.admission is not None:
            request = admission_request("CREATE", pods, context, raw=raw, old=old, subresource="binding")
            await self._shaper.admission.validate(request)

    def already_bound(self, name: str, node: str) -> ApiError:
        why = f'pod {name} is already assigned to node "{node}"'
        return rules.conflict(_of(self._registry.pods().stored, "binding"), name, why)


def _binding(name: str, namespace: str, node: str, uid: str, annotations: Mapping[str, str] | None) -> Raw:
    """The `Binding` that a client would send."""
    meta: Raw = {"name": name, "namespace": namespace, "creationTimestamp": None}
    if uid:
        meta["uid"] = uid
    if annotations:
        meta["annotations"] = dict(annotations)
    return {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": {"kind": "Node", "name": node}}


def _read_binding(body: Raw) -> tuple[str, dict[str, str] | None]:
    """The node and the annotations that a binding says after hooks; neither is sure to be of the right type."""
    target, meta = body.get("target"), body.get("metadata")
    node = target.get("name") if isinstance(target, dict) else ""
    annotations = meta.get("annotations") if isinstance(meta, dict) else None
    if annotations is not None and not (
        isinstance(annotations, dict) and all(isinstance(value, str) for value in annotations.values())
    ):
        raise BadRequest(
            "metadata.annotations of the binding must be a map of texts; an admission webhook made it another thing"
        )
    return node if isinstance(node, str) else "", annotations


def _of(resource: Resource, subresource: str) -> Resource:
    """`pods/binding`, for messages."""
    return Resource(
        group=resource.group, version=resource.version, kind=resource.kind, plural=f"{resource.plural}/{subresource}"
    )


def _without_empty(condition: Raw) -> Raw:
    return {key: value for key, value in condition.items() if value != ""}
