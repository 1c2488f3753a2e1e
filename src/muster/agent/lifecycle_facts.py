"""What `lifecycle.decide` is told about a pod, and what it may ask for. Values only.

A `Situation` is one pod at one moment: what its manifest wants, what its containers do, what has been tried and failed. It is
put together by `pods` from the store's copy, the runs on this machine and a little memory; nothing in it is shared.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Literal

import msgspec

from muster.agent.contracts import Exited, Image, RunState
from muster.objects.kinds.containers import Container
from muster.objects.kinds.pods import PodSpec
from muster.store.backoff import doubled_s

Hook = Literal["", "running", "done", "failed"]
Outcome = Literal["Succeeded", "Failed"]

BACKOFF_S = 10.0
BACKOFF_MAX_S = 300.0
RETRY_S = 2.0
RETRY_MAX_S = 60.0
LONG_RUN_S = 600.0
"""A run of this length ends a series of short ones: the next restart is at once again."""
GRACE_S = 30.0


class Fate(msgspec.Struct, frozen=True):
    """Why the pod as a whole fails, whatever its containers do. Kept in its record."""

    reason: str
    message: str = ""
    grace_s: float | None = None
    """None: the pod's own."""


class Problem(msgspec.Struct, frozen=True):
    """Something that did not work and is tried again, slower each time."""

    reason: str
    message: str
    at: float
    times: int = 1

    @property
    def retry_at(self) -> float:
        """Images are asked for over the network; anything else costs little, and may be mended at any moment."""
        if "Image" in self.reason:
            return self.at + doubled_s(BACKOFF_S, self.times - 1, BACKOFF_MAX_S)
        return self.at + doubled_s(RETRY_S, self.times - 1, RETRY_MAX_S)


class Run(msgspec.Struct, frozen=True):
    """The latest, or the one before. `state` None: its directory is there, but nothing was begun."""

    attempt: int
    state: RunState | None = None
    message: str = ""
    """Its last words, when it has ended."""

    @property
    def exited(self) -> Exited | None:
        return self.state.exited if self.state is not None and self.state.state == "exited" else None

    @property
    def is_alive(self) -> bool:
        """Begun and not known to be over."""
        return self.state is not None and self.state.state != "exited"

    @property
    def is_running(self) -> bool:
        return self.state is not None and self.state.state == "running"

    @property
    def length_s(self) -> float:
        """How long it ran; 0 when it is not over or never ran."""
        if self.exited is None or self.state is None or self.state.started is None:
            return 0.0
        return max(0.0, self.exited.at - self.state.started.at)


class FailedProbe(msgspec.Struct, frozen=True):
    """A liveness or startup probe that has failed too often."""

    kind: Literal["liveness", "startup"]
    message: str
    grace_s: float | None = None


class Stopping(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the latest run has begun."""

    since: float
    pre_stop: Hook = ""
    signalled_at: float | None = None
    killed_at: float | None = None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One container."""

    run: Run | None = None
    previous: Run | None = None
    short_runs: int = 0
    """Runs in a row, the latest included once it has ended, that were over sooner than `LONG_RUN_S`."""
    is_removed: bool = False
    """What the latest run left behind has been taken away."""
    image: Image | None = None
    problem: Problem | None = None
    post_start: Hook = ""
    is_started: bool | None = None
    """What the startup probe says; None: nothing yet."""
    is_ready: bool | None = None
    failed_probe: FailedProbe | None = None
    stopping: Stopping | None = None

    @property
    def is_alive(self) -> bool:
        return self.run is not None and self.run.is_alive

    @property
    def exited(self) -> Exited | None:
        return self.run.exited if self.run is not None else None


class Deletion(msgspec.Struct, frozen=True):
    """The store wants the pod to go. `at` is when its grace is over, as the store has it: in whole seconds."""

    at: float
    grace_s: float


NO_FACTS = Facts()


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    spec: PodSpec
    containers: Mapping[str, Facts]
    deletion: Deletion | None = None
    is_gone: bool = False
    """The store has no such pod any more: it was deleted by force."""
    fate: Fate | None = None
    started_at: float | None = None
    """When it was accepted here."""
    has_sandbox: bool = False
    """Volumes, network and cgroup are there, and this agent knows where."""
    sandbox_problem: Problem | None = None
    disk_problem: str = ""
    """It holds more than it may; what and how much."""
    is_fenced: bool = False
    """A run of it was killed because the node had not reached the control plane for too long: it may run elsewhere now."""
    is_held: bool = False
    """The node may start nothing now: it has not reached the control plane for too long."""
    is_clean: bool = False
    """Nothing is left of it on this machine but its record and logs."""
    busy: frozenset[str] = frozenset()
    """Work under way: see `Action.work`."""

    def facts(self, name: str) -> Facts:
        return self.containers.get(name, NO_FACTS)

    @property
    def grace_s(self) -> float:
        asked = self.spec.termination_grace_period_seconds
        return GRACE_S if asked is None else float(max(asked, 1 if asked < 0 else 0))

    @property
    def is_leaving(self) -> bool:
        return self.is_gone or self.deletion is not None


# -- what to do ---------------------------------------------------------------------------------------------------------------


class Action(msgspec.Struct, frozen=True):
    @property
    def work(self) -> str:
        """Names the work in `Situation.busy`; the same work is not begun twice at a time."""
        return type(self).__name__


class Prepare(Action, frozen=True):
    """Volumes, network, cgroup."""


class Pull(Action, frozen=True):
    container: str

    @property
    def work(self) -> str:
        return f"Pull {self.container}"


class Start(Action, frozen=True):
    container: str
    attempt: int

    @property
    def work(self) -> str:
        return f"Start {self.container}"


class RunHook(Action, frozen=True):
    container: str
    attempt: int
    kind: Literal["postStart", "preStop"]
    timeout_s: float

    @property
    def work(self) -> str:
        return f"{self.kind} {self.container}"


class BeginStop(Action, frozen=True):
    """Note that the end of this run has begun, and say why."""

    container: str
    attempt: int
    why: str


class Signal(Action, frozen=True):
    container: str
    attempt: int
    signal: int


class Kill(Action, frozen=True):
    container: str
    attempt: int


class Remove(Action, frozen=True):
    """Take away what an ended run has left, except logs and records."""

    container: str
    attempt: int

    @property
    def work(self) -> str:
        return f"Remove {self.container}"


class Doom(Action, frozen=True):
    fate: Fate


class Clean(Action, frozen=True):
    """Everything of the pod but record and logs; also what is still being prepared."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Actions in order, then the status, then `delete` in the store, then `forget` what is left here."""

    actions: tuple[Action, ...] = ()
    again_s: float | None = None
    delete: bool = False
    forget: bool = False


# -- what follows from a manifest ---------------------------------------------------------------------------------------------


def is_sidecar(container: Container) -> bool:
    """For init containers."""
    return container.restart_policy == "Always"


def may_restart(spec: PodSpec, container: Container, code: int, *, is_init: bool) -> bool:
    policy = container.restart_policy or spec.restart_policy or "Always"
    if is_init and not is_sidecar(container):
        return policy != "Never" and code != 0
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def has_started(container: Container, facts: Facts) -> bool:
    """It runs, its hook is through and its startup probe has succeeded."""
    if facts.run is None or not facts.run.is_running:
        return False
    if container.lifecycle is not None and container.lifecycle.post_start is not None and facts.post_start != "done":
        return False
    return container.startup_probe is None or facts.is_started is True


def is_initialized(at: Situation) -> bool:
    """All init containers have succeeded; sidecars among them have started."""
    for container in at.spec.init_containers:
        facts = at.facts(container.name)
        if not is_through(at, container, facts):
            return False
    return True


def is_through(at: Situation, container: Container, facts: Facts) -> bool:
    """An init container that holds up nothing any more."""
    if is_sidecar(container):
        # One that is being restarted does not undo what came after it.
        return has_started(container, facts) or _has_begun(at)
    return facts.exited is not None and facts.exited.code == 0


def outcome_of(at: Situation) -> Outcome | None:
    """How the pod has ended by itself; None while something runs or may run again. Sidecars do not count."""
    for container in at.spec.init_containers:
        facts = at.facts(container.name)
        exited = facts.exited
        if is_sidecar(container) or exited is None or exited.code == 0:
            continue
        if not may_restart(at.spec, container, exited.code, is_init=True) and not _has_begun(at):
            return "Failed"
    if not at.spec.containers:
        return "Failed"
    codes = []
    for container in at.spec.containers:
        exited = at.facts(container.name).exited
        if exited is None or may_restart(at.spec, container, exited.code, is_init=False):
            return None
        codes.append(exited.code)
    return "Succeeded" if not any(codes) else "Failed"


def _has_begun(at: Situation) -> bool:
    return any(at.facts(container.name).run is not None for container in at.spec.containers)


def backoff_s(facts: Facts) -> float:
    """How long after its end a container waits for its next run: not at all, then 10 s, doubled up to 5 min."""
    if facts.short_runs <= 1:
        return 0.0
    return doubled_s(BACKOFF_S, facts.short_runs - 2, BACKOFF_MAX_S)


def stop_signal(container: Container, image: Image | None) -> int:
    """The manifest's, else the image's, else SIGTERM; names with or without SIG, or numbers."""
    asked = (container.lifecycle.stop_signal if container.lifecycle is not None else None) or ""
    text = (asked or (image.stop_signal if image is not None else "")).upper()
    if text.isdecimal() and 1 <= int(text) <= 64:
        return int(text)
    found = getattr(signal, text if text.startswith("SIG") else f"SIG{text}", None) if text else None
    return int(found) if isinstance(found, signal.Signals) else int(signal.SIGTERM)
