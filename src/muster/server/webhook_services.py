"""Where a webhook is reached that names a Service: the addresses behind it, from what the store has.

Nothing here routes cluster addresses, so the ready addresses of EndpointSlices and Endpoints come first; ExternalName is taken
by its word, and the Service's own cluster address is tried where nobody has written down endpoints at all. Pure but for the
reads, which are from memory; on the event loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from muster.objects.meta import name_of
from muster.objects.rules.report import number, obj, objs, text, texts
from muster.objects.status import NotFound, Raw
from muster.server.webhook_matching import Service
from muster.store.embedded import EmbeddedStore

Address = tuple[str, int]
ADDRESSES_MAX: Final = 100
_SERVICE_NAME: Final = "kubernetes.io/service-name"


class Unresolved(Exception):
    """There is no address to call; the text says why, as Kubernetes does."""


Resolve = Callable[[Service], Sequence[Address]]


def resolver(store: EmbeddedStore) -> Resolve:
    """Looks services up in `store`. Successive calls begin with another of several addresses."""
    turn = itertools.count()

    def resolve(service: Service) -> Sequence[Address]:
        kinds = store.catalog
        try:
            raw = store.get_record(kinds.by_kind("", "Service"), service.name, service.namespace).raw()
        except NotFound:
            raise Unresolved(f'service "{service.name}" not found') from None
        try:
            endpoints = [store.get_record(kinds.by_kind("", "Endpoints"), service.name, service.namespace).raw()]
        except NotFound:
            endpoints = []
        page = store.list_records(
            kinds.by_kind("discovery.k8s.io", "EndpointSlice"),
            service.namespace,
            label_selector=f"{_SERVICE_NAME}={service.name}",
            limit=ADDRESSES_MAX,
        )
        found = addresses(raw, endpoints, [record.raw() for record in page.records], service.port)
        start = next(turn) % len(found)
        return [*found[start:], *found[:start]]

    return resolve


def addresses(service: Raw, endpoints: Sequence[Raw], slices: Sequence[Raw], port: int) -> list[Address]:
    """Every place where `port` of `service` is served; at least one, or Unresolved."""
    name, spec = name_of(service), obj(service, "spec")
    if text(spec, "type") == "ExternalName":
        return [(text(spec, "externalName"), port)]
    served = next((one for _, one in objs(spec, "ports", "") if number(one, "port") == port), None)
    if served is None:
        raise Unresolved(f'no service port {port} found for service "{name}"')
    wanted = text(served, "name")
    found = list(dict.fromkeys([*_in_slices(slices, wanted), *_in_endpoints(endpoints, wanted)]))
    if found:
        return found[:ADDRESSES_MAX]
    cluster = text(spec, "clusterIP")
    if endpoints or slices or cluster in ("", "None"):
        raise Unresolved(f'no endpoints available for service "{name}"')
    return [(cluster, port)]


def _in_slices(slices: Sequence[Raw], port_name: str) -> Iterator[Address]:
    for one in slices:
        for _, port in objs(one, "ports", ""):
            if text(port, "name") != port_name:
                continue
            for _, endpoint in objs(one, "endpoints", ""):
                if obj(endpoint, "conditions").get("ready") is not False:
                    yield from ((host, number(port, "port")) for host in texts(endpoint, "addresses")[:1])


def _in_endpoints(endpoints: Sequence[Raw], port_name: str) -> Iterator[Address]:
    for one in endpoints:
        for _, subset in objs(one, "subsets", ""):
            for _, port in objs(subset, "ports", ""):
                if text(port, "name") == port_name:
                    yield from ((text(a, "ip"), number(port, "port")) for _, a in objs(subset, "addresses", ""))
