"""Chance by seed: streams are independent, repeatable, and the same in every process."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster.sim.entropy import Entropy


@given(seed=st.integers(), path=st.lists(st.text(max_size=8), max_size=3))
def test_a_stream_depends_on_seed_and_path_alone(seed: int, path: list[str]) -> None:
    one, other = Entropy(seed), Entropy(seed)
    one.bytes(100)
    one.stream("elsewhere").random()
    assert one.stream(*path).random() == other.stream(*path).random()
    assert one.fork(*path).bytes(8) == other.fork(*path).bytes(8)


def test_streams_differ_by_seed_and_path() -> None:
    draws = {Entropy(seed).stream(*path).random() for seed in range(50) for path in (("a",), ("b",), ("a", "b"), ("ab",), ())}
    assert len(draws) == 250


def test_the_numbers_are_the_same_in_every_process() -> None:
    assert Entropy(7).fork("store").bytes(8).hex() == "34edb240b5aca5b0"
    assert Entropy(7).stream("faults", "agent-1").randrange(1_000_000) == 828935
