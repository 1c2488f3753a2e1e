"""From a scenario, a number of nodes and of pods, and a seed: the manifests, always the same ones.

`generate` is a function of its arguments: all chance comes from the seed. Manifests are raw Kubernetes objects as a user would
send them; `as_stored` adds what a server would (uid, version, time of creation) where there is no server.
"""

from __future__ import annotations

import copy
import datetime
import hashlib
import itertools
import json
import math
import random
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from muster.bench.scenario import NodeTemplate, PodTemplate, Scenario, Shapes
from muster.objects.status import Raw

NAMESPACE = "bench"
ROLE = "bench.muster.dev/role"
"""Label: which part of the scenario a pod belongs to. Its values are the four below."""
MEASURED, RUNNING, BACKLOG, ADDED = "measured", "running", "backlog", "added"
CHURN_LABEL = "bench.muster.dev/churn"
"""What a relabelled node gets."""
NODES_MAX = 200_000
PODS_MAX = 2_000_000
_GANG = "gang.scheduling.koordinator.sh/"
_EPOCH = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A change that is made once `after_bound` measured pods are bound."""

    after_bound: int
    delete_pods: list[str] = []
    create_nodes: list[Raw] = []
    relabel_nodes: list[str] = []
    create_pods: list[Raw] = []


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one run creates. Pods come in the order of their creation: running, backlog, measured."""

    scenario: str
    scheduler_name: str
    namespaces: list[Raw]
    priority_classes: list[Raw]
    nodes: list[Raw]
    running: list[Raw]
    """Bound: each has spec.nodeName."""
    backlog: list[Raw]
    measured: list[Raw]
    churn: list[Step]

    @property
    def pending(self) -> list[Raw]:
        return [*self.backlog, *self.measured]


def generate(scenario: Scenario, nodes: int, pods: int, seed: int, *, scheduler_name: str) -> Workload:
    """The manifests of one run. The same arguments give the same bytes, and so does any other scheduler name but for itself."""
    if not 1 <= nodes <= NODES_MAX:
        raise ValueError(f"{nodes} nodes: give from 1 to {NODES_MAX:,}")
    if not 1 <= pods <= PODS_MAX:
        raise ValueError(f"{pods} pods: give from 1 to {PODS_MAX:,}")
    maker = _Maker(scenario, seed, scheduler_name)
    made_nodes = maker.nodes(nodes)
    running = maker.running(made_nodes)
    backlog = maker.backlog(round(scenario.backlog.share * pods)) if scenario.backlog else []
    measured = maker.pods(MEASURED, scenario.measured, pods)
    return Workload(
        scenario=scenario.name,
        scheduler_name=scheduler_name,
        namespaces=[{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}],
        priority_classes=[_priority_class(one.name, one.value) for one in scenario.priority_classes],
        nodes=made_nodes,
        running=running,
        backlog=backlog,
        measured=measured,
        churn=list(maker.churn(made_nodes, running, pods)),
    )


def as_stored(raw: Raw, number: int) -> Raw:
    """The object as a server would give it back: `number` stands for its version and for the second it was made in."""
    metadata = raw["metadata"]
    uid = uid_of(raw["kind"], metadata.get("namespace", ""), metadata["name"])
    created = (_EPOCH + datetime.timedelta(seconds=number)).strftime("%Y-%m-%dT%H:%M:%SZ")
    stored = {"uid": uid, "resourceVersion": str(number + 1), "creationTimestamp": created}
    return {**raw, "metadata": {**metadata, **stored}}


def uid_of(kind: str, namespace: str, name: str) -> str:
    """The uid that `as_stored` gives."""
    digest = hashlib.blake2b(f"{kind}/{namespace}/{name}".encode(), digest_size=16).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"


class _Maker:
    """One use: a random stream for each part, so that a change of one count leaves the other parts as they were."""

    def __init__(self, scenario: Scenario, seed: int, scheduler_name: str) -> None:
        self._scenario = scenario
        self._seed = seed
        self._scheduler_name = scheduler_name
        self._priorities = {one.name: one.value for one in scenario.priority_classes}

    def _stream(self, part: str) -> random.Random:
        return random.Random(f"{self._seed} {self._scenario.name} {part}")

    def nodes(self, count: int, *, first: int = 0) -> list[Raw]:
        templates = self._scenario.nodes
        chance = self._stream(f"nodes {first}")
        picked = chance.choices(templates, [template.weight for template in templates], k=count)
        return [_node(template, index) for index, template in enumerate(picked, first)]

    def running(self, nodes: Sequence[Raw]) -> list[Raw]:
        if self._scenario.running is None:
            return []
        per_node = self._scenario.running.per_node
        made = self.pods(RUNNING, self._scenario.running.templates, len(nodes) * per_node)
        for index, pod in enumerate(made):
            pod["spec"]["nodeName"] = nodes[index % len(nodes)]["metadata"]["name"]
        return made

    def backlog(self, count: int, *, role: str = BACKLOG) -> list[Raw]:
        assert self._scenario.backlog is not None
        return self.pods(role, self._scenario.backlog.templates, count)

    def pods(self, role: str, templates: Sequence[PodTemplate], count: int) -> list[Raw]:
        chance = self._stream(role)
        sources = [self._template_pods(role, index, template, chance) for index, template in enumerate(templates)]
        if len(sources) == 1:
            return list(itertools.islice(sources[0], count))
        weights = [template.weight for template in templates]
        made: list[Raw] = []
        while len(made) < count:
            # A gang comes whole: its members are created together, as an operator would.
            index = chance.choices(range(len(sources)), weights)[0]
            run = templates[index].group_size if templates[index].gang else 1
            made += itertools.islice(sources[index], min(run, count - len(made)))
        return made

    def _template_pods(self, role: str, number: int, template: PodTemplate, chance: random.Random) -> Iterator[Raw]:
        prefix = f"{role}-{number}" if number else role
        shapes = list(_shapes(template.shapes, chance)) if template.shapes else [(template.requests, {})]
        weights = _cumulative(len(shapes), template.shapes.popularity if template.shapes else 0.0)
        texts = json.dumps({"labels": template.labels, "annotations": template.annotations, "spec": template.spec})
        for index in itertools.count():
            group = index // template.group_size
            if not template.gang or index % template.group_size == 0:
                # The members of a gang have one shape, as the workers of one job do.
                requests, selector = chance.choices(shapes, cum_weights=weights)[0]
            filled = json.loads(texts.replace("$(INDEX)", str(index)).replace("$(GROUP)", str(group)))
            annotations = filled["annotations"]
            if template.gang:
                size = str(template.group_size)
                annotations |= {f"{_GANG}name": f"{prefix}-{group}", f"{_GANG}min-available": size}
            if selector:
                filled["spec"]["nodeSelector"] = {**filled["spec"].get("nodeSelector", {}), **selector}
            yield self._pod(f"{prefix}-{index:06d}", role, template, requests, filled)

    def _pod(self, name: str, role: str, template: PodTemplate, requests: dict[str, str], filled: Raw) -> Raw:
        resources: Raw = {"requests": {**template.requests, **requests}}
        if template.limits:
            resources["limits"] = dict(template.limits)
        spec = {
            "schedulerName": self._scheduler_name,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,  # no kubelet here would end a grace period
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/training/worker:1.4.2",
                    "command": ["python", "-m", "train"],
                    "resources": resources,
                }
            ],
            **filled["spec"],
        }
        if template.priority_class:
            spec |= {"priorityClassName": template.priority_class, "priority": self._priorities[template.priority_class]}
        metadata: Raw = {"name": name, "namespace": NAMESPACE, "labels": {ROLE: role, **filled["labels"]}}
        if filled["annotations"]:
            metadata["annotations"] = filled["annotations"]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def churn(self, nodes: Sequence[Raw], running: Sequence[Raw], pods: int) -> Iterator[Step]:
        churn = self._scenario.churn
        if churn is None:
            return
        every = max(1, math.ceil(churn.every_share * pods))
        moments = range(every, pods, every)
        chance = self._stream("churn")
        doomed = iter(chance.sample([pod["metadata"]["name"] for pod in running], len(running)))
        relabelled = itertools.cycle(chance.sample([node["metadata"]["name"] for node in nodes], len(nodes)))
        added = iter(self.nodes(churn.add_nodes * len(moments), first=len(nodes)))
        hopeless = iter(self.backlog(churn.add_hopeless * len(moments), role=ADDED) if churn.add_hopeless else [])
        for moment in moments:
            yield Step(
                after_bound=moment,
                delete_pods=list(itertools.islice(doomed, churn.delete_running)),
                create_nodes=list(itertools.islice(added, churn.add_nodes)),
                relabel_nodes=list(itertools.islice(relabelled, churn.relabel_nodes)),
                create_pods=list(itertools.islice(hopeless, churn.add_hopeless)),
            )


def _node(template: NodeTemplate, index: int) -> Raw:
    name = f"node-{index:05d}"
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **template.labels}
    if template.zones:
        labels["topology.kubernetes.io/zone"] = f"zone-{index % template.zones}"
    spec: Raw = {"taints": copy.deepcopy(template.taints)} if template.taints else {}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
    status = {"allocatable": dict(template.allocatable), "capacity": dict(template.allocatable), "conditions": [ready]}
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status}


def _shapes(shapes: Shapes, chance: random.Random) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """`count` different pairs of requests and selector; when the ranges hold too few, some repeat."""
    seen: set[tuple[int, int]] = set()
    for _ in range(shapes.count):
        for _attempt in range(100):
            cpu, memory = _draw(chance, shapes.cpu_m, 50), _draw(chance, shapes.memory_mib, 64)
            if (cpu, memory) not in seen:
                break
        seen.add((cpu, memory))
        has_selector = chance.random() < shapes.selector_share
        selector = chance.choice(shapes.selectors) if has_selector else {}
        yield {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}, selector


def _draw(chance: random.Random, bounds: tuple[int, int], step: int) -> int:
    low, high = bounds
    drawn = math.exp(chance.uniform(math.log(low), math.log(high)))
    return min(high, max(low, round(drawn / step) * step))


def _cumulative(count: int, popularity: float) -> list[float]:
    return list(itertools.accumulate((1 / (rank + 1) ** popularity for rank in range(count)), initial=None))


def _priority_class(name: str, value: int) -> Raw:
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    return {**kind, "metadata": {"name": name}, "value": value, "description": "made by a benchmark"}


def encoded(objects: Iterable[Raw]) -> list[bytes]:
    encoder = msgspec.json.Encoder()
    return [encoder.encode(one) for one in objects]
