"""VolumeRestrictions: a disk that can't be shared is not mounted twice on a node, a ReadWriteOncePod claim not twice at all.

Disks are those that a pod names itself (GCE, EBS, RBD, iSCSI). Two pods clash on a node when they name the same one, unless
both only read; an EBS volume is never shared. A claim with access mode ReadWriteOncePod that a placed pod uses keeps every
other pod that uses it from all nodes. Same rules as kube-scheduler's.

Keeps who mounts what, by disk and by claim; only pods with such volumes cost anything. Called from the engine's one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec
import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Mask
from muster.engine.facts import PodFacts
from muster.engine.node_selectors import no_node
from muster.engine.plugin import Plugin, Scope, Wake
from muster.engine.pods import PodRecord
from muster.engine.shapes import Shape
from muster.engine.volumes import ONE_POD, Disk, Key, claims_of, disks_of, mounts_disks, the_pod, uses_claims
from muster.objects.reasons import Holder, Reason, Shortfall, shortfall

_HOLDERS_SHOWN_MAX: Final = 3
K = TypeVar("K")


class _User(msgspec.Struct, frozen=True):
    uid: str
    pod: str
    node: str
    disk: Disk | None = None


class VolumeRestrictions(Plugin):
    name = "VolumeRestrictions"
    concerns_by_shape = True
    scope = Scope.WIDE
    reason = Reason.VOLUME_NODE_CONFLICT
    wakes_on = frozenset({Wake.NODE, Wake.POD})

    def __init__(self, args: object = None) -> None:
        super().__init__(args)
        self._disks: dict[tuple[str, ...], list[_User]] = {}
        self._claims: dict[Key, list[_User]] = {}
        self._counted: dict[str, tuple[list[Disk], list[Key]]] = {}
        """By uid, so that what goes is exactly what came."""

    def follows(self, shape: Shape) -> bool:
        return bool(shape.spec.volumes)

    def pod_added(self, pod: PodRecord, slot: int) -> None:
        if not pod.facts.spec.volumes:
            return
        disks, claims = disks_of(pod.facts.spec), [use.key for use in claims_of(pod.facts)]
        if not disks and not claims:
            return
        self._counted[pod.uid] = (disks, claims)
        for disk in disks:
            self._disks.setdefault(disk.identity, []).append(_User(pod.uid, pod.key, pod.node, disk))
        for claim in claims:
            self._claims.setdefault(claim, []).append(_User(pod.uid, pod.key, pod.node))

    def pod_removed(self, pod: PodRecord, slot: int) -> None:
        disks, claims = self._counted.pop(pod.uid, ((), ()))
        for disk in disks:
            _drop(self._disks, disk.identity, pod.uid)
        for claim in claims:
            _drop(self._claims, claim, pod.uid)

    def concerns(self, pods: PodBlock) -> bool:
        spec = pods.shape.spec
        return bool(spec.volumes) and (mounts_disks(spec) or uses_claims(spec))

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        pod = the_pod(pods)
        if next(self._claim_clashes(pod), None) is not None:
            return no_node(nodes)
        slots = nodes.columns.slots
        mask: Mask = np.ones(len(nodes.columns), np.bool_)
        mask[[slots[user.node] for _, user in self._disk_clashes(pod) if user.node in slots]] = False
        found: Mask = nodes.take(mask)
        return found

    def explain(self, pods: PodBlock, nodes: NodeBlock) -> tuple[Reason, list[Shortfall]]:
        """Which claim or disk is taken, and by whom."""
        pod = the_pod(pods)
        here = set(nodes.names())
        holders: dict[str, list[_User]] = {}
        for claim, user in self._claim_clashes(pod):
            holders.setdefault(f"PersistentVolumeClaim {'/'.join(claim)} ({ONE_POD})", []).append(user)
        for disk, user in self._disk_clashes(pod):
            if user.node in here:
                holders.setdefault(str(disk), []).append(user)
        return self.reason, [
            shortfall(
                self.reason,
                want=1,
                best=0,
                unit="count",
                resource=what,
                holders=tuple(
                    Holder("Pod", user.pod, 1, user.node)
                    for user in sorted(users, key=lambda user: (user.node, user.pod))[:_HOLDERS_SHOWN_MAX]
                ),
            )
            for what, users in sorted(holders.items())
        ]

    def _claim_clashes(self, pod: PodFacts) -> Iterator[tuple[Key, _User]]:
        for use in claims_of(pod):
            users = self._claims.get(use.key)
            claim = self.state.claims.get(use.key) if users else None
            if users and claim is not None and ONE_POD in claim.spec.access_modes:
                yield from ((use.key, user) for user in users if user.uid != pod.metadata.uid)

    def _disk_clashes(self, pod: PodFacts) -> Iterator[tuple[Disk, _User]]:
        for disk in disks_of(pod.spec):
            for user in self._disks.get(disk.identity, ()):
                if user.uid != pod.metadata.uid and user.disk is not None and disk.clashes(user.disk):
                    yield disk, user


def _drop(book: dict[K, list[_User]], key: K, uid: str) -> None:
    left = [user for user in book.get(key, ()) if user.uid != uid]
    if left:
        book[key] = left
    else:
        book.pop(key, None)
