"""What a question to the engine holds, and what comes back. Plain values; `to_raw` makes JSON of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from muster.objects.reasons import Reason, Verdict

NODES_SHOWN: Final = 10
NODES_MAX: Final = 5_000
"""At most so many nodes are shown one by one."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """About work by `key` (`Kind/namespace/name`, or `namespace/name` of a pod or PodGroup), or about a `manifest`."""

    key: str = ""
    manifest: Mapping[str, Any] | None = None
    namespace: str = "default"
    """For manifests that name none."""
    profile: str = ""
    """For manifests: try them under this profile instead of the one they name."""
    nodes_max: int = NODES_SHOWN


class _Value(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    pass


class PodPlace(_Value, frozen=True):
    """A pod (`namespace/name`) and its node; "" while it has none."""

    pod: str
    node: str = ""
    score: int = 0
    uid: str = ""


class PluginScore(_Value, frozen=True):
    """What one plugin gives a node, from 0 to 100, and how much that counts."""

    plugin: str
    score: int
    weight: int = 1


class NodeAnswer(_Value, frozen=True):
    """One node, for one pod: `score` and `scores` where it would do, `refusals` (by each filter that says no) where not."""

    node: str
    feasible: bool = False
    score: int = 0
    scores: tuple[PluginScore, ...] = ()
    refusals: tuple[Verdict, ...] = ()
    allocations: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    """By plugin: what exactly the pod would get there (`dry_allocate`): devices, cores and the like."""


class RefusedNodes(_Value, frozen=True):
    """Nodes that one plugin was the first to refuse, for one reason. `nodes` are the first of `count`."""

    plugin: str
    reason: Reason
    count: int
    nodes: tuple[str, ...] = ()
    preemption_might_help: bool = False


class Evaluation(_Value, frozen=True):
    """Every node for one kind of pod: counted, and the most interesting ones shown."""

    pod: str
    nodes_total: int
    nodes_feasible: int
    nodes: tuple[NodeAnswer, ...] = ()
    """Best first: feasible ones by score, then those that lack least."""
    refused: tuple[RefusedNodes, ...] = ()


class PossibleVictims(_Value, frozen=True):
    """Pods of one node that preemption would end; `violating` are those whose disruption budget that breaks."""

    node: str
    pods: tuple[PodPlace, ...] = ()
    violating: tuple[str, ...] = ()


class Answer(_Value, frozen=True, kw_only=True):
    subject: str
    """The id of the unit, or `namespace/name` of hypothetical work."""
    state: str = ""
    """`placed`, `reserved`, `waiting`, `not tried`, `foreign` or `hypothetical`."""
    profile: str = ""
    schedulable: bool = False
    """Has its nodes, or would get them now."""
    verdict: Verdict | None = None
    said: Verdict | None = None
    """Of waiting work: the verdict of the last attempt, which the object's condition shows."""
    pods: tuple[PodPlace, ...] = ()
    """Where its pods are or would go."""
    evaluations: tuple[Evaluation, ...] = ()
    victims: tuple[PossibleVictims, ...] = ()
    """What preemption would do for it; empty when it can't help or is not needed."""
    earliest_start: float | None = None
    """When it will start, where that is known."""
    notes: tuple[str, ...] = ()
    """What was assumed, and what could not be evaluated."""


def to_raw(answer: Answer) -> dict[str, Any]:
    """For JSON and YAML; a verdict is written with its meaning and remedy, so that readers need no table."""
    raw: dict[str, Any] = msgspec.to_builtins(answer)
    raw["schedulable"] = answer.schedulable
    if answer.verdict is not None:
        raw["verdict"] |= {"meaning": answer.verdict.reason.meaning, "remedy": answer.verdict.reason.remedy}
    return raw
