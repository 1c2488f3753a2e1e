"""NodeMetric from what is measured: under a virtual clock with a machine of plain files, and for real."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY

from muster.agent.cgroups import PodCgroups, open_cgroups
from muster.agent.config import AgentConfig, Capacity, Timing
from muster.agent.contracts import CgroupUsage, Limits, Traffic
from muster.agent.host_usage import Host
from muster.agent.metrics import MetricKeeper
from muster.agent.metrics_report import applications
from muster.agent.metrics_sampling import Application
from muster.bench.kubernetes import ControlPlane
from muster.client import ApiClient
from muster.engine.facts import NodeMetricFacts
from muster.engine.plugins.bandwidth_reclaim import measured
from muster.engine.plugins.load_report import Report
from muster.objects.status import NotFound, Raw, ServiceUnavailable
from muster.objects.time import wall_clock
from muster.sim.clock import current_loop, virtual
from muster.store.contract import Store
from muster.store.embedded import EmbeddedStore
from muster.store.kubernetes import KubernetesStore
from tests.controllers.kinds import serve_kinds
from tests.store.stores import BreakableStore, memory_store
from tests.waiting import blocked_until

MIB = 1 << 20


class Machine:
    """A machine of plain files, and groups and interfaces that count as they are told to. CPU in thousandths of a core."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cpu_milli = 1000.0
        self.pods_milli: dict[str, float] = {}
        self.pods_bps: dict[str, tuple[float, float]] = {}
        self.groups_milli: dict[str, float] = {}
        self.memory_bytes = 64 * MIB
        self.offset: dict[str, int] = {}
        """Added to the counters of a group: below zero, it was made anew."""
        (root / "proc").mkdir()
        (root / "proc/meminfo").write_text(
            f"MemTotal: {1000 * 1024} kB\nMemFree: {300 * 1024} kB\nMemAvailable: {600 * 1024} kB\n"
        )
        (root / "sys/class/net/up0/statistics").mkdir(parents=True)
        self.host = _TimedHost(self)

    def usage(self, uid: str, container: str | None = None) -> CgroupUsage | None:
        return self._of(uid, self.pods_milli.get(uid))

    def usage_at(self, group: str) -> CgroupUsage | None:
        return self._of(group, self.groups_milli.get(group))

    def pod_path(self, uid: str) -> str:
        return f"muster-mine/pod{uid}"

    def agents(self) -> Sequence[str]:
        return [name for name in self.groups_milli if name.startswith("muster-")]

    def traffic_of_all(self) -> Mapping[str, Traffic]:
        now = current_loop().time()
        return {uid: Traffic(int(sent / 8 * now), int(received / 8 * now)) for uid, (sent, received) in self.pods_bps.items()}

    def pods(self) -> list[Raw]:
        return [raw_pod(uid) for uid in self.pods_milli]

    def _of(self, name: str, milli: float | None) -> CgroupUsage | None:
        if milli is None:
            return None
        cpu_ns = int(milli * 1e6 * current_loop().time()) + self.offset.get(name, 0)
        return CgroupUsage(
            cpu_ns=max(cpu_ns, 0),
            memory_bytes=self.memory_bytes,
            memory_with_cache_bytes=2 * self.memory_bytes,
            pids=1,
            pressure={"cpu": 2.5},
        )


class _TimedHost(Host):
    """Writes the files as the kernel would have them now, before they are read."""

    def __init__(self, machine: Machine) -> None:
        super().__init__("up0", machine.root / "proc", machine.root / "sys")
        self.machine = machine

    def read(self) -> Any:
        now = current_loop().time()
        ticks = int(self.machine.cpu_milli / 1000 * 100 * now)
        (self.machine.root / "proc/stat").write_text(f"cpu {ticks} 0 0 9 9 0 0 0 0 0\n")
        for file, bps in (("tx_bytes", 8_000_000), ("rx_bytes", 4_000_000)):
            (self.machine.root / "sys/class/net/up0/statistics" / file).write_text(str(int(bps / 8 * now)))
        return super().read()


def raw_pod(uid: str) -> Raw:
    labels = {"koordinator.sh/qosClass": "LS"}
    return {
        "metadata": {"uid": uid, "name": f"pod-{uid}", "namespace": "ns", "labels": labels},
        "spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]},
    }


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@contextlib.asynccontextmanager
async def running(
    store: Any, machine: Machine, config: AgentConfig | None = None, clock: Callable[[], float] | None = None
) -> AsyncIterator[MetricKeeper]:
    keeper = MetricKeeper(
        store,
        "n1",
        machine,
        machine,
        machine.pods,
        clock=clock or current_loop().clock,
        config=config or AgentConfig(timing=Timing(metric_seconds=15)),
        host=machine.host,
    )
    task = asyncio.create_task(keeper.run())
    try:
        yield keeper
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def metric(store: Store) -> Raw:
    return await store.get(await store.resource("slo.koordinator.sh", "NodeMetric"), "n1")


def node_resources(found: Raw, kind: str = "nodeUsage") -> dict[str, str]:
    resources: dict[str, str] = found["status"]["nodeMetric"][kind]["resources"]
    return resources


@virtual
async def test_a_node_and_its_pods(machine: Machine) -> None:
    machine.cpu_milli = 1500
    machine.pods_milli = {"a": 500, "b": 250}
    machine.pods_bps = {"a": (1_000_000, 500_000)}
    async with memory_store() as store, running(store, machine):
        await asyncio.sleep(400)
        found = await metric(store)
    assert node_resources(found) == {
        "cpu": "1500m",
        "memory": str(400 * MIB),
        "bandwidth-egress": "8000000",
        "bandwidth-ingress": "4000000",
    }
    assert node_resources(found, "systemUsage") == {
        "cpu": "750m",
        "memory": str(272 * MIB),
        "bandwidth-egress": "7000000",
        "bandwidth-ingress": "3500000",
    }
    first, second = found["status"]["podsMetric"]
    assert (first["namespace"], first["name"], first["priority"], first["qos"]) == ("ns", "pod-a", "koord-prod", "LS")
    assert first["podUsage"]["resources"] == {
        "cpu": "500m",
        "memory": str(64 * MIB),
        "bandwidth-egress": "1000000",
        "bandwidth-ingress": "500000",
    }
    assert first["extensions"] == {"pressure": {"cpu": 2.5}}
    assert second["podUsage"]["resources"] == {"cpu": "250m", "memory": str(64 * MIB)}


@virtual
async def test_the_scheduler_reads_what_is_reported(machine: Machine) -> None:
    machine.pods_milli, machine.pods_bps = {"a": 300}, {"a": (2_000_000, 0)}
    async with memory_store() as store, running(store, machine):
        await asyncio.sleep(2000)
        facts = msgspec.convert(await metric(store), NodeMetricFacts)
        now = current_loop().clock()
    report = Report(facts, ["cpu", "memory"])
    assert report.node == (1000, 400 * MIB)
    assert report.pods["ns", "pod-a"].amounts == (300, 64 * MIB)
    assert report.pods["ns", "pod-a"].is_prod
    assert report.at is not None
    assert now - 61 <= report.at <= now
    for window_s in (300.0, 600.0, 1800.0):
        assert report.aggregated("p95", window_s) == (1000, 400 * MIB)
    bandwidth = measured(facts)
    assert bandwidth is not None
    assert (bandwidth.node.egress_bps, bandwidth.pods["ns", "pod-a"].egress_bps) == (8_000_000, 2_000_000)


@virtual
async def test_windows_come_when_they_are_half_full_and_forget_what_is_old(machine: Machine) -> None:
    async with memory_store() as store, running(store, machine):

        async def windows() -> dict[str, Raw]:
            found = (await metric(store))["status"]["nodeMetric"]["aggregatedNodeUsages"]
            return {window["duration"]: window["usage"] for window in found}

        await asyncio.sleep(100)
        assert await windows() == {}
        await asyncio.sleep(150)
        assert set(await windows()) == {"5m0s"}
        await asyncio.sleep(800)
        assert set(await windows()) == {"5m0s", "10m0s", "30m0s"}
        before_ns, machine.cpu_milli = machine.cpu_milli, 0.0
        assert before_ns
        await asyncio.sleep(40)
        # The kernel's counter went back with the machine's speed in this test, so one sample is left out; then it idles.
        await asyncio.sleep(400)
        found = await windows()
        assert found["5m0s"]["p99"]["resources"]["cpu"] == "0m"
        assert found["30m0s"]["p99"]["resources"]["cpu"] == "1000m"
        assert found["30m0s"]["p50"]["resources"]["cpu"] == "1000m"
        assert 0 < int(found["30m0s"]["avg"]["resources"]["cpu"].removesuffix("m")) < 1000


@virtual
async def test_the_policy_of_the_object_wins(machine: Machine) -> None:
    async with memory_store() as store:
        kind = await store.resource("slo.koordinator.sh", "NodeMetric")
        policy = {
            "aggregateDurationSeconds": 60,
            "reportIntervalSeconds": 30,
            "nodeAggregatePolicy": {"durations": ["1m"]},
            "nodeMemoryCollectPolicy": "usageWithPageCache",
        }
        wanted = {"apiVersion": kind.api_version, "kind": "NodeMetric", "metadata": {"name": "n1"}}
        await store.create(kind, {**wanted, "spec": {"metricCollectPolicy": policy}})
        async with running(store, machine) as keeper:
            await asyncio.sleep(200)
            found = await metric(store)
            assert keeper.policy.report_s == 30
            assert [w["duration"] for w in found["status"]["nodeMetric"]["aggregatedNodeUsages"]] == ["1m0s"]
            assert node_resources(found)["memory"] == str(700 * MIB)
            assert found["spec"]["metricCollectPolicy"] == policy
            bad = {"spec": {"metricCollectPolicy": {"nodeAggregatePolicy": {"durations": ["2m"]}, "reportIntervalSeconds": 90}}}
            await store.patch(kind, "n1", bad)
            await asyncio.sleep(200)
            assert keeper.policy.report_s == 90
            found = await metric(store)
            assert [w["duration"] for w in found["status"]["nodeMetric"]["aggregatedNodeUsages"]] == ["2m0s"]


@virtual
async def test_counters_that_went_back_are_no_use(machine: Machine) -> None:
    machine.pods_milli = {"a": 400}
    async with memory_store() as store, running(store, machine) as keeper:
        await asyncio.sleep(100)
        machine.offset["a"] = -int(400e6 * 95)
        await asyncio.sleep(300)
        values = keeper.sampler.pods["a"].ring.window(current_loop().time(), 1000)[1][:, 0]
        assert values.min() == pytest.approx(400)
        assert values.max() == pytest.approx(400)


@virtual
async def test_setting_the_clock_changes_the_time_of_the_report_and_nothing_else(machine: Machine) -> None:
    shift = [0.0]
    async with memory_store() as store:
        clock = current_loop().clock
        async with running(store, machine, clock=lambda: clock() + shift[0]) as keeper:
            await asyncio.sleep(300)
            for jump in (86400.0, -2 * 86400.0):
                shift[0] = jump
                await asyncio.sleep(300)
                found = await metric(store)
                assert node_resources(found)["cpu"] == "1000m"
                assert len(found["status"]["nodeMetric"]["aggregatedNodeUsages"]) >= 1
            ages = keeper.sampler.node.ring.window(current_loop().time(), 1e6)[0]
            assert (ages[1:] > ages[:-1]).all()


@virtual
async def test_a_pod_that_is_gone_is_forgotten(machine: Machine) -> None:
    machine.pods_milli = {"a": 100, "b": 100}
    async with memory_store() as store, running(store, machine) as keeper:
        await asyncio.sleep(100)
        assert set(keeper.sampler.pods) == {"a", "b"}
        del machine.pods_milli["a"]
        await asyncio.sleep(100)
        assert set(keeper.sampler.pods) == {"b"}
        assert [pod["name"] for pod in (await metric(store))["status"]["podsMetric"]] == ["pod-b"]


@virtual
async def test_losing_the_server_loses_no_samples(machine: Machine) -> None:
    async with memory_store() as embedded:
        store = BreakableStore(embedded)
        async with running(store, machine) as keeper:
            await asyncio.sleep(100)
            store.outage = ServiceUnavailable("away")
            await asyncio.sleep(900)
            store.outage = None
            assert len(keeper.sampler.node.ring) >= 60
            await asyncio.sleep(61)
            assert {w["duration"] for w in (await metric(embedded))["status"]["nodeMetric"]["aggregatedNodeUsages"]} == {
                "5m0s",
                "10m0s",
                "30m0s",
            }


@virtual
async def test_a_sample_that_fails_is_one_sample_less(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_store() as store, running(store, machine) as keeper:
        await asyncio.sleep(100)
        before = len(keeper.sampler.node.ring)

        def fail() -> Mapping[str, Traffic]:
            raise OSError("the interfaces can't be read")

        with monkeypatch.context() as patch:
            patch.setattr(machine, "traffic_of_all", fail)
            await asyncio.sleep(30)
            assert len(keeper.sampler.node.ring) == before
        await asyncio.sleep(100)
        assert len(keeper.sampler.node.ring) >= before + 5
        assert node_resources(await metric(store))["cpu"] == "1000m"


@virtual
async def test_a_cluster_without_the_kind_is_told_once_and_asked_again(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    async with memory_store() as embedded:
        real = embedded.resource
        has_kind = False

        async def resource(group: str, kind: str) -> Any:
            if kind in ("NodeMetric", "NodeSLO") and not has_kind:
                raise NotFound(f"the server has no {kind}")
            return await real(group, kind)

        embedded.resource = resource  # type: ignore[method-assign]
        async with running(embedded, machine):
            await asyncio.sleep(400)
            assert caplog.text.count("could not be reported") == 1
            has_kind = True
            await asyncio.sleep(61)
            assert node_resources(await metric(embedded))["cpu"] == "1000m"


@virtual
async def test_the_object_is_made_again_when_somebody_deletes_it(machine: Machine) -> None:
    async with memory_store() as store, running(store, machine):
        await asyncio.sleep(100)
        await store.delete(await store.resource("slo.koordinator.sh", "NodeMetric"), "n1")
        await asyncio.sleep(100)
        assert node_resources(await metric(store))["cpu"] == "1000m"


@virtual
async def test_host_applications_are_not_the_systems(machine: Machine) -> None:
    machine.groups_milli = {"host-latency-sensitive/nginx": 300, "kubepods/besteffort/hadoop-yarn/x": 100}
    apps = [
        {"name": "nginx", "priority": "koord-prod", "qos": "LS"},
        {
            "name": "yarn",
            "priority": "koord-batch",
            "qos": "BE",
            "cgroupPath": {"base": "KubepodsBesteffort", "parentDir": "hadoop-yarn/", "relativePath": "x"},
        },
        {"name": "absent", "qos": "BE"},
    ]
    async with memory_store() as store:
        kind = await store.resource("slo.koordinator.sh", "NodeSLO")
        slo = {"apiVersion": kind.api_version, "kind": "NodeSLO", "metadata": {"name": "n1"}}
        await store.create(kind, {**slo, "spec": {"hostApplications": apps}})
        async with running(store, machine):
            await asyncio.sleep(500)
            found = await metric(store)
    told = {app["name"]: app for app in found["status"]["hostApplicationMetric"]}
    assert set(told) == {"nginx", "yarn"}
    assert told["nginx"]["usage"]["resources"]["cpu"] == "300m"
    assert (told["yarn"]["priority"], told["yarn"]["qos"]) == ("koord-batch", "BE")
    assert node_resources(found)["cpu"] == "1000m"


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        pytest.param({"name": "../x"}, "name: '../x'", id="name with parts"),
        pytest.param({"name": ".."}, "name: '..'", id="name that goes up"),
        pytest.param({}, "name: None", id="no name"),
        pytest.param("text", "name: None", id="no object"),
        pytest.param({"name": "x", "cgroupPath": {"relativePath": "../../y"}}, "cgroupPath: '../../y'", id="path up"),
        pytest.param({"name": "x", "cgroupPath": {}}, "cgroupPath: ''", id="the root itself"),
    ],
)
def test_a_bad_host_application_is_named_and_left_out(entry: object, says: str) -> None:
    found, problems = applications({"hostApplications": [entry, {"name": "good"}]})
    assert found == [Application(name="good", group="host-latency-sensitive/good")]
    assert len(problems) == 1
    assert says in problems[0]


@virtual
async def test_nodes_that_share_a_machine_report_their_own_part(machine: Machine) -> None:
    machine.cpu_milli = 2000
    machine.pods_milli = {"a": 400}
    machine.groups_milli = {"muster-mine": 400, "muster-other": 1000}
    machine.pods_bps = {"a": (1_000_000, 0)}
    config = AgentConfig(capacity=Capacity(share=0.5), timing=Timing(metric_seconds=15))
    async with memory_store() as store, running(store, machine, config):
        await asyncio.sleep(400)
        found = await metric(store)
    assert node_resources(found)["cpu"] == "700m", "its pod, and half of what is nobody's"
    assert node_resources(found, "systemUsage")["cpu"] == "300m"
    assert node_resources(found)["bandwidth-egress"] == "1000000", "the uplink's counters are everybody's"


@virtual
async def test_what_prometheus_is_shown(machine: Machine) -> None:
    machine.pods_milli = {"a": 500}
    async with memory_store() as store, running(store, machine):
        await asyncio.sleep(100)
        labels = {"namespace": "ns", "pod": "pod-a"}
        assert REGISTRY.get_sample_value("muster_agent_pod_usage", {**labels, "resource": "cpu_cores"}) == pytest.approx(0.5)
        assert REGISTRY.get_sample_value("muster_agent_node_usage", {"resource": "cpu_cores"}) == pytest.approx(1.0, rel=0.01)
        assert REGISTRY.get_sample_value("muster_agent_pressure_percent", {**labels, "resource": "cpu"}) == 2.5
        assert REGISTRY.get_sample_value("muster_agent_pods_sampled") == 1
    assert REGISTRY.get_sample_value("muster_agent_pods_sampled") is None


# -- for real ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cgroups() -> Iterator[PodCgroups]:
    opened = open_cgroups(uuid.uuid4().hex[:8])
    if any(m.feature in ("cgroups", "cgroup controller cpuacct") for m in opened.missing()):
        pytest.skip(f"cgroups of this machine: {opened.missing()[0]}")
    yield opened
    blocked_until(lambda: opened.teardown() == [])
    assert opened.list() == set()


class NoTraffic:
    def traffic_of_all(self) -> Mapping[str, Traffic]:
        return {}


@pytest.fixture(params=["embedded", pytest.param("kubernetes", marks=pytest.mark.kubernetes)])
async def real_store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    opened: Store
    if request.param == "kubernetes":
        plane: ControlPlane = request.getfixturevalue("kubernetes")
        opened = KubernetesStore(await ApiClient.from_kubeconfig(plane.kubeconfig_path))
    else:
        opened = await EmbeddedStore.open(None, clock=wall_clock)
    await serve_kinds(opened, "NodeMetric", "NodeSLO")
    yield opened
    with contextlib.suppress(NotFound):
        await opened.delete(await opened.resource("slo.koordinator.sh", "NodeMetric"), "n1")
    await opened.close()


async def begun(cgroups: PodCgroups, store: Store, uid: str) -> MetricKeeper:
    """With a first sample, whose counters are hardly older than its time: a pause in between would be missing in the window."""
    ticks = asyncio.get_running_loop().time
    while True:
        keeper = MetricKeeper(
            store,
            "n1",
            cgroups,
            NoTraffic(),
            lambda: [raw_pod(uid)],
            clock=lambda: 1_800_000_000.0,
            config=AgentConfig(timing=Timing(metric_seconds=15)),
            host=Host("lo"),
        )
        began_s = ticks()
        await keeper.sampler.sample(ticks)
        if ticks() - began_s < 0.1:
            return keeper


async def test_a_real_pod_on_this_machine(cgroups: PodCgroups, real_store: Store) -> None:
    uid = str(uuid.uuid4())
    cgroups.create_pod(uid, Limits(cpu_request_milli=1000))
    cgroups.create_container(uid, "main", Limits(cpu_request_milli=1000, cpu_limit_milli=300))
    enter = "".join(f"echo 0 > {file}; " for file in cgroups.procs_files(uid, "main"))
    process = subprocess.Popen(["/bin/sh", "-c", f"{enter} exec {sys.executable} -I -S -c 'while True: pass'"])
    try:
        blocked_until(lambda: (use := cgroups.usage(uid)) is not None and use.cpu_ns > 0 and use.memory_bytes > MIB)
        keeper = await begun(cgroups, real_store, uid)
        await asyncio.sleep(1.0)
        await keeper.sampler.sample(asyncio.get_running_loop().time)
        await keeper.report()
        found = await metric(real_store)
    finally:
        process.kill()
        process.wait()
    assert found["status"]["updateTime"] == "2027-01-15T08:00:00Z"
    pod = found["status"]["podsMetric"][0]["podUsage"]["resources"]
    assert 0 < int(pod["cpu"].removesuffix("m")) < 450
    assert int(pod["memory"]) > MIB
    assert int(node_resources(found)["cpu"].removesuffix("m")) > 0
    assert int(node_resources(found)["memory"]) > int(pod["memory"])
    if cgroups.counting_tree is not None:
        assert set(found["status"]["podsMetric"][0]["extensions"]["pressure"]) <= {"cpu", "memory", "io"}
    assert [window["duration"] for window in found["status"]["nodeMetric"]["aggregatedNodeUsages"]] == []
