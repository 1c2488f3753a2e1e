"""Queues, places and reasons in words, and pools in tables."""

from __future__ import annotations

import math

import msgspec
import pytest

from muster.cli.pool_view import holdings, holdings_table, node_rows, nodes_table, pool_rows, pools_table, written_rows
from muster.cli.queue_view import (
    act_lines,
    deadline_lines,
    line_text,
    number,
    place_lines,
    running_lines,
    status_place,
    tree_text,
)
from muster.engine import events as ev
from muster.engine.facts import PoolFacts
from muster.engine.machine import Engine
from muster.engine.plugins.fit import Fit
from muster.engine.pool_use import uses
from muster.engine.profile import Profile
from muster.engine.state import State
from muster.objects.status import Raw
from muster.objects.time import format_time
from tests.engine.building import node, pod

NOW = 1_800_000_000.0


def queue(name: str, parent: str = "", **spec: object) -> Raw:
    return {"metadata": {"name": name}, "spec": {"parent": parent, **spec}, "status": {}}


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_the_tree_has_children_under_parents_and_circles_at_the_top() -> None:
    queues = [queue("b", "a"), queue("a", weight=3), queue("x", "y"), queue("y", "x"), queue("lost", "gone")]
    lines = tree_text(queues, None).splitlines()
    assert [line.split("  ")[0] if not line.startswith(" ") else "  " + line.split()[0] for line in lines[1:]] == [
        "a",
        "  b",
        "lost",
        "x",
        "  y",
    ]


def test_live_numbers_win_over_written_ones() -> None:
    limited = queue("q", limits={"concurrent": {"cpu": "8"}, "jobsRunning": 4}, isDefault=True)
    limited["status"] = {"usage": {"jobsWaiting": 1, "jobsRunning": 2, "concurrent": {"cpu": "3"}}}
    below = queue("below", parent="q")
    live = {
        "q": {"waiting": 7, "running": 2, "held": 1, "head": "Job/team/x", "runningRequest": {"cpu": "1500m", "pods": "2"}},
        "below": {"waiting": 0, "running": 1, "held": 0, "head": "", "runningRequest": {"cpu": "4"}},
    }
    text = tree_text([limited, below], live)
    assert "q (default)" in text
    assert "jobs 3/4, cpu 5500m/8" in text
    assert words(text)[1][-1] == "team/x"
    assert " 7 " in text
    assert " 1 " in tree_text([limited], None)


PLACE: Raw = {
    "unit": "Pod/team/a-w-0",
    "job": "Job/team/a",
    "queue": "q",
    "position": 2,
    "of": 5,
    "score": 3.5,
    "policy": "mine",
    "user": "ann",
    "submitted": NOW - 90,
    "factors": [{"name": "age", "value": 90.0, "weight": 1.0, "contribution": 3.5}],
}
AHEAD: Raw = {
    **PLACE,
    "job": "Job/team/b",
    "position": 1,
    "score": 4.0,
    "factors": [{**PLACE["factors"][0], "contribution": 4.0}],
}


def test_a_line() -> None:
    hidden = {"queue": "q", "position": 3, "of": 5, "score": None, "hidden": True}
    held = {**PLACE, "position": 4, "hold": "maintenance", "pin": 1}
    text = line_text(
        {"queue": "q", "waiting": 5, "running": 1, "held": 1, "runningRequest": {"cpu": "2"}, "places": [PLACE, hidden, held]},
        NOW,
    )
    assert "queue q: 5 waiting, 1 running, 1 held" in text
    assert "team/a" in text
    assert "90s" in text
    assert "(not yours to see)" in text
    assert "held: maintenance; pinned at 1" in text
    assert "and 2 more" in text


def test_the_factor_table_stands_beside_that_of_the_one_ahead() -> None:
    text = "\n".join(place_lines({"place": PLACE, "ahead": AHEAD}, NOW))
    assert "Queue: q, place 2 of 5, policy mine" in text
    assert "Ahead of it, at place 1: team/b, score 4" in text
    assert ["age", "90", "1", "3.5", "90", "4", "-0.5"] in words(text)
    assert words(text)[-1] == ["score", "-", "-", "3.5", "-", "4", "-0.5"]


def test_it_is_said_where_such_work_ran_well() -> None:
    grounds = "failed 3 of 3 on node b, 0 of 8 elsewhere"
    text = "\n".join(place_lines({"place": {**PLACE, "affinityGrounds": grounds}, "ahead": None}, NOW))
    assert f"  Where, if there is room: work like it {grounds}" in text.splitlines()


def test_of_hidden_work_only_the_score_is_compared() -> None:
    ahead = {"position": 1, "score": 4.0, "hidden": True}
    text = "\n".join(place_lines({"place": PLACE, "ahead": ahead}, NOW))
    assert "not yours to see" in text
    assert "AHEAD HAS" not in text


def test_the_first_has_nobody_ahead() -> None:
    assert "Nobody is ahead" in "\n".join(place_lines({"place": {**PLACE, "position": 1}, "ahead": None}, NOW))
    assert list(place_lines({"place": None}, NOW)) == []


def test_a_score_that_is_no_number_is_told_as_what_it_is() -> None:
    text = "\n".join(place_lines({"place": {**PLACE, "score": None, "isNotANumber": True}, "ahead": None}, NOW))
    assert "no number, so it stands behind all that have one" in text
    assert "no number, so" not in "\n".join(place_lines({"place": {**PLACE, "score": None}, "ahead": None}, NOW)), "infinite"


def test_work_that_runs_says_since_when_how_far_and_until_when() -> None:
    status = {"startTime": format_time(NOW - 600), "queuedTime": format_time(NOW - 900), "progress": 0.25}
    place = {"queue": "q", "predictedS": 1_200.0, "predictedHighS": 2_400.0, "grounds": "4 runs of user ann"}
    assert list(running_lines({"status": status}, place, NOW)) == [
        "  Queue: q; waited 5m, runs for 10m",
        "  Progress: 25%",
        f"  Expected to end: about {format_time(NOW + 600)}, nine in ten before {format_time(NOW + 1_800)} "
        "(4 runs of user ann)",
    ]
    late = {"predictedS": 300.0, "predictedHighS": 500.0}
    assert list(running_lines({"status": status}, late, NOW))[-1] == "  Expected to end: it runs longer than expected already"
    assert list(running_lines({"status": {}}, place, NOW)) == []


def test_numbers() -> None:
    assert [number(value) for value in (1, 0.123456, math.nan, None, "x")] == [
        "1",
        "0.1235",
        "no number",
        "no number",
        "no number",
    ]


def test_acts_are_shown_the_latest_first_without_escape_codes() -> None:
    acts = '[{"act":"Held","by":"root","at":"T","detail":"x\\u001b[31m"},{"act":"Released","by":"root","at":"U"}]'
    first, second = act_lines({"metadata": {"annotations": {"muster.dev/acts": acts}}})
    assert first == "  Act: Released by root at U"
    assert "\x1b" not in second


def test_the_place_in_the_status_stands_in_for_the_live_one() -> None:
    job = {"status": {"place": {"name": "q", "position": 4, "score": 1.5, "factors": []}}}
    assert "Queue: q, place 4 of ?" in "\n".join(place_lines(status_place(job), NOW))
    assert status_place({}) == {}


# -- pools --------------------------------------------------------------------------------------------------------------------


def cluster() -> State:
    engine = Engine([Profile("muster-scheduler", [Fit()])])
    pool = msgspec.convert({"metadata": {"name": "east"}, "spec": {"nodes": ["a", "b"]}}, PoolFacts)
    work = '{"job":"Job/team/train","user":"ann","queue":"q"}'
    gpu = {"nvidia.com/gpu": "1"}
    events: list[ev.AnyEvent] = [
        ev.NodeSeen(node("a", cpu="4", memory="8Gi", resources={"nvidia.com/gpu": "2"})),
        ev.NodeSeen(node("b", cpu="2", memory="8Gi")),
        ev.NodeSeen(node("c", cpu="8", memory="8Gi")),
        ev.PoolSeen(pool),
        ev.PodSeen(pod("p", cpu="1500m", node="a", annotations={"muster.dev/work": work}, resources=gpu)),
        ev.PodSeen(pod("r", cpu="1", node="b", annotations={"muster.dev/work": work})),
        ev.PodSeen(pod("s", cpu="1", node="b", namespace="other")),
    ]
    engine.step(events, NOW, units_max=0)
    return engine.state


def test_pools_and_the_nodes_in_none() -> None:
    headers, rows = pools_table(pool_rows(cluster()))
    east, rest = (dict(zip(headers, row, strict=True)) for row in rows)
    assert (east["POOL"], east["NODES"], east["CPU"], east["GPUS"]) == ("east", 2, "3500m/6", "1/2")
    assert (rest["POOL"], rest["NODES"], rest["CPU"]) == ("(in no pool)", 1, "0/8")


def test_models_and_memory_of_devices_are_told() -> None:
    labels = {"node.koordinator.sh/gpu-model": "A100", "nvidia.com/gpu.memory": "40960"}
    engine = Engine([Profile("muster-scheduler", [Fit()])])
    engine.step([ev.NodeSeen(node("a", resources={"nvidia.com/gpu": 4}, labels=labels)), ev.NodeSeen(node("b"))], 1.0)
    headers, [row] = pools_table(pool_rows(engine.state))
    assert dict(zip(headers, row, strict=True))["GPUS"] == "0/4 A100 40Gi"


def test_a_pool_as_its_status_has_it() -> None:
    status = {
        "nodes": ["a"],
        "ready": 1,
        "capacity": {"cpu": "8", "kuscia.io/bandwidth": "1000"},
        "allocatable": {"cpu": "8", "memory": "32Gi", "bandwidth-egress": "1Gbps"},
        "requested": {"cpu": "1500m"},
        "devices": [{"type": "gpu", "model": "V100", "memory": "16Gi", "total": 2, "used": 1}],
    }
    headers, rows = pools_table(written_rows([{"metadata": {"name": "p"}, "status": status}, {"metadata": {"name": "new"}}]))
    new, row = (dict(zip(headers, one, strict=True)) for one in rows)
    assert (row["CPU"], row["MEMORY"], row["EGRESS"], row["GPUS"]) == ("1500m/8", "0/32Gi", "0bps/1Gbps", "1/2 V100 16Gi")
    assert (new["POOL"], new["NODES"], new["CPU"]) == ("new", 0, "")


def test_nodes_of_a_pool() -> None:
    state = cluster()
    headers, rows = nodes_table(node_rows(state, state.pools["east"]))
    a, b = (dict(zip(headers, row, strict=True)) for row in rows)
    assert (a["NODE"], a["CPU"], a["GPUS"]) == ("a", "1500m/4", "1/2")
    assert (b["NODE"], b["CPU"], b["GPUS"]) == ("b", "2/2", "")


def test_who_uses_what_both_ways() -> None:
    found = list(uses(cluster(), ["a", "b"]))
    by_user = {one.who: (one.pods, one.others) for one in holdings(found, "user")}
    assert by_user == {"ann": (2, ("a", "b")), "(namespace other)": (1, ("b",))}
    by_node = {one.who: (one.pods, one.others) for one in holdings(found, "node")}
    assert by_node == {"a": (1, ("ann",)), "b": (2, ("(namespace other)", "ann"))}
    assert [one.who for one in holdings(found, "job")] == ["Pod/other/s", "team/train"]
    headers, rows = holdings_table(holdings(found, "queue"), "queue")
    mine = dict(zip(headers, rows[1], strict=True))
    assert (mine["QUEUE"], mine["CPU"], mine["GPUS"], mine["NODES"]) == ("q", "2500m", 1, "a, b")


@pytest.mark.parametrize(
    ("deadline_s", "place", "said"),
    [
        pytest.param(None, {}, [], id="none"),
        pytest.param(600, {}, ["in 10m"], id="nothing is known"),
        pytest.param(-60, {}, ["60s ago"], id="past"),
        pytest.param(600, {"likelyStart": NOW + 60, "predictedS": 60.0}, ["in time"], id="in time"),
        pytest.param(600, {"likelyStart": NOW + 580, "predictedS": 60.0}, ["too late"], id="starts too late"),
        pytest.param(600, {"predictedS": 900.0}, ["expected to run 15m: too late even if it started now"], id="too long"),
        pytest.param(600, {"likelyStart": NOW - 5000, "predictedS": 900.0}, ["too late"], id="a start in the past is now"),
    ],
)
def test_whether_a_deadline_will_be_met(deadline_s: float | None, place: Raw, said: list[str]) -> None:
    job: Raw = {"spec": {"deadline": format_time(NOW + deadline_s)} if deadline_s is not None else {}}
    lines = list(deadline_lines(job, place, NOW))
    assert len(lines) == len(said)
    for line, words_ in zip(lines, said, strict=True):
        assert line.startswith("  Deadline: ")
        assert line.endswith(words_)


def test_a_queue_that_can_not_work_says_why() -> None:
    bad = queue("bad")
    bad["status"] = {
        "conditions": [{"type": "Ready", "status": "False", "message": "spec.policy: there is no SchedulingPolicy x"}]
    }
    good = queue("good")
    good["status"] = {"conditions": [{"type": "Ready", "status": "True", "message": "takes and starts work"}]}
    text = tree_text([bad, good], None)
    assert "Open, not ready" in text
    assert text.splitlines()[-1] == "queue bad: spec.policy: there is no SchedulingPolicy x"


def test_a_start_that_nobody_has_measured_yet_is_told_as_one() -> None:
    [line] = [line for line in place_lines({"place": {**PLACE, "likelyStart": NOW + 60}}, NOW) if "Start" in line]
    assert line == f"  Start: about {format_time(NOW + 60)}; how sure that is is not known yet"


def test_a_line_that_was_read_from_jobs_says_what_it_leaves_out() -> None:
    answer = {"queue": "q", "waiting": 3, "running": 0, "places": [PLACE], "isWritten": True, "namespace": "team"}
    lines = line_text(answer, NOW).splitlines()
    assert "  Shown are jobs of namespace team; those of others are not yours to list." in lines
    assert lines[-1].startswith("and 2 more; shown are Jobs that say their place")
    del answer["isWritten"], answer["namespace"]
    assert line_text(answer, NOW).splitlines()[-1] == "and 2 more; --first shows more of them"


def test_what_somebody_wrote_does_not_reach_the_terminal() -> None:
    evil = "\x1b[2J\x07\u202ex"
    place = {"position": 2, "of": 2, "hold": evil, "pin": evil, "refused": {"reason": evil}, "factors": [{"name": "a"}]}
    told = "\n".join(place_lines({"place": place, "ahead": {**place, "position": 1}}, 0.0))
    told += line_text({"queue": "q", "waiting": 1, "places": [place]}, 0.0)
    assert "held: [2Jx; pinned at [2Jx" in told
    assert not any(sign in told for sign in "\x1b\x07\u202e")
