"""What to do next for a pod: tables, and any order of events on a made-up machine."""

from __future__ import annotations

import signal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.agent import lifecycle_facts as steps
from muster.agent.contracts import Exited, Image, RunState, Started
from muster.agent.lifecycle import AFTER_HOOK_S, KILL_AGAIN_S, decide
from muster.agent.lifecycle_facts import (
    BeginStop,
    Clean,
    Decision,
    Deletion,
    Doom,
    Facts,
    FailedProbe,
    Fate,
    Kill,
    Prepare,
    Problem,
    Pull,
    Remove,
    Run,
    RunHook,
    Signal,
    Situation,
    Start,
    Stopping,
    backoff_s,
    outcome_of,
    stop_signal,
)
from muster.objects.kinds.containers import Container
from muster.objects.kinds.pods import PodSpec
from tests.agent.made_up_machine import MadeUpMachine
from tests.counts import examples

NOW = 10_000.0
IMAGE = Image()


def spec(*, policy: str = "Never", inits: list[dict[str, Any]] | None = None, **more: Any) -> PodSpec:
    mains = more.pop("containers", None) or [{"name": "main"}]
    return msgspec.convert({"restartPolicy": policy, "initContainers": inits or [], "containers": mains, **more}, PodSpec)


def started(at: float = NOW - 100) -> Started:
    return Started(pid=1, start_ticks=1, boot_id="b", at=at, shim_pid=2, shim_start_ticks=1)


def running(**more: Any) -> Facts:
    return Facts(run=Run(more.pop("attempt", 0), RunState(state="running", started=started())), image=IMAGE, **more)


def exited(code: int = 0, *, attempt: int = 0, ago_s: float = 50.0, reason: str = "", **more: Any) -> Facts:
    end = Exited(code=code, at=NOW - ago_s, reason=reason)
    more = {"is_removed": True, "short_runs": 1, **more}
    return Facts(run=Run(attempt, RunState(state="exited", started=started(), exited=end)), image=IMAGE, **more)


READY = Facts(image=IMAGE)


def at(wanted: PodSpec, **more: Any) -> Situation:
    containers = more.pop("containers", {"main": READY})
    return Situation(
        spec=wanted, containers=containers, started_at=NOW - 200, has_sandbox=more.pop("has_sandbox", True), **more
    )


def actions(situation: Situation, now: float = NOW) -> list[steps.Action]:
    return list(decide(situation, now).actions)


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        pytest.param(at(spec(), has_sandbox=False), [Prepare()], id="the sandbox comes first"),
        pytest.param(at(spec(), containers={}), [Pull("main")], id="then the image"),
        pytest.param(at(spec()), [Start("main", 0)], id="then the container"),
        pytest.param(at(spec(), has_sandbox=False, busy=frozenset({"Prepare"})), [], id="what is under way is not begun again"),
        pytest.param(
            at(spec(policy="Always"), has_sandbox=False, containers={"main": running()}),
            [Prepare()],
            id="a new agent looks where everything is",
        ),
        pytest.param(
            at(
                spec(policy="Always", containers=[{"name": "a"}, {"name": "b"}]),
                has_sandbox=False,
                containers={"a": running(), "b": exited(1)},
            ),
            [Prepare()],
            id="and starts nothing before it knows",
        ),
        pytest.param(at(spec(), is_held=True), [], id="a node on its own starts nothing"),
        pytest.param(at(spec(), containers={"main": running()}), [], id="what runs is left alone"),
        pytest.param(
            at(spec(inits=[{"name": "i"}]), containers={"i": READY, "main": READY}), [Start("i", 0)], id="init containers first"
        ),
        pytest.param(at(spec(inits=[{"name": "i"}]), containers={"i": running(), "main": READY}), [], id="and to their end"),
        pytest.param(
            at(spec(inits=[{"name": "i"}]), containers={"i": exited(), "main": READY}), [Start("main", 0)], id="then the rest"
        ),
        pytest.param(
            at(spec(inits=[{"name": "i"}]), containers={"i": exited(is_removed=False), "main": READY}),
            [Remove("i", 0), Start("main", 0)],
            id="what an init container left goes",
        ),
        pytest.param(
            at(spec(inits=[{"name": "i"}]), containers={"i": exited(1), "main": READY}), [Clean()], id="a failed init: the end"
        ),
        pytest.param(
            at(spec(policy="Always", inits=[{"name": "i"}]), containers={"i": exited(1), "main": READY}),
            [Start("i", 1)],
            id="a failed init under Always runs again",
        ),
        pytest.param(
            at(spec(inits=[{"name": "s", "restartPolicy": "Always"}]), containers={"s": running(), "main": READY}),
            [Start("main", 0)],
            id="a sidecar that is up lets the rest start",
        ),
        pytest.param(
            at(spec(inits=[{"name": "s", "restartPolicy": "Always"}]), containers={"s": exited(1), "main": READY}),
            [Start("s", 1)],
            id="a sidecar that failed at once is tried again first",
        ),
        pytest.param(
            at(spec(inits=[{"name": "s", "restartPolicy": "Always"}]), containers={"s": exited(1), "main": running()}),
            [Start("s", 1)],
            id="a sidecar is restarted beside the rest",
        ),
        pytest.param(
            at(spec(inits=[{"name": "s", "restartPolicy": "Always"}]), containers={"s": running(), "main": exited()}),
            [BeginStop("s", 0, "the pod's containers have ended"), Signal("s", 0, signal.SIGTERM)],
            id="a sidecar ends after the rest",
        ),
        pytest.param(at(spec(), containers={"main": exited()}), [Clean()], id="the end"),
        pytest.param(at(spec(), containers={"main": exited()}, is_clean=True), [], id="the end, cleaned"),
        pytest.param(at(spec(policy="OnFailure"), containers={"main": exited()}), [Clean()], id="success under OnFailure"),
        pytest.param(at(spec(policy="OnFailure"), containers={"main": exited(1)}), [Start("main", 1)], id="failure under it"),
        pytest.param(at(spec(policy="Always"), containers={"main": exited()}), [Start("main", 1)], id="success under Always"),
        pytest.param(
            at(spec(policy="Always"), containers={"main": exited(is_removed=False)}),
            [Remove("main", 0)],
            id="old ones go first",
        ),
        pytest.param(
            at(spec(policy="Always"), containers={"main": exited(short_runs=3, ago_s=19)}), [], id="back-off of 20 s, after 19"
        ),
        pytest.param(
            at(spec(policy="Always"), containers={"main": exited(short_runs=3, ago_s=20)}),
            [Start("main", 1)],
            id="back-off of 20 s, after 20",
        ),
        pytest.param(
            at(spec(), containers={"main": Facts(image=IMAGE, problem=Problem("ErrImagePull", "x", NOW - 9))}),
            [],
            id="a failure rests",
        ),
        pytest.param(
            at(spec(), containers={"main": Facts(image=IMAGE, problem=Problem("ErrImagePull", "x", NOW - 10))}),
            [Start("main", 0)],
            id="and is tried again",
        ),
        pytest.param(
            at(spec(), containers={"main": Facts(image=IMAGE, run=Run(2))}), [Start("main", 2)], id="a run that never began"
        ),
        pytest.param(
            at(spec(activeDeadlineSeconds=200), containers={"main": running()}),
            [Doom(Fate("DeadlineExceeded", "the pod was active for longer than spec.activeDeadlineSeconds: 200"))],
            id="the deadline of the pod",
        ),
        pytest.param(
            at(spec(), containers={"main": running()}, disk_problem="too much"),
            [Doom(Fate("Evicted", "too much", 1.0))],
            id="too much on disk",
        ),
        pytest.param(
            at(spec(), containers={"main": running(failed_probe=FailedProbe("liveness", "no answer", 5.0))}),
            [BeginStop("main", 0, "liveness probe failed: no answer"), Signal("main", 0, signal.SIGTERM)],
            id="a container that is not alive",
        ),
        pytest.param(at(spec(), is_gone=True), [Clean()], id="deleted by force before it ran"),
        pytest.param(
            at(spec(), containers={"main": running()}, is_gone=True),
            [BeginStop("main", 0, "the pod was deleted by force"), Kill("main", 0)],
            id="deleted by force while it ran",
        ),
        pytest.param(
            at(spec(), busy=frozenset({"Start main"}), deletion=Deletion(NOW, 0)), [], id="what is being started is waited for"
        ),
    ],
)
def test_next(situation: Situation, expected: list[steps.Action]) -> None:
    assert actions(situation) == expected


def test_deletion_asks_then_waits_then_kills_then_cleans_then_lets_go() -> None:
    wanted, deletion = spec(), Deletion(NOW + 30, 30)

    def facts(**stopping: Any) -> dict[str, Facts]:
        return {"main": running(stopping=Stopping(since=NOW, **stopping))}

    begun = decide(at(wanted, containers={"main": running()}, deletion=deletion), NOW)
    assert begun.actions == (BeginStop("main", 0, "the pod is deleted"), Signal("main", 0, signal.SIGTERM))
    assert begun.again_s == 30
    waiting = decide(at(wanted, containers=facts(signalled_at=NOW), deletion=deletion), NOW + 29)
    assert (waiting.actions, waiting.again_s) == ((), 1)
    late = at(wanted, containers=facts(signalled_at=NOW), deletion=deletion)
    assert decide(late, NOW + 30) == Decision(actions=(Kill("main", 0),), again_s=KILL_AGAIN_S)
    killed = at(wanted, containers=facts(signalled_at=NOW, killed_at=NOW + 30), deletion=deletion)
    assert actions(killed, NOW + 31) == []
    assert actions(killed, NOW + 30 + KILL_AGAIN_S) == [Kill("main", 0)]
    over = at(wanted, containers={"main": exited(137)}, deletion=deletion)
    assert decide(over, NOW + 32) == Decision(actions=(Clean(),))
    clean = at(wanted, containers={"main": exited(137)}, deletion=deletion, is_clean=True)
    assert decide(clean, NOW + 32) == Decision(delete=True, forget=True)


def test_an_agent_that_comes_late_keeps_to_the_time_of_the_store() -> None:
    situation = at(spec(), containers={"main": running()}, deletion=Deletion(NOW - 5, 30))
    assert actions(situation) == [BeginStop("main", 0, "the pod is deleted"), Kill("main", 0)]


def test_the_hook_comes_before_the_signal_and_counts_into_the_grace() -> None:
    hook = {"name": "main", "lifecycle": {"preStop": {"exec": {"command": ["x"]}}}}
    wanted, deletion = spec(containers=[hook]), Deletion(NOW + 30, 30)

    def situation(**stopping: Any) -> Situation:
        return at(wanted, containers={"main": running(stopping=Stopping(since=NOW, **stopping))}, deletion=deletion)

    assert actions(situation()) == [RunHook("main", 0, "preStop", 30)]
    assert actions(situation(pre_stop="running"), NOW + 5) == []
    assert actions(situation(pre_stop="done"), NOW + 5) == [Signal("main", 0, signal.SIGTERM)]
    assert actions(situation(pre_stop="failed"), NOW + 5) == [Signal("main", 0, signal.SIGTERM)]
    assert actions(situation(pre_stop="running"), NOW + 30) == [Signal("main", 0, signal.SIGTERM)]
    told = situation(pre_stop="running", signalled_at=NOW + 30)
    assert actions(told, NOW + 30 + AFTER_HOOK_S - 0.1) == []
    assert actions(told, NOW + 30 + AFTER_HOOK_S) == [Kill("main", 0)]


def test_a_hook_after_the_start() -> None:
    wanted = spec(containers=[{"name": "main", "lifecycle": {"postStart": {"exec": {"command": ["x"]}}}}])
    (hook,) = actions(at(wanted, containers={"main": running()}))
    assert isinstance(hook, RunHook)
    assert hook.kind == "postStart"
    assert actions(at(wanted, containers={"main": running(post_start="running")})) == []
    assert actions(at(wanted, containers={"main": running(post_start="done")})) == []
    why = "its postStart hook failed"
    assert actions(at(wanted, containers={"main": running(post_start="failed")}))[0] == BeginStop("main", 0, why)


@pytest.mark.parametrize(
    ("short_runs", "wait_s"), [(0, 0), (1, 0), (2, 10), (3, 20), (4, 40), (5, 80), (6, 160), (7, 300), (500, 300)]
)
def test_back_off(short_runs: int, wait_s: float) -> None:
    assert backoff_s(Facts(short_runs=short_runs)) == wait_s


@pytest.mark.parametrize(
    ("reason", "times", "wait_s"),
    [
        ("ErrImagePull", 1, 10),
        ("ErrImagePull", 3, 40),
        ("InvalidImageName", 9, 300),
        ("FailedMount", 1, 2),
        ("FailedMount", 9, 60),
    ],
)
def test_failures_are_tried_again(reason: str, times: int, wait_s: float) -> None:
    assert Problem(reason, "", NOW, times).retry_at == NOW + wait_s


@pytest.mark.parametrize(
    ("policy", "codes", "outcome"),
    [
        ("Never", [0, 0], "Succeeded"),
        ("Never", [0, 1], "Failed"),
        ("OnFailure", [0, 0], "Succeeded"),
        ("OnFailure", [0, 1], None),
        ("Always", [0, 0], None),
    ],
)
def test_outcome(policy: str, codes: list[int], outcome: str | None) -> None:
    wanted = spec(policy=policy, containers=[{"name": f"c{n}"} for n in range(len(codes))])
    assert outcome_of(at(wanted, containers={f"c{n}": exited(code) for n, code in enumerate(codes)})) == outcome


@pytest.mark.parametrize(
    ("asked", "by_image", "expected"),
    [
        ("", "", signal.SIGTERM),
        ("", "SIGINT", signal.SIGINT),
        ("", "quit", signal.SIGQUIT),
        ("", "9", signal.SIGKILL),
        ("SIGUSR1", "SIGINT", signal.SIGUSR1),
        ("", "nonsense", signal.SIGTERM),
        ("", "SIG_DFL", signal.SIGTERM),
    ],
)
def test_stop_signal(asked: str, by_image: str, expected: int) -> None:
    lifecycle = {"stopSignal": asked} if asked else {}
    container = msgspec.convert({"name": "c", "lifecycle": lifecycle}, Container)
    assert stop_signal(container, Image(stop_signal=by_image)) == expected


@settings(max_examples=examples(150))
@given(st.data())
def test_any_order_of_events(data: st.DataObject) -> None:
    """No container starts twice or before its init containers, nothing starts after the end has begun, and it does end."""
    hooks = {"postStart": {"exec": {"command": ["x"]}}, "preStop": {"exec": {"command": ["x"]}}}
    with_hooks = data.draw(st.booleans(), "hooks")
    inits: list[dict[str, Any]] = [{"name": f"i{n}"} for n in range(data.draw(st.integers(0, 2), "inits"))]
    if data.draw(st.booleans(), "sidecar"):
        inits.insert(0, {"name": "side", "restartPolicy": "Always"})
    mains = [{"name": f"c{n}", "lifecycle": hooks if with_hooks else {}} for n in range(data.draw(st.integers(1, 2), "mains"))]
    policy = data.draw(st.sampled_from(["Always", "OnFailure", "Never"]), "policy")
    wanted = spec(policy=policy, inits=inits, containers=mains, activeDeadlineSeconds=data.draw(st.sampled_from([None, 50])))
    machine = MadeUpMachine(wanted)
    for _ in range(data.draw(st.integers(0, 60), "steps")):
        machine.step(data.draw(st.sampled_from(machine.possible()), "event"))
        machine.check()
    machine.delete(grace_s=data.draw(st.sampled_from([0, 30]), "grace"), by_force=data.draw(st.booleans(), "force"))
    for _ in range(400):
        if machine.is_forgotten:
            break
        machine.step("decide")
        machine.finish_work()
        machine.pass_time()
        machine.check()
    assert machine.is_forgotten, machine.situation()
