"""The smaller kinds: each is kept by name in the state, and who depends on one is woken when it changes. Pure."""

from __future__ import annotations

from muster.engine import events as ev
from muster.engine.plugin import Wake
from muster.engine.state import State


def apply_book(event: ev.AnyEvent, state: State) -> None:
    """Take in an event about one of the smaller kinds; any other is nothing to this."""
    match event:
        case ev.NodeMetricSeen(metric=m):
            state.keep(state.metrics, m.metadata.name, m, Wake.METRIC)
        case ev.NodeMetricGone(name=name):
            state.keep(state.metrics, name, None, Wake.METRIC)
        case ev.BudgetSeen(budget=b):
            state.keep(state.budgets, (b.metadata.namespace, b.metadata.name), b, Wake.POD)
        case ev.BudgetGone(namespace=namespace, name=name):
            state.keep(state.budgets, (namespace, name), None, Wake.POD)
        case ev.ClaimSeen(claim=c):
            state.keep(state.claims, (c.metadata.namespace, c.metadata.name), c, Wake.VOLUME)
        case ev.ClaimGone(namespace=namespace, name=name):
            state.keep(state.claims, (namespace, name), None, Wake.VOLUME)
        case ev.VolumeSeen(volume=v):
            state.keep(state.volumes, v.metadata.name, v, Wake.VOLUME)
        case ev.VolumeGone(name=name):
            state.keep(state.volumes, name, None, Wake.VOLUME)
        case ev.StorageClassSeen(storage_class=s):
            state.keep(state.storage_classes, s.metadata.name, s, Wake.VOLUME)
        case ev.StorageClassGone(name=name):
            state.keep(state.storage_classes, name, None, Wake.VOLUME)
        case ev.NamespaceSeen(namespace=n):
            state.keep(state.namespaces, n.metadata.name, n, Wake.NAMESPACE)
        case ev.NamespaceGone(name=name):
            state.keep(state.namespaces, name, None, Wake.NAMESPACE)
        case ev.PoolSeen(pool=p):
            state.keep(state.pools, p.metadata.name, p, Wake.NODE)
        case ev.PoolGone(name=name):
            state.keep(state.pools, name, None, Wake.NODE)
        case ev.LinkSeen(link=link):
            state.keep(state.links, link.metadata.name, link, Wake.LINK)
        case ev.LinkGone(name=name):
            state.keep(state.links, name, None, Wake.LINK)
        case ev.QuotaSeen(quota=q):
            state.keep(state.quotas, q.metadata.name, q, Wake.QUOTA)
        case ev.QuotaGone(name=name):
            state.keep(state.quotas, name, None, Wake.QUOTA)
        case ev.PodGroupSeen(group=g):
            state.keep(state.groups, (g.metadata.namespace, g.metadata.name), g, Wake.GROUP)
        case ev.PodGroupGone(namespace=namespace, name=name):
            state.keep(state.groups, (namespace, name), None, Wake.GROUP)
        case ev.TaskGroupSeen(group=t):
            state.keep(state.task_groups, t.metadata.name, t, Wake.GROUP)
        case ev.TaskGroupGone(name=name):
            state.keep(state.task_groups, name, None, Wake.GROUP)
        case ev.QueueSeen(queue=one) | ev.PolicySeen(policy=one) | ev.UserSeen(user=one) | ev.UserGroupSeen(group=one):
            # Who waits for a change of one is woken by the order.
            state.order_objects[_kind(event), one.metadata.name] = event
        case ev.QueueGone(name=name) | ev.PolicyGone(name=name) | ev.UserGone(name=name) | ev.UserGroupGone(name=name):
            state.order_objects.pop((_kind(event), name), None)


def _kind(event: ev.AnyEvent) -> str:
    return type(event).__name__.removesuffix("Seen").removesuffix("Gone")
