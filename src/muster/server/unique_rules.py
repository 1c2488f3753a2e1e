"""What the server lets one object only have: see `unique_keys`. Pure.

| kind | key | whose writes are judged |
|---|---|---|
| User | a login | everybody's |
| PriorityClass | being the default | everybody's |
| Node | a range of addresses for pods, and every one that overlaps it | those of nodes and of Muster's own controllers |

An administrator may give two nodes one range, as on Kubernetes; what they have counts for others.
The names of CustomResourceDefinitions are no such rule: one that comes second is stored, and says so in its status
(`store.embedded.custom`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from muster.objects.meta import name_of
from muster.objects.rules.report import obj
from muster.objects.status import Raw
from muster.server.node_index import node_of_user, ranges_of
from muster.server.people import login_refusal
from muster.server.unique_keys import Rule
from muster.store.embedded.admission import Actor

_IS_DEFAULT: Final = frozenset({"default"})
_NOTHING: Final = frozenset[Any]()


class Logins(Rule[str]):
    """A login stands for one User; of one that names none, for that of its name."""

    kind = "users.muster.dev"

    def keys_of(self, raw: Raw) -> frozenset[str]:
        return frozenset(obj(raw, "spec").get("usernames") or [name_of(raw)])

    def refusal(self, key: str, other: str) -> str:
        return login_refusal(key, other)


class DefaultPriority(Rule[str]):
    """Pods that name no PriorityClass get the one that is the default."""

    kind = "priorityclasses.scheduling.k8s.io"

    def keys_of(self, raw: Raw) -> frozenset[str]:
        return _IS_DEFAULT if raw.get("globalDefault") is True else _NOTHING

    def refusal(self, key: str, other: str) -> str:
        return f"PriorityClass {other} is already marked as default. Only one default can exist"


class Range(NamedTuple):
    version: int
    first: int
    last: int
    text: str


class PodRanges(Rule[Range]):
    """Others route to a node what is sent to its pods' addresses: nobody takes some that are another's."""

    kind = "nodes"

    def keys_of(self, raw: Raw) -> frozenset[Range]:
        spec = obj(raw, "spec")
        if not spec.get("podCIDR") and not spec.get("podCIDRs"):
            return _NOTHING
        return frozenset(
            Range(one.version, int(one.network_address), int(one.broadcast_address), str(one)) for one in ranges_of(spec)
        )

    def judges(self, actor: Actor | None) -> bool:
        return actor is None or bool(node_of_user(actor.user, actor.groups))

    def in_the_way(self, key: Range, taken: Mapping[Range, Any]) -> Iterable[Range]:
        version, first, last, _ = key
        return [one for one in taken if one.version == version and one.first <= last and first <= one.last]

    def refusal(self, key: Range, other: str) -> str:
        return f"spec.podCIDR: {key.text!r:.80}: node {other} has addresses in it; choose another, or leave it out"


RULES: Final[tuple[Rule[Any], ...]] = (Logins(), DefaultPriority(), PodRanges())
