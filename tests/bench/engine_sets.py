"""What Muster's engine says about a case of the corpus, and the two ways of counting for topology spread.

kube-scheduler 1.20 and Muster agree on everything but two details of topology spread, which `spread` knows both ways:

- Which nodes count. Both decide by all constraints and by the pod's node affinity which domains there are. 1.20 then counts
  matching pods on every node of such a domain, also on nodes that lack another constraint's key or that the pod can't go to;
  Muster leaves those nodes out.
- An empty label selector matches every pod in 1.20 and none in Muster.
"""

from __future__ import annotations

import msgspec

from muster.bench.extender import PodKey
from muster.bench.feasible import Case
from muster.bench.filling import resource_of
from muster.bench.workload import as_stored
from muster.engine import events as ev
from muster.engine import facts
from muster.engine.configuration import KIND, OWN_VERSION, read
from muster.engine.machine import Engine
from muster.engine.registry import Registry
from muster.objects.kinds.defaults import apply_defaults
from muster.objects.selectors import LabelSelector, Operator, Requirement, from_label_selector
from muster.objects.status import Raw

HARD = "DoNotSchedule"
_OPERATORS = {
    "In": Operator.IN,
    "NotIn": Operator.NOT_IN,
    "Exists": Operator.EXISTS,
    "DoesNotExist": Operator.ABSENT,
    "Gt": Operator.GREATER,
    "Lt": Operator.LESS,
}


def engine_sets(case: Case) -> dict[PodKey, frozenset[str]]:
    """For each pod of the case, the nodes that the engine's filters leave."""
    registry = Registry()
    document = {"apiVersion": OWN_VERSION, "kind": KIND, "profiles": [{"schedulerName": case.scheduler_name}]}
    engine = Engine(read(document, registry).build(registry))
    engine.step(_events(case), 1.0, units_max=0)
    evaluator, names = engine.evaluator(case.scheduler_name), engine.state.nodes.names
    found = {}
    for pod in engine.state.pods.values():
        if not pod.facts.spec.node_name:
            scores = evaluator.scores(pod)
            key = (pod.facts.metadata.namespace, pod.facts.metadata.name)
            found[key] = frozenset(name for name, score in zip(names, scores, strict=True) if score >= 0)
    return found


def _events(case: Case) -> list[ev.AnyEvent]:
    objects = [*case.namespaces, *case.nodes, *case.volumes, *case.claims, *case.running, *case.pods]
    return [_seen(apply_defaults(resource_of(raw), as_stored(raw, number), None)) for number, raw in enumerate(objects)]


def _seen(raw: Raw) -> ev.AnyEvent:
    match raw["kind"]:
        case "Namespace":
            return ev.NamespaceSeen(msgspec.convert(raw, facts.NamespaceFacts))
        case "Node":
            return ev.NodeSeen(msgspec.convert(raw, facts.NodeFacts))
        case "PersistentVolume":
            return ev.VolumeSeen(msgspec.convert(raw, facts.PersistentVolumeFacts))
        case "PersistentVolumeClaim":
            return ev.ClaimSeen(msgspec.convert(raw, facts.ClaimFacts))
        case _:
            return ev.PodSeen(msgspec.convert(raw, facts.PodFacts))


def without_spread(case: Case) -> Case:
    """The case with no topology spread on any pod."""

    def trimmed(pod: Raw) -> Raw:
        spec = {key: value for key, value in pod["spec"].items() if key != "topologySpreadConstraints"}
        return {**pod, "spec": spec}

    return msgspec.structs.replace(case, pods=[trimmed(pod) for pod in case.pods])


def spread(case: Case, pod: Raw, *, as_1_20: bool) -> frozenset[str]:
    """The nodes that the pod's hard constraints leave, counted as kube-scheduler 1.20 does, or as Muster does."""
    constraints = [c for c in pod["spec"].get("topologySpreadConstraints", []) if c["whenUnsatisfiable"] == HARD]
    nodes = {node["metadata"]["name"]: node["metadata"]["labels"] for node in case.nodes}
    holding = {name for name, labels in nodes.items() if all(c["topologyKey"] in labels for c in constraints)}
    allowed = set(holding)
    for constraint in constraints:
        key, query = constraint["topologyKey"], from_label_selector(msgspec.convert(constraint["labelSelector"], LabelSelector))
        taking_part = {name for name in holding if _may_go_to(pod, name, nodes[name])}
        counts = {nodes[name][key]: 0 for name in taking_part}
        for other in case.running:
            node = other["spec"]["nodeName"]
            domain = nodes[node].get(key)
            is_counted = domain in counts if as_1_20 else node in taking_part and bool(constraint["labelSelector"])
            is_same = other["metadata"]["namespace"] == pod["metadata"]["namespace"]
            if domain is not None and is_counted and is_same and query.matches(other["metadata"]["labels"]):
                counts[domain] += 1
        itself = query.matches(pod["metadata"]["labels"])
        least = min(counts.values(), default=0)
        allowed = {n for n in allowed if counts.get(nodes[n][key], 0) + itself - least <= constraint["maxSkew"]}
    return frozenset(allowed)


def _may_go_to(pod: Raw, name: str, labels: dict[str, str]) -> bool:
    """By node selector and required node affinity."""
    spec = pod["spec"]
    if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True

    def holds(expressions: list[Raw], values: dict[str, str]) -> bool:
        return all(
            Requirement(e["key"], _OPERATORS[e["operator"]], frozenset(e.get("values", ()))).matches(values)
            for e in expressions
        )

    return any(
        holds(term.get("matchExpressions", []), labels) and holds(term.get("matchFields", []), {"metadata.name": name})
        for term in required["nodeSelectorTerms"]
    )
