"""What a running Muster consists of, by the names that `--without` takes. Plain data, cheap to import."""

from __future__ import annotations

OPTIONAL = {
    "controllers": "act on objects: expired events, disruption budgets, service accounts",
    "agent": "runs tasks on this machine: one for each local party, and one of no party",
    "dashboard": "web pages",
}
"""The server itself is not optional."""

TO_COME = ("dashboard",)
"""Named already, so that scripts may leave them out today; this release does not have them yet."""


def said(parts: list[str], left_out: list[str]) -> str:
    """Which parts run, in words."""
    missing = [part for part in TO_COME if part not in left_out]
    text = f"running: {', '.join(parts)}"
    if left_out:
        text += f"; left out: {', '.join(left_out)}"
    if missing:
        text += f"; not in this release yet: {', '.join(missing)}"
    return text
