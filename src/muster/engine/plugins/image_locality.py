"""ImageLocality: nodes that already have the pod's images, by size, score higher.

kube-scheduler's formula: an image counts its size times the share of nodes that have it (so that one node that happens to have
it does not draw all pods); the sum over containers is put between 23 MiB (score 0) and 1000 MiB per container (score 100). Init
containers count too, as in newer versions of it. One difference: the size is what the very node reports; kube-scheduler takes
the size that it happened to see first.

Keeps which node has which image. Called from the engine's one thread. Scope WIDE, since the share depends on all nodes; asked
only about pods one of whose images is on some node. Columns are kept until images or nodes change; at most IMAGES_KEPT_MAX.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Column, Columns
from muster.engine.facts import NodeFacts, PodSpecFacts
from muster.engine.plugin import SCORE_MAX, Plugin, Scope

MEBIBYTE: Final = 1024 * 1024
SUM_MIN: Final = 23 * MEBIBYTE
SUM_MAX_PER_CONTAINER: Final = 1000 * MEBIBYTE
IMAGES_KEPT_MAX: Final = 256
SIZE_MAX: Final = 2**50
"""Larger sizes are cut to this: sums stay exact."""


class ImageLocality(Plugin):
    name = "ImageLocality"
    scope = Scope.WIDE

    def __init__(self, args: object = None) -> None:
        super().__init__(args)
        self._sizes: dict[str, dict[str, int]] = {}
        """By image and node name, in bytes."""
        self._on: dict[str, dict[str, int]] = {}
        """By node name and image: what was counted for it."""
        self._columns: dict[str, Column] = {}
        self._names: list[str] = []
        """The list of nodes that `_columns` were made for; another one means that slots moved."""

    def node_seen(self, slot: int, node: NodeFacts) -> None:
        name = node.metadata.name
        after = {
            image_name(text): min(max(image.size_bytes, 0), SIZE_MAX) for image in node.status.images for text in image.names
        }
        before = self._on.get(name, {})
        if before == after:
            return
        self._columns.clear()
        self._forget(name)
        if after:
            self._on[name] = after
            for image, size_bytes in after.items():
                self._sizes.setdefault(image, {})[name] = size_bytes

    def concerns(self, pods: PodBlock) -> bool:
        if self._names is not self.state.nodes.names:
            self._renew(self.state.nodes)
        return bool(self._sizes) and any(image in self._sizes for image in images_of(pods.shape.spec))

    def score(self, pods: PodBlock, nodes: NodeBlock) -> Column:
        if self._names is not nodes.columns.names:
            self._renew(nodes.columns)
        images = images_of(pods.shape.spec)
        total: Any = np.int64(0) if nodes.is_one else np.zeros(len(nodes), np.int64)
        for image in images:
            if image in self._sizes:
                total = total + nodes.take(self._column(image, nodes))
        largest = SUM_MAX_PER_CONTAINER * len(images)
        scores: Column = SCORE_MAX * (np.clip(total, SUM_MIN, largest) - SUM_MIN) // (largest - SUM_MIN)
        return scores

    def _column(self, image: str, nodes: NodeBlock) -> Column:
        """What the image counts for on each node."""
        column = self._columns.get(image)
        if column is None:
            sizes, slots = self._sizes[image], nodes.columns.slots
            raw = np.zeros(len(nodes.columns), np.float64)
            raw[[slots[name] for name in sizes]] = list(sizes.values())
            if len(self._columns) >= IMAGES_KEPT_MAX:
                self._columns.clear()
            column = self._columns[image] = (raw * (len(sizes) / len(nodes.columns))).astype(np.int64)
        return column

    def _renew(self, columns: Columns) -> None:
        """Nodes came or went: slots have moved, and what the gone ones had is no longer there."""
        self._columns.clear()
        self._names = columns.names
        for name in [name for name in self._on if name not in columns.slots]:
            self._forget(name)

    def _forget(self, name: str) -> None:
        for image in self._on.pop(name, {}):
            sizes = self._sizes[image]
            del sizes[name]
            if not sizes:
                del self._sizes[image]


def images_of(spec: PodSpecFacts) -> list[str]:
    return [image_name(container.image) for container in (*spec.init_containers, *spec.containers)]


def image_name(text: str) -> str:
    """The name with a tag: `:latest` where there is neither tag nor digest."""
    return text if text.rfind(":") > text.rfind("/") else f"{text}:latest"
