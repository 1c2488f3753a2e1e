"""A machine for tests of `lifecycle` alone: does what is decided, slowly and in any order, and notices what must not happen."""

from __future__ import annotations

import msgspec

from muster.agent import lifecycle_facts as steps
from muster.agent.contracts import Exited, Image, RunState, Started
from muster.agent.lifecycle import decide
from muster.agent.lifecycle_facts import LONG_RUN_S, Deletion, Facts, Fate, Hook, Problem, Run, Situation, Stopping, is_sidecar
from muster.objects.kinds.pods import PodSpec


class _Container:
    def __init__(self) -> None:
        self.run: Run | None = None
        self.image: Image | None = None
        self.problem: Problem | None = None
        self.post_start: Hook = ""
        self.stopping: Stopping | None = None
        self.is_removed = False
        self.short_runs = 0
        self.started: set[int] = set()


class MadeUpMachine:
    def __init__(self, spec: PodSpec) -> None:
        self.spec = spec
        self.now = 1000.0
        self.containers = {c.name: _Container() for c in (*spec.init_containers, *spec.containers)}
        self.has_sandbox = False
        self.is_clean = False
        self.is_gone = False
        self.is_forgotten = False
        self.deletion: Deletion | None = None
        self.fate: Fate | None = None
        self.works: dict[str, steps.Action] = {}
        self.has_ended = False
        """The end was ordered: nothing may start any more."""

    def situation(self) -> Situation:
        return Situation(
            spec=self.spec,
            containers={
                name: Facts(
                    run=c.run,
                    image=c.image,
                    problem=c.problem,
                    post_start=c.post_start,
                    stopping=c.stopping,
                    is_removed=c.is_removed,
                    short_runs=c.short_runs,
                )
                for name, c in self.containers.items()
            },
            deletion=self.deletion,
            is_gone=self.is_gone,
            fate=self.fate,
            started_at=1000.0,
            has_sandbox=self.has_sandbox,
            is_clean=self.is_clean,
            busy=frozenset(self.works),
        )

    def possible(self) -> list[str]:
        """What may happen next. `go on` is there so that most stories get somewhere."""
        ends = [f"exit {code} {name}" for name, c in self.containers.items() if c.run and c.run.is_alive for code in (0, 1)]
        works = [f"{word} {work}" for work in self.works for word in ("finish", "fail")]
        return ["go on", "go on", "go on", "decide", "time", "restart agent", *works, *ends]

    def step(self, event: str) -> None:
        word, _, rest = event.partition(" ")
        if event == "decide":
            self.decide()
        elif event == "go on":
            self.decide()
            self.finish_work()
        elif event == "time":
            self.pass_time()
        elif event == "restart agent":
            self.restart_agent()
        elif word in ("finish", "fail"):
            self.finish(rest, is_success=word == "finish")
        elif word == "exit":
            code, _, name = rest.partition(" ")
            self.end(name, int(code))

    def decide(self) -> None:
        decision = decide(self.situation(), self.now)
        for action in decision.actions:
            assert action.work not in self.works or isinstance(action, steps.Kill | steps.Signal | steps.BeginStop), action
            self._begin(action)
        if decision.forget:
            assert self.is_clean
            assert decision.delete is not self.is_gone
            self.is_forgotten = True

    def _begin(self, action: steps.Action) -> None:
        match action:
            case steps.Doom(fate=fate):
                self.fate = fate
                self.has_ended = True
            case steps.BeginStop(container=name):
                self.containers[name].stopping = Stopping(since=self.now)
            case steps.Signal(container=name):
                self._stopping(name, signalled_at=self.now)
            case steps.Kill(container=name):
                self._stopping(name, killed_at=self.now)
                self.end(name, 137)
            case _:
                if isinstance(action, steps.Start):
                    self._check_start(action)
                self.works[action.work] = action

    def _stopping(self, name: str, **changes: float) -> None:
        stopping = self.containers[name].stopping
        assert stopping is not None
        self.containers[name].stopping = msgspec.structs.replace(stopping, **changes)

    def _check_start(self, action: steps.Start) -> None:
        c = self.containers[action.container]
        assert not self.has_ended, "started after the end"
        assert self.has_sandbox
        assert not self.is_clean
        assert c.run is None or not c.run.is_alive, "started while it runs"
        assert action.attempt not in c.started, "an attempt started twice"
        if action.container in [m.name for m in self.spec.containers]:
            for init in self.spec.init_containers:
                run = self.containers[init.name].run
                assert run is not None
                assert is_sidecar(init) or (run.exited is not None and run.exited.code == 0), "before its init containers"

    def finish(self, work: str, *, is_success: bool) -> None:
        action = self.works.pop(work)
        match action:
            case steps.Prepare():
                self.has_sandbox = is_success
            case steps.Pull(container=name):
                self.containers[name].image = Image() if is_success else None
            case steps.Start(container=name, attempt=attempt):
                c = self.containers[name]
                if is_success:
                    started = Started(pid=1, start_ticks=1, boot_id="b", at=self.now, shim_pid=1, shim_start_ticks=1)
                    c.started.add(attempt)
                    c.run = Run(attempt, RunState(state="running", started=started))
                    c.problem, c.stopping, c.post_start, c.is_removed = None, None, "", False
                else:
                    c.problem = Problem("X", "x", self.now, c.problem.times + 1 if c.problem else 1)
            case steps.RunHook(container=name, kind=kind):
                self._hook(name, kind, is_success)
            case steps.Remove(container=name):
                self.containers[name].is_removed = is_success
            case steps.Clean():
                assert not any(c.run and c.run.is_alive for c in self.containers.values()), "cleaned under what runs"
                self.works.clear()
                self.is_clean = is_success
                self.has_sandbox = False

    def _hook(self, name: str, kind: str, is_success: bool) -> None:
        c = self.containers[name]
        state: Hook = "done" if is_success else "failed"
        if kind == "postStart":
            c.post_start = state
        elif c.stopping is not None:
            c.stopping = msgspec.structs.replace(c.stopping, pre_stop=state)

    def finish_work(self) -> None:
        for work in list(self.works):
            if work in self.works:
                self.finish(work, is_success=True)

    def end(self, name: str, code: int) -> None:
        c = self.containers[name]
        if c.run is None or not c.run.is_alive or c.run.state is None:
            return
        run = Run(c.run.attempt, RunState(state="exited", started=c.run.state.started, exited=Exited(code=code, at=self.now)))
        c.run = run
        c.short_runs = 1 if run.length_s >= LONG_RUN_S else c.short_runs + 1

    def pass_time(self) -> None:
        self.now += 11.0

    def restart_agent(self) -> None:
        """What is only in mind is lost; a start that was under way has either begun or not."""
        for work in list(self.works):
            if work.startswith("Start "):
                self.finish(work, is_success=True)
        self.works.clear()
        for c in self.containers.values():
            c.stopping, c.problem, c.image, c.is_removed = None, None, None, False
            c.post_start = "done" if c.run is not None else ""
        self.has_sandbox = False

    def delete(self, *, grace_s: int, by_force: bool) -> None:
        self.has_ended = True
        if by_force:
            self.is_gone = True
        else:
            self.deletion = Deletion(self.now + grace_s, grace_s)

    def check(self) -> None:
        for c in self.containers.values():
            assert c.run is None or c.run.attempt in c.started
