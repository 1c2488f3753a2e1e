"""VolumeBinding: the pod goes where its claims' volumes can be used.

| claim | the pod may go |
|---|---|
| missing, being deleted, lost, another pod's own, or bound to a volume that is not there | nowhere, until that changes |
| bound (`spec.volumeName`) | where the volume's required node affinity allows |
| not bound, its class binds at once | nowhere, until it is bound |
| not bound, its class waits for the first consumer, `selected-node` is set on it | to that node |
| the same, not set, and the class has a provisioner | where the class's `allowedTopologies` allow |
| the same, and the class has no provisioner | nowhere, until somebody binds the claim |

Provisioning is not simulated: neither are existing volumes matched with open claims (the last line), nor is a provisioner's
remaining capacity looked at. Whoever binds the pod writes the node on the claims that `volumes.claims_to_provision` lists, and
the provisioner makes their volumes there. kube-scheduler does all of it.

Pure: reads the state's books of claims, volumes and classes when it is asked, and keeps nothing. Scope WIDE, since these books
change without any node changing; pods without claims cost nothing.
"""

from __future__ import annotations

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Mask
from muster.engine.facts import ClaimFacts, PodFacts, StorageClassFacts
from muster.engine.node_selectors import every_node, matches_label_selector, matches_node_selector, named_nodes_mask, no_node
from muster.engine.plugin import Plugin, Scope, Wake
from muster.engine.units import Unit
from muster.engine.volumes import (
    NO_PROVISIONER,
    SELECTED_NODE,
    ClaimUse,
    claims_of,
    class_of,
    the_pod,
    uses_claims,
    waits_for_consumer,
)
from muster.objects.reasons import Reason, Shortfall, Verdict
from muster.objects.selectors import LabelSelector, LabelSelectorRequirement


class VolumeBinding(Plugin):
    name = "VolumeBinding"
    concerns_by_shape = True
    scope = Scope.WIDE
    reason = Reason.VOLUME_NODE_CONFLICT
    wakes_on = frozenset({Wake.VOLUME, Wake.NODE})

    def concerns(self, pods: PodBlock) -> bool:
        return uses_claims(pods.shape.spec)

    def prefilter(self, unit: Unit, pods: PodBlock, now: float) -> Verdict | None:
        if not uses_claims(pods.shape.spec):
            return None
        pod = the_pod(pods)
        problem = self._problem(pod)
        if problem is None:
            return None
        return Verdict(reason=Reason.VOLUME_NOT_BOUND, subject=pod.key, message=f"pod {pod.key}: {problem}", plugin=self.name)

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        pod = the_pod(pods)
        if self._problem(pod) is not None:
            return no_node(nodes)
        mask = every_node(nodes)
        for use in claims_of(pod):
            mask = mask & self._claim_mask(self.state.claims[use.key], nodes)
        return mask

    def explain(self, pods: PodBlock, nodes: NodeBlock) -> tuple[Reason, list[Shortfall]]:
        return (self.reason if self._problem(the_pod(pods)) is None else Reason.VOLUME_NOT_BOUND), []

    def _claim_mask(self, claim: ClaimFacts, nodes: NodeBlock) -> Mask:
        if claim.spec.volume_name:
            affinity = self.state.volumes[claim.spec.volume_name].spec.node_affinity
            if affinity is None or affinity.required is None:
                return every_node(nodes)
            return matches_node_selector(affinity.required, nodes)
        selected = claim.metadata.annotations.get(SELECTED_NODE)
        if selected:
            return named_nodes_mask([selected], nodes)
        return provisioning_mask(self.state.storage_classes[class_of(claim)], nodes)

    def _problem(self, pod: PodFacts) -> str | None:
        """What is wrong with the pod's claims wherever it goes; None if nothing is."""
        for use in claims_of(pod):
            problem = self._claim_problem(pod, use)
            if problem is not None:
                return problem
        return None

    def _claim_problem(self, pod: PodFacts, use: ClaimUse) -> str | None:
        namespace, name = use.key
        claim = self.state.claims.get(use.key)
        shown = f"PersistentVolumeClaim {namespace}/{name}"
        if claim is None:
            return f"{shown} does not exist; create it, or correct spec.volumes"
        if claim.metadata.deletion_timestamp:
            return f"{shown} is being deleted; wait, and create it again"
        if use.is_own and not any(o.controller and o.uid == pod.metadata.uid for o in claim.metadata.owner_references):
            return f"{shown} was not made for this pod; rename the pod or its volume, or delete the claim"
        volume = claim.spec.volume_name
        if claim.status.phase == "Lost" or (volume and volume not in self.state.volumes):
            return f"{shown} is bound to PersistentVolume {volume!r}, which does not exist; restore it, or make the claim anew"
        if volume:
            return None
        named = class_of(claim)
        if named and named not in self.state.storage_classes:
            return f"{shown} is not bound, and its StorageClass {named!r} does not exist; create the class, or bind the claim"
        if not waits_for_consumer(claim, self.state.storage_classes):
            return f"{shown} is not bound to a volume yet; create a volume that it matches, or look at its provisioner"
        is_made = self.state.storage_classes[named].provisioner != NO_PROVISIONER
        if not is_made and not claim.metadata.annotations.get(SELECTED_NODE):
            return f"{shown} is not bound, and StorageClass {named!r} makes no volumes; set spec.volumeName on the claim"
        return None


def provisioning_mask(storage_class: StorageClassFacts, nodes: NodeBlock) -> Mask:
    """Nodes for which the class can make a volume: any of its topologies matches, or it has none."""
    if not storage_class.allowed_topologies:
        return every_node(nodes)
    mask = no_node(nodes)
    for term in storage_class.allowed_topologies:
        if term.match_label_expressions:
            expressions = [
                LabelSelectorRequirement(key=e.key, operator="In", values=e.values) for e in term.match_label_expressions
            ]
            mask = mask | matches_label_selector(LabelSelector(match_expressions=expressions), nodes)
    return mask
