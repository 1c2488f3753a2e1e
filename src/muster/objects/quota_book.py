"""The quotas of one namespace, and what is used of them: kept change by change, equal at any time to counting everything anew.

Pure. Whoever keeps a book reads each kind into it once (`load`), and then puts down what each object has become (`put`), which
may be said twice. `judge` says what changes would come to, and changes nothing.

Invariants: `used` is the sum of what is there and in scope; changes that `judge` lets pass never bring a resource above its
limit that they ask more of, unless they are updates of pods, which Kubernetes does not judge either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from muster.objects.quantity import ZERO, Quantity
from muster.objects.resource_quotas import PODS, Amounts, Counted, Quota


class Entry(msgspec.Struct, frozen=True):
    """What one change makes of one object."""

    kind: str
    name: str
    after: Counted | None
    """None when it goes."""
    is_new: bool = False


class Verdict(msgspec.Struct, frozen=True):
    refusal: str = ""
    entry: Entry | None = None
    """The one that is refused."""
    used: Mapping[str, Amounts] = {}
    """What would be used then, by quota; those that stay as they are are left out."""


class Book:
    def __init__(self) -> None:
        self.quotas: Sequence[Quota] = ()
        """In the order of their names."""
        self.used: dict[str, dict[str, Quantity]] = {}
        """By quota, and by resource that it bounds."""
        self._counted: dict[str, dict[str, Counted]] = {}

    def set_quotas(self, quotas: Sequence[Quota]) -> list[str]:
        """Count for these from now on. Returns the kinds that must be loaded before anything is judged."""
        self.quotas = sorted(quotas, key=lambda quota: quota.name)
        kinds = {kind for quota in quotas for kind in quota.names}
        self._counted = {kind: known for kind, known in self._counted.items() if kind in kinds}
        self.used = {quota.name: dict.fromkeys(quota.hard, ZERO) for quota in quotas}
        for kind, known in self._counted.items():
            for one in known.values():
                self._charge(kind, None, one)
        return sorted(kinds - self._counted.keys())

    def load(self, kind: str, objects: Mapping[str, Counted]) -> None:
        self._counted[kind] = dict(objects)
        for one in objects.values():
            self._charge(kind, None, one)

    def counts(self, kind: str) -> bool:
        return kind in self._counted

    def put(self, kind: str, name: str, after: Counted | None) -> bool:
        """Whether it counts as something else than before."""
        known = self._counted.get(kind)
        if known is None:
            return False
        before = known.get(name)
        if before is after or before == after:
            return False
        self._charge(kind, before, after)
        if after is None:
            del known[name]
        else:
            known[name] = after
        return True

    def _charge(self, kind: str, before: Counted | None, after: Counted | None) -> None:
        for quota in self.quotas:
            used = self.used[quota.name]
            for name, change in _difference(quota, kind, before, after).items():
                used[name] += change

    def judge(self, entries: Sequence[Entry]) -> Verdict:
        """Whether all of these may happen together."""
        for entry in entries:
            if entry.kind == PODS and entry.is_new and entry.after is not None:
                for quota in self.quotas:
                    missing = entry.after.unstated.intersection(quota.bounds(PODS, entry.after))
                    if missing:
                        return Verdict(f"failed quota: {quota.name}: must specify {','.join(sorted(missing))}", entry)
        then: dict[str, Amounts] = {}
        for quota in self.quotas:
            changes, asking = self._changes(quota, entries)
            if not changes:
                continue
            used = self.used[quota.name]
            after = {**used, **{name: used[name] + change for name, change in changes.items()}}
            beyond = [name for name in sorted(asking) if changes[name] > ZERO and after[name] > quota.hard[name]]
            if beyond:
                requested, so_far, limited = (_listed(beyond, amounts) for amounts in (changes, used, quota.hard))
                message = f"exceeded quota: {quota.name}, requested: {requested}, used: {so_far}, limited: {limited}"
                return Verdict(message, asking[beyond[0]])
            then[quota.name] = after
        return Verdict(used=then)

    def _changes(self, quota: Quota, entries: Sequence[Entry]) -> tuple[dict[str, Quantity], dict[str, Entry]]:
        """What `entries` change of the quota's resources, and for each resource an entry that asks for more and is judged."""
        changes: dict[str, Quantity] = {}
        asking: dict[str, Entry] = {}
        seen: dict[tuple[str, str], Counted | None] = {}
        for entry in entries:
            key = (entry.kind, entry.name)
            before = seen[key] if key in seen else self._counted.get(entry.kind, {}).get(entry.name)
            seen[key] = entry.after
            for name, change in _difference(quota, entry.kind, before, entry.after).items():
                changes[name] = changes.get(name, ZERO) + change
                if change > ZERO and (entry.is_new or entry.kind != PODS):
                    asking.setdefault(name, entry)
        return changes, asking


def _difference(quota: Quota, kind: str, before: Counted | None, after: Counted | None) -> dict[str, Quantity]:
    """By how much the quota's resources change; those that do not are left out."""
    changes: dict[str, Quantity] = {}
    if before is not None:
        for name in quota.bounds(kind, before):
            if amount := before.amounts.get(name):
                changes[name] = -amount
    if after is not None:
        for name in quota.bounds(kind, after):
            if amount := after.amounts.get(name):
                changes[name] = amount + changes[name] if name in changes else amount
    return {name: change for name, change in changes.items() if change}


def _listed(names: Sequence[str], amounts: Amounts) -> str:
    return ",".join(f"{name}={amounts[name]}" for name in names)
