"""The policies in force, by name: the last of each that could be used.

The API refuses a policy whose formula is wrong; one can still come past it (another writer, a newer version's language). Then
the one before stays in force, and somebody is told: a mistake in an object must not turn its queues into others.

Pure, single-threaded. `checkpoint` keeps what the objects themselves do not tell: what is in force instead of bad ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from muster.engine.state import State
from muster.objects.formula import FormulaError
from muster.objects.kinds.muster_queues import SchedulingPolicySpec
from muster.policy.policies import Policy, make_policy


class InForce:
    def __init__(self, state: State) -> None:
        self._state = state
        self._policies: dict[str, Policy] = {}
        self._bad: set[str] = set()
        """Names of objects that can't be used; one that could may still be in force."""
        self._nothing = make_policy(SchedulingPolicySpec())

    def get(self, name: str) -> Policy:
        """By age alone where there is none."""
        return self._policies.get(name, self._nothing)

    def put(self, name: str, spec: SchedulingPolicySpec) -> Policy | None:
        """The policy that goes by this name from now on, if there is one."""
        try:
            self._policies[name] = make_policy(spec)
            self._bad.discard(name)
        except FormulaError as error:
            self._bad.add(name)
            instead = "the one before stays in force" if name in self._policies else "its queues go by age"
            self._state.note_fault(f"SchedulingPolicy {name}", f"can't be used, {instead}: {error}")
        return self._policies.get(name)

    def drop(self, name: str) -> None:
        self._policies.pop(name, None)
        self._bad.discard(name)

    def checkpoint(self) -> dict[str, Any]:
        return {name: msgspec.to_builtins(self._policies[name].spec) for name in sorted(self._bad & self._policies.keys())}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """What was in force instead of the bad ones among the objects that were seen here."""
        for name, spec in kept.items():
            if name in self._bad and name not in self._policies:
                self._policies[name] = make_policy(msgspec.convert(spec, SchedulingPolicySpec))
