"""Limits made ready to compare, and the answer when one is broken. Pure values.

Every answer names the limit, what is used of it and what was asked for; from a `Breach` come the verdict of waiting work and
the refusal of a submission alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from muster.objects.amounts import RawAmount, read_limits, unit_of
from muster.objects.reasons import Holder, Reason, Unit, Verdict, format_amount, shortfall

NodeKind = Literal["User", "UserGroup", "Queue"]
NodeKey = tuple[NodeKind, str]
"""Kind and name."""

Field = Literal["concurrent", "jobsRunning", "submitted", "jobsSubmitted", "perJob", "consumption", "stopped"]
_WAITS: Final[Mapping[NodeKind, Reason]] = {
    "User": Reason.USER_LIMIT_REACHED,
    "UserGroup": Reason.GROUP_LIMIT_REACHED,
    "Queue": Reason.QUEUE_LIMIT_REACHED,
}
_STOPS: Final = (Reason.CONSUMPTION_LIMIT_REACHED, Reason.BUDGET_SPENT, Reason.QUEUE_STOPPED, Reason.SUSPENDED)


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    """`Limits` of a user, group or queue, read: amounts in whole units. A resource that is not named has none."""

    concurrent: Mapping[str, int] = {}
    submitted: Mapping[str, int] = {}
    per_job: Mapping[str, int] = {}
    jobs_running: int | None = None
    jobs_submitted: int | None = None
    consumption: Mapping[str, int] = {}
    """Resource-milliseconds by `<resource> per <period>`; the ledger judges them, the tree only divides them."""
    exhausted: Mapping[str, str] = {}
    """By resource: which consumption limit the ledger has found reached. What asks for the resource does not start."""
    budget: Mapping[str, int] = {}
    """Millionths of the currency, by period; likewise."""
    of_budget: frozenset[tuple[Field, str]] = frozenset()
    """Field and resource of those that hold only because a budget is spent."""
    problems: tuple[str, ...] = ()
    """What could not be read; it counts as a limit of nothing."""


UNLIMITED: Final = Ceilings()


def ceilings(
    *,
    concurrent: Mapping[str, RawAmount] | None = None,
    submitted: Mapping[str, RawAmount] | None = None,
    per_job: Mapping[str, RawAmount] | None = None,
    jobs_running: int | None = None,
    jobs_submitted: int | None = None,
) -> Ceilings:
    """Ceilings from amounts as a manifest has them. Never raises: see `Ceilings.problems`."""
    problems: list[str] = []
    read: list[dict[str, int]] = []
    for word, given in (("concurrent", concurrent), ("submitted", submitted), ("perJob", per_job)):
        amounts, wrong = read_limits(given or {}, f"limits.{word}")
        read.append(amounts)
        problems += wrong
    return Ceilings(
        concurrent=read[0],
        submitted=read[1],
        per_job=read[2],
        jobs_running=jobs_running,
        jobs_submitted=jobs_submitted,
        problems=tuple(problems),
    )


def with_spent_budget(own: Ceilings, spent: Ceilings) -> Ceilings:
    """Both hold, the lower of two for the same: what a spent budget brings can take, and never gives."""
    lower: set[tuple[Field, str]] = set()

    def amounts(field: Field, mine: Mapping[str, int], theirs: Mapping[str, int]) -> dict[str, int]:
        found = dict(mine)
        for name, amount in theirs.items():
            if name not in found or amount < found[name]:
                found[name] = amount
                lower.add((field, name))
        return found

    def count(field: Field, mine: int | None, theirs: int | None) -> int | None:
        if theirs is None or (mine is not None and mine <= theirs):
            return mine
        lower.add((field, ""))
        return theirs

    return msgspec.structs.replace(
        own,
        concurrent=amounts("concurrent", own.concurrent, spent.concurrent),
        submitted=amounts("submitted", own.submitted, spent.submitted),
        per_job=amounts("perJob", own.per_job, spent.per_job),
        jobs_running=count("jobsRunning", own.jobs_running, spent.jobs_running),
        jobs_submitted=count("jobsSubmitted", own.jobs_submitted, spent.jobs_submitted),
        of_budget=frozenset(lower),
        problems=own.problems + spent.problems,
    )


class Breach(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that would be broken: whose, which, and the three figures."""

    kind: NodeKind
    name: str
    field: Field
    """Under `spec.limits`; `stopped` when nothing at all may start."""
    resource: str = ""
    """Empty where jobs are counted."""
    limit: int = 0
    used: int = 0
    asked: int = 0
    never: bool = False
    """It is broken by this work alone, whatever ends: `used` is what waits and runs."""
    note: str = ""
    """For `stopped`: `<reason code>: <why>`. For `consumption`: which limit, and how much was used of it."""
    is_of_budget: bool = False
    """It holds because a budget is spent."""

    @property
    def node(self) -> NodeKey:
        return self.kind, self.name

    @property
    def unit(self) -> Unit:
        return unit_of(self.resource) if self.resource else "count"

    @property
    def path(self) -> str:
        where = "spec.budget.limits" if self.is_of_budget else "spec.limits"
        return f"{where}.{self.field}" + (f"[{self.resource}]" if self.resource else "")

    @property
    def reason(self) -> Reason:
        if self.field == "stopped":
            return _stop_reason(self.note)
        if self.field == "consumption":
            return Reason.CONSUMPTION_LIMIT_REACHED
        if self.never:
            return Reason.JOB_EXCEEDS_LIMIT
        if self.field in ("submitted", "jobsSubmitted"):
            return Reason.SUBMIT_LIMIT_REACHED
        return _WAITS[self.kind]

    @property
    def ends_by_itself(self) -> bool:
        """Whether there is room under it again as work ends; not when somebody, or a new period, has to change something."""
        return self.field in ("concurrent", "jobsRunning") and self.asked <= self.limit

    @property
    def message(self) -> str:
        if self.field == "stopped":
            code, _, why = self.note.partition(": ")
            return why if code == self.reason.value and why else self.note
        if self.field == "consumption":
            asked = f"requested {format_amount(self.asked, self.unit)} ({self.resource})"
            return f"{self.note}; {asked if self.asked else 'all work may move bytes, so none starts'}"
        limit, used, asked = (format_amount(amount, self.unit) for amount in (self.limit, self.used, self.asked))
        is_submitted = self.never or self.field in ("submitted", "jobsSubmitted")
        use = "waiting and running" if is_submitted else "in use"
        # What one job may have does not depend on what others use.
        used_text = "" if self.field == "perJob" else f", {use} {used}"
        what = self.resource or "jobs"
        spent = ", as the budget is spent" if self.is_of_budget else ""
        return f"{self.path} of {self.kind} {self.name}: limit {limit}{spent}{used_text}, requested {asked} ({what})"

    @property
    def help(self) -> str:
        if self.field in ("stopped", "consumption"):
            return self.reason.remedy
        if self.never or self.field == "perJob":
            return (
                f"ask for at most {format_amount(self.limit, self.unit)}, or have {self.path} of {self.kind} {self.name} raised"
            )
        until = " or the next period begins" if self.is_of_budget else ""
        return f"wait until work of {self.kind} {self.name} ends{until}, or have {self.path} raised"

    def verdict(self, holders: tuple[Holder, ...] = ()) -> Verdict:
        """For work that waits."""
        if self.field in ("stopped", "consumption"):
            return Verdict(reason=self.reason, subject=f"{self.kind} {self.name}", message=self.message, helps=(self.help,))
        short = shortfall(
            self.reason,
            want=self.asked,
            best=max(self.limit - self.used, 0),
            unit=self.unit,
            resource=self.resource or "jobs",
            where=f"{self.kind} {self.name}",
            holders=holders,
        )
        return Verdict(
            reason=self.reason,
            subject=f"{self.kind} {self.name}",
            message=self.message,
            shortfalls=(short,),
            helps=(self.help,),
        )

    def __str__(self) -> str:
        """For work that is refused: one line with the reason, the figures and the way out."""
        return f"{self.reason.value}: {self.message}; {self.help}"


def _stop_reason(note: str) -> Reason:
    code = note.partition(": ")[0]
    return next((reason for reason in _STOPS if reason.value == code), Reason.CONSUMPTION_LIMIT_REACHED)
