"""Feature gates: what is on, what is refused, what is warned about."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine.gates import GATES, Gate, Gates, GatesInvalid, Stage

KNOWN = (
    Gate("Young", False, Stage.ALPHA, "new", args=(("P", "fancy"),), points=("resize",)),
    Gate("Tried", True, Stage.BETA, "tried"),
    Gate("Settled", True, Stage.GA, "settled"),
    Gate("Leaving", False, Stage.DEPRECATED, "leaving"),
)


@pytest.mark.parametrize(
    ("value", "on", "warnings"),
    [
        pytest.param(None, {"Tried", "Settled"}, [], id="defaults"),
        pytest.param({}, {"Tried", "Settled"}, [], id="empty"),
        pytest.param({"Young": True}, {"Young", "Tried", "Settled"}, [], id="alpha on"),
        pytest.param("Young=true, Tried=false", {"Young", "Settled"}, [], id="text"),
        pytest.param("Young=True,,", {"Young", "Tried", "Settled"}, [], id="text in any case, with empty parts"),
        pytest.param(
            {"Settled": True}, {"Tried", "Settled"}, ["featureGates.Settled: is always on by now; remove it"], id="ga"
        ),
        pytest.param(
            {"Leaving": True},
            {"Leaving", "Tried", "Settled"},
            ["featureGates.Leaving: is deprecated and will go; do without it"],
            id="deprecated",
        ),
    ],
)
def test_parse(value: object, on: set[str], warnings: list[str]) -> None:
    gates = Gates.parse(value, KNOWN)
    assert gates.on == on
    assert list(gates.warnings) == warnings


@pytest.mark.parametrize(
    ("value", "errors"),
    [
        pytest.param({"Yong": True}, ["featureGates.Yong: there is no such gate; did you mean Young?"], id="misspelt"),
        pytest.param(
            {"Xyz": True}, ["featureGates.Xyz: there is no such gate; there are Leaving, Settled, Tried, Young"], id="unknown"
        ),
        pytest.param({"Young": "yes"}, ["featureGates.Young: must be true or false, not 'yes'"], id="not a boolean"),
        pytest.param({"Young": 1}, ["featureGates.Young: must be true or false, not 1"], id="a number"),
        pytest.param(
            {"Settled": False}, ["featureGates.Settled: is always on and can't be switched off; remove it"], id="ga off"
        ),
        pytest.param([1], ["featureGates: must be a mapping of gate names to true or false, not a list"], id="a list"),
        pytest.param("Young", ["featureGates.Young: write Young=true or Young=false"], id="text without a value"),
        pytest.param("Young=true,Young=false", ["featureGates.Young: is given twice"], id="text twice"),
        pytest.param("Young=maybe", ["featureGates.Young: must be true or false, not 'maybe'"], id="text with another value"),
        pytest.param(
            {"A" * 9: 1, "Young": None},
            [
                "featureGates.AAAAAAAAA: there is no such gate; there are Leaving, Settled, Tried, Young",
                "featureGates.Young: must be true or false, not None",
            ],
            id="all at once",
        ),
        pytest.param({f"g{n}": True for n in range(300)}, ["featureGates: has 300 gates; there may be 256"], id="too many"),
    ],
)
def test_mistakes_are_all_named(value: object, errors: list[str]) -> None:
    with pytest.raises(GatesInvalid) as caught:
        Gates.parse(value, KNOWN)
    assert list(caught.value.errors) == errors


def test_what_a_gate_guards_is_missing_only_while_it_is_off() -> None:
    off, on = Gates.parse(None, KNOWN), Gates.parse({"Young": True}, KNOWN)
    assert off.missing_for_arg("P", "fancy") == KNOWN[0]
    assert off.missing_for_point("resize") == KNOWN[0]
    assert off.missing_for_arg("P", "plain") is None
    assert on.missing_for_arg("P", "fancy") is None
    assert on.missing_for_point("resize") is None


def test_an_unknown_gate_is_a_fault_of_the_asker() -> None:
    with pytest.raises(KeyError):
        Gates()["NoSuchGate"]


def test_the_gates_that_there_are_are_described_and_alpha_is_off() -> None:
    assert len({gate.name for gate in GATES}) == len(GATES)
    for gate in GATES:
        assert gate.purpose.endswith(".")
        assert gate.args or gate.points, f"{gate.name} guards nothing"
        assert not (gate.stage is Stage.ALPHA and gate.default), f"{gate.name} is alpha and on"


@given(st.dictionaries(st.sampled_from(["Young", "Tried"]), st.booleans()))
def test_text_and_mapping_say_the_same(chosen: dict[str, bool]) -> None:
    text = ",".join(f"{name}={str(value).lower()}" for name, value in chosen.items())
    assert Gates.parse(text, KNOWN) == Gates.parse(chosen, KNOWN)
