from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.client.errors import BadResponse, CredentialError, OutcomeUnknown, ResponseTooLarge, Unreachable, Untrusted
from muster.client.retry import RetryBudget, RetryPolicy, backoff_s, is_refusal, wait_before_retry_s
from muster.objects import status

POLICY = RetryPolicy(attempts_max=3, refusals_max=6, backoff_first_s=1.0, backoff_max_s=8.0)


@pytest.mark.parametrize(
    ("error", "read", "write"),
    [
        pytest.param(Unreachable("x"), True, True, id="never sent"),
        pytest.param(Untrusted("x"), False, False, id="TLS failed"),
        pytest.param(CredentialError("x"), False, False, id="no credentials"),
        pytest.param(OutcomeUnknown("x"), True, False, id="answer lost"),
        pytest.param(BadResponse("x"), True, False, id="bad gateway"),
        pytest.param(ResponseTooLarge("x"), False, False, id="too large"),
        pytest.param(status.TooManyRequests("x"), True, False, id="429"),
        pytest.param(status.TooManyRequests("x", retry_after_s=1), True, True, id="429 with Retry-After"),
        pytest.param(status.ServiceUnavailable("x"), True, False, id="503"),
        pytest.param(status.ServiceUnavailable("x", retry_after_s=1), True, True, id="503 with Retry-After"),
        pytest.param(status.Timeout("x"), True, False, id="504"),
        pytest.param(status.InternalError("x"), False, False, id="500"),
        pytest.param(status.NotFound("x"), False, False, id="404"),
        pytest.param(status.Conflict("x"), False, False, id="409"),
        pytest.param(status.Forbidden("x"), False, False, id="403"),
        pytest.param(status.Expired("x"), False, False, id="410"),
    ],
)
def test_what_may_be_repeated(error: status.ApiError, read: bool, write: bool) -> None:
    assert (wait_before_retry_s(POLICY, "GET", error, 1, 0.0) is not None) == read
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert (wait_before_retry_s(POLICY, method, error, 1, 0.0) is not None) == write
    attempts_max = POLICY.refusals_max if is_refusal(error) else POLICY.attempts_max
    assert wait_before_retry_s(POLICY, "GET", error, attempts_max, 0.0) is None


@pytest.mark.parametrize(
    ("attempt", "spread", "expected"),
    [(1, 0.0, 0.5), (1, 1.0, 1.0), (2, 0.0, 1.0), (3, 0.5, 3.0), (4, 1.0, 8.0), (5, 1.0, 8.0), (10_000, 0.0, 4.0)],
)
def test_backoff(attempt: int, spread: float, expected: float) -> None:
    assert backoff_s(POLICY, attempt, spread) == expected


def test_the_servers_word_is_the_least() -> None:
    error = status.TooManyRequests("x", retry_after_s=7)
    waits = [wait_before_retry_s(POLICY, "POST", error, 1, spread) for spread in (0.0, 1.0)]
    assert waits == [7.5, 8.0]


@given(st.lists(st.booleans()), st.floats(0.0, 1.0), st.floats(0.0, 30.0))
def test_the_budget_bounds_repetitions(steps: list[bool], ratio: float, burst: float) -> None:
    """In any interleaving, repetitions stay within the burst plus the ratio of what was sent for the first time."""
    budget = RetryBudget(RetryPolicy(budget_ratio=ratio, budget_burst=burst))
    requests = repetitions = 0
    for is_request in steps:
        if is_request:
            budget.deposit()
            requests += 1
        elif budget.withdraw():
            repetitions += 1
        assert repetitions <= burst + ratio * requests + 1e-6
        assert 0.0 <= budget.tokens <= burst
