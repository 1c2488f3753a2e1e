"""What a node may change of what it may write: admission for the users `system:node:*`.

The rule of thumb: a node may report, and may keep work away; it may not draw work to itself, and not touch what others decide.

- Node: its own. Labels and the taint of its party are as its certificate says. It may add taints and cordon itself, not take
  away either, and take a free part of the pods' addresses, once. Labels and annotations of Muster's and Kuscia's are an
  administrator's, but for those that the agent writes.
- Pod: bound to it; its status, and the annotations in which agents report. Nothing else, no new ones.
- Lease, NodeMetric, Device: of its own name.
- Event: about its own Node, or a pod that is bound to it.

An administrator who deletes the Node of a living agent is warned of what that means (`NodeDeletion`).

Concurrency: on the event loop, memory only; stateless.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, Final

from muster.objects.labels import AGENT_ROLE, Kubernetes, Kuscia, KusciaLabel, Muster
from muster.objects.meta import annotations_of, labels_of
from muster.objects.names import NAMESPACE_NODE_LEASE
from muster.objects.rules.report import obj, text
from muster.objects.status import Raw
from muster.server.admission import Hook, refused
from muster.server.node_access import OWN_BY_NAME
from muster.server.node_index import NodeIndex, node_of_user, party_of, ranges_of
from muster.store.embedded.admission import AdmissionRequest

POD_ANNOTATIONS: Final = frozenset({Muster.PROGRESS, Muster.RECORDS, Muster.TRAFFIC})
"""Those that agents write on their pods."""
NODE_EVENTS: Final = "default"
"""The namespace of events about objects that have none."""
_PARTY_LABELS: Final = (KusciaLabel.NODE_DOMAIN, KusciaLabel.NODE_NAMESPACE)
_GUARDED_DOMAINS: Final = ("muster.dev", "kuscia.secretflow", "node-restriction.kubernetes.io", "node-role.kubernetes.io")
"""Of labels: these and all below them, since administrators write `example.com.node-restriction.kubernetes.io/x`."""
_KUBERNETES_DOMAINS: Final = ("kubernetes.io", "k8s.io")
_KUBELET_DOMAINS: Final = ("kubelet.kubernetes.io", "node.kubernetes.io")
_KUBELET_LABELS: Final = frozenset(
    {
        *(Kubernetes.HOSTNAME, Kubernetes.OS, Kubernetes.ARCH, Kubernetes.ZONE, Kubernetes.REGION),
        *("beta.kubernetes.io/os", "beta.kubernetes.io/arch", "beta.kubernetes.io/instance-type"),
        *("failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"),
    }
)
"""What Kubernetes' NodeRestriction lets a node say of itself, with all below `_KUBELET_DOMAINS`; other names of its domains
may come to mean something one day, and be trusted then."""
_AGENT_LABELS: Final = frozenset({Muster.AGENT, KusciaLabel.NODE_RUNTIME})
_AGENT_ANNOTATION_PREFIX: Final = "muster.dev/agent"
_VOLATILE: Final = frozenset({"resourceVersion", "managedFields", "generation"})
_FREE_SPEC: Final = frozenset({"taints", "unschedulable", "providerID"})
_RANGE_SPEC: Final = frozenset({"podCIDR", "podCIDRs"})


class NodeRestriction(Hook):
    def __init__(self, nodes: NodeIndex, pod_range: str = "") -> None:
        """`pod_range`: of which nodes may take a part for their pods by themselves; none without it."""
        self._nodes = nodes
        self._pod_range = ipaddress.ip_network(pod_range) if pod_range else None

    async def validate(self, request: AdmissionRequest) -> None:
        actor = request.actor
        node = node_of_user(actor.user, actor.groups) if actor is not None else ""
        if actor is None or not node:
            return
        what = (request.resource.group, request.resource.plural)
        if what == ("", "nodes"):
            self._check_node(request, node, party_of(actor.groups))
        elif what == ("", "pods"):
            _check_pod(request, node)
        elif what == ("coordination.k8s.io", "leases"):
            _require_own(request, node)
            if request.namespace != NAMESPACE_NODE_LEASE:
                raise refused(request, f'node "{node}" has its Lease in the namespace {NAMESPACE_NODE_LEASE}')
        elif what in OWN_BY_NAME:
            _require_own(request, node)
        elif what in (("", "events"), ("events.k8s.io", "events")):
            self._check_event(request, node)

    # --- its Node

    def _check_node(self, request: AdmissionRequest, node: str, party: str) -> None:
        _require_own(request, node)
        if request.operation == "DELETE":
            count = self._nodes.unfinished(node)
            if count:
                raise refused(
                    request,
                    f"{count} pods that are bound to it have not ended, and would be started elsewhere while they may still "
                    "run here; end them first, or let an administrator delete the Node",
                )
            return
        assert request.object is not None
        new, old = request.object, request.old if request.old is not None else {}
        _check_labels(request, party, labels_of(new), labels_of(old))
        _check_annotations(request, annotations_of(new), annotations_of(old))
        _check_spec(request, party, obj(new, "spec"), obj(old, "spec"))
        self._check_range(request, node, obj(new, "spec"), obj(old, "spec"))
        for field in ("ownerReferences", "finalizers"):
            if obj(new, "metadata").get(field) != obj(old, "metadata").get(field):
                raise refused(request, f"a node may not change metadata.{field}")

    def _check_range(self, request: AdmissionRequest, node: str, new: Raw, old: Raw) -> None:
        """A node that has no pod addresses may take some: others route to it what is sent there, so only such as are meant for
        pods, and are nobody's (which `unique_rules` sees to)."""
        if all(new.get(key) == old.get(key) for key in _RANGE_SPEC):
            return
        wanted, ranges = new.get("podCIDR"), ranges_of(new)
        where = f"spec.podCIDR: {wanted!r:.80}"
        if ranges_of(old):
            raise refused(request, f"{where}: it is {old.get('podCIDR')!r:.80} and stays so")
        if len(ranges) != 1 or not isinstance(wanted, str) or new.get("podCIDRs") not in (None, [wanted]):
            raise refused(request, f"{where}: one network such as 10.244.7.0/24, and podCIDRs the same")
        may = f'an administrator may set it: kubectl patch node {node} -p \'{{"spec":{{"podCIDR":"{ranges[0]}"}}}}\''
        whole, network = self._pod_range, ranges[0]
        if (
            whole is None
            or network.version != whole.version
            or network.prefixlen <= whole.prefixlen
            or not whole.overlaps(network)
        ):
            inside = f"not a part of {whole}, which is for pods" if whole is not None else "a node may not change it"
            raise refused(request, f"{where}: {inside}; leave it out, or {may}")

    # --- events

    def _check_event(self, request: AdmissionRequest, node: str) -> None:
        for raw in (request.object, request.old):
            if raw is None:
                continue
            about = [ref for ref in (raw.get("involvedObject"), raw.get("regarding")) if isinstance(ref, dict) and ref]
            if not about or not all(self._is_ours(node, ref, request.namespace) for ref in about):
                raise refused(
                    request,
                    f'node "{node}" may only record events about itself, in the namespace {NODE_EVENTS}, and about the pods '
                    "that are bound to it, in theirs",
                )

    def _is_ours(self, node: str, ref: Raw, namespace: str | None) -> bool:
        """Nor may it fill the namespaces of others with events about itself."""
        if text(ref, "kind") == "Node":
            return text(ref, "name") == node and namespace == NODE_EVENTS
        pod_namespace = text(ref, "namespace")
        return (
            text(ref, "kind") == "Pod"
            and pod_namespace == namespace
            and self._nodes.is_bound(node, pod_namespace, text(ref, "name"))
        )


class NodeDeletion(Hook):
    """Says to whoever deletes the Node of an agent what follows: the warnings show in kubectl."""

    def __init__(self, nodes: NodeIndex) -> None:
        self._nodes = nodes

    async def validate(self, request: AdmissionRequest) -> None:
        if (request.resource.group, request.resource.plural) != ("", "nodes") or request.operation != "DELETE":
            return
        name, count = request.name, self._nodes.unfinished(request.name)
        if self._nodes.joined(name) is not None:
            request.warn(f"the certificates of node {name} are not good any more; it can only come back with a new token")
        if count:
            request.warn(
                f"{count} pods of node {name} count as ended from now on and may be started elsewhere: "
                "make sure that the machine is off, or its tasks are ended"
            )


def _require_own(request: AdmissionRequest, node: str) -> None:
    if request.name != node:
        raise refused(request, f'node "{node}" may only write the one of its own name')


def _check_labels(request: AdmissionRequest, party: str, new: Mapping[str, str], old: Mapping[str, str]) -> None:
    for key in _PARTY_LABELS:
        wanted = party or old.get(key)
        if new.get(key) != wanted:
            whose = f'a node of the party "{party}"' if party else "a node of no party"
            raise refused(request, f"label {key}: {new.get(key)!r:.80}: it is {whose}, by its certificate")
    for key in {*new, *old} - _AGENT_LABELS - {*_PARTY_LABELS}:
        is_agent = (key, new.get(key)) == (Kubernetes.ROLE, AGENT_ROLE)
        if new.get(key) != old.get(key) and not is_agent and _is_guarded(key):
            raise refused(request, f"label {key}: a node may not change it; an administrator may: kubectl label node")


def _is_guarded(key: str) -> bool:
    domain, slash, _ = key.partition("/")
    if not slash:
        return False
    if _is_below(domain, _GUARDED_DOMAINS):
        return True
    is_theirs = key in _KUBELET_LABELS or _is_below(domain, _KUBELET_DOMAINS)
    return _is_below(domain, _KUBERNETES_DOMAINS) and not is_theirs


def _is_below(domain: str, guarded: tuple[str, ...]) -> bool:
    return any(domain == one or domain.endswith(f".{one}") for one in guarded)


def _check_annotations(request: AdmissionRequest, new: Mapping[str, str], old: Mapping[str, str]) -> None:
    for key in {*new, *old}:
        is_guarded = key.startswith("muster.dev/") and not key.startswith(_AGENT_ANNOTATION_PREFIX)
        if is_guarded and key != Muster.FENCE_SECONDS and new.get(key) != old.get(key):
            raise refused(request, f"annotation {key}: a node may not change it; an administrator may")


def _check_spec(request: AdmissionRequest, party: str, new: Raw, old: Raw) -> None:
    for key in {*new, *old} - _FREE_SPEC - _RANGE_SPEC:
        if new.get(key) != old.get(key):
            raise refused(request, f"spec.{key}: {new.get(key)!r:.80}: a node may not change it")
    if old.get("providerID") not in (None, "", new.get("providerID")):
        raise refused(request, f"spec.providerID: {new.get('providerID')!r:.80}: it is {old['providerID']!r:.80} and stays so")
    if old.get("unschedulable") is True and new.get("unschedulable") is not True:
        raise refused(request, f"spec.unschedulable: an administrator opens it again: kubectl uncordon {request.name}")
    taints = _taints(new)
    gone = sorted(_taints(old) - taints)
    if gone:
        raise refused(request, f"spec.taints: {':'.join(gone[0])}: a node may add taints, not take one away")
    if party and not any(key == Kuscia.TAINT_AGENT and effect == "NoSchedule" for key, _, effect in taints):
        raise refused(request, f"spec.taints: a node of a party has the taint {Kuscia.TAINT_AGENT}:NoSchedule")


def _taints(spec: Raw) -> set[tuple[str, str, str]]:
    found: Any = spec.get("taints")
    taints = [taint for taint in found if isinstance(taint, dict)] if isinstance(found, list) else []
    return {(text(taint, "key"), text(taint, "value"), text(taint, "effect")) for taint in taints}


def _check_pod(request: AdmissionRequest, node: str) -> None:
    old, new = request.old, request.object
    if old is None or request.operation in ("CREATE", "CONNECT"):
        raise refused(request, "a node makes no pods")
    if text(obj(old, "spec"), "nodeName") != node:
        raise refused(request, f'it is not bound to node "{node}"')
    if request.operation == "DELETE" or new is None:
        return
    if obj(new, "spec") != obj(old, "spec"):
        raise refused(request, "spec: a node may write the status of its pods, not what they are to be")
    if _rest_of_metadata(new) != _rest_of_metadata(old):
        listed = ", ".join(sorted(POD_ANNOTATIONS))
        raise refused(request, f"metadata: a node may only write the annotations {listed} of its pods")


def _rest_of_metadata(pod: Raw) -> Raw:
    """Without what a node may change, and what the store itself changes."""
    rest = {key: value for key, value in obj(pod, "metadata").items() if key not in _VOLATILE}
    kept = {key: value for key, value in annotations_of(pod).items() if key not in POD_ANNOTATIONS}
    rest.pop("annotations", None)
    return {**rest, "annotations": kept} if kept else rest
