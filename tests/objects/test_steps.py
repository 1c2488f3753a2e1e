"""What a generator of steps returns, at once or with turns between."""

from __future__ import annotations

import pytest

from muster.objects.steps import Steps, done_at_once, done_in_turns


def counting(up_to: int) -> Steps[list[int]]:
    seen = []
    for number in range(up_to):
        seen.append(number)
        yield
    return seen


@pytest.mark.parametrize("up_to", [0, 1, 3])
async def test_the_value_comes_in_either_way(up_to: int) -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        turns += 1

    assert done_at_once(counting(up_to)) == await done_in_turns(counting(up_to), turn) == list(range(up_to))
    assert turns == up_to
