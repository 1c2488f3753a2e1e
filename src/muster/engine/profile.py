"""A profile at work: plugin instances in order at each extension point, with their weights.

`configuration` makes profiles from what a user wrote; tests make them by hand. Pure; nothing changes after it was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.engine.plugin import Plugin, Scope, overrides
from muster.engine.state import State

POINTS = (
    "next_unit",
    "before_prefilter",
    "prefilter",
    "before_filter",
    "restore",
    "filter",
    "post_filter",
    "before_score",
    "score",
    "resize",
    "reserve",
    "permit",
    "pre_bind",
    "bind",
    "post_bind",
)
"""`normalise` goes with `score`, `unreserve` with `reserve`, `dry_allocate` and `explain` with `filter`."""


class Profile:
    """Plugins by extension point. A plugin that is enabled takes part in every point that it overrides, unless `points` lists
    the plugins of a point by name."""

    def __init__(
        self,
        name: str,
        plugins: Sequence[Plugin],
        *,
        weights: Mapping[str, int] | None = None,
        points: Mapping[str, Sequence[str]] | None = None,
        is_shadow: bool = False,
        aliases: Sequence[str] = (),
        cached_shapes_max: int = 1024,
    ) -> None:
        self.name = name
        self.cached_shapes_max = cached_shapes_max
        """For so many shapes of pods at most it is kept what the plugins said."""
        self.names = (name, *aliases)
        """Every `schedulerName` that it serves."""
        self.plugins = tuple(plugins)
        self.is_shadow = is_shadow
        """Decides and records, binds nothing."""
        by_name = {plugin.name: plugin for plugin in plugins}
        self.at: dict[str, tuple[Plugin, ...]] = {}
        for point in POINTS:
            names = (points or {}).get(point)
            chosen = self.plugins if names is None else tuple(by_name[n] for n in names)
            self.at[point] = tuple(plugin for plugin in chosen if overrides(plugin, point))
        self.weights = {plugin.name: (weights or {}).get(plugin.name, 1) for plugin in plugins}
        self._sort()

    def join(self, plugin: Plugin) -> None:
        """A plugin that all profiles share takes part, behind their own. Whoever hands it in attaches it to the state."""
        if any(plugin in chosen for chosen in self.at.values()):
            return
        self.at = {point: (*chosen, plugin) if overrides(plugin, point) else chosen for point, chosen in self.at.items()}
        self.weights.setdefault(plugin.name, 1)
        self._sort()

    def _sort(self) -> None:
        """Filters and scores by how often they are asked."""
        filters, scores = self.at["filter"], self.at["score"]
        self.node_filters = tuple(p for p in filters if p.scope is Scope.NODE)
        self.local_filters = tuple(p for p in filters if p.scope is Scope.LOCAL)
        self.wide_filters = tuple(p for p in filters if p.scope is Scope.WIDE)
        late = tuple(p for p in scores if p.scope is Scope.WIDE or overrides(p, "normalise"))
        self.node_scores = tuple(p for p in scores if p.scope is Scope.NODE and p not in late)
        self.local_scores = tuple(p for p in scores if p.scope is Scope.LOCAL and p not in late)
        self.late_scores = late

    def attach(self, state: State) -> None:
        """Make the plugins observers of `state`, and tell them what is in it."""
        for plugin in self.plugins:
            state.shapes.names.add(plugin.shape_annotations, plugin.shape_labels)
            state.tell(plugin, "attach", state)
            for slot, node in enumerate(state.nodes.facts):
                state.tell(plugin, "node_seen", slot, node)
            for pods in state.on_node.values():
                for pod in pods.values():
                    if pod.index >= 0:
                        state.tell(plugin, "pod_added", pod, state.nodes.slots[pod.node])
            state.observe(plugin)

    def detach(self, state: State) -> None:
        for plugin in self.plugins:
            state.unobserve(plugin)
