"""What pods say about their work: nonsense stops nobody, and a label can't say what the job's controller did not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine.work import PIN_MAX, TEXT_MAX, Work, decode_work, encode_work, work_of
from muster.objects.labels import Muster
from tests.engine.building import pod

NUMBERS = ("level", "estimate_s", "deadline", "checkpoint_s", "submitted", "attained_s", "preemptions", "pin")


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        pytest.param('{"pin": 18446744073709551615}', "pin", PIN_MAX, id="pin beyond 64 bits"),
        pytest.param('{"pin": -99999999999999999999999999}', "pin", -PIN_MAX, id="pin far below"),
        pytest.param('{"preemptions": -5}', "preemptions", 0, id="stopped less than never"),
        pytest.param('{"preemptions": 99999999999999999999999999}', "preemptions", 1_000_000, id="stopped for ever"),
        pytest.param('{"estimateS": -1}', "estimate_s", None, id="runs less than nothing"),
        pytest.param('{"estimateS": 0}', "estimate_s", None, id="runs not at all"),
        pytest.param('{"estimateS": 1e308}', "estimate_s", 1e10, id="runs for ever"),
        pytest.param('{"checkpointS": 0}', "checkpoint_s", None, id="saves without end"),
        pytest.param('{"attainedS": -1e308}', "attained_s", 0.0, id="has run less than nothing"),
        pytest.param('{"submitted": -1e308}', "submitted", 0.0, id="older than all"),
        pytest.param('{"deadline": 1e308}', "deadline", 253_402_300_799.0, id="due after all time"),
        pytest.param('{"level": -1e308}', "level", -1e10, id="below all"),
        pytest.param('{"estimateUse": {"cpu": -1}}', "estimate_use", {"cpu": 0.0}, id="uses less than nothing"),
        pytest.param('{"level": 3, "pin": -2}', "pin", -2, id="what is reasonable stays"),
        pytest.param('{"estimateS": 1e999}', "estimate_s", None, id="not a number of this world"),
        pytest.param("[" * 5_000, "queue", "", id="no object"),
        pytest.param('{"queue": "' + "q" * TEXT_MAX + '"}', "queue", "", id="too long"),
    ],
)
def test_nonsense_is_brought_to_reason(text: str, field: str, value: object) -> None:
    assert getattr(decode_work(text), field) == value


@given(st.dictionaries(st.sampled_from(NUMBERS), st.integers() | st.floats(allow_nan=False, allow_infinity=False)))
def test_every_number_fits_into_its_column(said: dict[str, float]) -> None:
    names = {"estimate_s": "estimateS", "checkpoint_s": "checkpointS", "attained_s": "attainedS"}
    text = "{" + ",".join(f'"{names.get(key, key)}":{value!r}' for key, value in said.items()) + "}"
    work = decode_work(text)
    for name in NUMBERS:
        value = getattr(work, name)
        np.zeros(1, np.int64)[0] = value if name == "pin" and value is not None else 0
        assert value is None or math.isfinite(value)
    assert decode_work(encode_work(work)) == work


def test_labels_say_what_the_work_leaves_out() -> None:
    labels = {Muster.QUEUE: "q", Muster.USER: "ann", Muster.PREEMPTIBLE: "true"}
    found = work_of(pod("a", labels=labels, annotations={Muster.ESTIMATE_SECONDS: "1e300"}))
    assert (found.queue, found.user, found.preemptible, found.estimate_s) == ("q", "ann", True, 1e10)


def test_labels_add_nothing_to_what_a_job_says() -> None:
    labels = {Muster.QUEUE: "q", Muster.USER: "ann", Muster.GROUP: "rich", Muster.PREEMPTIBLE: "true"}
    said = Work(job="Job/default/j")
    notes = {Muster.WORK: encode_work(said), Muster.ESTIMATE_SECONDS: "1"}
    assert work_of(pod("a", labels=labels, annotations=notes)) == said
