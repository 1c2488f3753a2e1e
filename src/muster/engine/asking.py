"""Asking the plugins of one profile, and checking what they answer.

A plugin that raises, or answers with a wrong type, length or range, becomes a `PluginFault` that names it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Array, Mask
from muster.engine.plugin import SCORE_MAX, Plugin, overrides
from muster.engine.profile import Profile
from muster.engine.shapes import Shape
from muster.objects.reasons import Reason, Verdict

NO = -1
"""In a row of scores: this node will not do."""


class PluginFault(Exception):
    """A plugin raised, or returned something of the wrong shape."""

    def __init__(self, plugin: Plugin, point: str, why: str) -> None:
        super().__init__(f"plugin {plugin.name} failed at {point}: {why}")
        self.plugin = plugin
        self.point = point

    def verdict(self) -> Verdict:
        return Verdict(reason=Reason.PLUGIN_ERROR, message=str(self), plugin=self.plugin.name)


def guarded(plugin: Plugin, point: str, *arguments: Any) -> Any:
    """Call an extension point; whatever it raises becomes a PluginFault."""
    try:
        return getattr(plugin, point)(*arguments)
    except PluginFault:
        raise
    except Exception as error:
        raise PluginFault(plugin, point, f"{type(error).__name__}: {error}") from error


Busy = tuple[list[Callable[..., Any]], list[tuple[int, Callable[..., Any]]]]


class Asker:
    """The questions to NODE and LOCAL plugins, on any block of nodes."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.weights = profile.weights
        self.local_filters = [(p, p.filter) for p in profile.local_filters]
        self.local_scores = [(p, self.weights[p.name], p.score) for p in profile.local_scores]
        local = {id(p): p for p in (*profile.local_filters, *profile.local_scores)}
        self._choosy = [p for p in local.values() if overrides(p, "concerns")]
        """Of the LOCAL plugins, those that do not always have something to say."""

    def busy(self, pods: PodBlock) -> Busy:
        """The LOCAL filters and weighted scores that concern any of the shapes; the others would say yes, and 0."""
        silent = {id(plugin) for plugin in self._choosy if not guarded(plugin, "concerns", pods)}
        filters = [accepts for plugin, accepts in self.local_filters if id(plugin) not in silent]
        scores = [(weight, scored) for plugin, weight, scored in self.local_scores if id(plugin) not in silent]
        return filters, scores

    def static_mask(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        """True where the NODE filters agree: where making room could help."""
        mask: Mask = np.ones(len(nodes), np.bool_)
        for plugin in self.profile.node_filters:
            mask &= self.filtered(plugin, pods, nodes)
        return mask

    def mask(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        """NODE and LOCAL filters on any block of nodes, worked out now."""
        mask: Mask = np.ones(len(nodes), np.bool_)
        for plugin in self.profile.node_filters:
            mask = mask & self.filtered(plugin, pods, nodes)
        for plugin, _ in self.local_filters:
            mask = mask & self.filtered(plugin, pods, nodes)
        return mask

    def local(self, pods: PodBlock, nodes: NodeBlock) -> Array:
        """LOCAL part of a row on any block of nodes, which may be imagined ones: NO, or the weighted LOCAL scores."""
        mask: Any = True
        for _, accepts in self.local_filters:
            mask = mask & accepts(pods, nodes)
        score: Any = 0
        for _, weight, scored in self.local_scores:
            score = score + weight * scored(pods, nodes)
        return np.where(mask, score, NO)

    def checked_local(self, block: PodBlock, nodes: NodeBlock, base: Any) -> Array:
        """As `local`, each plugin's answer checked: used where a mistake must be laid at the right door."""
        mask: Mask = np.ones(len(nodes), np.bool_)
        for plugin, _ in self.local_filters:
            mask = mask & self.filtered(plugin, block, nodes)
        score = base
        for plugin, weight, _ in self.local_scores:
            score = score + weight * self.scored(plugin, block, nodes, is_final=True)
        found: Array = np.where(mask, score, NO)
        return found

    def node_scores(self, block: PodBlock, nodes: NodeBlock) -> Array:
        base: Array = np.zeros(len(nodes), np.int64)
        for plugin in self.profile.node_scores:
            base = base + self.weights[plugin.name] * self.scored(plugin, block, nodes, is_final=True)
        return base

    def features_of(self, shape: Shape) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for plugin in self.profile.plugins:
            if plugin.features_len:
                figures = np.asarray(guarded(plugin, "features", shape), np.int64)
                if figures.shape != (plugin.features_len,):
                    raise PluginFault(plugin, "features", f"returned {figures.shape}, not ({plugin.features_len},)")
                found[plugin.name] = figures
        return found

    def filtered(self, plugin: Plugin, pods: PodBlock, nodes: NodeBlock) -> Mask:
        mask = np.asarray(guarded(plugin, "filter", pods, nodes))
        if mask.dtype != np.bool_ or mask.shape not in ((len(nodes),), ()):
            raise PluginFault(plugin, "filter", f"returned {mask.dtype} of shape {mask.shape}, not bool of ({len(nodes)},)")
        return mask if mask.shape else np.full(len(nodes), bool(mask))

    def scored(self, plugin: Plugin, pods: PodBlock, nodes: NodeBlock, *, is_final: bool = False) -> Array:
        scores = np.asarray(guarded(plugin, "score", pods, nodes))
        if scores.dtype.kind not in "iub" or scores.shape not in ((len(nodes),), ()):
            raise PluginFault(
                plugin, "score", f"returned {scores.dtype} of shape {scores.shape}, not whole numbers of ({len(nodes)},)"
            )
        if is_final and scores.size and (scores.min() < 0 or scores.max() > SCORE_MAX):
            raise PluginFault(plugin, "score", f"is not within 0..{SCORE_MAX}: from {scores.min()} to {scores.max()}")
        return scores if scores.shape else np.full(len(nodes), int(scores), np.int64)

    def normalised(self, plugin: Plugin, raw: Array, feasible: Mask) -> Array:
        if not overrides(plugin, "normalise"):
            return raw
        scores = np.asarray(guarded(plugin, "normalise", raw, feasible))
        if scores.dtype.kind not in "iub" or scores.shape != raw.shape:
            raise PluginFault(
                plugin, "normalise", f"returned {scores.dtype} of shape {scores.shape}, not whole numbers of {raw.shape}"
            )
        found = scores[feasible]
        if found.size and (found.min() < 0 or found.max() > SCORE_MAX):
            raise PluginFault(plugin, "normalise", f"is not within 0..{SCORE_MAX}: from {found.min()} to {found.max()}")
        return scores

    @staticmethod
    def concerned(plugins: Sequence[Plugin], block: PodBlock) -> list[Plugin]:
        """Those that have anything to say about the pod."""
        try:
            return [p for p in plugins if p.concerns(block)]
        except Exception:  # noqa: BLE001 - asked again, one by one, to find out who it was
            return [p for p in plugins if guarded(p, "concerns", block)]

    @staticmethod
    def may_concern(plugins: Sequence[Plugin], block: PodBlock) -> tuple[Plugin, ...]:
        return tuple(p for p in plugins if not p.concerns_by_shape or guarded(p, "concerns", block))
