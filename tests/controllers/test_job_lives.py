"""Any interleaving of events around a Job (muster.dev), against a model of the store: what never happens, and where it ends.

`MUSTER_SOAK=1` tries more of them.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.controllers.test_job_plan import NOW, decide, exited, flat, job, planned

from muster.controllers.actions import Action, Create, Delete, Emit, Expect, PatchStatus
from muster.controllers.job_plan import ACTIVE, ENDED
from muster.objects.patch.merge import apply_merge_patch as merge_patch
from muster.objects.status import Raw
from muster.objects.time import format_time

LAGS = st.sampled_from([0, 0, 0, 1, 2, 5])


class Life(RuleBasedStateMachine):
    """A store with one job, an agent, a scheduler, bystanders who delete pods, an owner who changes his mind, and a controller
    that sees jobs and pods late, each on its own, and may die after any write."""

    @initialize(
        replicas=st.integers(1, 3),
        least=st.integers(1, 3),
        limit=st.integers(0, 2),
        has_service=st.booleans(),
        deadline=st.sampled_from([None, 30]),
    )
    def begin(self, replicas: int, least: int, limit: int, has_service: bool, deadline: int | None) -> None:
        roles: list[Raw] = [{"name": "w", "replicas": replicas, "minReplicas": min(least, replicas), "command": ["x"]}]
        if has_service:
            roles.append({"name": "ps", "command": ["y"], "completion": "Service"})
        more: Raw = {"activeDeadlineSeconds": deadline} if deadline else {}
        self.job = job(roles=roles, retry={"limit": limit, "backoffSeconds": 2, "backoffSecondsMax": 4}, **more)
        self.pods: dict[str, Raw] = {}
        self.made = 0
        self.now = NOW
        self.version = 1
        self.jobs_seen = [copy.deepcopy(self.job)]
        self.pods_seen: list[dict[str, Raw]] = [{}]
        self.job_view = self.pods_view = 0
        self.started: dict[tuple[str, str], str] = {}
        self.excused: set[str] = set()
        self.stuck: set[str] = set()
        self.was_final = ""
        self.is_final = False

    # the store

    def _changed(self) -> None:
        self.version += 1
        self.pods_seen.append(copy.deepcopy(self.pods))

    def _write_job(self, change: Raw, part: str) -> None:
        after = merge_patch(self.job[part], change)
        if after == self.job[part]:
            return
        self.version += 1
        self.job = {**self.job, part: after}
        self.job["metadata"] = {**self.job["metadata"], "resourceVersion": str(self.version)}
        if part == "spec":
            self.job["metadata"]["generation"] += 1
        self.jobs_seen.append(copy.deepcopy(self.job))

    def _phase(self) -> str:
        return str(self.job["status"].get("phase", ""))

    def _carry_out(self, actions: list[Action], writes_max: int) -> None:
        for action in actions:
            if isinstance(action, Emit):
                continue
            if writes_max <= 0:
                return
            writes_max -= 1
            present = self.job["metadata"]["resourceVersion"]
            if isinstance(action, PatchStatus | Expect) and action.target.resource_version != present:
                return  # Conflict: the list ends
            if isinstance(action, PatchStatus):
                if "attempts" in action.status:
                    assert action.status["attempts"] == self.job["status"].get("attempts", 0) + 1
                self._write_job(action.status, "status")
            elif isinstance(action, Create) and action.object["kind"] == "Pod":
                self._create(action.object)
            elif isinstance(action, Delete):
                self._delete(action.target.name, action.target.uid)

    def _create(self, new: Raw) -> None:
        name = new["metadata"]["name"]
        if name in self.pods:
            return
        attempt = int(new["metadata"]["annotations"]["muster.dev/attempt"])
        assert self._phase() == "Queued", f"{name} is made in phase {self._phase()}"
        assert attempt == self.job["status"]["attempts"], f"{name} is made for attempt {attempt}"
        assert all(other["metadata"]["annotations"]["muster.dev/attempt"] == str(attempt) for other in self.pods.values())
        self.made += 1
        new = copy.deepcopy(new)
        new["metadata"]["uid"] = f"p{self.made}"
        self.pods[name] = {**new, "status": {"phase": "Pending"}}
        self._changed()

    def _delete(self, name: str, uid: str) -> None:
        found = self.pods.get(name)
        if found is None or found["metadata"]["uid"] != uid:
            return
        if not found["spec"].get("nodeName") or found["status"]["phase"] in ("Succeeded", "Failed"):
            del self.pods[name]
        else:
            found["metadata"]["deletionTimestamp"] = format_time(self.now)
        self._changed()

    def _pick(self, number: int, fits: Callable[[Raw], bool]) -> Raw | None:
        found = [one for one in self.pods.values() if fits(one)]
        return found[number % len(found)] if found else None

    # who else acts

    @rule(count=st.integers(1, 4))
    def scheduler_binds(self, count: int) -> None:
        for found in list(self.pods.values()):
            if not found["spec"].get("nodeName") and count > 0:
                count -= 1
                found["spec"]["nodeName"] = "n1"
                self._changed()

    @rule(number=st.integers(0, 5))
    def agent_starts(self, number: int) -> None:
        def fits(one: Raw) -> bool:
            is_waiting = bool(one["spec"].get("nodeName")) and one["status"]["phase"] == "Pending"
            return is_waiting and not one["metadata"].get("deletionTimestamp")

        if found := self._pick(number, fits):
            key = (found["metadata"]["name"], found["metadata"]["annotations"]["muster.dev/attempt"])
            before = self.started.get(key)
            assert before is None or before in self.excused, f"{key} is started a second time, and nobody deleted the first"
            self.started[key] = found["metadata"]["uid"]
            found["status"]["phase"] = "Running"
            self._changed()

    @rule(number=st.integers(0, 5), succeeds=st.sampled_from([True, True, False]))
    def a_process_ends(self, number: int, succeeds: bool) -> None:
        if found := self._pick(number, lambda one: one["status"]["phase"] == "Running"):
            found["status"] = {"phase": "Succeeded"} if succeeds else {"phase": "Failed", **exited(1)}
            self._changed()

    @rule(number=st.integers(0, 5))
    def a_deleted_pod_is_gone(self, number: int) -> None:
        if found := self._pick(number, lambda one: bool(one["metadata"].get("deletionTimestamp"))):
            del self.pods[found["metadata"]["name"]]
            self._changed()

    @rule(number=st.integers(0, 5))
    def a_bystander_deletes(self, number: int) -> None:
        if found := self._pick(number, lambda one: True):
            self.excused.add(found["metadata"]["uid"])
            self._delete(found["metadata"]["name"], found["metadata"]["uid"])

    @rule()
    def somebody_sweeps(self) -> None:
        for found in list(self.pods.values()):
            self.excused.add(found["metadata"]["uid"])
            self._delete(found["metadata"]["name"], found["metadata"]["uid"])
            self.pods.pop(found["metadata"]["name"], None)
        self._changed()

    @rule(state=st.sampled_from(["Running", "Running", "Running", "Suspended", "Suspended", "Stopped", "Stopped", "Cancelled"]))
    def the_owner_says(self, state: str) -> None:
        if self.job["spec"].get("state") != "Cancelled":
            self._write_job({"state": state}, "spec")

    @rule(seconds=st.sampled_from([1, 5, 40]))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    # the controller

    def _hear(self, job_lag: int, pods_lag: int) -> None:
        """News come late, each kind on its own, and never backwards."""
        if "jobs" not in self.stuck:
            self.job_view = max(self.job_view, len(self.jobs_seen) - 1 - job_lag)
        if "pods" not in self.stuck:
            self.pods_view = max(self.pods_view, len(self.pods_seen) - 1 - pods_lag)

    @rule(kinds=st.sampled_from([{"jobs"}, {"pods"}, set(), set()]))
    def watches_stand_still(self, kinds: set[str]) -> None:
        self.stuck = kinds

    @rule(lag=st.integers(0, 8))
    def controller_restarts(self, lag: int) -> None:
        """The first list of pods may come from a replica that is behind, even behind what was seen before."""
        self.stuck = set()
        self.job_view = len(self.jobs_seen) - 1
        self.pods_view = max(0, len(self.pods_seen) - 1 - lag)
        self._act(99)

    @rule(job_lag=LAGS, pods_lag=LAGS, writes_max=st.sampled_from([99, 99, 99, 0, 1, 2, 3]))
    def controller_acts(self, job_lag: int, pods_lag: int, writes_max: int) -> None:
        self._hear(job_lag, pods_lag)
        self._act(writes_max)

    @rule()
    def controller_is_quick(self) -> None:
        for _ in range(3):
            self._hear(0, 0)
            self._act(99)

    @rule()
    def controller_acts_on_what_it_knows(self) -> None:
        self._act(99)

    def _act(self, writes_max: int) -> bool:
        """Whether there was something to do."""
        raw = copy.deepcopy(self.jobs_seen[self.job_view])
        found = decide(raw, *self.pods_seen[self.pods_view].values(), now=self.now, is_fresh=False)
        if found is None:
            found = planned(raw, *self.pods.values(), now=self.now)
        actions = flat(list(found.actions))
        self._carry_out(actions, writes_max)
        return bool(actions)

    # what must hold

    @precondition(lambda self: hasattr(self, "job"))
    @invariant()
    def an_end_is_an_end(self) -> None:
        status = self.job["status"]
        final = self._phase() if self._phase() in ENDED and status.get("reason") != "Stopped" else ""
        assert not self.was_final or final == self.was_final, f"{self.was_final} became {self._phase()}"
        self.was_final = final

    def teardown(self) -> None:
        """Everybody does what is to be done: the job comes to the phase that its spec demands, and to rest."""
        if not hasattr(self, "job"):
            return
        self.stuck = set()
        for _ in range(400):
            self._hear(0, 0)
            is_busy = self._act(99)
            for name, found in list(self.pods.items()):
                if found["metadata"].get("deletionTimestamp"):
                    del self.pods[name]
                    self._changed()
                elif not found["spec"].get("nodeName"):
                    self.scheduler_binds(9)
                elif found["status"]["phase"] == "Pending":
                    self.agent_starts(0)
                elif found["status"]["phase"] == "Running" and "-ps-" not in name:
                    found["status"] = {"phase": "Succeeded"}
                    self._changed()
            self.an_end_is_an_end()
            self.now += 1
            is_settled = self.pods_view == len(self.pods_seen) - 1 and self.job_view == len(self.jobs_seen) - 1
            if not is_busy and is_settled and self._phase() not in ACTIVE:
                break
        else:
            raise AssertionError(f"no rest: {self.job['status']}")
        wanted = {"Suspended": ("Suspended", *ENDED), "Running": ENDED, "Stopped": ENDED, "Cancelled": ENDED}
        state = self.job["spec"].get("state", "Running")
        assert self._phase() in wanted[state], f"{state} ended in {self._phase()}"
        if state == "Running":
            assert self.job["status"]["reason"] != "Stopped"
        assert self.job["status"].get("preemptions", 0) <= len(self.excused), "gave way though nobody touched a pod"
        assert self.job["status"]["observedGeneration"] == self.job["metadata"]["generation"]
        left = [name for name, found in self.pods.items() if found["status"]["phase"] in ("Pending", "Running")]
        assert not left, f"{left} still wait or run"


Life.TestCase.settings = settings(
    max_examples=1_000 if os.environ.get("MUSTER_SOAK") else 120, stateful_step_count=60, deadline=None
)
TestLife = Life.TestCase


def test_a_late_reader_revives_nothing() -> None:
    """The cache of jobs stands still while an attempt fails, its pods go, and the controller looks again at what it knows."""
    life = Life()
    life.begin(replicas=1, least=1, limit=2, has_service=False, deadline=None)
    for _ in range(2):  # until it has nothing more to write
        life.controller_is_quick()
    life.watches_stand_still({"jobs"})
    life.scheduler_binds(1)
    life.agent_starts(0)
    life.a_process_ends(0, succeeds=False)
    life.controller_acts(0, 0, 99)
    assert life.job["status"]["attempts"] == 2
    life.somebody_sweeps()
    life.controller_acts(0, 0, 99)
    assert not life.pods, "the first attempt is over, whatever the cache says"
    life.teardown()
    assert life.job["status"]["phase"] == "Succeeded"
