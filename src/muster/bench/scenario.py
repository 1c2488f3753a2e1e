"""Scenarios: what a scheduling benchmark puts on a cluster, read from YAML and checked field by field.

A scenario names kinds of nodes, pods that run already, pods that never fit, pods that are measured, and what changes meanwhile.
It holds no number of nodes: that comes from the command line or from `sizes`. Unknown fields and odd values are errors naming
the scenario and the field. No concurrency; reads files, changes nothing.
"""

from __future__ import annotations

from importlib import resources
from typing import Annotated, Any

import msgspec

from muster.objects.quantity import Quantity
from muster.objects.status import Raw

Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Weight = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=10)]
Amounts = dict[str, str]

TEXT_BYTES_MAX = 256 * 1024


class ScenarioError(ValueError):
    """A scenario can't be used; the message names it, the field and what would do."""


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    pass


class Size(_Strict, frozen=True, kw_only=True):
    """One default size. A real API server takes seconds per thousand pods, so it may get fewer."""

    nodes: Positive
    pods: Positive
    pods_on_kubernetes: Positive | None = None


class NodeTemplate(_Strict, frozen=True, kw_only=True):
    """One kind of node. Nodes get their own name as the label kubernetes.io/hostname, and a zone when there are `zones`."""

    weight: Weight = 1.0
    allocatable: Amounts
    labels: dict[str, str] = {}
    taints: list[Raw] = []
    zones: Count = 0


class Shapes(_Strict, frozen=True, kw_only=True):
    """Requests drawn once per shape; pods then pick a shape with Zipf's popularity."""

    count: Positive
    popularity: Annotated[float, msgspec.Meta(ge=0, le=5)] = 0.8
    cpu_m: tuple[Positive, Positive]
    """Lowest and highest; drawn so that small is frequent (log-uniform), in steps of 50."""
    memory_mib: tuple[Positive, Positive]
    selectors: list[dict[str, str]] = []
    selector_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """How many of the shapes carry one of `selectors`."""


class PodTemplate(_Strict, frozen=True, kw_only=True):
    """One kind of pod. In texts of `labels`, `annotations` and `spec`, $(INDEX) and $(GROUP) stand for numbers of the pod."""

    weight: Weight = 1.0
    requests: Amounts = {}
    limits: Amounts = {}
    shapes: Shapes | None = None
    group_size: Positive = 1
    """$(GROUP) is the pod's number divided by this."""
    gang: bool = False
    """Whether the pods of one group start together or not at all."""
    priority_class: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    spec: Raw = {}


class Running(_Strict, frozen=True, kw_only=True):
    """Pods that are bound before anything is measured: so many on every node."""

    per_node: Positive
    templates: Annotated[list[PodTemplate], msgspec.Meta(min_length=1)]


class Backlog(_Strict, frozen=True, kw_only=True):
    """Pods that can't be placed, older than the measured ones: so many for each measured pod."""

    share: Share
    templates: Annotated[list[PodTemplate], msgspec.Meta(min_length=1)]


class Churn(_Strict, frozen=True, kw_only=True):
    """What changes each time a further `every_share` of the measured pods is bound."""

    every_share: Annotated[float, msgspec.Meta(ge=0.001, le=0.5)]
    delete_running: Count = 0
    add_nodes: Count = 0
    relabel_nodes: Count = 0
    add_hopeless: Count = 0
    """Pods of the backlog's kind."""


class PriorityClass(_Strict, frozen=True, kw_only=True):
    name: str
    value: int


class Scenario(_Strict, frozen=True, kw_only=True):
    """One file. The name is the file's."""

    about: Annotated[str, msgspec.Meta(min_length=10)]
    name: str = ""
    sizes: Annotated[list[Size], msgspec.Meta(min_length=1)]
    nodes: Annotated[list[NodeTemplate], msgspec.Meta(min_length=1)]
    measured: Annotated[list[PodTemplate], msgspec.Meta(min_length=1)]
    running: Running | None = None
    backlog: Backlog | None = None
    churn: Churn | None = None
    priority_classes: list[PriorityClass] = []
    peer_note: str = ""
    """What to know about kube-scheduler's figure here."""

    def size_for(self, nodes: int) -> Size:
        """The default size with this many nodes, or else the nearest one's pods."""
        best = min(self.sizes, key=lambda size: abs(size.nodes - nodes))
        return msgspec.structs.replace(best, nodes=nodes)


def scenario_names() -> list[str]:
    """The scenarios that come with the package."""
    folder = resources.files("muster.bench") / "scenarios"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_scenario(name: str) -> Scenario:
    if name not in scenario_names():
        raise ScenarioError(f'there is no scenario "{name}"; there are: {", ".join(scenario_names())}')
    text = (resources.files("muster.bench") / "scenarios" / f"{name}.yaml").read_text(encoding="utf-8")
    return parse_scenario(name, text)


def parse_scenario(name: str, text: str) -> Scenario:
    """Strict: whatever is not understood is an error."""
    if len(text.encode()) > TEXT_BYTES_MAX:
        raise ScenarioError(f"scenario {name}: {len(text.encode())} bytes are more than the {TEXT_BYTES_MAX} that one may have")
    from muster.objects import yaml_text

    try:
        raw = yaml_text.load(text)
        scenario = msgspec.convert(raw, Scenario)
    except (yaml_text.YamlError, msgspec.ValidationError) as error:
        raise ScenarioError(f"scenario {name}: {error}") from error
    for problem in _problems(scenario):
        raise ScenarioError(f"scenario {name}: {problem}")
    return msgspec.structs.replace(scenario, name=name)


def _problems(scenario: Scenario) -> list[str]:
    found: list[str] = []
    for index, node in enumerate(scenario.nodes):
        found += _amount_problems(f"nodes[{index}].allocatable", node.allocatable)
        if "pods" not in node.allocatable:
            found.append(f'nodes[{index}].allocatable has no "pods"; without it nothing fits')
    classes = {one.name for one in scenario.priority_classes}
    groups: list[tuple[str, list[PodTemplate]]] = [("measured", scenario.measured)]
    groups += [("running.templates", scenario.running.templates)] if scenario.running else []
    groups += [("backlog.templates", scenario.backlog.templates)] if scenario.backlog else []
    for where, templates in groups:
        for index, template in enumerate(templates):
            found += _pod_problems(f"{where}[{index}]", template, classes)
    if scenario.churn and scenario.churn.add_hopeless and scenario.backlog is None:
        found.append("churn.addHopeless makes pods of the backlog's kind, and there is no backlog; add one")
    if scenario.churn and scenario.churn.delete_running and scenario.running is None:
        found.append("churn.deleteRunning needs running pods; add running")
    return found


def _pod_problems(where: str, template: PodTemplate, classes: set[str]) -> list[str]:
    found = _amount_problems(f"{where}.requests", template.requests)
    found += _amount_problems(f"{where}.limits", template.limits)
    if template.shapes is not None:
        for name, pair in (("cpuM", template.shapes.cpu_m), ("memoryMib", template.shapes.memory_mib)):
            if pair[0] > pair[1]:
                found.append(f"{where}.shapes.{name}: {pair[0]} is above {pair[1]}; give the lowest first")
        if template.shapes.selector_share and not template.shapes.selectors:
            found.append(f"{where}.shapes.selectorShare is {template.shapes.selector_share:g}, but there are no selectors")
    if template.priority_class and template.priority_class not in classes:
        found.append(f'{where}.priorityClass: "{template.priority_class}" is not in priorityClasses')
    taken = sorted(set(template.spec) & {"containers", "schedulerName", "nodeName", "priority", "priorityClassName"})
    if taken:
        found.append(f"{where}.spec.{taken[0]} is set by the generator; leave it out")
    return found


def _amount_problems(where: str, amounts: Amounts) -> list[str]:
    found = []
    for name, amount in amounts.items():
        try:
            Quantity.parse(amount)
        except ValueError as error:
            found.append(f'{where}["{name}"]: {error}')
    return found


def describe(scenario: Scenario) -> dict[str, Any]:
    """For `muster bench list`."""
    return {"name": scenario.name, "about": scenario.about, "nodes": [size.nodes for size in scenario.sizes]}
