"""VolumeZone: a bound volume with zone or region labels keeps its pods in that zone or region.

Labels are `topology.kubernetes.io/zone` and `region`, and their older names `failure-domain.beta.kubernetes.io/...`. A value
may list several, joined by `__`. A node that lacks the older name may answer with the newer one, as newer versions of
kube-scheduler have it. A node with none of the four labels is in no zone, and takes every volume.

Pure: reads books and label columns when asked. Claims that are not bound are VolumeBinding's. Scope WIDE, as there.
"""

from __future__ import annotations

from typing import Final

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import ABSENT, Mask
from muster.engine.facts import PersistentVolumeFacts
from muster.engine.node_selectors import every_node, matches_label_selector
from muster.engine.plugin import Plugin, Scope, Wake
from muster.engine.volumes import bound_volumes, the_pod, uses_claims
from muster.objects.labels import Kubernetes
from muster.objects.reasons import Reason
from muster.objects.selectors import LabelSelector, LabelSelectorRequirement

NEWER_NAMES: Final = {
    "failure-domain.beta.kubernetes.io/zone": Kubernetes.ZONE,
    "failure-domain.beta.kubernetes.io/region": Kubernetes.REGION,
}
TOPOLOGY_LABELS: Final = (Kubernetes.ZONE, Kubernetes.REGION, *NEWER_NAMES)
_BETWEEN_ZONES: Final = "__"


class VolumeZone(Plugin):
    name = "VolumeZone"
    concerns_by_shape = True
    scope = Scope.WIDE
    reason = Reason.VOLUME_NODE_CONFLICT
    wakes_on = frozenset({Wake.VOLUME, Wake.NODE})

    def concerns(self, pods: PodBlock) -> bool:
        return uses_claims(pods.shape.spec)

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        mask = every_node(nodes)
        for volume in bound_volumes(the_pod(pods), self.state.claims, self.state.volumes):
            mask = mask & zone_mask(volume, nodes)
        return mask


def zone_mask(volume: PersistentVolumeFacts, nodes: NodeBlock) -> Mask:
    """Nodes that are where the volume is, by its labels."""
    inside = every_node(nodes)
    labels = [(key, value) for key in TOPOLOGY_LABELS if (value := volume.metadata.labels.get(key)) is not None]
    if not labels:
        return inside
    for key, value in labels:
        zones = value.split(_BETWEEN_ZONES)
        here = _has_one_of(key, zones, nodes)
        newer = NEWER_NAMES.get(key)
        if newer is not None:
            here = here | (_lacks(key, nodes) & _has_one_of(newer, zones, nodes))
        inside = inside & here
    nowhere = every_node(nodes)
    for key in TOPOLOGY_LABELS:
        nowhere = nowhere & _lacks(key, nodes)
    return inside | nowhere


def _has_one_of(key: str, values: list[str], nodes: NodeBlock) -> Mask:
    requirement = LabelSelectorRequirement(key=key, operator="In", values=values)
    return matches_label_selector(LabelSelector(match_expressions=[requirement]), nodes)


def _lacks(key: str, nodes: NodeBlock) -> Mask:
    mask: Mask = nodes.take(nodes.columns.label_ids(key)) == ABSENT
    return mask
