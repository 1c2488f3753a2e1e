"""Pods as runs: when each began to hold its resources and when it gave them back. Pure.

A run begins when its node's agent took the pod up (`status.startTime`) and ends when its last container ended (`finishedAt`),
as the agent says. A pod that is gone, or was deleted by force, without a word from its agent ran until that was seen: nobody
knows better, and nothing is lost. A pod that never started used nothing.
"""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

import json
from typing import Any, Final

import msgspec
from msgspec import field

from muster.engine.facts import Meta, PodFacts
from muster.engine.resources import requests_of
from muster.engine.work import Work, work_of
from muster.objects.amounts import EGRESS, INGRESS
from muster.objects.kinds.muster_usage import RunRecord
from muster.objects.labels import Muster
from muster.objects.time import time_or
from muster.quota.ledger import Run

COUNTED_MAX: Final = 64
"""Resources of one pod that are noted."""


class RunMeta(Meta):
    finalizers: list[str] = []


class RunPod(PodFacts):
    """What the ledger reads of a pod."""

    metadata: RunMeta = field(default_factory=RunMeta)


class PodRun(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of a user or queue, as the ledger sees it."""

    namespace: str
    name: str
    uid: str
    work: Work
    amounts: dict[str, int]
    start_ms: int | None
    """None before it has started."""
    end_ms: int | None
    """As its agent says; None while it goes on, or when nobody said."""
    is_over: bool
    """It holds nothing any more."""
    is_noted: bool
    has_finalizer: bool
    is_deleting: bool
    node: str
    finalizers: tuple[str, ...] = ()
    version: str = ""
    moved: dict[str, int] = {}

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def unit(self) -> str:
        """What it is part of: pods of one job are one job."""
        return self.work.job or f"Pod/{self.key}"

    def run(self, group: str, now_ms: int) -> Run | None:
        """The run, of a user in that group; with its end when it is over. None when it never began."""
        if self.start_ms is None:
            return None
        end = None
        if self.is_over:
            end = max(self.end_ms if self.end_ms is not None else now_ms, self.start_ms)
        return Run(
            key=self.uid,
            user=self.work.user,
            group=group,
            queue=self.work.queue,
            work=self.unit,
            amounts=self.amounts,
            start_ms=self.start_ms,
            end_ms=end,
            moved=self.moved,
        )


class DefaultQueue(msgspec.Struct, frozen=True):
    """Where work counts that names no queue."""

    name: str = ""
    counts_all: bool = False
    """It, or a queue above it, has a consumption limit: jobs of nobody count too. Otherwise they cost nothing to anybody."""


NO_DEFAULT: Final = DefaultQueue()


def pod_run(pod: RunPod, version: str = "", default: DefaultQueue = NO_DEFAULT) -> PodRun | None:
    """None for a pod of no user and no queue: the ledger has nothing to do with it."""
    work = work_of(pod)
    if not work.queue and default.name and (work.user or work.group or (work.job and default.counts_all)):
        work = msgspec.structs.replace(work, queue=default.name)
    if not (work.user or work.queue or work.group):
        return None
    meta, status = pod.metadata, pod.status
    is_forced = bool(meta.deletion_timestamp) and not meta.deletion_grace_period_seconds
    start = time_or(status.start_time, None)
    amounts = requests_of(pod).amounts
    return PodRun(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        work=work,
        amounts=dict(list(amounts.items())[:COUNTED_MAX]),
        start_ms=None if start is None else round(start * 1000),
        end_ms=None if pod.ended is None else round(pod.ended * 1000),
        is_over=pod.is_finished or is_forced,
        is_noted=meta.annotations.get(Muster.ACCOUNTED) == "true",
        has_finalizer=Muster.LEDGER_FINALIZER in meta.finalizers,
        is_deleting=bool(meta.deletion_timestamp),
        node=pod.spec.node_name,
        finalizers=tuple(meta.finalizers),
        version=version,
        moved=_moved(meta.annotations.get(Muster.TRAFFIC, "")),
    )


def _moved(text: str) -> dict[str, int]:
    """Bytes at the pod's interface, where its agent measured them."""
    try:
        said: Any = json.loads(text) if text else {}
    except ValueError:
        return {}
    if not isinstance(said, dict):
        return {}
    found = {EGRESS: said.get("sentBytes"), INGRESS: said.get("receivedBytes")}
    return {
        name: amount
        for name, amount in found.items()
        if isinstance(amount, int) and not isinstance(amount, bool) and amount >= 0
    }


def record_of(run: Run, pod: str) -> RunRecord:
    assert run.end_ms is not None
    return RunRecord(
        uid=run.key,
        pod=pod,
        work=run.work,
        user=run.user,
        group=run.group,
        queue=run.queue,
        start_ms=run.start_ms,
        end_ms=run.end_ms,
        amounts=dict(run.amounts),
        moved=dict(run.moved),
    )


def run_of(record: RunRecord) -> Run:
    return Run(
        key=record.uid,
        user=record.user,
        group=record.group,
        queue=record.queue,
        work=record.work,
        amounts={name: amount for name, amount in record.amounts.items() if amount > 0},
        start_ms=record.start_ms,
        end_ms=max(record.end_ms, record.start_ms),
        moved={name: amount for name, amount in record.moved.items() if amount >= 0},
    )
