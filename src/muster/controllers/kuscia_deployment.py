"""KusciaDeployments: services that several parties run together, kept up for as long as they exist.

The controller around `kuscia_deployment_plan`. Keys are KusciaDeployments of the namespace `cross-domain`. It makes pods for
own parties only; what partners have comes in through KusciaDeploymentSummaries of the same name in their namespaces.

It makes pods itself, on a real cluster too: the scheduler, quotas and links treat them like all others, one controller serves
both stores, and the embedded store has no controller of Deployments.

Concurrency: several workers, one key at a time. `reconcile` does not suspend, so that port numbers are given out one after the
other (`port_book`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import ClassVar, Final

from muster.controllers import kuscia_task
from muster.controllers.actions import Create
from muster.controllers.kuscia_deployment_plan import DeploymentPlan, DeploymentState, plan, refuse
from muster.controllers.kuscia_task_pods import TaskPod
from muster.controllers.parties import Bare, DomainView, comes_or_goes, party_of
from muster.controllers.port_book import PORT_INDEX, PortBook, ports_of_deployment
from muster.controllers.runtime import Caches, Context, Controller, Plan, Watch
from muster.controllers.task_ports import PortLedger, deployment_ports
from muster.objects.kinds.kuscia_base import GROUP
from muster.objects.labels import KusciaLabel
from muster.objects.meta import labels_of, name_of, namespace_of
from muster.objects.names import NAMESPACE_CROSS_DOMAIN
from muster.objects.rules.report import obj, objs, text
from muster.objects.status import BadRequest, Forbidden, Invalid, NotFound, Raw
from muster.store.cache import Cached, ObjectKey, by_label
from muster.store.contract import Store

_BY_UID: Final = "kuscia-deployment-by-uid"
_BY_WAIT: Final = "kuscia-deployment-by-wait"
_BY_DEPLOYMENT: Final = "kuscia-deployment-uid"
_PAGE_LEN: Final = 500
_LOOK_AGAIN_S: Final = 1.0
_KINDS: Final = ("Pod", "Service", "ConfigMap")


def _uid(deployment: Cached) -> Iterable[str]:
    return (deployment.uid,)


def _waits(deployment: Cached) -> Iterable[str]:
    """The AppImages and parties that it looks at."""
    parties = [party for _, party in objs(obj(deployment.raw, "spec"), "parties", "")]
    names = {f"image/{text(party, 'appImageRef')}" for party in parties}
    return sorted(names | {f"domain/{text(party, 'domainID')}" for party in parties})


def _by_label(obj_: Cached, caches: Caches) -> list[ObjectKey]:
    uid = obj_.labels.get(KusciaLabel.DEPLOYMENT_UID, "")
    return [one.key for one in caches[DEPLOYMENTS].by_index(_BY_UID, uid)] if uid else []


def _by_name(obj_: Cached, _caches: Caches) -> tuple[ObjectKey]:
    return (ObjectKey(NAMESPACE_CROSS_DOMAIN, obj_.key.name),)


def _looked_at(prefix: str) -> Callable[[Cached, Caches], list[ObjectKey]]:
    def keys(obj_: Cached, caches: Caches) -> list[ObjectKey]:
        return [one.key for one in caches[DEPLOYMENTS].by_index(_BY_WAIT, f"{prefix}/{obj_.key.name}")]

    return keys


def _nobody(_obj: Cached, _caches: Caches) -> tuple[ObjectKey, ...]:
    return ()


DEPLOYMENTS = Watch(
    group=GROUP,
    kind="KusciaDeployment",
    namespace=NAMESPACE_CROSS_DOMAIN,
    indexes={_BY_UID: _uid, PORT_INDEX: ports_of_deployment, _BY_WAIT: _waits},
)
PODS = Watch(
    group="",
    kind="Pod",
    label_selector=KusciaLabel.DEPLOYMENT_UID,
    view=TaskPod,
    keep="nothing",
    indexes={_BY_DEPLOYMENT: by_label(KusciaLabel.DEPLOYMENT_UID)},
    keys=_by_label,
)
SERVICES, FILES = (
    Watch(
        group="",
        kind=kind,
        label_selector=KusciaLabel.DEPLOYMENT_UID,
        indexes={_BY_DEPLOYMENT: by_label(KusciaLabel.DEPLOYMENT_UID)},
        keys=_by_label,
    )
    for kind in ("Service", "ConfigMap")
)
IMAGES = Watch(group=GROUP, kind="AppImage", keys=_looked_at("image"))
DOMAINS = Watch(group=GROUP, kind="Domain", view=DomainView, keep="nothing", keys=_looked_at("domain"), matters=comes_or_goes)
NAMESPACES = Watch(group="", kind="Namespace", view=Bare, keep="nothing", keys=_looked_at("domain"), matters=comes_or_goes)
SUMMARIES = Watch(group=GROUP, kind="KusciaDeploymentSummary", keys=_by_name)
TASKS = dataclasses.replace(kuscia_task.TASKS, keys=_nobody)
"""The same cache as the controller of tasks has, for the ports that they hold."""


class KusciaDeployments(Controller):
    """Keys are KusciaDeployments. `ledger` is shared with whoever else gives out ports in this process."""

    name = "kuscia-deployment"
    watches = (DEPLOYMENTS, PODS, SERVICES, FILES, IMAGES, DOMAINS, NAMESPACES, SUMMARIES, TASKS)
    workers: ClassVar[int] = 2

    def __init__(self, ledger: PortLedger | None = None) -> None:
        self._ports = PortBook(ledger if ledger is not None else PortLedger(), TASKS, DEPLOYMENTS)

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        decided = self._decide(key, caches, now, frozenset())
        return Plan() if decided is None else Plan(decided.actions, decided.requeue_after_s)

    async def handle(self, key: ObjectKey, context: Context) -> float | None:
        await self._ports.begin(context)
        now = context.clock()
        decided = self._decide(key, context.caches, now, frozenset())
        if decided is None:
            return None
        foreign = await _foreign_services(decided, context)
        if foreign:
            decided = self._decide(key, context.caches, now, foreign) or decided
        if decided.is_last and await _is_anything_left(key, context):
            return _LOOK_AGAIN_S
        try:
            await context.executor.apply(decided.actions)
        except (Invalid, BadRequest, Forbidden) as error:
            deployment = context.caches[DEPLOYMENTS].get(key)
            if deployment is None or deployment.deleting:
                raise
            state = self._state(deployment, context.caches, now, foreign)
            decided = refuse(state, str(error), is_final=isinstance(error, Invalid | BadRequest))
            await context.executor.apply(decided.actions)
        return decided.requeue_after_s

    def _decide(self, key: ObjectKey, caches: Caches, now: float, foreign: frozenset[tuple[str, str]]) -> DeploymentPlan | None:
        deployment = caches[DEPLOYMENTS].get(key)
        if deployment is None:
            self._ports.forget(key)
            return None
        decided = plan(self._state(deployment, caches, now, foreign))
        self._ports.note(deployment, decided.allocated, is_shown=bool(deployment_ports(deployment.raw)))
        return decided

    def _state(self, deployment: Cached, caches: Caches, now: float, foreign: frozenset[tuple[str, str]]) -> DeploymentState:
        raw, uid = deployment.raw, deployment.uid
        services = caches[SERVICES].by_index(_BY_DEPLOYMENT, uid)
        return DeploymentState(
            deployment=raw,
            pods=[pod.view(TaskPod) for pod in caches[PODS].by_index(_BY_DEPLOYMENT, uid)],
            services=[one.raw for one in services],
            files=[one.raw for one in caches[FILES].by_index(_BY_DEPLOYMENT, uid)],
            find_image=lambda name: _raw(caches[IMAGES].get(ObjectKey("", name))),
            # A Domain that is being deleted waits for its services: they are kept up until they are deleted themselves.
            find_party=lambda name: party_of(caches[DOMAINS].get(ObjectKey("", name)), caches[NAMESPACES]),
            partners=_partners(raw, caches),
            foreign=foreign,
            is_taken=lambda domain, number: self._ports.is_taken(domain, number, uid, caches),
            now=now,
        )


async def _foreign_services(decided: DeploymentPlan, context: Context) -> frozenset[tuple[str, str]]:
    """Of the services that are about to be made, those whose names somebody else has. They have no owner that could tell."""
    wanted = [action.object for action in decided.actions if isinstance(action, Create) and action.object["kind"] == "Service"]
    found = set()
    for one in wanted:
        try:
            resource = await context.store.resource("", "Service")
            live = await context.store.get(resource, name_of(one), namespace_of(one))
        except NotFound:
            continue
        if labels_of(live).get(KusciaLabel.DEPLOYMENT_UID) != labels_of(one)[KusciaLabel.DEPLOYMENT_UID]:
            found.add((namespace_of(one), name_of(one)))
    return frozenset(found)


async def _is_anything_left(key: ObjectKey, context: Context) -> bool:
    """Whether the store has something of it that the caches do not show."""
    deployment = context.caches[DEPLOYMENTS].get(key)
    return deployment is not None and await _has_objects(deployment.uid, context.store)


async def _has_objects(uid: str, store: Store) -> bool:
    for kind in _KINDS:
        page = await store.list(await store.resource("", kind), label_selector=f"{KusciaLabel.DEPLOYMENT_UID}={uid}", limit=1)
        if page.items:
            return True
    return False


def _raw(cached: Cached | None) -> Raw | None:
    return cached.raw if cached is not None else None


def _partners(deployment: Raw, caches: Caches) -> dict[str, dict[str, Raw]]:
    """What partners say of their parts, by party."""
    found: dict[str, dict[str, Raw]] = {}
    for _, party in objs(obj(deployment, "spec"), "parties", ""):
        domain_id = text(party, "domainID")
        domain = caches[DOMAINS].get(ObjectKey("", domain_id))
        if domain is None or not domain.view(DomainView).is_partner:
            continue
        for namespace in (domain_id, domain.view(DomainView).spec.master):
            summary = caches[SUMMARIES].get(ObjectKey(namespace, name_of(deployment))) if namespace else None
            said = obj(obj(obj(summary.raw, "status"), "partyDeploymentStatuses"), domain_id) if summary is not None else {}
            entries = {name: entry for name, entry in said.items() if isinstance(entry, dict)}
            if entries:
                found.setdefault(domain_id, entries)
    return found
