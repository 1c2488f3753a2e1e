"""The controller of Domains: keeps what a party needs in place, shows its nodes and quota, and lets it go in order.

`domain_plan` decides; this file reads the caches. Only one thing is read from the store itself: what is in a namespace that was
there before the Domain, because no cache holds everything that could be in it.

Keys are Domains. The namespace, its nodes, its pods and its work all lead back to the Domain of that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from muster.controllers import domain_objects as objects
from muster.controllers.domain_plan import Situation, plan
from muster.controllers.domain_status import NodeView, node_entry
from muster.controllers.runtime import Caches, Context, Controller, Plan, Watch
from muster.engine.facts import PodFacts, QuotaFacts
from muster.objects.kinds.kuscia_base import GROUP
from muster.objects.kinds.kuscia_jobs import FINAL_PHASES
from muster.objects.labels import KusciaLabel
from muster.objects.meta import name_of
from muster.objects.names import NAMESPACE_CROSS_DOMAIN
from muster.objects.status import NotFound, Raw
from muster.objects.view import View
from muster.store.cache import NAMESPACE_INDEX, Cached, ObjectKey, by_label
from muster.store.contract import Store
from muster.store.informer import Change

_STRANGERS_SHOWN_MAX = 5
_SYSTEM_OBJECTS = frozenset({("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")})
"""Every namespace gets these by itself."""
_OPENED = (
    ("", "Pod"),
    ("", "ConfigMap"),
    ("", "Service"),
    ("", "ServiceAccount"),
    (objects.RBAC_GROUP, "Role"),
    (objects.RBAC_GROUP, "RoleBinding"),
)
"""What a party's account reaches in its namespace, or what decides who does."""
_NODE_INDEX = "party"
_WORK_INDEX = "open-work-by-party"


class PartyName(View):
    domain_id: str = msgspec.field(default="", name="domainID")


class TaskParties(View):
    parties: list[PartyName] = msgspec.field(default_factory=list)


class WorkSpec(View):
    initiator: str = ""
    parties: list[PartyName] = msgspec.field(default_factory=list)
    tasks: list[TaskParties] = msgspec.field(default_factory=list)


class WorkStatus(View):
    phase: str = ""


class WorkView(View):
    """A KusciaJob, KusciaTask or KusciaDeployment: whose it is, and how far."""

    spec: WorkSpec = msgspec.field(default_factory=WorkSpec)
    status: WorkStatus = msgspec.field(default_factory=WorkStatus)

    @property
    def parties(self) -> frozenset[str]:
        named = [*self.spec.parties, *(party for task in self.spec.tasks for party in task.parties)]
        return frozenset((self.spec.initiator, *(party.domain_id for party in named))) - {""}


def _open_by_party(work: Cached) -> Iterable[str]:
    """Work that has not ended, by each of its parties."""
    view = work.view(WorkView)
    return sorted(view.parties) if view.status.phase not in FINAL_PHASES else ()


def _of_namespace(obj: Cached, caches: Caches) -> Iterable[ObjectKey]:
    key = ObjectKey("", obj.key.namespace)
    return (key,) if key in caches[DOMAINS] else ()


def _of_pod(pod: Cached, caches: Caches) -> Iterable[ObjectKey]:
    """Pods matter to a Domain that counts them, or that waits for them to end."""
    key = ObjectKey("", pod.key.namespace)
    domain = caches[DOMAINS].get(key)
    counts = domain is not None and (domain.deleting or domain.view(QuotaFacts).spec.resource_quota is not None)
    return (key,) if counts else ()


def _of_same_name(obj: Cached, caches: Caches) -> Iterable[ObjectKey]:
    if obj.key.name == NAMESPACE_CROSS_DOMAIN:
        return caches[DOMAINS].keys()
    key = ObjectKey("", obj.key.name)
    return (key,) if key in caches[DOMAINS] else ()


def _named_after(obj: Cached, caches: Caches) -> Iterable[ObjectKey]:
    return _of_namespace(obj, caches) if obj.key.name == obj.key.namespace else ()


def _of_node(node: Cached, caches: Caches) -> Iterable[ObjectKey]:
    key = ObjectKey("", node.labels.get(KusciaLabel.NODE_NAMESPACE, ""))
    return (key,) if key in caches[DOMAINS] else ()


def _of_work(work: Cached, caches: Caches) -> Iterable[ObjectKey]:
    """Work matters to a Domain only while that is being deleted."""
    keys = (ObjectKey("", party) for party in sorted(work.view(WorkView).parties))
    return [key for key in keys if (domain := caches[DOMAINS].get(key)) is not None and domain.deleting]


def _moves_pod(change: Change) -> bool:
    """Whether the pod counts otherwise than before."""
    if change.old is None or change.new is None:
        return True
    before, after = change.old.view(PodFacts), change.new.view(PodFacts)
    return (before.spec.node_name, before.is_finished) != (after.spec.node_name, after.is_finished)


def _moves_node(change: Change) -> bool:
    """Whether the Domain shows the node otherwise than before; heartbeats by the minute."""
    if change.old is None or change.new is None:
        return True
    return _outline(change.old) != _outline(change.new)


def _outline(node: Cached) -> tuple[str, Raw]:
    entry = node_entry(node.key.name, node.view(NodeView))
    beat = str(entry.pop("lastHeartbeatTime", ""))
    return node.labels.get(KusciaLabel.NODE_NAMESPACE, ""), {**entry, "minute": beat[:16]}


DOMAINS = Watch(group=GROUP, kind="Domain", view=QuotaFacts)
NAMESPACES = Watch(group="", kind="Namespace", keys=_of_same_name)
CONFIGURATIONS = Watch(group="", kind="ConfigMap", field_selector=f"metadata.name={objects.CONFIG_NAME}", keys=_of_namespace)
ACCOUNTS = Watch(group="", kind="ServiceAccount", keys=_named_after)
ROLES = Watch(group=objects.RBAC_GROUP, kind="Role", keys=_named_after)
BINDINGS = Watch(group=objects.RBAC_GROUP, kind="RoleBinding", keys=_named_after)
_BY_PARTY = by_label(KusciaLabel.NODE_NAMESPACE)
NODES = Watch(
    group="", kind="Node", view=NodeView, keep="nothing", keys=_of_node, indexes={_NODE_INDEX: _BY_PARTY}, matters=_moves_node
)
PODS = Watch(group="", kind="Pod", view=PodFacts, keep="nothing", keys=_of_pod, matters=_moves_pod)
WORK = tuple(
    Watch(group=GROUP, kind=kind, view=WorkView, keep="nothing", keys=_of_work, indexes={_WORK_INDEX: _open_by_party})
    for kind in ("KusciaJob", "KusciaTask", "KusciaDeployment")
)


class Domains(Controller):
    """Keys are Domains."""

    name = "domain"
    watches = (DOMAINS, NAMESPACES, CONFIGURATIONS, ACCOUNTS, ROLES, BINDINGS, NODES, PODS, *WORK)

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        at = situation(key, caches)
        return Plan() if at is None else plan(at, now)

    async def handle(self, key: ObjectKey, context: Context) -> float | None:
        at = situation(key, context.caches)
        if at is None:
            return None
        if at.needs_look:
            at = msgspec.structs.replace(at, strangers=await strangers(at.party, context.store))
        result = plan(at, context.clock())
        await context.executor.apply(result.actions)
        return result.requeue_after_s


def situation(key: ObjectKey, caches: Caches) -> Situation | None:
    """What the caches hold of a Domain; None when there is no such Domain."""
    domain = caches[DOMAINS].get(key)
    if domain is None:
        return None
    party, own = key.name, ObjectKey(key.name, key.name)
    nodes = caches[NODES].by_index(_NODE_INDEX, party)
    return Situation(
        domain=domain.raw,
        namespace=_raw(caches[NAMESPACES].get(key)),
        has_cross_domain=ObjectKey("", NAMESPACE_CROSS_DOMAIN) in caches[NAMESPACES],
        configuration=_raw(caches[CONFIGURATIONS].get(ObjectKey(party, objects.CONFIG_NAME))),
        account=_raw(caches[ACCOUNTS].get(own)),
        role=_raw(caches[ROLES].get(own)),
        binding=_raw(caches[BINDINGS].get(own)),
        strangers=None,
        nodes=[node_entry(node.key.name, node.view(NodeView)) for node in nodes],
        quota=domain.view(QuotaFacts),
        pods=lambda: [pod.view(PodFacts) for pod in caches[PODS].by_index(NAMESPACE_INDEX, party)],
        holders=holders(party, caches) if domain.deleting else (),
    )


def _raw(found: Cached | None) -> Raw | None:
    return None if found is None else found.raw


def holders(party: str, caches: Caches) -> list[str]:
    """The party's work that has not ended: what made the pods first, because that is what a person stops."""
    found: list[str] = []
    for watch in WORK:
        found += [f"{watch.kind} {work.key}" for work in caches[watch].by_index(_WORK_INDEX, party)]
    pods = caches[PODS].select(party)
    return [*found, *(f"Pod {pod.key}" for pod in pods if not pod.view(PodFacts).is_finished)]


async def strangers(namespace: str, store: Store) -> Sequence[str]:
    """What is in a namespace of all that its party's account would reach; a few of each kind are enough to say no."""
    found = []
    for group, kind in _OPENED:
        try:
            resource = await store.resource(group, kind)
        except NotFound:
            continue
        page = await store.list(resource, namespace, limit=_STRANGERS_SHOWN_MAX + len(_SYSTEM_OBJECTS))
        found += [f"{kind} {name_of(item)}" for item in page.items if (kind, name_of(item)) not in _SYSTEM_OBJECTS]
    return found
