"""KusciaJobs for tests: builders, and a little store for one job, on which plans are carried out action by action.

`JobStore` keeps to the rules of the real one that plans rely on: versions, uids, names, owners, and deletions that take their
time. Its KusciaTasks are moved by the test, which stands for the task controller.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

from muster.controllers.actions import Action, Create, Delete, Emit, Patch, PatchStatus, Target, Together
from muster.controllers.kuscia_job_plan import plan
from muster.controllers.kuscia_job_tasks import Facts, TaskView
from muster.controllers.runtime import Plan
from muster.objects.kinds.kuscia_jobs import KusciaJob
from muster.objects.labels import KusciaLabel, Muster
from muster.objects.patch.merge import apply_merge_patch
from muster.objects.status import Raw
from muster.objects.time import parse_time
from muster.objects.view import view_of

NOW = parse_time("2026-01-05T08:00:00Z")
VERSION = "kuscia.secretflow/v1alpha1"


def image(name: str = "app", containers: Sequence[str] = ("main",), replicas: int | None = 1, **template: Any) -> Raw:
    made: Raw = {"name": "any", "spec": {"containers": [{"name": c} for c in containers]}, **template}
    if replicas is not None:
        made["replicas"] = replicas
    spec = {"image": {"name": name, "tag": "1"}, "deployTemplates": [made]}
    return {"apiVersion": VERSION, "kind": "AppImage", "metadata": {"name": name}, "spec": spec}


def task(alias: str, *dependencies: str, parties: Sequence[str] = ("alice",), **fields: Any) -> Raw:
    made: Raw = {
        "alias": alias,
        "appImage": "app",
        "taskInputConfig": "{}",
        "parties": [{"domainID": party} for party in parties],
        **fields,
    }
    return {**made, "dependencies": list(dependencies)} if dependencies else made


def job(*tasks: Raw, name: str = "job", labels: dict[str, str] | None = None, **spec: Any) -> Raw:
    return {
        "apiVersion": VERSION,
        "kind": "KusciaJob",
        "metadata": {"name": name, "namespace": "cross-domain", "labels": labels or {}},
        "spec": {"initiator": "alice", "tasks": list(tasks), "maxParallelism": 1, "scheduleMode": "Strict", **spec},
    }


def stage(word: str, version: int | str | None = None, trigger: str = "alice") -> dict[str, str]:
    labels = {KusciaLabel.JOB_STAGE: word, KusciaLabel.JOB_STAGE_TRIGGER: trigger}
    return labels if version is None else labels | {KusciaLabel.JOB_STAGE_VERSION: str(version)}


FACTS = Facts(parties={"alice": False, "bob": False, "carol": False}, images={"app": image()})

PARTNER = Facts(parties={"alice": False, "bob": True}, images={"app": image()})


class Stale(Exception):
    """A write named a version that is no longer the present one."""


class JobStore:
    """One job and its tasks."""

    def __init__(self, raw: Raw, facts: Facts = FACTS, now: float = NOW) -> None:
        self.job = copy.deepcopy(raw)
        self.job["metadata"] |= {"uid": "job-uid", "resourceVersion": "1"}
        self.job.setdefault("status", {})
        self.tasks: dict[str, Raw] = {}
        self.facts = facts
        self.now = now
        self.events: list[Emit] = []
        self.created: list[tuple[str, str]] = []
        """Name and run of every KusciaTask that was really made, in order."""
        self.writes = 0
        self.holds_deletes = False
        """Deleted tasks stay, marked, until `finish_deletes`: as with a finalizer."""
        self._version = 1

    # -- reading -----------------------------------------------------------------------------------------------------------

    @property
    def status(self) -> Raw:
        found: Raw = self.job["status"]
        return found

    @property
    def phase(self) -> str:
        return str(self.status.get("phase", ""))

    def phases(self) -> dict[str, str]:
        return {record["alias"]: record["phase"] for record in self.status.get("tasks", ())}

    def record(self, alias: str) -> Raw:
        return next(record for record in self.status["tasks"] if record["alias"] == alias)

    def condition(self, type_: str) -> Raw:
        return next((c for c in self.status.get("conditions", ()) if c["type"] == type_), {})

    def name_of(self, alias: str) -> str:
        return str(self.record(alias)["taskID"])

    def under_way(self) -> list[str]:
        return [name for name, raw in self.tasks.items() if raw["status"].get("phase") not in ("Succeeded", "Failed")]

    def snapshot(self) -> tuple[Raw, dict[str, Raw]]:
        return copy.deepcopy(self.job), copy.deepcopy(self.tasks)

    # -- planning ----------------------------------------------------------------------------------------------------------

    def plan(self, seen: tuple[Raw, dict[str, Raw]] | None = None) -> Plan:
        """From what is there, or from an older state that a cache may still show."""
        raw, tasks = seen or (self.job, self.tasks)
        return plan(view_of(KusciaJob, raw), [view_of(TaskView, t) for t in tasks.values()], self.facts, self.now)

    def settle(self, rounds_max: int = 20) -> None:
        """Plan and act until there is nothing to do."""
        for _ in range(rounds_max):
            actions = self.plan().actions
            if not actions:
                return
            self.apply(actions)
        raise AssertionError(f"still not settled: {self.plan().actions}")

    def apply(self, actions: Iterable[Action], crash_after: int | None = None) -> None:
        """Up to that many writes; the rest is lost, as in a crash."""
        left = crash_after
        for action in _flat(actions):
            if left == 0:
                return
            left = None if left is None else left - 1
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Emit():
                self.events.append(action)
            case PatchStatus(target=target, status=status):
                self._patch(target, {"status": status})
            case Patch(target=target, patch=patch):
                self._patch(target, patch)
            case Create(object=raw):
                self._create(raw)
            case Delete(target=target):
                self._delete(target)
            case _:
                raise AssertionError(action)

    def _patch(self, target: Target, patch: Raw) -> None:
        raw = self.job if target.kind == "KusciaJob" else self.tasks.get(target.name)
        if raw is None or raw["metadata"]["uid"] != target.uid:
            return
        if target.resource_version and raw["metadata"]["resourceVersion"] != target.resource_version:
            raise Stale(target)
        changed = apply_merge_patch(raw, patch)
        assert isinstance(changed, dict)
        self._put(raw, changed)

    def _put(self, raw: Raw, changed: Raw) -> None:
        if changed != raw:
            self.writes += 1
            self._version += 1
            raw.clear()
            raw.update(changed)
            raw["metadata"]["resourceVersion"] = str(self._version)

    def _create(self, raw: Raw) -> None:
        name = raw["metadata"]["name"]
        if name in self.tasks:
            return
        self._version += 1
        self.writes += 1
        made = copy.deepcopy(raw)
        made["metadata"] |= {"uid": f"uid-{self._version}", "resourceVersion": str(self._version)}
        made["status"] = {}
        self.tasks[name] = made
        self.created.append((name, made["metadata"]["annotations"][Muster.RUN]))

    def _delete(self, target: Target) -> None:
        found = self.tasks.get(target.name)
        if found is None or found["metadata"]["uid"] != target.uid:
            return
        self.writes += 1
        if self.holds_deletes:
            found["metadata"]["deletionTimestamp"] = "2026-01-05T08:00:00Z"
        else:
            del self.tasks[target.name]

    # -- what others do ----------------------------------------------------------------------------------------------------

    def finish_deletes(self) -> None:
        self.tasks = {name: raw for name, raw in self.tasks.items() if "deletionTimestamp" not in raw["metadata"]}

    def move(self, name: str, phase: str, **status: Any) -> None:
        """A KusciaTask as its controller moves it; what has ended stays."""
        raw = self.tasks[name]
        if raw["status"].get("phase") not in ("Succeeded", "Failed"):
            raw["status"] = {**raw["status"], "phase": phase, **status}

    def end(self, alias: str, phase: str = "Succeeded", **status: Any) -> None:
        self.move(self.name_of(alias), phase, **status)
        self.settle()

    def obey_stops(self) -> None:
        """End what was told to stop."""
        for name, raw in self.tasks.items():
            code = raw["metadata"]["annotations"].get(Muster.STOP)
            if code:
                self.move(name, "Failed", reason="KusciaJobStopped" if code == "Stopped" else code)

    def command(self, word: str, version: int | str | None = None, **annotations: str) -> None:
        """Give a stage command; the next version unless one is given."""
        labels = self.job["metadata"]["labels"]
        if version is None:
            version = int(labels.get(KusciaLabel.JOB_STAGE_VERSION, 0)) + 1
        changed = copy.deepcopy(self.job)
        changed["metadata"]["labels"] = labels | stage(word, version)
        if annotations:
            changed["metadata"].setdefault("annotations", {}).update(annotations)
        self._put(self.job, changed)

    def approve(self, party: str, answer: str) -> None:
        changed = copy.deepcopy(self.job)
        changed["status"].setdefault("approveStatus", {})[party] = answer
        self._put(self.job, changed)


def _flat(actions: Iterable[Action]) -> Iterable[Action]:
    for action in actions:
        if isinstance(action, Together):
            yield from action.actions
        else:
            yield action


def running(*tasks: Raw, facts: Facts = FACTS, **spec: Any) -> JobStore:
    store = JobStore(job(*tasks, **spec), facts)
    store.settle()
    assert store.phase == "Running"
    return store
