"""What goes into the engine: everything it knows arrives as one of these, in an order that the caller fixes.

Plain values that encode to JSON and back (`encode`, `decode`), so that a log of them replays the engine exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from muster.engine.facts import (
    BudgetFacts,
    ClaimFacts,
    LinkFacts,
    NamespaceFacts,
    NodeFacts,
    NodeMetricFacts,
    PersistentVolumeFacts,
    PodFacts,
    PodGroupFacts,
    PolicyFacts,
    PoolFacts,
    QueueFacts,
    QuotaFacts,
    RunFacts,
    StorageClassFacts,
    TaskGroupFacts,
    UserFacts,
    UserGroupFacts,
)


class Event(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base of all events."""


class PodSeen(Event, frozen=True):
    """A pod as it is now: new, changed, bound, ending or finished. The same version again changes nothing."""

    pod: PodFacts


class PodGone(Event, frozen=True):
    uid: str


class NodeSeen(Event, frozen=True):
    node: NodeFacts


class NodeGone(Event, frozen=True):
    name: str


class NodeMetricSeen(Event, frozen=True):
    metric: NodeMetricFacts


class NodeMetricGone(Event, frozen=True):
    name: str


class BudgetSeen(Event, frozen=True):
    budget: BudgetFacts


class BudgetGone(Event, frozen=True):
    namespace: str
    name: str


class ClaimSeen(Event, frozen=True):
    claim: ClaimFacts


class ClaimGone(Event, frozen=True):
    namespace: str
    name: str


class VolumeSeen(Event, frozen=True):
    volume: PersistentVolumeFacts


class VolumeGone(Event, frozen=True):
    name: str


class StorageClassSeen(Event, frozen=True):
    storage_class: StorageClassFacts


class StorageClassGone(Event, frozen=True):
    name: str


class NamespaceSeen(Event, frozen=True):
    namespace: NamespaceFacts


class NamespaceGone(Event, frozen=True):
    name: str


class PoolSeen(Event, frozen=True):
    pool: PoolFacts


class PoolGone(Event, frozen=True):
    name: str


class LinkSeen(Event, frozen=True):
    link: LinkFacts


class LinkGone(Event, frozen=True):
    name: str


class QuotaSeen(Event, frozen=True):
    """A party, with or without a quota."""

    quota: QuotaFacts


class QuotaGone(Event, frozen=True):
    name: str


class PodGroupSeen(Event, frozen=True):
    group: PodGroupFacts


class PodGroupGone(Event, frozen=True):
    namespace: str
    name: str


class TaskGroupSeen(Event, frozen=True):
    """A TaskResourceGroup: the pods of a task, by party and role, and how many must start together."""

    group: TaskGroupFacts


class TaskGroupGone(Event, frozen=True):
    name: str


class QueueSeen(Event, frozen=True):
    queue: QueueFacts


class QueueGone(Event, frozen=True):
    name: str


class PolicySeen(Event, frozen=True):
    policy: PolicyFacts


class PolicyGone(Event, frozen=True):
    name: str


class UserSeen(Event, frozen=True):
    user: UserFacts


class UserGone(Event, frozen=True):
    name: str


class UserGroupSeen(Event, frozen=True):
    group: UserGroupFacts


class UserGroupGone(Event, frozen=True):
    name: str


class RunsSeen(Event, frozen=True):
    """Runs from before this engine began, oldest first: what predictions start from. Those that end later it sees itself."""

    runs: Sequence[RunFacts]


class BindFailed(Event, frozen=True):
    """A pod of a `Place` could not be bound: it gives back what was set aside for it. `is_final`: it will never be."""

    uid: str
    message: str = ""
    is_final: bool = False


class Bound(Event, frozen=True):
    """A pod of a `Place` was bound. Optional: a `PodSeen` that shows the node says the same."""

    uid: str


class Planned(Event, frozen=True):
    """A plan from before a restart, which the shell is about to finish: `pods` (uid, node) count on their nodes from now on, as
    if they had just been placed. What can't be counted any more (it does not fit, the node or pod is gone) is answered by a
    `Release`, and the shell does not bind it."""

    unit: str
    pods: tuple[tuple[str, str], ...]
    held_until: float | None = None
    """Set for what was promised and not yet permitted (`Hold.is_promised`): it is held again, until `Permitted` or `Denied`."""


class EvictFailed(Event, frozen=True):
    """A victim could not be evicted: whoever waits for its place is tried again."""

    uid: str
    message: str = ""


class Permitted(Event, frozen=True):
    """A party that is not controlled from here has reserved its part (`party`), or, with "", enough have: go on."""

    unit: str
    party: str = ""


class Denied(Event, frozen=True):
    """A party gave up: what the unit holds is released."""

    unit: str
    message: str = ""


class Ranked(Event, frozen=True):
    """A new order: units by id, smallest first. A unit that is not in it keeps its own order, behind all that are."""

    order: Sequence[str]


class Retry(Event, frozen=True):
    """Try everything that waits again, or only `units`. Sent by people, never needed for progress."""

    units: Sequence[str] = ()


class Configured(Event, frozen=True):
    """Another configuration, already checked by `configuration.load`; in the form in which it was written."""

    configuration: Mapping[str, object]


class Tick(Event, frozen=True):
    """Nothing but the time: expiries and back-offs are looked at."""


AnyEvent = (
    PodSeen
    | PodGone
    | NodeSeen
    | NodeGone
    | NodeMetricSeen
    | NodeMetricGone
    | BudgetSeen
    | BudgetGone
    | ClaimSeen
    | ClaimGone
    | VolumeSeen
    | VolumeGone
    | StorageClassSeen
    | StorageClassGone
    | NamespaceSeen
    | NamespaceGone
    | PoolSeen
    | PoolGone
    | LinkSeen
    | LinkGone
    | QuotaSeen
    | QuotaGone
    | PodGroupSeen
    | PodGroupGone
    | TaskGroupSeen
    | TaskGroupGone
    | QueueSeen
    | QueueGone
    | PolicySeen
    | PolicyGone
    | UserSeen
    | UserGone
    | UserGroupSeen
    | UserGroupGone
    | RunsSeen
    | BindFailed
    | Bound
    | Planned
    | EvictFailed
    | Permitted
    | Denied
    | Ranked
    | Retry
    | Configured
    | Tick
)

_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(AnyEvent)


def encode(event: AnyEvent) -> bytes:
    return _encoder.encode(event)


def decode(line: bytes) -> AnyEvent:
    decoded: AnyEvent = _decoder.decode(line)
    return decoded
