"""The plugins there are, by name: those that come with Muster, and those that other packages bring.

A package offers a plugin through the entry point group `muster.plugins`; the entry point has the plugin's own name. `discover`
reads what is installed, so the edge calls it, once, at its start; everything else is handed the `Registry`. An entry point that
can't be used is left out and said by name in `problems`: somebody's broken package never stops the scheduler.

Built-in plugins are imported when they are first asked for. Single-threaded until then; a registry never changes.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from muster.engine.plugin import Plugin

ENTRY_POINTS: Final = "muster.plugins"
PLUGINS_MAX: Final = 512
"""Third-party plugins; those past it are left out, and said so."""

BUILTIN: Final[Mapping[str, str]] = {
    "NodeUnschedulable": "node_unschedulable",
    "NodeName": "node_name",
    "NodeReady": "node_ready",
    "TaintToleration": "taint_toleration",
    "NodeAffinity": "node_affinity",
    "NodePorts": "node_ports",
    "NodeResourcesFit": "fit",
    "VolumeRestrictions": "volume_restrictions",
    "VolumeBinding": "volume_binding",
    "VolumeZone": "volume_zone",
    "PodTopologySpread": "pod_topology_spread",
    "InterPodAffinity": "inter_pod_affinity",
    "DefaultPreemption": "default_preemption",
    "NodeResourcesBalancedAllocation": "allocation",
    "ImageLocality": "image_locality",
    "NodePool": "node_pool",
    "PartyNodes": "party_nodes",
    "Bandwidth": "bandwidth",
    "LinkBandwidth": "link_bandwidth",
    "PartyQuota": "party_quota",
    "LoadAwareScheduling": "load_aware",
    "PastRuns": "past_runs",
}
"""Name of each built-in plugin, and the module under `muster.engine.plugins` that has it."""

ENGINE_OWN: Final = frozenset({"PrioritySort", "DefaultBinder", "DefaultPreBind", "SchedulingGates", "Coscheduling"})
"""Plugins of kube-scheduler and Koordinator whose work the engine itself does, always. Profiles may name them."""

NOT_HERE: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "AzureDiskLimits",
            "CinderLimits",
            "DynamicResources",
            "EBSLimits",
            "GCEPDLimits",
            "NodeLabel",
            "NodePreferAvoidPods",
            "NodeResourceLimits",
            "NodeVolumeLimits",
            "SelectorSpread",
            "ServiceAffinity",
        ),
        "kube-scheduler",
    ),
    **dict.fromkeys(
        (
            "DeviceShare",
            "ElasticQuota",
            "NodeNUMAResource",
            "NodeResourcesFitPlus",
            "Reservation",
            "ScarceResourceAvoidance",
            "SchedulingHint",
        ),
        "Koordinator",
    ),
}
"""Plugins of others that Muster does not have, and whose they are. Disabling one changes nothing; enabling one is an error."""


class Registry:
    """Plugin classes by name. `problems` says which entry points were left out, and why."""

    def __init__(
        self,
        plugins: Mapping[str, type[Plugin]] | None = None,
        *,
        builtin: Mapping[str, str] = BUILTIN,
        problems: Iterable[str] = (),
    ) -> None:
        self._found: dict[str, type[Plugin]] = dict(plugins or {})
        self._builtin = builtin
        self.problems = tuple(problems)

    def __contains__(self, name: str) -> bool:
        return name in self._found or name in self._builtin

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._builtin, *self._found)))

    def __getitem__(self, name: str) -> type[Plugin]:
        """The class; KeyError for a name that is not there."""
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = load_builtin(name, self._builtin[name])
        return found

    def is_builtin(self, name: str) -> bool:
        return name in self._builtin


def builtin_plugins() -> dict[str, type[Plugin]]:
    """All that come with Muster."""
    return {name: load_builtin(name, module) for name, module in BUILTIN.items()}


def load_builtin(name: str, module: str) -> type[Plugin]:
    """The class in `muster.engine.plugins.<module>` whose plugin name is `name`."""
    members = vars(importlib.import_module(f"muster.engine.plugins.{module}"))
    for member in members.values():
        if isinstance(member, type) and issubclass(member, Plugin) and member.name == name:
            return member
    raise LookupError(f"muster.engine.plugins.{module} has no plugin of the name {name!r}")


def discover(entry_points: Iterable[importlib.metadata.EntryPoint] | None = None) -> Registry:
    """The built-in plugins and those of the installed packages. Reads the disk and imports their modules."""
    found = importlib.metadata.entry_points(group=ENTRY_POINTS) if entry_points is None else entry_points
    plugins: dict[str, type[Plugin]] = {}
    origins: dict[str, str] = {}
    problems: list[str] = []
    # One order on every machine, so that the same one of two namesakes is left out everywhere.
    for entry in sorted(found, key=lambda e: (e.name, _package(e), e.value)):
        where = f"plugin {entry.name!r} of package {_package(entry)} ({entry.value})"
        if entry.name in origins:
            if origins[entry.name] != entry.value:
                problems.append(f"{where} is left out: {origins[entry.name]} has the name already; rename one of the two")
            continue
        if len(plugins) >= PLUGINS_MAX:
            problems.append(f"{where} is left out: there are {PLUGINS_MAX} others; uninstall what is not used")
            continue
        try:
            candidate = entry.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a foreign module does while it is imported
            problems.append(f"{where} is left out: importing it failed: {type(error).__name__}: {error}")
            continue
        wrong = problem_of(entry.name, candidate)
        if wrong:
            problems.append(f"{where} is left out: {wrong}")
            continue
        plugins[entry.name] = candidate
        origins[entry.name] = entry.value
    return Registry(plugins, problems=problems)


def problem_of(name: str, candidate: Any) -> str:
    """Why `candidate` can't be the plugin `name`; empty when it can."""
    if not (isinstance(candidate, type) and issubclass(candidate, Plugin)):
        return f"it is {candidate!r:.80}, not a class derived from muster.engine.plugin.Plugin"
    own: object = getattr(candidate, "name", None)
    if not isinstance(own, str) or not own:
        return 'the class has no name; set name = "..." in it'
    if own != name:
        return f"the class calls itself {own!r}; entry point and class must have the same name"
    if name in BUILTIN or name in ENGINE_OWN or name in NOT_HERE:
        return "the name belongs to a plugin of Muster, kube-scheduler or Koordinator; choose another"
    args: object = getattr(candidate, "Args", None)
    if not (isinstance(args, type) and issubclass(args, msgspec.Struct)):
        return f"Args is {args!r:.80}, not a class derived from msgspec.Struct"
    return ""


def _package(entry: importlib.metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "unknown"
