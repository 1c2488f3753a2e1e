from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.contracts import AgentError
from muster.agent.users import allot


@given(st.lists(st.text(min_size=1), unique=True, max_size=50), st.integers(1000, 10**9), st.integers(50, 200))
def test_no_two_pods_have_the_same(uids: list[str], first: int, count: int) -> None:
    taken: set[int] = set()
    for uid in uids:
        user = allot(uid, (first, first + count - 1), taken)
        assert first <= user < first + count
        assert user not in taken
        taken.add(user)


def test_the_same_pod_has_the_same_user_again() -> None:
    assert allot("uid", (2000, 3000), []) == allot("uid", (2000, 3000), [5])


def test_all_are_taken() -> None:
    assert allot("a", (2000, 2001), [2000]) == 2001
    with pytest.raises(AgentError, match=r"process.userRange: \[2000, 2001\]: all 2 users are taken") as found:
        allot("a", (2000, 2001), [2000, 2001])
    assert found.value.reason == "TooManyPods"
