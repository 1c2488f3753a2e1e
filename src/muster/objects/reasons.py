"""Reasons, and the values that carry them: a `Verdict` is an outcome, a `Shortfall` says what is missing in numbers.

The codes themselves are in `reason_codes`. `ApiReason` is the other vocabulary that users meet: the `reason` of a refused
API request, which is Kubernetes' own; the word `NotFound` is in both, and means another thing in each.

Pure values; safe to share between tasks and threads.
"""

from __future__ import annotations

import enum
from typing import Literal, SupportsFloat

import msgspec

from muster.objects.reason_codes import Category, Reason

__all__ = ["ApiReason", "Category", "Holder", "Reason", "Shortfall", "Unit", "Verdict", "format_amount", "shortfall"]


class ApiReason(enum.StrEnum):
    """The `reason` of a refused request, as Kubernetes' `Status` has it. One for each class in `muster.objects.status`."""

    meaning: str
    remedy: str

    def __new__(cls, code: str, meaning: str = "", remedy: str = "") -> ApiReason:
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        member.remedy = remedy
        return member

    BAD_REQUEST = "BadRequest", "The request itself is malformed.", "Correct what the message names."
    UNAUTHORIZED = "Unauthorized", "No token or certificate, or one that is not known or no longer valid.", "Log in again."
    FORBIDDEN = "Forbidden", "You are known, but may not do this.", "See kubectl auth can-i --list, and ask for a role."
    NOT_FOUND = "NotFound", "No object or kind has that name here.", "Check name, namespace and spelling."
    METHOD_NOT_ALLOWED = "MethodNotAllowed", "The kind does not have this operation.", "Use another verb or subresource."
    NOT_ACCEPTABLE = "NotAcceptable", "The server can't answer in any of the formats asked for.", "Accept application/json."
    ALREADY_EXISTS = "AlreadyExists", "An object of that name is there already.", "Choose another name, or use apply."
    CONFLICT = "Conflict", "The object changed since it was read, or a field is another manager's.", "Read it again and retry."
    EXPIRED = "Expired", "The version or list token is older than the history that is kept.", "List again from the beginning."
    GONE = "Gone", "What was asked for existed once and is no longer kept.", "List again from the beginning."
    REQUEST_ENTITY_TOO_LARGE = "RequestEntityTooLarge", "The body is larger than the server takes.", "Send less at once."
    UNSUPPORTED_MEDIA_TYPE = "UnsupportedMediaType", "The body is in a format that is not taken here.", "Send JSON or YAML."
    INVALID = "Invalid", "The object breaks its schema or its rules; every wrong field is listed.", "Correct the listed fields."
    TOO_MANY_REQUESTS = "TooManyRequests", "A limit on requests, watches or disruptions is reached.", "Wait as long as it says."
    INTERNAL_ERROR = "InternalError", "Something went wrong in the server.", "Report it with the audit id of the answer."
    SERVICE_UNAVAILABLE = "ServiceUnavailable", "The server is starting, stopping, or can't reach its store.", "Try again."
    TIMEOUT = "Timeout", "No answer in time; a write may or may not have happened.", "Read before you repeat a write."
    INSUFFICIENT_STORAGE = "InsufficientStorage", "The disk under the store is full; nothing was written.", "Free disk space."


Unit = Literal["", "bps", "milli", "bytes", "count"]
"""`milli` is thousandths (of a CPU core); `""` is a plain number."""


class Holder(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Who has what is missing: `kind` and `name` (`namespace/name`) of running work, and how much it holds."""

    kind: str
    name: str
    amount: float = 0
    node: str = ""


class Shortfall(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """One thing that is too little, in numbers: `want` against the `best` that any one place offers now."""

    reason: Reason
    resource: str = ""
    want: float = 0
    best: float = 0
    unit: Unit = ""
    where: str = ""
    """The node, link, queue or quota that offers `best`."""
    holders: tuple[Holder, ...] = ()

    @property
    def missing(self) -> float:
        return max(self.want - self.best, 0)

    def __str__(self) -> str:
        what = f"{self.resource}: " if self.resource else ""
        best = f"{self.where} has" if self.where else "the best offer is"
        text = f"{what}wants {format_amount(self.want, self.unit)}, {best} {format_amount(self.best, self.unit)}"
        return f"{text}, {format_amount(self.missing, self.unit)} short"


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """An outcome as a value: for a unit, or for one node (`subject`). Exceptions are for faults, never for this."""

    reason: Reason
    subject: str = ""
    message: str = ""
    plugin: str = ""
    shortfalls: tuple[Shortfall, ...] = ()
    nodes_by_reason: dict[Reason, int] = msgspec.field(default_factory=dict)
    """How many nodes were left out for each reason; each node counts once, for the first plugin that refused it."""
    nearest: tuple[Verdict, ...] = ()
    """The nodes that lack least, best first, each with its own verdict."""
    helps: tuple[str, ...] = ()
    """What would let it start, most promising first; beside the general remedy of the reason."""

    @property
    def category(self) -> Category:
        return self.reason.category

    @property
    def is_retried(self) -> bool:
        """Whether waiting can change the outcome."""
        return self.category is Category.WAITING

    def __str__(self) -> str:
        details = self.message or "; ".join(map(str, self.shortfalls)) or self.reason.meaning
        return f"{self.reason.value}: {details}"


def shortfall(
    reason: Reason,
    *,
    want: SupportsFloat,
    best: SupportsFloat,
    unit: Unit = "",
    resource: str = "",
    where: str = "",
    holders: tuple[Holder, ...] = (),
) -> Shortfall:
    """A `Shortfall` from numbers of any kind (array scalars included), which become plain ones."""
    return Shortfall(
        reason=reason, resource=resource, want=_plain(want), best=_plain(best), unit=unit, where=where, holders=holders
    )


def format_amount(amount: float, unit: Unit) -> str:
    """`amount` as people write it: `200Mbps`, `1500m`, `1.5Gi`. Cut to three decimals; for reading, not for parsing back."""
    if unit == "milli":
        return f"{_short(amount / 1000)}" if amount % 1000 == 0 else f"{_short(amount)}m"
    if unit in ("", "count"):
        return _short(amount)
    step, suffixes = (1000, ("bps", "Kbps", "Mbps", "Gbps", "Tbps")) if unit == "bps" else (1024, ("", "Ki", "Mi", "Gi", "Ti"))
    power = 0
    while abs(amount) >= step and power < len(suffixes) - 1:
        amount /= step
        power += 1
    return f"{_short(amount)}{suffixes[power]}"


def _short(number: float) -> str:
    return f"{number:.3f}".rstrip("0").rstrip(".")


def _plain(number: SupportsFloat) -> float:
    value = float(number)
    return int(value) if value.is_integer() else value
