"""Ports for the pods of tasks and deployments: from 20000 to 32766, and no number twice in one party at a time.

Two processes of a party may share a network (a process runtime without namespaces of its own), so numbers are unique within
the party, not within a pod or node. Which number a pod gets follows from the uid of its task: the search begins at a place
derived from it and goes up, so that tasks planned at about the same time rarely meet.

A number in the template is a wish: it is given when nobody in the party has it, otherwise the port gets one from the range
like the others. (Kuscia allocates all of them and never looks at the number.) Applications read theirs from the environment.

Who has which number is `port_book`'s to say. The `PortLedger` is what keeps two plans made from lagging caches apart: every
allocation goes through it, on one event loop, before it is written.

`allocate` and the readers are pure; the ledger is a plain data structure, used on one event loop.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from muster.objects.kinds.kuscia_tasks import PartyAllocatedPorts
from muster.objects.labels import KusciaAnnotation
from muster.objects.meta import annotations_of

PORT_MIN: Final = 20_000
PORT_MAX: Final = 32_766
PORTS_COUNT: Final = PORT_MAX - PORT_MIN + 1

IsTaken = Callable[[str, int], bool]
"""Whether somebody else in the party has the number."""


class PortWish(msgspec.Struct, frozen=True):
    """One port of one pod. `number` is what the template says; 0 when it says nothing."""

    pod: str
    port: str
    number: int = 0

    @property
    def key(self) -> str:
        """As `status.allocatedPorts[].namedPort` has it."""
        return f"{self.pod}/{self.port}"


class PartyPorts(msgspec.Struct, frozen=True):
    """What one party and role needs."""

    domain_id: str
    role: str
    wishes: tuple[PortWish, ...]


class PortsExhausted(Exception):
    """The party has not enough free numbers. `is_final` when it never could have: more are wanted than there are."""

    def __init__(self, message: str, *, is_final: bool) -> None:
        super().__init__(message)
        self.is_final = is_final


def allocate(parties: Sequence[PartyPorts], uid: str, is_taken: IsTaken) -> list[PartyAllocatedPorts]:
    """A number for every wish, none twice in a party and none that `is_taken`. PortsExhausted when there are too few."""
    given: dict[str, set[int]] = {}
    searches: dict[str, Iterator[int]] = {}
    result = []
    wanted: dict[str, int] = {}
    for party in parties:
        wanted[party.domain_id] = wanted.get(party.domain_id, 0) + len(party.wishes)
    for domain_id, count in wanted.items():
        if count > PORTS_COUNT:
            raise PortsExhausted(
                f"party {domain_id} needs {count:,} ports for this task, and there are {PORTS_COUNT:,}; use fewer replicas",
                is_final=True,
            )
    for party in parties:
        mine = given.setdefault(party.domain_id, set())
        search = searches.setdefault(party.domain_id, _search(uid, party.domain_id))
        numbers = {}
        for wish in party.wishes:
            number = (
                wish.number if wish.number not in mine and wish.number and not is_taken(party.domain_id, wish.number) else 0
            )
            if not number:
                free = (n for n in search if n not in mine and not is_taken(party.domain_id, n))
                number = next(free, 0)
            if not number:
                raise PortsExhausted(
                    f"party {party.domain_id} has no free port between {PORT_MIN} and {PORT_MAX} for {wish.key}: "
                    "other tasks and deployments of the party have them all; it is tried again as they end",
                    is_final=False,
                )
            mine.add(number)
            numbers[wish.key] = number
        result.append(PartyAllocatedPorts(domain_id=party.domain_id, role=party.role, named_port=numbers))
    return result


def _search(uid: str, domain_id: str) -> Iterator[int]:
    """Every number of the range once, from a place that follows from the task."""
    digest = hashlib.sha256(f"{uid}\0{domain_id}".encode("utf-8", "surrogatepass")).digest()
    start = int.from_bytes(digest[:8], "big") % PORTS_COUNT
    return (PORT_MIN + (start + step) % PORTS_COUNT for step in range(PORTS_COUNT))


def fits(allocated: Sequence[PartyAllocatedPorts], parties: Sequence[PartyPorts]) -> bool:
    """Whether what was allocated is for exactly these pods and ports."""
    have = {(a.domain_id, a.role): set(a.named_port) for a in allocated if a.named_port}
    want = {(p.domain_id, p.role): {wish.key for wish in p.wishes} for p in parties if p.wishes}
    return have == want


def port_key(domain_id: str, number: int) -> str:
    """The value under which an index holds whoever has this number in this party."""
    return f"{domain_id}/{number}"


def port_keys(allocated: Iterable[PartyAllocatedPorts]) -> Iterator[str]:
    for party in allocated:
        for number in party.named_port.values():
            yield port_key(party.domain_id, number)


def deployment_ports(raw: Mapping[str, Any]) -> list[PartyAllocatedPorts]:
    """What a KusciaDeployment has: its annotation `kuscia.secretflow/allocated-ports`, in the form of a task's status.

    Kuscia's status of a deployment has no place for it. An annotation that can't be read has none.
    """
    text = annotations_of(raw).get(KusciaAnnotation.ALLOCATED_PORTS, "")
    if not text:
        return []
    try:
        return msgspec.json.decode(text, type=list[PartyAllocatedPorts])
    except (msgspec.DecodeError, RecursionError):
        return []


def deployment_annotation(allocated: Sequence[PartyAllocatedPorts]) -> str:
    """The annotation's value; `deployment_ports` reads it back."""
    return msgspec.json.encode([msgspec.to_builtins(party) for party in allocated], order="sorted").decode()


class PortLedger:
    """What was given out and may not be in the caches yet. One for all controllers of a process that allocate ports."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[str, ...]] = {}
        """By uid of the owner: its numbers, as `port_key`."""
        self._holders: dict[str, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def give(self, owner: str, allocated: Iterable[PartyAllocatedPorts]) -> None:
        """`owner` (its uid) has these, and nothing else that was given to it before."""
        self.drop(owner)
        keys = tuple(port_keys(allocated))
        if keys:
            self._entries[owner] = keys
            for key in keys:
                self._holders.setdefault(key, {})[owner] = None

    def drop(self, owner: str) -> None:
        """The cache shows what `owner` has, or it has nothing any more."""
        for key in self._entries.pop(owner, ()):
            holders = self._holders.get(key)
            if holders is not None:
                holders.pop(owner, None)
                if not holders:
                    del self._holders[key]

    def is_taken(self, domain_id: str, number: int, by_others_than: str) -> bool:
        holders = self._holders.get(port_key(domain_id, number))
        return holders is not None and any(owner != by_others_than for owner in holders)
