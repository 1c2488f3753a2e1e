"""When to send a request again, after how long, and when to stop because everybody is.

A server that is too busy says so (429 with Retry-After): that costs it nothing, so such refusals are outside the budget and
have a bound of their own; `limiter` sees to it that there are fewer of them. All other repetitions are paid for.

The budget is a bucket: every request puts a fraction of a token in, every repetition takes a whole one. So repetitions never
exceed that fraction of the traffic for long, and a server in trouble is not buried under them.

Pure: time and spread are handed in. `RetryBudget` is used on one event loop.
"""

from __future__ import annotations

import msgspec

from muster.client.errors import (
    BadResponse,
    ClientBusy,
    CredentialError,
    NotAnApi,
    OutcomeUnknown,
    ResponseTooLarge,
    Unreachable,
    Untrusted,
)
from muster.objects.status import ApiError, ServiceUnavailable, Timeout, TooManyRequests

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Repeating these changes nothing. PUT and DELETE are not here: between two tries another object may have taken the name."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    attempts_max: int = 5
    refusals_max: int = 10
    """How often a request may be refused with 429 and Retry-After before the caller hears of it."""
    backoff_first_s: float = 0.1
    backoff_max_s: float = 10.0
    budget_ratio: float = 0.2
    """At most this fraction of all requests is repetitions, over time."""
    budget_burst: float = 20.0
    """How many repetitions may come at once after a quiet time."""


class RetryBudget:
    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self.tokens = policy.budget_burst

    def deposit(self) -> None:
        """A request was sent for the first time."""
        self.tokens = min(self._policy.budget_burst, self.tokens + self._policy.budget_ratio)

    def withdraw(self) -> bool:
        """Whether one repetition may be sent now."""
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True


def backoff_s(policy: RetryPolicy, attempt: int, spread: float) -> float:
    """How long to wait after the `attempt`-th failure (from 1). `spread` in [0, 1) sets clients apart: half to full time."""
    full_s = min(policy.backoff_max_s, policy.backoff_first_s * 2.0 ** min(attempt - 1, 30))
    return full_s * (0.5 + spread / 2)


def wait_before_retry_s(policy: RetryPolicy, method: str, error: ApiError, attempt: int, spread: float) -> float | None:
    """How long to wait before sending the request again, or None when it must not be repeated."""
    attempts_max = policy.refusals_max if is_refusal(error) else policy.attempts_max
    if attempt >= attempts_max or not _is_repeatable(method, error):
        return None
    wait_s = backoff_s(policy, attempt, spread)
    if error.retry_after_s:
        # The server's own word is the least; the spread on top keeps all who were told the same apart.
        return error.retry_after_s + wait_s
    return wait_s


def is_refusal(error: ApiError) -> bool:
    """The server is too busy to take this now, and says when to come again."""
    return isinstance(error, TooManyRequests) and error.retry_after_s > 0


def _is_repeatable(method: str, error: ApiError) -> bool:
    if isinstance(error, Untrusted | CredentialError | ResponseTooLarge | NotAnApi | ClientBusy):
        return False  # it would end the same way
    if isinstance(error, Unreachable):
        return True  # it did not leave this machine
    if isinstance(error, TooManyRequests | ServiceUnavailable) and error.retry_after_s:
        return True  # refused before anything was done, with an invitation to come again
    if method not in SAFE_METHODS:
        return False
    return isinstance(error, OutcomeUnknown | BadResponse | Timeout | TooManyRequests | ServiceUnavailable)
