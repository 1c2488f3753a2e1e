"""Feature gates: what is new is off until somebody switches it on, and says so when it is about to change or go.

A gate guards a piece of configuration: while it is off, a configuration that asks for the piece is refused with the gate's
name. Pure values.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from muster.engine.notes import shown


class Stage(enum.Enum):
    ALPHA = "alpha"
    """May change or go without notice; off by default."""
    BETA = "beta"
    """Stays, details may change."""
    GA = "ga"
    """Always on; naming the gate is no longer needed."""
    DEPRECATED = "deprecated"
    """Will go."""


class Gate(msgspec.Struct, frozen=True):
    name: str
    default: bool
    stage: Stage
    purpose: str
    args: tuple[tuple[str, str], ...] = ()
    """Members of plugin arguments, as (plugin, member), that are refused while the gate is off."""
    points: tuple[str, ...] = ()
    """Extension points that a plugin may take part in only while the gate is on."""


GATES: Final = (
    Gate(
        "BandwidthReclaim",
        False,
        Stage.ALPHA,
        "Lend bandwidth that is reserved and steadily unused to other work (argument reclaim of plugin Bandwidth).",
        args=(("Bandwidth", "reclaim"),),
    ),
    Gate(
        "GangPreemption",
        False,
        Stage.ALPHA,
        "Let preemption make room for the whole of a gang at once (argument gangs of plugin DefaultPreemption).",
        args=(("DefaultPreemption", "gangs"),),
    ),
    Gate(
        "ResizePod",
        False,
        Stage.ALPHA,
        "Let plugins set aside another amount for a pod than it asks for (extension point resize).",
        points=("resize",),
    ),
)
GATES_LEN_MAX: Final = 256


class GatesInvalid(ValueError):
    """`errors` has a sentence per mistake."""

    def __init__(self, errors: Iterable[str]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(self.errors))


class Gates:
    """Which gates are on. `warnings` is what the writer should know about those that were named."""

    def __init__(
        self, chosen: Mapping[str, bool] | None = None, *, known: Iterable[Gate] = GATES, warnings: Iterable[str] = ()
    ) -> None:
        self.known = {gate.name: gate for gate in known}
        self.chosen = dict(chosen or {})
        self.warnings = tuple(warnings)

    def __getitem__(self, name: str) -> bool:
        """Whether the gate is on; KeyError for one that does not exist."""
        return self.chosen.get(name, self.known[name].default)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gates) and self.on == other.on

    def __hash__(self) -> int:
        return hash(self.on)

    def __repr__(self) -> str:
        return f"<Gates {', '.join(sorted(self.on)) or 'none'}>"

    @property
    def on(self) -> frozenset[str]:
        return frozenset(name for name in self.known if self[name])

    def missing_for_arg(self, plugin: str, member: str) -> Gate | None:
        """The gate that is off and would have to be on for this member of the plugin's arguments."""
        return next((g for g in self.known.values() if (plugin, member) in g.args and not self[g.name]), None)

    def missing_for_point(self, point: str) -> Gate | None:
        return next((g for g in self.known.values() if point in g.points and not self[g.name]), None)

    @classmethod
    def parse(cls, value: object, known: Iterable[Gate] = GATES, *, path: str = "featureGates") -> Gates:
        """From a mapping of names to booleans, or text such as `A=true,B=false`. Raises GatesInvalid with all mistakes.

        `path` is where the value stands, for the messages.
        """
        gates = tuple(known)
        errors: list[str] = []
        if value is None:
            pairs: dict[str, object] = {}
        elif isinstance(value, str):
            pairs = _pairs_of(value, path, errors)
        elif isinstance(value, Mapping):
            pairs = {str(name): chosen for name, chosen in value.items()}
        else:
            raise GatesInvalid([f"{path}: must be a mapping of gate names to true or false, not {shown(value)}"])
        if len(pairs) > GATES_LEN_MAX:
            raise GatesInvalid([f"{path}: has {len(pairs)} gates; there may be {GATES_LEN_MAX}"])
        by_name = {gate.name: gate for gate in gates}
        chosen: dict[str, bool] = {}
        warnings: list[str] = []
        for name, wanted in pairs.items():
            gate = by_name.get(name)
            if gate is None:
                errors.append(f"{path}.{name:.80}: there is no such gate{_hint(name, by_name)}")
            elif not isinstance(wanted, bool):
                errors.append(f"{path}.{name}: must be true or false, not {shown(wanted)}")
            elif gate.stage is Stage.GA and not wanted:
                errors.append(f"{path}.{name}: is always on and can't be switched off; remove it")
            else:
                chosen[name] = wanted
                if gate.stage is Stage.GA:
                    warnings.append(f"{path}.{name}: is always on by now; remove it")
                elif gate.stage is Stage.DEPRECATED:
                    warnings.append(f"{path}.{name}: is deprecated and will go; do without it")
        if errors:
            raise GatesInvalid(errors)
        return cls(chosen, known=gates, warnings=warnings)


def _pairs_of(text: str, path: str, errors: list[str]) -> dict[str, object]:
    pairs: dict[str, object] = {}
    words = {"true": True, "false": False}
    for part in (p.strip() for p in text.split(",")):
        if not part:
            continue
        name, sign, value = (word.strip() for word in part.partition("="))
        if not sign:
            errors.append(f"{path}.{part[:80]}: write {part[:80]}=true or {part[:80]}=false")
        elif name in pairs:
            errors.append(f"{path}.{name[:80]}: is given twice")
        else:
            pairs[name] = words.get(value.lower(), value)
    return pairs


def _hint(name: str, known: Mapping[str, Gate]) -> str:
    near = difflib.get_close_matches(name[:80], known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(known))}"
