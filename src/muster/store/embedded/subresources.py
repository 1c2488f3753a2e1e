"""Binding, eviction and scale: writes that say what is meant rather than which fields change.

Steps inside a transaction, as those of `writes.py`; on the loop. The arithmetic of disruption budgets is pure, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from muster.objects.conditions import is_true, set_condition
from muster.objects.jsonpath import compile as compile_path
from muster.objects.resources import Resource
from muster.objects.selectors import LabelQuery, LabelSelector, from_label_selector, from_labels
from muster.objects.status import ApiError, BadRequest, Cause, InternalError, NotFound, Raw, TooManyRequests, shown
from muster.objects.time import format_time, parse_time
from muster.objects.view import view_of
from muster.store.contract import EventType, PatchType, Preconditions
from muster.store.embedded import rules
from muster.store.embedded.binding import QuickBinder
from muster.store.embedded.core import Core
from muster.store.embedded.records import Record, decode, encode
from muster.store.embedded.registry import Registry, Served
from muster.store.embedded.shaping import Shaper, WriteContext, admission_request
from muster.store.embedded.transaction import Result, Transaction
from muster.store.embedded.writes import Writes

_DISRUPTED_S = 120.0
"""How long an eviction that a budget granted counts against it, unless the pod is seen to go."""
_DISRUPTED_LEN_MAX = 2000


class Subresources:
    def __init__(self, core: Core, registry: Registry, shaper: Shaper, writes: Writes) -> None:
        self._core = core
        self._registry = registry
        self._shaper = shaper
        self._writes = writes
        self._quick = QuickBinder()

    def _pods(self) -> Served:
        served = self._registry.find_kind("", "Pod")
        if served is None:
            raise NotFound("the server could not find the requested resource: it serves no pods")
        return served

    def _pod(self, txn: Transaction, served: Served, name: str, namespace: str) -> Record:
        record = txn.read(served.collection, (namespace, name))
        if record is None:
            raise rules.not_found(served.stored, name)
        return record

    # --- binding -------------------------------------------------------------------------------------------------

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
        served = self._pods()
        pods = served.stored
        context.is_judged = True
        if self._shaper.asks_about("CREATE", pods, "binding"):
            body = _binding(name, namespace, node, uid, annotations)
            body = await self._shaper.admit_body("CREATE", pods, context, body=body, subresource="binding")
            node, annotations = _read_binding(body)
        if not node:
            cause = Cause("target.name", "Required value: the node to bind to", "FieldValueRequired")
            raise rules.invalid(pods, name, [cause])
        record = self._pod(txn, served, name, namespace)
        if uid and uid != record.uid:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {record.uid}"
            raise rules.conflict(_of(pods, "binding"), name, why)
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
        return self._writes.put(txn, served, pods, record, current, raw)

    async def _admit_binding(self, pods: Resource, raw: Raw, old: Raw, context: WriteContext) -> None:
        if self._shaper.admission is not None:
            request = admission_request("CREATE", pods, context, raw=raw, old=old, subresource="binding")
            await self._shaper.admission.validate(request)

    def already_bound(self, name: str, node: str) -> ApiError:
        why = f'pod {name} is already assigned to node "{node}"'
        return rules.conflict(_of(self._pods().stored, "binding"), name, why)

    # --- eviction ------------------------------------------------------------------------------------------------

    async def evict(
        self,
        txn: Transaction,
        name: str,
        namespace: str,
        context: WriteContext,
        *,
        grace_period_s: int | None = None,
        uid: str = "",
    ) -> list[Result]:
        """Delete the pod and write the disruption down in its budget, together; TooManyRequests when the budget says no."""
        served = self._pods()
        context.is_judged = True
        if self._shaper.asks_about("CREATE", served.stored, "eviction"):
            body = _eviction(name, namespace, grace_period_s, uid)
            await self._shaper.admit_body("CREATE", served.stored, context, body=body, subresource="eviction")
        record = self._pod(txn, served, name, namespace)
        rules.check_preconditions(served.stored, record, Preconditions(uid=uid or None))
        pod = record.raw()
        results: list[Result] = []
        if not _is_free_to_go(pod):
            results += self._charge_budget(txn, record)
        preconditions = Preconditions(uid=record.uid)
        deleted = await self._writes.delete(
            txn, served.stored, name, namespace, context, grace_period_s=grace_period_s, preconditions=preconditions
        )
        return [deleted, *results]

    def _charge_budget(self, txn: Transaction, record: Record) -> list[Result]:
        budgets = self._registry.find_kind("policy", "PodDisruptionBudget")
        if budgets is None:
            return []
        matching = [
            (budget, raw)
            for key in budgets.collection.keys_in(record.namespace)
            if (budget := txn.read(budgets.collection, key)) is not None and selects(raw := budget.raw(), record.labels)
        ]
        if not matching:
            return []
        if len(matching) > 1:
            names = ", ".join(sorted(budget.name for budget, _ in matching))
            raise InternalError(
                f'pod "{record.name}" has more than one PodDisruptionBudget ({names}), which the eviction subresource does not '
                "support; make their selectors disjoint"
            )
        budget, raw = matching[0]
        if not has_status(raw):
            # Nobody maintains this budget's status: count the pods themselves. Those being deleted count as gone.
            if (allowed := disruptions_allowed(raw, self._pods_of(txn, raw, record.namespace))) < 1:
                raise _refused(record, budget, raw, allowed)
            return []
        now = self._core.clock()
        status = dict(raw["status"])
        disrupted = _still_disrupted(status.get("disruptedPods"), now)
        if (status.get("disruptionsAllowed") or 0) < 1:
            raise _refused(record, budget, raw, 0)
        if len(disrupted) >= _DISRUPTED_LEN_MAX:
            raise TooManyRequests(
                f"poddisruptionbudgets {budget.name!r} has {len(disrupted)} evictions on their way, which is the limit; "
                "wait for them",
                retry_after_s=10,
            )
        status["disruptionsAllowed"] -= 1
        status["disruptedPods"] = {**disrupted, record.name: format_time(now)}
        changed = {**raw, "metadata": dict(raw["metadata"]), "status": status}
        return [txn.write(budgets.stored, budgets.collection, EventType.MODIFIED, changed, was=budget)]

    def _pods_of(self, txn: Transaction, budget: Raw, namespace: str) -> list[Raw]:
        pods = self._pods().collection
        found = (txn.read(pods, key) for key in pods.keys_in(namespace))
        return [record.raw() for record in found if record is not None and selects(budget, record.labels)]

    # --- scale ---------------------------------------------------------------------------------------------------

    def get_scale(self, resource: Resource, record: Record) -> Raw:
        """The object as `autoscaling/v1 Scale`."""
        raw = record.raw()
        spec_path, status_path, selector_path = self.scale_paths(resource)
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
            status["selector"] = str(_query_of(selector))
        return {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": meta,
            "spec": {"replicas": _number_at(raw, spec_path)},
            "status": status,
        }

    async def put_scale(
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
        spec_path, _, _ = self.scale_paths(resource)
        version = _version(scale)
        replicas = _replicas(resource, name, scale)
        record = txn.read(served.collection, (namespace or "", name))
        if record is None:
            raise rules.not_found(resource, name)
        context.is_judged = True
        if self._shaper.asks_about("UPDATE", resource, "scale"):
            before = self.get_scale(resource, record)
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
        return await self._writes.patch(
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

    @staticmethod
    def scale_paths(resource: Resource) -> tuple[str, str, str]:
        if "scale" not in resource.subresources:
            raise NotFound(
                f"the server could not find the requested resource: {resource.qualified} have no scale", kind=resource.plural
            )
        return resource.scale_paths or (".spec.replicas", ".status.replicas", ".spec.selector")


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


def _eviction(name: str, namespace: str, grace_period_s: int | None, uid: str) -> Raw:
    """The `Eviction` that a client would send."""
    body: Raw = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": None},
    }
    options: Raw = {}
    if grace_period_s is not None:
        options["gracePeriodSeconds"] = grace_period_s
    if uid:
        options["preconditions"] = {"uid": uid}
    return {**body, "deleteOptions": options} if options else body


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


def _of(resource: Resource, subresource: str) -> Resource:
    """`pods/binding`, for messages."""
    return Resource(
        group=resource.group, version=resource.version, kind=resource.kind, plural=f"{resource.plural}/{subresource}"
    )


def _without_empty(condition: Raw) -> Raw:
    return {key: value for key, value in condition.items() if value != ""}


def _refused(pod: Record, budget: Record, raw: Raw, allowed: int) -> TooManyRequests:
    status = raw.get("status") or {}
    detail = f"the budget {budget.name} allows {max(allowed, 0)} disruptions now"
    if status.get("desiredHealthy") is not None:
        needed, there = status["desiredHealthy"], status.get("currentHealthy", 0)
        detail = f"the budget {budget.name} needs {needed} healthy pods and has {there} currently"
    return TooManyRequests(
        f"Cannot evict pod as it would violate the pod's disruption budget: {detail}.",
        kind="pods",
        name=pod.name,
        causes=[Cause("", detail, "DisruptionBudget")],
    )


# --- disruption budgets, pure ------------------------------------------------------------------------------------


def selects(budget: Raw, labels: Mapping[str, str]) -> bool:
    """A budget without a selector selects nothing, with an empty one everything in its namespace."""
    selector = (budget.get("spec") or {}).get("selector")
    return isinstance(selector, dict) and _query_of(selector).matches(labels)


def has_status(budget: Raw) -> bool:
    """Whether some controller keeps the budget's status, for the budget as it is now."""
    observed = (budget.get("status") or {}).get("observedGeneration")
    return isinstance(observed, int) and observed > 0 and observed >= (budget["metadata"].get("generation") or 0)


def disruptions_allowed(budget: Raw, pods: Sequence[Raw]) -> int:
    """How many of `pods`, all that the budget selects, may go now. The pods there are stand for those that should be."""
    spec = budget.get("spec") or {}
    alive = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
    healthy = sum(
        is_true((pod.get("status") or {}).get("conditions"), "Ready") and not pod["metadata"].get("deletionTimestamp")
        for pod in alive
    )
    expected = len(alive)
    if spec.get("maxUnavailable") is not None:
        desired = expected - _share(spec["maxUnavailable"], expected)
    elif spec.get("minAvailable") is not None:
        desired = _share(spec["minAvailable"], expected)
    else:
        desired = 1  # what Kubernetes takes for a budget that names neither
    return healthy - max(desired, 0)


def _share(amount: Any, total: int) -> int:
    """A number, or a percentage of `total` rounded up."""
    if isinstance(amount, int):
        return amount
    text = str(amount)
    try:
        return math.ceil(int(text.removesuffix("%")) * total / 100) if text.endswith("%") else int(text)
    except ValueError:
        raise BadRequest(f"{text!r} is neither a whole number nor a percentage like 50%") from None


def _still_disrupted(pods: Any, now: float) -> Raw:
    """Evictions that were granted and may not have happened yet."""
    kept: Raw = {}
    for name, at in (pods or {}).items():
        try:
            if parse_time(at) + _DISRUPTED_S > now:
                kept[name] = at
        except ValueError:
            continue
    return kept


def _is_free_to_go(pod: Raw) -> bool:
    """A pod that serves nobody yet or any more is not a disruption."""
    phase = (pod.get("status") or {}).get("phase")
    return phase in ("Succeeded", "Failed", "Pending", None) or bool(pod["metadata"].get("deletionTimestamp"))


def _query_of(selector: Raw) -> LabelQuery:
    try:
        if "matchLabels" in selector or "matchExpressions" in selector or not selector:
            return from_label_selector(view_of(LabelSelector, selector))
        return from_labels({str(k): str(v) for k, v in selector.items()})
    except ValueError as error:
        raise BadRequest(f"selector {selector} is not valid: {error}") from None


def _value_at(raw: Raw, path: str) -> Any:
    found = compile_path(path).find(raw) if path else []
    return found[0] if found else None


def _number_at(raw: Raw, path: str) -> int:
    value = _value_at(raw, path)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
