"""Plugins: the extension points of the engine, in kube-scheduler's and Koordinator's vocabulary, with vector signatures.

A plugin derives from `Plugin`, sets `name`, and overrides the points it takes part in; the engine looks which ones those are.
It is found by the entry point group `muster.plugins` (see `registry`), switched on and configured by a profile.

How often a point is asked follows from `scope`, so choose the narrowest that is true:

| scope | the answer depends on | asked |
|---|---|---|
| NODE | the shape, and the node's own description | once per shape; again for a node whose description changed |
| LOCAL | also on what is placed on that node (free amounts, own columns) | for a touched node, all shapes at once |
| WIDE | also on pods elsewhere, labels of this pod, time | at every decision about a pod that it `concerns` |

Pure: a plugin reads blocks and state, returns values, and keeps no state apart from own columns (`Columns.own`) and what it
builds in `node_seen`, `pod_added`, `pod_removed` and `event`. It is called from one thread. One that raises, or returns a wrong
shape, fails the unit that was asked about, with reason `PluginError` naming the plugin.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec
import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Array, Column, Mask
from muster.engine.facts import NodeFacts, PodFacts
from muster.objects.reasons import Reason, Shortfall, Verdict

if TYPE_CHECKING:
    from muster.engine.events import AnyEvent
    from muster.engine.pods import PodRecord
    from muster.engine.shapes import Shape
    from muster.engine.state import State
    from muster.engine.units import Unit

SCORE_MAX = 100
"""Scores of a plugin are whole numbers from 0 to this, after `normalise` if it has one."""


class Scope(enum.IntEnum):
    NODE = 0
    LOCAL = 1
    WIDE = 2


class Wake(enum.Enum):
    """What may let a unit that a plugin refused fit after all. A freed or changed node is checked against the very needs of
    each waiting unit before it wakes; the others wake all units that the plugin refused."""

    NODE = "node"
    """A node came, changed its description, or has more free than before."""
    ROOM = "room"
    """Any node offers more than before, whoever could use it."""
    POD = "pod"
    """A pod was placed, changed its labels, or went."""
    VOLUME = "volume"
    """A claim, volume or storage class came or changed."""
    METRIC = "metric"
    """A NodeMetric was reported."""
    LINK = "link"
    """A link changed, or work that uses one went."""
    GROUP = "group"
    """A pod group changed."""
    QUOTA = "quota"
    """A party's quota changed, or one of its pods went."""
    NAMESPACE = "namespace"
    TIME = "time"
    """Time alone: looked at again at every step."""


class NoArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """For plugins that have nothing to configure."""


class Permit(msgspec.Struct, frozen=True):
    """`wait_s` > 0: keep what is reserved and wait so long for a `Permitted` event. `verdict`: no."""

    wait_s: float = 0.0
    waiting_for: tuple[str, ...] = ()
    verdict: Verdict | None = None


class Patch(msgspec.Struct, frozen=True):
    """What `pre_bind` adds to the pod as it is bound. The patches of all plugins are merged into one write."""

    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)


class Nomination(msgspec.Struct, frozen=True):
    """What `post_filter` found: evict `victims` (uids) and the pod fits on `node`."""

    node: str
    victims: tuple[str, ...]
    violating: frozenset[str] = frozenset()
    """Those of the victims whose disruption budget is broken by it."""
    message: str = ""
    pods: Mapping[str, str] = msgspec.field(default_factory=dict)
    """For a unit of several pods: where room is made for each that needs it (uid and node), the asked one included."""
    covered: frozenset[str] | None = None
    """Those of the victims that any disruption budget selects; None when nobody looked."""


class PostFilterHelper(Protocol):
    """What a plugin that makes room may ask of the profile that it is part of. `evaluate.Evaluator` is one."""

    @property
    def nominations(self) -> Mapping[str, tuple[str, PodRecord]]:
        """By uid: waiting pods that room was made for, each with its node."""

    def block(self, pod: PodRecord) -> PodBlock:
        """The pod as plugins see it."""

    def static_mask(self, pods: PodBlock) -> Mask:
        """True where the NODE filters agree."""

    def feasible_without(self, pods: PodBlock, slot: int, victims: Sequence[PodRecord]) -> bool:
        """Whether every filter would agree with `victims` gone."""


class Plugin:
    """Base of all plugins. None of the methods below `observe` is called unless it is overridden."""

    name: ClassVar[str] = ""
    scope: ClassVar[Scope] = Scope.WIDE
    reason: ClassVar[Reason] = Reason.PLUGIN_ERROR
    """The code for nodes that this plugin refuses, unless `explain` knows better."""
    wakes_on: ClassVar[frozenset[Wake]] = frozenset({Wake.NODE})
    Args: ClassVar[type[msgspec.Struct]] = NoArgs
    """What the profile's `pluginConfig` may hold for it; its own `__post_init__` raises ValueError for what makes no sense."""
    concerns_by_shape: bool = False
    """`concerns` depends on the shape alone (its spec, and annotations and labels in `shape_annotations`, `shape_labels`), so
    it is asked once per shape instead of at every decision."""
    makes_room_by_shape: ClassVar[bool] = True
    """What `post_filter` finds depends on the pod's shape and priority alone: when it found nothing for one pod, it is not
    asked about others like it until something changes."""
    features_len: ClassVar[int] = 0
    shape_annotations: ClassVar[tuple[str, ...]] = ()
    shape_labels: ClassVar[tuple[str, ...]] = ()
    """Annotations and labels of a pod that this plugin's NODE and LOCAL answers depend on."""

    state: State
    """Set by `attach`; for reading."""
    helper: PostFilterHelper | None = None
    """Set by whoever runs the profile, for plugins with a `post_filter`, before it is asked."""

    def __init__(self, args: Any = None) -> None:
        self.args: Any = self.Args() if args is None else args

    def attach(self, state: State) -> None:
        """Called once, before anything else, with the engine's state; nodes and pods that are there already are told after."""
        self.state = state

    # -- observing: keep own columns and indexes up to date -------------------------------------------------------------

    def node_seen(self, slot: int, node: NodeFacts) -> None:
        """A node is new, or its description changed."""

    def follows(self, shape: Shape) -> bool:
        """Whether `pod_added` and `pod_removed` have anything to do for pods of this shape. Asked once per shape."""
        return True

    def pod_added(self, pod: PodRecord, slot: int) -> None:
        """A pod was placed on the node (assumed or bound)."""

    def pod_removed(self, pod: PodRecord, slot: int) -> None: ...

    def event(self, event: AnyEvent) -> Sequence[int] | None:
        """Any other event; of `Tick` hears who has a `next_look`. Returns the slots whose answers changed by it, if any did."""
        return None

    def next_look(self) -> float | None:
        """When time alone will change an answer, if ever: the engine asks for a `Tick` then, which `event` is told of."""
        return None

    # -- choosing ----------------------------------------------------------------------------------------------------------

    def next_unit(self, waiting: Sequence[Unit], now: float) -> str | None:
        """The id of the unit to try next, past the order; None to keep to the order. The first plugin that answers wins."""
        return None

    # -- transforming ------------------------------------------------------------------------------------------------------

    def before_prefilter(self, pod: PodFacts, now: float) -> PodFacts | None:
        """A pod to use instead, for this attempt; None for the pod as it is."""
        return None

    def before_filter(self, pods: PodBlock, nodes: NodeBlock) -> tuple[PodBlock, NodeBlock] | None:
        """Blocks to filter with instead; None for those there are. Asked per attempt when the plugin `concerns` the pod."""
        return None

    def before_score(self, pods: PodBlock, nodes: NodeBlock) -> tuple[PodBlock, NodeBlock] | None:
        return None

    def restore(self, pods: PodBlock, nodes: NodeBlock) -> Array | None:
        """Free amounts (rows, nodes) with what is reserved for this very pod given back; None when nothing is."""
        return None

    # -- filtering ---------------------------------------------------------------------------------------------------------

    def concerns(self, pods: PodBlock) -> bool:
        """Whether the plugin has anything to say about this pod. Cheap: asked at every decision for scope WIDE, unless
        `concerns_by_shape`. Of scope LOCAL it is asked about many shapes together, once per step: no means that every filter
        answer would be yes, and every score 0."""
        return True

    def features(self, shape: Shape) -> Sequence[int]:
        """Figures of a shape for LOCAL answers, `features_len` of them; found again as `pods.features[name]`."""
        return ()

    def prefilter(self, unit: Unit, pods: PodBlock, now: float) -> Verdict | None:
        """Refuse before any node is looked at; None to go on."""
        return None

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        """True where the node will do."""
        raise NotImplementedError

    def explain(self, pods: PodBlock, nodes: NodeBlock) -> tuple[Reason, Sequence[Shortfall]]:
        """Why the nodes of this block were refused: the code, and in numbers what is missing where there are numbers."""
        return self.reason, ()

    def reasons(self, pods: PodBlock, nodes: NodeBlock) -> Sequence[tuple[Reason, Mask]]:
        """How many of the nodes of this block, all refused, were refused for what. One code for all unless overridden."""
        return ((self.reason, np.ones(len(nodes), np.bool_)),)

    def post_filter(self, unit: Unit, pods: PodBlock, now: float) -> Nomination | Verdict | None:
        """No node will do: make room (a nomination), give a better reason, or None."""
        return None

    # -- scoring -----------------------------------------------------------------------------------------------------------

    def score(self, pods: PodBlock, nodes: NodeBlock) -> Column:
        """Whole numbers; higher is better. Without `normalise` they are from 0 to SCORE_MAX."""
        raise NotImplementedError

    def normalise(self, scores: Column, feasible: Mask) -> Column:
        """Bring raw scores into 0..SCORE_MAX, looking at all feasible nodes. Having one makes the score late, as for WIDE."""
        raise NotImplementedError

    # -- taking ------------------------------------------------------------------------------------------------------------

    def resize(self, pod: PodRecord, node: str) -> Mapping[str, int] | None:
        """Other amounts to set aside for the pod on this node, by resource; None for what it asks for."""
        return None

    def dry_allocate(self, pod: PodRecord, node: str) -> Mapping[str, object] | Verdict:
        """What exactly the pod would get on that node (devices, cores), without taking it; a Verdict when it can't."""
        return {}

    def reserve(self, pod: PodRecord, node: str) -> Verdict | None:
        """Take what is this plugin's to give. A verdict undoes the whole unit."""
        return None

    def unreserve(self, pod: PodRecord, node: str) -> None:
        """Give back what `reserve` took; also called when `reserve` was not."""

    def permit(self, unit: Unit, now: float) -> Permit | None:
        """None: go ahead. Otherwise wait, or refuse."""
        return None

    def pre_bind(self, pod: PodRecord, node: str) -> Patch | None: ...

    def bind(self, pod: PodRecord, node: str) -> bool:
        """True when this plugin's own `binder` binds the pod instead of the `binding` subresource."""
        return False

    async def binder(self, store: Any, placed: Any) -> None:
        """The plugin's own way to bind a `PlacedPod`, for pods for which its `bind` says True. The shell calls this with its
        store; the engine never does. Raises ApiError when it could not; must be safe to repeat."""
        raise NotImplementedError

    def post_bind(self, pod: PodRecord, node: str) -> None:
        """The pod is bound."""


def overrides(plugin: Plugin, point: str) -> bool:
    """Whether the plugin takes part in an extension point."""
    return getattr(type(plugin), point) is not getattr(Plugin, point)
