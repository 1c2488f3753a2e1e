"""Refuses work that asks for more bandwidth than any node could ever give it, when it is submitted.

`Capacities` remembers what every node has, which parties are partners with nodes of their own elsewhere, and how many pods an
AppImage makes; whoever holds it feeds it: the embedded server from its store, `muster controller` from informers. While no node
is known, or none has a capacity, everything passes: nodes may join, and an administrator may say what they have.

What is refused is only what is new. An update that asks for what it asked for before passes, and so do tasks and pods that a
controller makes for work that was accepted: when a node has shrunk since, that work waits and says why.

Concurrency: on the event loop; memory only. A lookup is a few comparisons, however many nodes there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from muster.objects.bandwidth import Directions, node_bandwidth
from muster.objects.bandwidth_demands import Demand, demands
from muster.objects.bandwidth_units import format_bandwidth
from muster.objects.labels import KusciaLabel
from muster.objects.meta import controller_of, name_of
from muster.objects.reason_codes import Reason
from muster.objects.status import Raw
from muster.server.admission import Hook, refused, writes_metadata
from muster.store.embedded.admission import AdmissionRequest

FOLLOWED: Final = (("", "Node"), ("kuscia.secretflow", "Domain"), ("kuscia.secretflow", "AppImage"))
"""The kinds that `Capacities.apply` takes."""
_SHOWN_MAX: Final = 5


class Largest(msgspec.Struct, frozen=True):
    """A node, and what it has."""

    node: str
    usable: Directions


class _Node(msgspec.Struct, frozen=True):
    domain: str
    usable: Directions | None


class Capacities:
    """See the module."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._partners: set[str] = set()
        self._images: dict[str, Raw] = {}
        self._sizes: dict[str, dict[Directions | None, set[str]]] = {}
        """Names of nodes by party (under "" of all nodes) and by what they have: clusters have few sizes of nodes."""
        self._fronts: dict[str, list[Largest]] = {}
        """By party: the nodes that no other beats in both directions. Made when asked for."""

    def apply(self, kind: str, raw: Mapping[str, Any], *, deleted: bool = False) -> None:
        """Take in an object of one of the `FOLLOWED` kinds, in any order and as often as one likes."""
        name = name_of(raw)
        if kind == "Node":
            self._apply_node(name, None if deleted else _node(raw))
        elif kind == "Domain":
            is_partner = not deleted and _object(raw, "spec").get("role") == "partner"
            (self._partners.add if is_partner else self._partners.discard)(name)
        elif kind == "AppImage":
            if deleted:
                self._images.pop(name, None)
            else:
                self._images[name] = _image(raw)

    def _apply_node(self, name: str, node: _Node | None) -> None:
        before = self._nodes.get(name)
        if node == before:  # a heartbeat: most changes of nodes are
            return
        if before is not None:
            del self._nodes[name]
            for domain in {"", before.domain}:
                self._drop(domain, before.usable, name)
        if node is not None:
            self._nodes[name] = node
            for domain in {"", node.domain}:
                self._sizes.setdefault(domain, {}).setdefault(node.usable, set()).add(name)
                self._fronts.pop(domain, None)

    def _drop(self, domain: str, usable: Directions | None, name: str) -> None:
        sizes = self._sizes[domain]
        sizes[usable].discard(name)
        if not sizes[usable]:
            del sizes[usable]
        if not sizes:
            del self._sizes[domain]
        self._fronts.pop(domain, None)

    def image(self, name: str) -> Raw | None:
        return self._images.get(name)

    def is_partner(self, domain: str) -> bool:
        """Whether the party's nodes are another control plane's."""
        return domain in self._partners

    @property
    def has_nodes(self) -> bool:
        return bool(self._nodes)

    def best(self, domain: str) -> tuple[str, list[Largest]]:
        """The nodes that decide for a party, best first; the party is "" when it has no nodes of its own and any will do."""
        party = domain if domain in self._sizes else ""
        front = self._fronts.get(party)
        if front is None:
            front = self._fronts[party] = _front(self._sizes.get(party, {}))
        return party, front


def _front(sizes: Mapping[Directions | None, set[str]]) -> list[Largest]:
    """Most egress first; each further one has more ingress. Of nodes of one size, the first by name."""
    known = [size for size in sizes if size is not None]
    front: list[Largest] = []
    for size in sorted(known, key=lambda size: (-size.egress_bps, -size.ingress_bps)):
        if not front or size.ingress_bps > front[-1].usable.ingress_bps:
            front.append(Largest(min(sizes[size]), size))
    return front


def _node(raw: Mapping[str, Any]) -> _Node:
    metadata, status = _object(raw, "metadata"), _object(raw, "status")
    labels = _object(metadata, "labels")
    domain = labels.get(KusciaLabel.NODE_NAMESPACE) or labels.get(KusciaLabel.NODE_DOMAIN) or ""
    found = node_bandwidth(_object(metadata, "annotations"), _object(status, "allocatable"), _object(status, "capacity"))
    return _Node(str(domain), found.usable)


def _image(raw: Mapping[str, Any]) -> Raw:
    """What is read of an AppImage; its configuration templates may be large."""
    templates = _object(raw, "spec").get("deployTemplates")
    return {
        "spec": {
            "deployTemplates": [
                {
                    "role": template.get("role"),
                    "replicas": template.get("replicas"),
                    "spec": {
                        "containers": [
                            {"name": container.get("name"), "resources": container.get("resources")}
                            for container in _list(_object(template, "spec"), "containers")
                        ]
                    },
                }
                for template in (templates if isinstance(templates, list) else ())
                if isinstance(template, dict)
            ]
        }
    }


class BandwidthFits(Hook):
    """See the module."""

    def __init__(self, capacities: Capacities) -> None:
        self._capacities = capacities

    async def validate(self, request: AdmissionRequest) -> None:
        raw = request.object
        if raw is None or request.operation not in ("CREATE", "UPDATE") or not writes_metadata(request):
            return
        asked = self._new_demands(request, raw)
        if not asked:
            return
        impossible = [text for text in map(self._impossible, asked) if text]
        if impossible:
            more = len(impossible) - _SHOWN_MAX
            tail = f"; and {more} more" if more > 0 else ""
            raise refused(request, f"{Reason.IMPOSSIBLE.value}: {'; '.join(impossible[:_SHOWN_MAX])}{tail}")
        if any(self._is_unknown(demand) for demand in asked):
            request.warn(
                "it asks for bandwidth, and of no node that it may use is known how much it has: it waits until one is given "
                "a capacity (muster node set-bandwidth NODE 10Gbps)"
            )

    def _new_demands(self, request: AdmissionRequest, raw: Raw) -> list[Demand]:
        group, kind = request.resource.group, request.resource.kind
        if controller_of(raw) is not None:
            return []
        asked = demands(group, kind, raw, self._capacities.image)
        if not asked or request.old is None:
            return asked
        before = demands(group, kind, request.old, self._capacities.image)
        return [demand for demand in asked if demand not in before]

    def _is_unknown(self, demand: Demand) -> bool:
        known = self._capacities
        return known.has_nodes and not known.is_partner(demand.domain) and not known.best(demand.domain)[1]

    def _impossible(self, demand: Demand) -> str:
        """Why no node could ever hold it; "" when one could, or when nobody knows."""
        if self._capacities.is_partner(demand.domain):
            return ""
        party, best = self._capacities.best(demand.domain)
        if not best or any(node.usable.holds(demand.request) for node in best):
            return ""
        share = f" (its share of {demand.total} over {demand.pods} pods)" if demand.pods > 1 else ""
        whose = f" of party {demand.domain}" if demand.domain else ""
        where = f"the largest node of party {party}" if party else "the largest node"
        return (
            f"{demand.field}: a pod{whose} asks for {demand.request}{share}, but {where} is {_largest(best, demand.request)}; "
            "ask for less, use more pods, or raise a node's capacity"
        )


def _largest(best: list[Largest], wanted: Directions) -> str:
    """In the direction that is short everywhere; where none is alone, every node lacks the one or the other."""
    sends, receives = best[0], best[-1]
    if wanted.egress_bps > sends.usable.egress_bps:
        return f"{sends.node} with {sends.usable}"
    if wanted.ingress_bps > receives.usable.ingress_bps:
        return f"{receives.node} with {receives.usable}"
    return (
        f"{sends.node} with egress {format_bandwidth(sends.usable.egress_bps)} or {receives.node} with ingress "
        f"{format_bandwidth(receives.usable.ingress_bps)}, and none has both"
    )


def _object(parent: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def _list(parent: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    value = parent.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
