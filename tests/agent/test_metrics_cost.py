"""What measuring costs: CPU time of sampling and reporting 100 pods. Prints it (`pytest -s`); asserts no time."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pytest

from muster.agent.cgroups import PodCgroups, open_cgroups
from muster.agent.config import AgentConfig
from muster.agent.contracts import Limits, Traffic
from muster.agent.host_usage import Host
from muster.agent.metrics import MetricKeeper
from muster.objects.status import Raw
from muster.objects.time import wall_clock
from muster.store.embedded import EmbeddedStore
from tests.waiting import blocked_until

PODS = 100
ROUNDS = 20


@pytest.fixture
def cgroups() -> Iterator[PodCgroups]:
    opened = open_cgroups(uuid.uuid4().hex[:8])
    if any(m.feature == "cgroups" for m in opened.missing()):
        pytest.skip(f"cgroups of this machine: {opened.missing()[0]}")
    yield opened
    blocked_until(lambda: opened.teardown() == [])
    assert opened.list() == set()


class Counted:
    def __init__(self, uids: Sequence[str]) -> None:
        self._uids = uids

    def traffic_of_all(self) -> Mapping[str, Traffic]:
        return dict.fromkeys(self._uids, Traffic(time.monotonic_ns() // 1000, time.monotonic_ns() // 2000))


def raw_pod(uid: str) -> Raw:
    return {"metadata": {"uid": uid, "name": f"pod-{uid}", "namespace": "ns"}, "spec": {"containers": [{}]}}


@pytest.mark.slow
async def test_cost_of_a_hundred_pods(cgroups: PodCgroups, capsys: pytest.CaptureFixture[str]) -> None:
    uids = [str(uuid.uuid4()) for _ in range(PODS)]
    began = time.perf_counter()
    for uid in uids:
        cgroups.create_pod(uid, Limits(cpu_request_milli=100, memory_limit_bytes=1 << 30))
        cgroups.create_container(uid, "main", Limits(cpu_request_milli=100, cpu_limit_milli=500, memory_limit_bytes=1 << 30))
    made_s = time.perf_counter() - began
    config = AgentConfig()
    store = await EmbeddedStore.open(None, clock=wall_clock)
    try:
        pods = [raw_pod(uid) for uid in uids]
        keeper = MetricKeeper(
            store, "n1", cgroups, Counted(uids), lambda: pods, clock=wall_clock, config=config, host=Host("lo")
        )
        await keeper.sampler.sample(asyncio.get_running_loop().time)
        sample_s = time.process_time()
        for _ in range(ROUNDS):
            await keeper.sampler.sample(asyncio.get_running_loop().time)
        sample_s = (time.process_time() - sample_s) / ROUNDS
        report_s = time.process_time()
        for _ in range(ROUNDS):
            await keeper.report()
        report_s = (time.process_time() - report_s) / ROUNDS
        found = await store.get(await store.resource("slo.koordinator.sh", "NodeMetric"), "n1")
    finally:
        await store.close()
    assert len(found["status"]["podsMetric"]) == PODS
    share = sample_s / config.timing.metric_seconds + report_s / config.timing.report_seconds
    with capsys.disabled():
        print(
            f"\n{PODS} pods: sample {sample_s * 1e3:.1f} ms every {config.timing.metric_seconds} s, "
            f"report {report_s * 1e3:.1f} ms every {config.timing.report_seconds} s (store included), "
            f"{len(msgspec.json.encode(found)) / 1024:.0f} KiB: {share * 100:.2f} % of one core; "
            f"groups made in {made_s / PODS * 1e3:.2f} ms a pod"
        )
