"""Keeps this node's NodeMetric: samples use every few seconds, reports it every minute or as the object's own policy says.

Concurrency: `run` is one task of the agent's event loop. Reports that fail are made again at the next turn; sampling goes on
meanwhile. The object's `spec` belongs to others; only its status is written here, and the object is made when there is none.

Invariants: ages and rates are by the loop's clock, which never goes back; only `updateTime` is by the wall clock.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from prometheus_client import Counter, Histogram

from muster.agent import metrics_report as report
from muster.agent.cgroups import PodCgroups
from muster.agent.config import AgentConfig
from muster.agent.contracts import AgentError, Missing
from muster.agent.host_usage import Host
from muster.agent.metrics_counters import CpuCounters, cache_missing
from muster.agent.metrics_policy import Policy, policy_of
from muster.agent.metrics_sampling import PODS_MAX, Counts, Groups, Sampler
from muster.agent.metrics_shown import USAGE
from muster.objects.resources import Resource
from muster.objects.status import AlreadyExists, ApiError, NotFound, Raw
from muster.objects.time import Clock
from muster.store.contract import Store

log = logging.getLogger(__name__)

SAMPLES = Histogram(
    "muster_agent_sample_seconds", "Time to sample the machine and all pods once.", buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2.0)
)
REPORTS = Counter("muster_agent_metric_reports", "Reports of use to the control plane, by outcome.", ["result"])
GROUP: Final = "slo.koordinator.sh"
SAID_MAX: Final = 100


class MetricKeeper:
    def __init__(
        self,
        store: Store,
        node: str,
        cgroups: Groups,
        networks: Counts,
        pods: Callable[[], Iterable[Raw]],
        *,
        clock: Clock,
        config: AgentConfig,
        host: Host | None = None,
    ) -> None:
        """`pods`: those of this node as they are in the store. `host`: with the uplink's name in it."""
        self._store = store
        self._node = node
        self._clock = clock
        self._sample_s = float(max(config.timing.metric_seconds, 1))
        self._report_s = float(max(config.timing.report_seconds, 1))
        self._host = host if host is not None else Host(config.network.uplink)
        counting = cgroups.counting_tree if isinstance(cgroups, PodCgroups) else None
        self._counters = CpuCounters(counting, sorted(os.sched_getaffinity(0)))
        self.sampler = Sampler(self._host, cgroups, networks, pods, share=config.capacity.share, counters=self._counters)
        self.policy = Policy(sample_s=self._sample_s, report_s=self._report_s)
        self.sampler.set_policy(self.policy)
        self._said: set[str] = set()

    def missing(self) -> list[Missing]:
        return [*self._host.missing(), *self._counters.missing(), *cache_missing(self._host.resctrl)]

    async def run(self) -> None:
        """Until cancelled."""
        USAGE.sampler = self.sampler
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._sample_forever(), name="metrics: sample")
                tasks.create_task(self._report_forever(), name="metrics: report")
        finally:
            USAGE.sampler = None
            self._counters.close()

    async def _sample_forever(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            began = loop.time()
            try:
                await self.sampler.sample(loop.time)
                SAMPLES.observe(loop.time() - began)
            except (OSError, ValueError, AgentError) as e:
                # A node that can't be measured for once still carries its pods.
                self._tell(f"node {self._node} could not be measured: {e}")
            if self.sampler.left_out:
                self._tell(f"node {self._node} has more than {PODS_MAX} pods; the others are not measured")
            # A turn that took longer than an interval is not made up for.
            due = max(due + self._sample_s, loop.time())
            await asyncio.sleep(due - loop.time())

    async def _report_forever(self) -> None:
        """The first report as soon as there is something to say."""
        await self._guarded(self._learn)
        await asyncio.sleep(self._sample_s * 1.5)
        while True:
            await self._guarded(self.report)
            await asyncio.sleep(self.policy.report_s)

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """What the control plane refuses, or can't be reached for, is told once and tried again at the next turn."""
        try:
            await work()
        except ApiError as e:
            REPORTS.labels("failed").inc()
            self._tell(f"the use of node {self._node} could not be reported: {e}")

    # -- the control plane ---------------------------------------------------------------------------------------------------

    async def report(self) -> None:
        """Write what was measured. ApiError."""
        await self._learn_applications()
        ticks = asyncio.get_running_loop().time()
        status = report.status(self.sampler, self.policy, ticks, self._clock())
        if status is None:
            return
        resource = await self._store.resource(GROUP, "NodeMetric")
        try:
            written = await self._store.patch(resource, self._node, {"status": status}, subresource="status")
        except NotFound:
            await self._create(resource)
            written = await self._store.patch(resource, self._node, {"status": status}, subresource="status")
        self._follow(written)
        REPORTS.labels("written").inc()

    async def _learn(self) -> None:
        """The policy, before the first report. The object is made when there is none."""
        resource = await self._store.resource(GROUP, "NodeMetric")
        try:
            found = await self._store.get(resource, self._node)
        except NotFound:
            found = await self._create(resource)
        self._follow(found)

    async def _create(self, resource: Resource) -> Raw:
        wanted = {"apiVersion": resource.api_version, "kind": "NodeMetric", "metadata": {"name": self._node}, "spec": {}}
        try:
            return await self._store.create(resource, wanted)
        except AlreadyExists:
            return await self._store.get(resource, self._node)

    def _follow(self, found: Raw) -> None:
        policy = policy_of(found.get("spec"), self._sample_s, self._report_s)
        for problem in policy.problems:
            self._tell(f"NodeMetric {self._node}: {problem}")
        if policy != self.policy:
            self.policy = policy
            self.sampler.set_policy(policy)

    async def _learn_applications(self) -> None:
        """From the NodeSLO of this node. Without one there are none."""
        try:
            found = await self._store.get(await self._store.resource(GROUP, "NodeSLO"), self._node)
        except NotFound:
            self.sampler.set_applications(())
            return
        listed, problems = report.applications(found.get("spec"))
        for problem in problems:
            self._tell(f"NodeSLO {self._node}: {problem}")
        self.sampler.set_applications(listed)

    def _tell(self, text: str) -> None:
        """Once, not every minute."""
        if len(self._said) > SAID_MAX:
            self._said.clear()
        if text not in self._said:
            self._said.add(text)
            log.warning("%s", text)
