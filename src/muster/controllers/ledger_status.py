"""What Users, UserGroups and Queues show of the ledger, and when it is worth a write. Pure.

| what changed | is written |
|---|---|
| whether new work may start, limits in force, warnings, users, divided sums, problems | at once |
| that somebody who had nothing has work now | at once |
| numbers of jobs, amounts in use or submitted | after 10 seconds at the earliest |
| what was consumed and spent, faded use | after 60 seconds at the earliest |

Who uses nothing is not written at all: what fades by itself is no change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from muster.controllers.ledger_books import Account, Books
from muster.objects.amounts import amount_text
from muster.objects.conditions import Condition, ConditionStatus
from muster.objects.kinds.muster import User, UserGroup, UserGroupStatus, UserStatus
from muster.objects.kinds.muster_base import Consumption, Exhausted, FadedUse, Period, Standing, Usage
from muster.objects.kinds.muster_queues import Queue, QueueStatus
from muster.objects.reasons import Reason
from muster.objects.time import format_time
from muster.quota.budgets import Judgement, UsedIn, Warned, judge
from muster.quota.dividing import divided
from muster.quota.ledger import Totals
from muster.quota.limits import NodeKey
from muster.quota.periods import bounds_ms
from muster.quota.prices import FREE, Prices, prices_of
from muster.quota.reading import node_of
from muster.quota.units import consumed, reported, shown

USE_EVERY_MS: Final = 10_000
CONSUMED_EVERY_MS: Final = 60_000
_FADED_RELATIVE: Final = 0.01
_GROUPS_MAX: Final = 64

Status = UserStatus | UserGroupStatus | QueueStatus


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done about one account now."""

    status: Status | None = None
    """To be written; None when nothing worth it changed."""
    again_ms: int | None = None
    warnings: tuple[Warned, ...] = ()


def look(books: Books, key: NodeKey, now_ms: int, written_ms: int | None) -> Look:
    """`written_ms`: when its status was last written by this process; None when it was not."""
    account = books.accounts[key]
    now = _status(books, account, key, now_ms)
    old = account.view.status
    again = now.look_ms
    due_ms = _due_ms(old, now.status, written_ms, now_ms)
    if due_ms is None:
        return Look(again_ms=again)
    if due_ms > now_ms:
        return Look(again_ms=due_ms if again is None else min(again, due_ms))
    return Look(status=now.status, again_ms=again, warnings=now.warnings)


class _Now(msgspec.Struct, frozen=True, kw_only=True):
    status: Status
    look_ms: int | None = None
    warnings: tuple[Warned, ...] = ()


def _status(books: Books, account: Account, key: NodeKey, now_ms: int) -> _Now:
    view = account.view
    names = books.names_below(key)

    def used(period: Period) -> Totals:
        return books.ledger.used(key[0], names, *bounds_ms(period, now_ms), now_ms=now_ms)

    judged = judge(
        f"{key[0]} {key[1]}",
        limits=view.spec.limits,
        budget=None if isinstance(view, Queue) else view.spec.budget,
        prices=FREE if isinstance(view, Queue) else prices_for(books, view),
        used=used,
        rates=books.ledger.rates(key[0], names),
        now_ms=now_ms,
    )
    usage = _usage(books, view, key, used=used, judged=judged, now_ms=now_ms)
    looks = [at for at in (judged.look_ms, _next_period_ms(usage, now_ms)) if at is not None]
    look_ms = min(looks) if looks else None
    if isinstance(view, Queue):  # the rest of its status is the queue controller's; fair share is the scheduler's own count
        found = Standing(exhausted=_exhausted(judged))
        kept = found if found != Standing() or view.status.standing is not None else None
        return _Now(status=msgspec.structs.replace(view.status, usage=usage, standing=kept), look_ms=look_ms)
    standing, warnings = _standing(books, view, key, judged, now_ms)
    problems = [*books.tree.problems(*key), *judged.problems]
    fields = {
        "usage": usage,
        "standing": standing,
        "observed_generation": account.generation,
        "conditions": _conditions(view.status, problems, account.generation, now_ms),
    }
    status: Status
    if isinstance(view, UserGroup):
        children = books.tree.children(*key)
        status = msgspec.structs.replace(
            view.status, **fields, users=sum(child.kind == "User" for child in children), divided=_divided(books, view, key[1])
        )
    else:
        status = msgspec.structs.replace(view.status, **fields)
    return _Now(status=status, look_ms=look_ms, warnings=warnings)


def prices_for(books: Books, view: User | UserGroup) -> Prices:
    """The group's own prices, or those of the nearest group above that has any."""
    name = view.spec.group if isinstance(view, User) else view.metadata.name
    for _ in range(_GROUPS_MAX):
        account = books.accounts.get(("UserGroup", name))
        if account is None or not isinstance(account.view, UserGroup):
            return FREE
        if account.view.spec.prices:
            return prices_of(account.view.spec.prices)
        name = account.view.spec.parent
    return FREE


def _usage(
    books: Books, view: User | UserGroup | Queue, key: NodeKey, *, used: UsedIn, judged: Judgement, now_ms: int
) -> Usage | None:
    wanted: list[tuple[str, Period]] = [(name, "Month") for name in sorted(reported(used("Month"))) if name != "pods"]
    wanted += [(one.resource, one.period) for one in view.spec.limits.consumption]
    consumption = [
        Consumption(
            resource=resource,
            amount=shown(resource, consumed(used(period), resource)),
            period=period,
            since=format_time(bounds_ms(period, now_ms)[0] / 1000),
        )
        for resource, period in dict.fromkeys(wanted)
    ]
    if isinstance(view, Queue):  # the rest of it is the queue controller's, which sees the line itself
        if not consumption and view.status.usage is None:
            return None
        return msgspec.structs.replace(view.status.usage or Usage(), consumed=consumption)
    running, submitted = books.tree.running(*key), books.tree.submitted(*key)
    found = Usage(
        jobs_running=running.jobs,
        jobs_waiting=max(submitted.jobs - running.jobs, 0),
        concurrent=amounts_text(running.amounts),
        submitted=amounts_text(submitted.amounts),
        consumed=consumption,
        spent=judged.spent,
    )
    return found if found != Usage() or view.status.usage is not None else None


def amounts_text(amounts: Mapping[str, int]) -> dict[str, str | int | float]:
    """Amounts as manifests have them; the two directions of bandwidth are told apart."""
    return {name: amount_text(name, amount) for name, amount in sorted(amounts.items()) if amount > 0 and name != "pods"}


def _standing(
    books: Books, view: User | UserGroup, key: NodeKey, judged: Judgement, now_ms: int
) -> tuple[Standing | None, tuple[Warned, ...]]:
    old = view.status.standing or Standing()
    since, before = "", 0
    warnings: tuple[Warned, ...] = ()
    if judged.warned:
        since = format_time(judged.warned[0].period_start_ms / 1000)
        before = old.warned_percent if old.warned_since == since else 0
        warnings = tuple(one for one in judged.warned if one.percent > before)
        before = max(before, judged.warned[-1].percent)
    found = Standing(
        faded=_faded(books, key, old, now_ms),
        exhausted=_exhausted(judged),
        stopped=judged.stopped,
        limits=judged.limits,
        warned_percent=before,
        warned_since=since,
    )
    return (found if found != Standing() or view.status.standing is not None else None), warnings


def _exhausted(judged: Judgement) -> list[Exhausted]:
    return [Exhausted(resource=resource, message=message) for resource, message in judged.exhausted]


def _faded(books: Books, key: NodeKey, old: Standing, now_ms: int) -> list[FadedUse]:
    """By half-life; what differs from what was written only by having faded stays as it was written."""
    before = {one.half_life_seconds: one for one in old.faded}
    found = []
    for half_life_s, amounts in books.faded(key, now_ms).items():
        used = {name: float(f"{amount:.6g}") for name, amount in sorted(amounts.items())}
        now = FadedUse(half_life_seconds=half_life_s, used=used, at=now_ms / 1000)
        known = before.get(half_life_s)
        found.append(known if known is not None and not _has_faded_otherwise(known, now) else now)
    return [one for one in found if one.used]


def _has_faded_otherwise(old: FadedUse, new: FadedUse) -> bool:
    """Whether it is more or less than what was written would be by now, by itself."""
    if old.used.keys() != new.used.keys():
        return True
    fade = math.exp2(-max(new.at - old.at, 0.0) / old.half_life_seconds)
    return any(
        abs(amount - old.used[name] * fade) > _FADED_RELATIVE * max(amount, old.used[name] * fade)
        for name, amount in new.used.items()
    )


def _divided(books: Books, view: UserGroup, name: str) -> dict[str, str | int | float]:
    """What of its limits on use at once has been given to those below."""
    parts = divided(books.tree, node_of(view, name))
    return amounts_text({resource: amount for (field, resource), amount in parts.items() if field == "concurrent"})


def _conditions(status: UserStatus | UserGroupStatus, problems: list[str], generation: int, now_ms: int) -> list[Condition]:
    """`Ready` is false while something about the object is wrong; its absence means that nothing ever was."""
    others = [one for one in status.conditions if one.type != "Ready"]
    old = next((one for one in status.conditions if one.type == "Ready"), None)
    if not problems and old is None:
        return others
    wanted: ConditionStatus = "False" if problems else "True"
    text = "; ".join(problems)
    is_same = old is not None and old.status == wanted
    new = Condition(
        type="Ready",
        status=wanted,
        reason=Reason.CONFIGURATION_INVALID.value if problems else "Ready",
        message=text,
        last_transition_time=old.last_transition_time if old is not None and is_same else format_time(now_ms / 1000),
        observed_generation=generation,
    )
    if old is not None and is_same and old.message == text:
        new = old
    return [*others, new]


def _next_period_ms(usage: Usage | None, now_ms: int) -> int | None:
    """When what is shown as consumed begins anew."""
    if usage is None or not usage.consumed:
        return None
    return min(bounds_ms(one.period, now_ms)[1] for one in usage.consumed)


def _due_ms(old: Status, new: Status, written_ms: int | None, now_ms: int) -> int | None:
    """When the change from `old` to `new` is to be written; None when there is none."""
    if old == new:
        return None
    if written_ms is None or _urgent(old) != _urgent(new):
        return now_ms
    if _counted(old) != _counted(new):
        return now_ms if _counted(old) == _IDLE else written_ms + USE_EVERY_MS
    return written_ms + CONSUMED_EVERY_MS


def _urgent(status: Status) -> object:
    standing = status.standing or Standing()
    if isinstance(status, QueueStatus):
        return standing.exhausted
    said = (standing.exhausted, standing.stopped, standing.limits, standing.warned_percent, standing.warned_since)
    more = (status.users, status.divided) if isinstance(status, UserGroupStatus) else ()
    return said, more, status.observed_generation, status.conditions


def _counted(status: Status) -> object:
    usage = status.usage or Usage()
    return usage.jobs_running, usage.jobs_waiting, usage.concurrent, usage.submitted


_IDLE: Final = _counted(UserStatus())
