"""What to do next for one pod on this node. Pure: the same situation and time give the same decision.

Read `decide` from top to bottom: an end that was ordered comes first, then an end that came by itself, then the sandbox, the
init containers in their order, the containers.

Invariants:
- `Start` names the attempt after the latest one that is known to be over and taken away, or the one that was never begun; so
  no container runs twice at a time, whatever the order of events;
- no container starts before all init containers have succeeded, none after the end of the pod has begun;
- every situation that is not final leads to an action, to work under way, or to a time to look again.
"""

from __future__ import annotations

from collections.abc import Callable

from muster.agent.lifecycle_facts import (
    Action,
    BeginStop,
    Clean,
    Decision,
    Doom,
    Facts,
    Fate,
    Kill,
    Prepare,
    Pull,
    Remove,
    RunHook,
    Signal,
    Situation,
    Start,
    Stopping,
    backoff_s,
    is_sidecar,
    is_through,
    may_restart,
    outcome_of,
    stop_signal,
)
from muster.objects.kinds.containers import Container

LOOK_AGAIN_S = 120.0
"""Also when nothing is known to be due: a lost notice must not hold up a pod for long."""
STARTING_S = 5.0
HELD_S = 1.0
"""So soon after a node may start pods again its pods start: nobody tells each of them."""
POST_START_S = 120.0
KILL_AGAIN_S = 5.0
AFTER_HOOK_S = 2.0
"""What is left for the signal when the hook before it took the whole grace."""
EVICTION_GRACE_S = 1.0

DeadlineOf = Callable[[Stopping], float]


class Draft:
    """Collects a decision."""

    def __init__(self, busy: frozenset[str]) -> None:
        self._busy = busy
        self._actions: list[Action] = []
        self._again_s: float | None = None

    def do(self, action: Action) -> None:
        if action.work not in self._busy:
            self._actions.append(action)

    def look_again(self, after_s: float) -> None:
        after_s = max(after_s, 0.0)
        self._again_s = after_s if self._again_s is None else min(self._again_s, after_s)

    def done(self, *, delete: bool = False, forget: bool = False) -> Decision:
        return Decision(actions=tuple(self._actions), again_s=self._again_s, delete=delete, forget=forget)


def decide(at: Situation, now: float) -> Decision:
    """The next steps for this pod."""
    if at.fate is None and not at.is_leaving and (fate := _new_fate(at, now)) is not None:
        return Decision(actions=(Doom(fate),), again_s=0.0)
    draft = Draft(at.busy)
    if at.is_leaving or at.fate is not None or outcome_of(at) is not None:
        return _end(at, now, draft)
    if at.started_at is not None and at.spec.active_deadline_seconds is not None:
        draft.look_again(at.started_at + at.spec.active_deadline_seconds - now)
    if at.is_held and not any(facts.is_alive for facts in at.containers.values()):
        draft.look_again(HELD_S)
        return draft.done()
    if not at.has_sandbox:
        if at.sandbox_problem is not None and at.sandbox_problem.retry_at > now:
            draft.look_again(at.sandbox_problem.retry_at - now)
        else:
            draft.do(Prepare())
        if not any(facts.is_alive for facts in at.containers.values()):
            return draft.done()
    _carry_on(at, now, draft)
    draft.look_again(LOOK_AGAIN_S)
    return draft.done()


def _new_fate(at: Situation, now: float) -> Fate | None:
    if at.is_fenced:
        return Fate("NodeLost", "the node had not reached the control plane for so long that it ended its tasks")
    if outcome_of(at) is not None:
        return None
    if at.disk_problem:
        return Fate("Evicted", at.disk_problem, EVICTION_GRACE_S)
    deadline_s = at.spec.active_deadline_seconds
    if deadline_s is not None and at.started_at is not None and now >= at.started_at + deadline_s:
        return Fate("DeadlineExceeded", f"the pod was active for longer than spec.activeDeadlineSeconds: {deadline_s}")
    return None


# -- towards running ----------------------------------------------------------------------------------------------------------


def _carry_on(at: Situation, now: float, draft: Draft) -> None:
    for container in at.spec.init_containers:
        facts = at.facts(container.name)
        if facts.exited is not None and facts.exited.code == 0 and not is_sidecar(container):
            _tidy(container, facts, draft)
            continue
        _attend(at, container, now, draft, is_init=True)
        if not is_through(at, container, facts):
            return
    for container in at.spec.containers:
        _attend(at, container, now, draft, is_init=False)


def _attend(at: Situation, container: Container, now: float, draft: Draft, *, is_init: bool) -> None:
    """One container that is to run, or to run again."""
    facts = at.facts(container.name)
    run = facts.run
    if run is None or run.state is None:
        _start(at, container, 0 if run is None else run.attempt, now, draft)
    elif (exited := run.exited) is not None:
        if not facts.is_removed:
            draft.do(Remove(container.name, run.attempt))
        elif may_restart(at.spec, container, exited.code, is_init=is_init):
            wait_s = exited.at + backoff_s(facts) - now
            if wait_s > 0:
                draft.look_again(wait_s)
            else:
                _start(at, container, run.attempt + 1, now, draft)
    elif not run.is_running:
        draft.look_again(STARTING_S)
    else:
        _keep_up(at, container, run.attempt, now, draft)


def _start(at: Situation, container: Container, attempt: int, now: float, draft: Draft) -> None:
    facts = at.facts(container.name)
    if at.is_held or not at.has_sandbox:
        draft.look_again(STARTING_S)
    elif facts.problem is not None and facts.problem.retry_at > now:
        draft.look_again(facts.problem.retry_at - now)
    elif facts.image is None:
        draft.do(Pull(container.name))
    else:
        draft.do(Start(container.name, attempt))


def _keep_up(at: Situation, container: Container, attempt: int, now: float, draft: Draft) -> None:
    """A container that runs: its hook after the start, and its end if it is not well."""
    facts = at.facts(container.name)
    why = ""
    grace_s = at.grace_s
    if (failed := facts.failed_probe) is not None:
        why = f"{failed.kind} probe failed: {failed.message}"
        grace_s = grace_s if failed.grace_s is None else failed.grace_s
    elif facts.post_start == "failed":
        why = "its postStart hook failed"
    elif facts.stopping is not None:
        why = "its end has begun"
    if why:
        _stop(container, facts, attempt, now, draft, deadline_of=lambda stopping: stopping.since + grace_s, why=why)
    elif container.lifecycle is not None and container.lifecycle.post_start is not None and not facts.post_start:
        draft.do(RunHook(container.name, attempt, "postStart", POST_START_S))


def _tidy(container: Container, facts: Facts, draft: Draft) -> None:
    if facts.run is not None and facts.exited is not None and not facts.is_removed:
        draft.do(Remove(container.name, facts.run.attempt))


# -- towards the end ----------------------------------------------------------------------------------------------------------


def _end(at: Situation, now: float, draft: Draft) -> Decision:
    """Nothing starts any more: stop what runs, clean up, and let the pod go if it is to go."""
    if any(work.startswith("Start ") for work in at.busy):
        return draft.done()  # whether it runs is known in a moment
    if _stop_all(at, now, draft):
        return draft.done()
    if not at.is_clean:
        draft.do(Clean())
        return draft.done()
    if at.is_leaving:
        return draft.done(delete=not at.is_gone, forget=True)
    return draft.done()


def _stop_all(at: Situation, now: float, draft: Draft) -> bool:
    """Containers at once, then init containers one by one from the last. False when nothing runs any more."""
    alive = [container for container in at.spec.containers if at.facts(container.name).is_alive]
    if not alive:
        alive = [container for container in reversed(at.spec.init_containers) if at.facts(container.name).is_alive]
        if not at.is_gone:
            alive = alive[:1]
    why = _why(at)
    for container in alive:
        facts = at.facts(container.name)
        assert facts.run is not None
        _stop(container, facts, facts.run.attempt, now, draft, deadline_of=lambda s: _deadline(at, s, now), why=why)
    return bool(alive)


def _deadline(at: Situation, stopping: Stopping, now: float) -> float:
    if at.is_gone:
        return now
    if at.deletion is not None:
        # The store cuts off fractions of a second; `since` is lost with an agent that dies, the store's time is not.
        return min(stopping.since + at.deletion.grace_s, at.deletion.at + 1.0) if at.deletion.grace_s else now
    if at.fate is not None and at.fate.grace_s is not None:
        return stopping.since + at.fate.grace_s
    return stopping.since + at.grace_s


def _why(at: Situation) -> str:
    if at.is_gone:
        return "the pod was deleted by force"
    if at.deletion is not None:
        return "the pod is deleted"
    return f"{at.fate.reason}: {at.fate.message}" if at.fate is not None else "the pod's containers have ended"


def _stop(
    container: Container, facts: Facts, attempt: int, now: float, draft: Draft, *, deadline_of: DeadlineOf, why: str
) -> None:
    stopping = facts.stopping
    if stopping is None:
        draft.do(BeginStop(container.name, attempt, why))
        stopping = Stopping(since=now)
    deadline = deadline_of(stopping)
    is_running = facts.run is not None and facts.run.is_running
    has_hook = is_running and container.lifecycle is not None and container.lifecycle.pre_stop is not None
    if has_hook and deadline > stopping.since:
        deadline = max(deadline, (now if stopping.signalled_at is None else stopping.signalled_at) + AFTER_HOOK_S)
    if now >= deadline:
        if stopping.killed_at is None or now >= stopping.killed_at + KILL_AGAIN_S:
            draft.do(Kill(container.name, attempt))
        draft.look_again(KILL_AGAIN_S)
        return
    if has_hook and stopping.pre_stop in ("", "running") and now < deadline_of(stopping):
        if not stopping.pre_stop:
            draft.do(RunHook(container.name, attempt, "preStop", deadline_of(stopping) - now))
        draft.look_again(deadline_of(stopping) - now)
        return
    if stopping.signalled_at is None:
        draft.do(Signal(container.name, attempt, stop_signal(container, facts.image)))
    draft.look_again(deadline - now)
