"""Which pods of one party's deployment come and go next. Pure arithmetic, Kubernetes' rules where it has rules.

Pods are told apart by the hash of their template: those of the present one are *new*, all others *old*.

- RollingUpdate: at most `desired + maxSurge` pods, at least `desired - maxUnavailable` ready ones. Percentages are of the
  desired number, the surge rounded up, the other down; where both are nothing, one may be unavailable. Old pods that are not
  ready go first, because they serve nobody.
- Recreate: all old pods go; new ones come when the last of them is gone.
- A pod that has ended is replaced, after a pause that doubles each time (10 s to 5 min) as long as its successors end quickly.
  How often is written on the pods, so a restart of the controller forgets nothing: the replacement is made first, with the
  next number, and then the ended pod goes. A pod that ran for ten minutes starts the count anew.

Names: the lowest numbers that no pod of this template has. The same pods give the same names, so making one twice makes one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from muster.store.backoff import doubled_s

BACKOFF_BASE_S: Final = 10.0
BACKOFF_MAX_S: Final = 300.0
GOOD_RUN_S: Final = 600.0
DEFAULT_SHARE: Final = "25%"


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """One pod."""

    name: str
    uid: str
    index: int
    template_hash: str
    is_ready: bool = False
    is_ended: bool = False
    is_deleting: bool = False
    has_node: bool = False
    created_s: float = 0.0
    ended_s: float = 0.0
    """When it ended; only for those that have."""
    ran_s: float = 0.0
    attempt: int = 1

    @property
    def is_active(self) -> bool:
        return not self.is_ended and not self.is_deleting


class Strategy(msgspec.Struct, frozen=True):
    is_recreate: bool = False
    max_surge: int | str = DEFAULT_SHARE
    max_unavailable: int | str = DEFAULT_SHARE


class New(msgspec.Struct, frozen=True):
    """A pod to make."""

    index: int
    attempt: int


class Rollout(msgspec.Struct, frozen=True):
    create: list[New]
    delete: list[Replica]
    again_s: float | None = None


def scaled(value: int | str, total: int, *, up: bool) -> int:
    """A number, or a percentage of `total`. ValueError for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and value.endswith("%") and value[:-1].isascii() and value[:-1].isdecimal() and len(value) <= 6:
        share = int(value[:-1]) * total / 100
        number = math.ceil(share) if up else math.floor(share)
    else:
        raise ValueError(f"{value!r} is neither a number nor a percentage like 25%")
    if number < 0:
        raise ValueError(f"{value!r} is negative")
    return number


def bounds(strategy: Strategy, desired: int) -> tuple[int, int]:
    """How many pods there may be above the desired number, and how many may be missing below it."""
    surge = scaled(strategy.max_surge, desired, up=True)
    unavailable = min(scaled(strategy.max_unavailable, desired, up=False), desired)
    return surge, unavailable if surge or unavailable else 1


def backoff_s(attempt: int) -> float:
    """The pause after a pod's `attempt`-th run in a row ended."""
    return doubled_s(BACKOFF_BASE_S, attempt - 1, BACKOFF_MAX_S)


def rollout(desired: int, strategy: Strategy, pods: Sequence[Replica], template_hash: str, now: float) -> Rollout:
    new = [pod for pod in pods if pod.is_active and pod.template_hash == template_hash]
    old = [pod for pod in pods if pod.is_active and pod.template_hash != template_hash]
    ended = [pod for pod in pods if pod.is_ended and not pod.is_deleting]
    spent = [pod for pod in ended if pod.template_hash != template_hash]
    missing = max(desired - len(new), 0)
    create, replaced, again_s = _create(
        missing,
        _room(desired, strategy, len(new), [pod for pod in pods if pod.template_hash != template_hash]),
        [pod for pod in ended if pod.template_hash == template_hash],
        {pod.index for pod in pods if pod.template_hash == template_hash},
        now,
    )
    delete = [*spent, *replaced]
    delete += sorted(new, key=_least_useful)[: max(len(new) - desired, 0)]
    delete += old if strategy.is_recreate else _leaving(desired, strategy, new, old)
    return Rollout(create, delete, again_s)


def _room(desired: int, strategy: Strategy, new_count: int, others: Sequence[Replica]) -> int:
    """How many pods may come now. `others` are all pods of other templates, in whatever state."""
    if strategy.is_recreate:
        is_left = any(not pod.is_ended for pod in others)
        return 0 if is_left else desired - new_count
    old_count = sum(1 for pod in others if pod.is_active)
    surge, _ = bounds(strategy, desired)
    return desired + (surge if old_count else 0) - new_count - old_count


def _create(
    missing: int, room: int, ended: Sequence[Replica], taken: set[int], now: float
) -> tuple[list[New], list[Replica], float | None]:
    """The pods to make, the ended ones that they replace (or that nobody needs), and when the next one may be made."""
    if not missing:
        return [], list(ended), None
    latest = sorted(ended, key=lambda pod: (-pod.attempt, pod.name))
    due_in = {pod.name: pod.ended_s + backoff_s(_run(pod)) - now for pod in latest}
    due = [pod for pod in latest if due_in[pod.name] <= 0]
    waiting = [pod for pod in latest if due_in[pod.name] > 0][:missing]
    count = max(min(missing - len(waiting), room), 0)
    replaced = due[:count]
    attempts = [_run(pod) + 1 for pod in replaced] + [1] * (count - len(replaced))
    free = (index for index in range(len(taken) + count) if index not in taken)
    create = [New(index, attempt) for index, attempt in zip(free, attempts, strict=False)]
    again_s = min((due_in[pod.name] for pod in waiting), default=None)
    return create, replaced, again_s


def _run(pod: Replica) -> int:
    """Which run in a row it was that ended too soon."""
    return 0 if pod.ran_s >= GOOD_RUN_S else pod.attempt


def _leaving(desired: int, strategy: Strategy, new: Sequence[Replica], old: Sequence[Replica]) -> list[Replica]:
    """The old pods that may go now."""
    if not old:
        return []
    _, unavailable = bounds(strategy, desired)
    least = desired - unavailable
    unready_new = sum(1 for pod in new if not pod.is_ready)
    budget = max(len(new) + len(old) - least - unready_new, 0)
    idle = sorted((pod for pod in old if not pod.is_ready), key=_least_useful)[:budget]
    ready = sum(1 for pod in (*new, *old) if pod.is_ready)
    serving = sorted((pod for pod in old if pod.is_ready), key=_least_useful)[: max(ready - least, 0)]
    return [*idle, *serving]


def _least_useful(pod: Replica) -> tuple[bool, bool, float, str]:
    """First who has no node, then who is not ready, then the youngest."""
    return pod.has_node, pod.is_ready, -pod.created_s, pod.name
