"""A finding: what was looked at, what was found, what it costs, how to get it. Pure values."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from muster.objects.status import Raw


class Level(enum.StrEnum):
    """OK: nothing is lost. WARNING: Muster runs, something is weaker or missing. ERROR: Muster cannot run here."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """`costs` is what the user goes without, in plain words; `remedy` what to do about it. Both empty when all is well."""

    check: str
    level: Level
    found: str
    costs: str = ""
    remedy: str = ""
    facts: Raw = {}

    def __post_init__(self) -> None:
        assert self.level is Level.OK or (self.costs and self.remedy), (
            f"{self.check}: a {self.level} must say its cost and remedy"
        )


def can_run(findings: Sequence[Finding]) -> bool:
    return all(f.level is not Level.ERROR for f in findings)


def ok(check: str, found: str, **facts: object) -> Finding:
    return Finding(check, Level.OK, found, facts=dict(facts))


def warning(check: str, found: str, costs: str, remedy: str, **facts: object) -> Finding:
    return Finding(check, Level.WARNING, found, costs, remedy, facts=dict(facts))


def error(check: str, found: str, costs: str, remedy: str, **facts: object) -> Finding:
    return Finding(check, Level.ERROR, found, costs, remedy, facts=dict(facts))
