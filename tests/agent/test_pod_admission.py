"""What a node refuses, and what it makes of resources, security and records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.agent import pod_records
from muster.agent.contracts import AgentError, Limits, NetworkWant, Sandbox, Security
from muster.agent.layout import Layout
from muster.agent.lifecycle_facts import Fate
from muster.agent.pod_admission import Offer, read_pod, refusal
from muster.agent.pod_records import PodRecord
from muster.agent.pod_resources import (
    PIDS_MAX,
    container_limits,
    device_counts,
    must_not_be_root,
    network_want,
    pod_limits,
    security_of,
)
from muster.objects.kinds.pods import PodSpec
from muster.objects.status import Raw

OFFER = Offer(runtime="process", has_networks=True, allowed_host_paths=["/data"])


def pod(annotations: dict[str, str] | None = None, container: Raw | None = None, **spec: Any) -> Raw:
    one = {"name": "main", "command": ["true"], **(container or {})}
    metadata = {"name": "p", "namespace": "n", "uid": "u-1", "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"containers": [one], **spec}}


def verdict(raw: Raw, offer: Offer = OFFER) -> Fate | None:
    return refusal(raw, read_pod(raw), offer)


@pytest.mark.parametrize(
    ("raw", "reason", "word"),
    [
        (pod({"muster.dev/runtime": "runc"}), "RuntimeMismatch", "'runc'"),
        (pod(hostNetwork=True), "PodNotSupported", "hostNetwork"),
        (pod(hostPID=True), "PodNotSupported", "hostPID"),
        (pod(hostIPC=True), "PodNotSupported", "hostIPC"),
        (pod(shareProcessNamespace=True), "PodNotSupported", "shareProcessNamespace"),
        (pod(os={"name": "windows"}), "PodNotSupported", "windows"),
        (pod(container={"securityContext": {"privileged": True}}), "PodNotSupported", "privileged"),
        (pod(container={"securityContext": {"procMount": "Unmasked"}}), "PodNotSupported", "Unmasked"),
        (pod(container={"ports": [{"containerPort": 80, "hostPort": 8080}]}), "PodNotSupported", "8080"),
        (pod(container={"command": [], "image": ""}), "PodNotSupported", "neither"),
        (pod(container={"livenessProbe": {"grpc": {"port": 1}}}), "PodNotSupported", "grpc"),
        (pod({"kubernetes.io/egress-bandwidth": "fast"}), "PodNotSupported", "fast"),
        (pod(container={"resources": {"limits": {"memory": "much"}}}), "PodNotSupported", "much"),
        (pod(volumes=[{"name": "v", "hostPath": {"path": "/etc"}}]), "FailedMount", "/etc"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(raw: Raw, reason: str, word: str) -> None:
    found = verdict(raw)
    assert found is not None
    assert found.reason == reason
    assert word in found.message


def test_not_refused() -> None:
    assert verdict(pod()) is None
    assert verdict(pod({"muster.dev/runtime": "process"})) is None
    assert verdict(pod(hostNetwork=True), Offer(runtime="process", has_networks=False)) is None


def test_all_that_is_wrong_is_said_at_once() -> None:
    found = verdict(pod(hostPID=True, hostIPC=True))
    assert found is not None
    assert "hostPID" in found.message
    assert "hostIPC" in found.message


@pytest.mark.parametrize(
    "raw",
    [
        {"metadata": {"uid": "u"}},
        {"metadata": {"uid": "../x"}, "spec": {"containers": [{"name": "a"}]}},
        {"metadata": {"uid": "u"}, "spec": {"containers": []}},
        {"metadata": {"uid": "u"}, "spec": {"containers": [{"name": "../../etc"}]}},
        {"metadata": {"uid": "u"}, "spec": {"containers": [{"name": "a"}, {"name": "a"}]}},
        {"metadata": {"uid": "u"}, "spec": {"containers": [{"name": "a"}], "volumes": [{"name": "../x"}]}},
        {"metadata": {"uid": "u"}, "spec": {"containers": "nonsense"}},
    ],
    ids=["no spec", "uid", "no containers", "container name", "twice", "volume name", "type"],
)
def test_pods_that_can_not_be_read(raw: Raw) -> None:
    with pytest.raises(AgentError) as caught:
        read_pod(raw)
    assert caught.value.reason == "InvalidPod"


def test_null_is_what_is_not_there() -> None:
    """Real API servers write it where nothing is set."""
    raw = pod(volumes=None, container={"env": None}) | {
        "status": {"conditions": [{"type": "x", "status": "True", "lastProbeTime": None}]}
    }
    assert [container.name for container in read_pod(raw).containers] == ["main"]


def spec(*containers: Raw, **more: Any) -> PodSpec:
    named = [{"name": f"c{n}", **one} for n, one in enumerate(containers)]
    return msgspec.convert({"containers": named, **more}, PodSpec)


def test_limits() -> None:
    limited = {
        "resources": {"limits": {"cpu": "500m", "memory": "64Mi", "ephemeral-storage": "1Gi"}, "requests": {"cpu": "0.1"}}
    }
    assert container_limits(spec(limited).containers[0], ["/dev/x"]) == Limits(
        cpu_request_milli=100,
        cpu_limit_milli=500,
        memory_limit_bytes=64 * 2**20,
        disk_limit_bytes=2**30,
        devices=("/dev/x",),
    )
    both = pod_limits(spec(limited, limited))
    assert (both.cpu_limit_milli, both.memory_limit_bytes, both.cpu_request_milli) == (1000, 128 * 2**20, 200)
    assert both.pids_max == PIDS_MAX
    assert pod_limits(spec(limited, {})).memory_limit_bytes is None
    init = {"name": "i", "resources": {"limits": {"cpu": 4, "memory": "1Gi", "ephemeral-storage": "1Gi"}}}
    assert pod_limits(spec(limited, initContainers=[init])).cpu_limit_milli == 4000


def test_network() -> None:
    annotations = {"kubernetes.io/egress-bandwidth": "10M", "muster.dev/bandwidth": "5Mbps"}
    assert network_want("u", pod(annotations)) == NetworkWant(
        uid="u", egress_limit_bps=10_000_000, egress_request_bps=5_000_000, ingress_request_bps=5_000_000
    )


def test_devices() -> None:
    gpu = {"resources": {"limits": {"nvidia.com/gpu": "2", "cpu": 1}}}
    assert device_counts(spec(gpu, gpu, {}), {"nvidia.com/gpu": ()}) == {"nvidia.com/gpu": 4}


def test_security() -> None:
    whole = {"runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4], "runAsNonRoot": True}
    own = {"runAsUser": 9, "readOnlyRootFilesystem": True, "capabilities": {"add": ["X"], "drop": ["ALL"]}}
    wanted = spec({"securityContext": own}, {}, securityContext=whole)
    assert security_of(wanted, wanted.containers[0]) == Security(
        user=9, group=2, groups=(4, 3), read_only_root=True, add_capabilities=("X",), drop_capabilities=("ALL",)
    )
    assert security_of(wanted, wanted.containers[1]).user == 1
    assert must_not_be_root(wanted, wanted.containers[0])


def record(uid: str = "u-1") -> PodRecord:
    sandbox = Sandbox(uid=uid, namespace="n", name="p", hostname="p", user=5)
    return PodRecord(pod=pod(), sandbox=sandbox, started_at=1.5, fate=Fate("X", "y"), devices={"a": [1]})


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert pod_records.load(layout, "u-1") is None
    pod_records.save(layout, record(), is_new=True)
    assert pod_records.load(layout, "u-1") == record()
    assert list(pod_records.known_uids(layout)) == ["u-1"]
    assert layout.record("u-1").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"pod": 1}'])
def test_a_spoilt_record_is_none(tmp_path: Path, data: bytes) -> None:
    layout = Layout(tmp_path)
    pod_records.save(layout, record(), is_new=True)
    layout.record("u-1").write_bytes(data)
    assert pod_records.load(layout, "u-1") is None


def test_a_record_of_another_pod_is_none(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    pod_records.save(layout, record("u-2"), is_new=True)
    layout.pod("u-2").rename(layout.pod("u-1"))
    assert pod_records.load(layout, "u-1") is None


def test_attempts(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    for name in ("0", "10", "2", "x"):
        (layout.run_dir("u", "c", 0).parent / name).mkdir(parents=True)
    assert pod_records.attempts(layout, "u", "c") == [0, 2, 10]
    assert pod_records.attempts(layout, "u", "d") == []
