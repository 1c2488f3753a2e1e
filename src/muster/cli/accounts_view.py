"""Users, groups and queues in words: what they have in use of what is limited, and what is spent of a budget. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from muster.objects.meta import name_of
from muster.objects.rules.report import obj
from muster.objects.status import Raw

LIMITS_SHOWN: Final = 4
USER_HEADERS: Final = ("USER", "GROUP", "LOGIN", "LEVEL", "RUNNING", "WAITING", "IN USE / LIMIT", "BUDGET", "NOTE")
GROUP_HEADERS: Final = ("GROUP", "PARENT", "ADMINS", "LEVEL", "RUNNING", "WAITING", "IN USE / LIMIT", "BUDGET", "NOTE")


def use_of_limits(spec: Raw, usage: Raw) -> str:
    """What is in use of each thing that is limited, `cpu 3/8`; nothing where nothing is."""
    limits = spec.get("limits") or {}
    used = usage.get("concurrent") or {}
    shown = [f"{name} {_used(used, name)}/{limit}" for name, limit in sorted((limits.get("concurrent") or {}).items())]
    if limits.get("jobsRunning") is not None:
        shown.insert(0, f"jobs {usage.get('jobsRunning', 0)}/{limits['jobsRunning']}")
    more = f" and {len(shown) - LIMITS_SHOWN} more" if len(shown) > LIMITS_SHOWN else ""
    return ", ".join(shown[:LIMITS_SHOWN]) + more


def _used(used: Raw, name: str) -> str:
    if name == "bandwidth":  # a limit on each direction
        return f"{used.get('bandwidth-egress', 0)} out {used.get('bandwidth-ingress', 0)} in"
    return str(used.get(name, 0))


def budget_text(spec: Raw, usage: Raw) -> str:
    """`12.50/50.00 Day`: spent, of what, in which period."""
    budget = spec.get("budget")
    if not isinstance(budget, dict):
        return ""
    return f"{float(usage.get('spent') or 0):.2f}/{float(budget.get('amount') or 0):.2f} {budget.get('period') or 'Month'}"


def note_text(raw: Raw) -> str:
    """Why nothing new of it starts, or nothing that asks for some resource, or less than its own limits allow, if so."""
    if obj(raw, "spec").get("suspended"):
        return "suspended"
    standing = obj(obj(raw, "status"), "standing")
    used_up = [str(one.get("message") or "") for one in standing.get("exhausted") or () if isinstance(one, dict)]
    if standing.get("limits"):
        used_up.append(f"the budget is spent: {_limits_text(standing['limits'])}")
    return str(standing.get("stopped") or "; ".join(used_up))


def _limits_text(limits: Raw) -> str:
    """Limits that hold for now, `cpu at most 1`."""
    said = [f"{name} at most {limit}" for name, limit in sorted((limits.get("concurrent") or {}).items())]
    if limits.get("jobsRunning") is not None:
        said.insert(0, f"jobs at most {limits['jobsRunning']}")
    return ", ".join(said[:LIMITS_SHOWN]) or "spec.budget.limits hold"


def user_row(raw: Raw) -> list[Any]:
    spec, usage = obj(raw, "spec"), obj(obj(raw, "status"), "usage")
    logins = spec.get("usernames") or [name_of(raw)]
    return [name_of(raw), spec.get("group") or "", ", ".join(logins), *_standing(raw, spec, usage)]


def group_row(raw: Raw) -> list[Any]:
    spec, usage = obj(raw, "spec"), obj(obj(raw, "status"), "usage")
    return [name_of(raw), spec.get("parent") or "", ", ".join(spec.get("admins") or ()), *_standing(raw, spec, usage)]


def _standing(raw: Raw, spec: Raw, usage: Raw) -> list[Any]:
    return [
        str(spec.get("level") or 0),
        str(usage.get("jobsRunning") or 0),
        str(usage.get("jobsWaiting") or 0),
        use_of_limits(spec, usage),
        budget_text(spec, usage),
        note_text(raw),
    ]


def me_lines(login: str, me: Raw | None) -> list[str]:
    """Who one is. `me` is what `/muster/v1/people/me` says; None where there is no such thing to ask."""
    lines = [f"Login:        {login or 'not told by this server'}"]
    if me is None:
        return [*lines, "User:         not told: this server is a cluster's own, whose RBAC decides who sees what"]
    if not me.get("user"):
        return [*lines, "User:         none: no User object has this login, so work sent with it is nobody's"]
    lines.append(f"User:         {me['user']}")
    lines.append(f"Groups:       {' < '.join(me.get('groups') or ()) or 'none'}")
    below = me.get("administers") or {}
    for word, names in (("groups", below.get("groups") or ()), ("users", below.get("users") or ())):
        if names:
            lines.append(f"Administers:  {word} {_some(names)}")
    return lines


def _some(names: Sequence[str], most: int = 20) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
