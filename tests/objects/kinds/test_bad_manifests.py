"""What the schemas of Kuscia's, Koordinator's, sigs' and Muster's kinds refuse, and what they fill in."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from tests.objects.kinds.samples import BY_KIND, changed, manifest

from muster.objects.schema import schema_of
from muster.objects.status import Raw
from muster.objects.structural import Structural


def structural(kind: str) -> Structural:
    view = BY_KIND[kind].view
    assert view is not None
    return Structural(schema_of(view))


@dataclasses.dataclass(frozen=True)
class Bad:
    kind: str
    path: str
    value: Any
    field: str = ""
    """Where the cause points; at `path` when left out."""
    says: str = ""

    @property
    def points_at(self) -> str:
        return self.field or re.sub(r"\.(\d+)", r"[\1]", self.path)


BAD = [
    Bad("KusciaJob", "spec.scheduleMode", "Eager", says="Strict"),
    Bad("KusciaJob", "spec.maxParallelism", 0),
    Bad("KusciaJob", "spec.maxParallelism", 129),
    Bad("KusciaJob", "spec.maxParallelism", "2"),
    Bad("KusciaJob", "spec.initiator", ...),
    Bad("KusciaJob", "spec.tasks", []),
    Bad("KusciaJob", "spec.tasks.0.alias", ...),
    Bad("KusciaJob", "spec.tasks.1.alias", "psi", "spec.tasks[1]", "psi"),
    Bad("KusciaJob", "spec.tasks.0.taskID", "___"),
    Bad("KusciaJob", "spec.tasks.0.parties.0.resources.requests.cpu", "two"),
    Bad("KusciaJob", "spec.tasks.0.parties.0.bandwidthLimits.0.limitKBps", -1),
    Bad("KusciaJob", "spec.tasks.0.scheduleConfig.minReservedMembers", 0),
    Bad("KusciaJob", "status.phase", "Sleeping"),
    Bad("KusciaJob", "status.stageStatus.bob", "Maybe"),
    Bad("KusciaJobSummary", "spec.stage", "Begin"),
    Bad("KusciaTask", "spec.parties.0.template.spec.containers.0.name", ...),
    Bad("KusciaTask", "spec.parties.0.template.spec.restartPolicy", "Sometimes"),
    Bad("KusciaTask", "status.progress", 1.5),
    Bad("KusciaTask", "status.podStatuses", {"a/b": {"podName": "b", "namespace": "a"}}, "status.podStatuses[a/b].podPhase"),
    Bad("KusciaTaskSummary", "spec.jobID", 7),
    Bad("TaskResourceGroup", "spec.minReservedMembers", 0),
    Bad("TaskResourceGroup", "status.phase", "Done"),
    Bad("TaskResource", "spec.minReservedPods", ...),
    Bad("KusciaDeployment", "spec.parties.0.template.replicas", "three"),
    Bad("KusciaDeploymentSummary", "status.phase", "Up"),
    Bad("Domain", "spec.role", "friend"),
    Bad("Domain", "spec.authCenter.authenticationType", "Password"),
    Bad("Domain", "spec.resourceQuota.podMaxCount", -1),
    Bad("InteropConfig", "spec.members", "bob"),
    Bad("AppImage", "spec.image.tag", ...),
    Bad("AppImage", "spec.deployTemplates.0.spec.containers.0.ports.0.scope", "World"),
    Bad("AppImage", "spec.deployTemplates.0.spec.containers.0.ports.0.port", 70000),
    Bad("DomainAppImage", "spec.images.0.id", ...),
    Bad("ClusterDomainRoute", "spec.authenticationType", "Trust"),
    Bad("ClusterDomainRoute", "spec.endpoint.ports.0.port", 0),
    Bad("ClusterDomainRoute", "spec.tokenConfig.tokenGenMethod", "RAND-GEN"),
    Bad("ClusterDomainRoute", "spec.bodyEncryption.algorithm", "ROT13"),
    Bad("DomainRoute", "spec.transit.transitMethod", "PIGEON"),
    Bad("DomainRoute", "spec.destination", ...),
    Bad("Gateway", "status.heartbeatTime", "yesterday"),
    Bad("DomainData", "spec.columns.0.type", ...),
    Bad("DomainData", "status.phase", "There"),
    Bad("DomainDataSource", "spec.accessDirectly", "yes"),
    Bad("DomainDataGrant", "spec.limit.grantMode", ["all"], "spec.limit.grantMode[0]"),
    Bad("DomainDataGrant", "spec.limit.grantMode", ...),
    Bad("PodGroup", "spec.minMember", 2.5),
    Bad("PodGroup", "spec.minResources.cpu", "1 core"),
    Bad("ElasticQuota", "spec.max", ["80"]),
    Bad("ElasticQuotaProfile", "spec.nodeSelector", ...),
    Bad("ElasticQuotaProfile", "spec.resourceRatio", 0.9),
    Bad("Device", "spec.devices.0.topology.nodeID", ...),
    Bad("Reservation", "spec.owners", []),
    Bad("Reservation", "spec.owners.0", {}),
    Bad("Reservation", "spec.template", ...),
    Bad("Reservation", "spec.ttl", "tomorrow"),
    Bad("Reservation", "spec.allocatePolicy", "Loose"),
    Bad("PodMigrationJob", "spec.podRef", ...),
    Bad("PodMigrationJob", "spec.mode", "Teleport"),
    Bad("ScheduleExplanation", "spec.ttl", 24),
    Bad("ClusterNetworkTopology", "spec.networkTopologySpec.1.topologyLayer", "SpineLayer", "spec.networkTopologySpec[1]"),
    Bad("NodeMetric", "spec.metricCollectPolicy.nodeMemoryCollectPolicy", "all"),
    Bad("NodeSLO", "spec.resourceUsedThresholdWithBE.cpuSuppressThresholdPercent", 101),
    Bad("NodeSLO", "spec.resourceQOSStrategy.lsClass.memoryQOS.wmarkMinAdj", -26),
    Bad("NodeSLO", "spec.cpuBurstStrategy.policy", "always"),
    Bad("ClusterColocationProfile", "spec.qosClass", "VIP"),
    Bad("Job", "spec.roles", []),
    Bad("Job", "spec.roles.0.name", "Worker!"),
    Bad("Job", "spec.roles.1.name", "worker", "spec.roles[1]"),
    Bad("Job", "spec.roles.0.replicas", 0),
    Bad("Job", "spec.roles.0.resources.requests.bandwidth", "fast"),
    Bad("Job", "spec.roles.0.resources.requests.bandwidth", "2Gbit"),
    Bad("Job", "spec.checkpointIntervalSeconds", 0),
    Bad("Job", "spec.estimate.runSeconds", -5),
    Bad("Job", "spec.preemptible", "maybe"),
    Bad("Job", "spec.state", "Paused"),
    Bad("Queue", "spec.weight", 0),
    Bad("Queue", "spec.limits.consumption.0.period", "Fortnight"),
    Bad("SchedulingPolicy", "spec.formula", "x" * 2001),
    Bad("SchedulingPolicy", "spec.factors.0.source", "Mood"),
    Bad("SchedulingPolicy", "spec.factors.0.scale", 0),
    Bad("UserGroup", "spec.budget.amount", ...),
    Bad("UserGroup", "spec.budget.warnAtPercent", [120], "spec.budget.warnAtPercent[0]"),
    Bad("User", "spec.group", ...),
    Bad("NodePool", "spec.selector.matchExpressions.0.operator", "Like"),
    Bad("Link", "spec.capacity", ...),
    Bad("Placement", "spec.pods", []),
    Bad("UsageRecord", "spec.sums.0.day", "yesterday"),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=lambda b: f"{b.kind} {b.path} {b.value!r:.20}")
def test_schema_names_the_bad_field(bad: Bad) -> None:
    causes = structural(bad.kind).validate(changed(manifest(bad.kind), bad.path, bad.value))
    assert [cause.field for cause in causes] == [bad.points_at], causes
    assert bad.says in causes[0].message


def test_every_kind_has_a_bad_example() -> None:
    assert {bad.kind for bad in BAD} == set(BY_KIND)


@pytest.mark.parametrize(
    ("kind", "raw", "filled"),
    [
        pytest.param(
            "KusciaJob",
            {"spec": {"initiator": "a", "tasks": [{"alias": "t", "appImage": "i", "taskInputConfig": "", "parties": []}]}},
            {
                "spec": {
                    "initiator": "a",
                    "scheduleMode": "Strict",
                    "maxParallelism": 1,
                    "tasks": [{"alias": "t", "appImage": "i", "taskInputConfig": "", "parties": [], "tolerable": False}],
                }
            },
            id="as Kuscia's own CRD",
        ),
        pytest.param("KusciaJobSummary", {"spec": {}}, {"spec": {"stage": "Create"}}, id="stage"),
        pytest.param(
            "AppImage",
            {"spec": {"deployTemplates": [{"spec": {"containers": [{"name": "c", "ports": [{"name": "p"}]}]}}]}},
            {
                "spec": {
                    "deployTemplates": [
                        {
                            "spec": {
                                "containers": [{"name": "c", "ports": [{"name": "p", "protocol": "HTTP", "scope": "Local"}]}]
                            }
                        }
                    ]
                }
            },
            id="ports, and nothing else of a template",
        ),
        pytest.param(
            "Reservation",
            {"spec": {"owners": [{}]}},
            {"spec": {"owners": [{}], "ttl": "24h", "allocateOnce": True}},
            id="ttl and allocateOnce",
        ),
        pytest.param("ScheduleExplanation", {"spec": {}}, {"spec": {"ttl": "24h"}}, id="ttl"),
        pytest.param("Device", {"spec": {"devices": [{}]}}, {"spec": {"devices": [{"health": False}]}}, id="health"),
        pytest.param(
            "NodeSLO",
            {"spec": {"resourceQOSStrategy": {"beClass": {"networkQOS": {"egressLimit": 40}}}}},
            {
                "spec": {
                    "resourceQOSStrategy": {
                        "beClass": {
                            "networkQOS": {"egressLimit": 40, "egressRequest": 0, "ingressLimit": 100, "ingressRequest": 0}
                        }
                    }
                }
            },
            id="network shares",
        ),
        pytest.param("TaskResource", {"spec": {}}, {"spec": {}}, id="nothing where the original has nothing"),
        pytest.param(
            "Job",
            {"spec": {"roles": [{"name": "w"}]}},
            {
                "spec": {
                    "state": "Running",
                    "roles": [{"name": "w", "replicas": 1, "restartPolicy": "Never", "completion": "Required"}],
                }
            },
            id="a job of one line",
        ),
        pytest.param("Queue", {"spec": {}}, {"spec": {"policy": "balanced", "weight": 1, "state": "Open"}}, id="queue"),
    ],
)
def test_defaults(kind: str, raw: Raw, filled: Raw) -> None:
    assert structural(kind).default(raw) == filled


@pytest.mark.parametrize(
    ("amount", "is_accepted"),
    [
        *[(amount, True) for amount in (2, "2", "500m", "1.5Gi", "1e3", "500Mbps", "10Gbps", "64kbps", "1bps", "500Mi")],
        *[(amount, False) for amount in ("", "Mbps", "5 Mbps", "5MBps", "5Mb/s", "2Gibps", "five", True)],
    ],
)
def test_amounts_take_quantities_and_bandwidths(amount: Any, is_accepted: bool) -> None:
    raw = changed(manifest("Job"), "spec.roles.0.resources.requests.bandwidth", amount)
    assert (structural("Job").validate(raw) == []) is is_accepted
