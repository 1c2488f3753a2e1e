"""The kit, held against objects written by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.controllers.kuscia_tasks import app_image, container, party, template

from muster.controllers.parties import Party
from muster.controllers.task_kit import (
    KitError,
    PartyKit,
    Work,
    allocated_ports,
    cluster_define,
    define_parties,
    define_party,
    merge_template,
    party_kits,
    pod_name,
    service_name,
)
from muster.controllers.task_kit_objects import ENV_BYTES_MAX, config_files, pod_selector, pod_template, service, variables
from muster.objects.catalog import CATALOG
from muster.objects.names import validate_dns1035_label
from muster.objects.status import Raw
from muster.objects.validation import validate_object

WORK = Work(
    kind="task",
    name="t1",
    uid="uid-1",
    initiator="alice",
    input_config='{"sf": "x"}',
    labels={"kuscia.secretflow/controller": "kusciatask", "kuscia.secretflow/task-uid": "uid-1"},
    annotations={"kuscia.secretflow/initiator": "alice", "kuscia.secretflow/task-id": "t1"},
)
PORTS = [
    {"name": "spu", "scope": "Cluster", "protocol": "GRPC"},
    {"name": "fed", "port": 8080, "scope": "Domain"},
    {"name": "metrics"},
]
HOST = template(
    container(
        args=["-c", "x"],
        workingDir="/work",
        ports=PORTS,
        configVolumeMounts=[{"mountPath": "/etc/kuscia/task.conf", "subPath": "task.conf"}],
        env=[{"name": "LEVEL", "value": "info"}, {"name": "TASK_ID", "value": "mine"}],
        resources={"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}},
        livenessProbe={"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 20, "timeoutSeconds": 0},
        readinessProbe={"tcpSocket": {"port": "spu"}},
        metricProbe={"path": "/m", "port": "metrics"},
    ),
    role="host",
    replicas=2,
)
GUEST = template(container(ports=[PORTS[0]]), role="guest,third")
FILES = {"task.conf": '{"id": "{{.TASK_ID}}", "level": "{{.LEVEL}}"}', "unused.conf": "{{.X}}"}
IMAGE = app_image("app", HOST, GUEST, files=FILES, id="sha256:abc")
NUMBERS = {
    "t1-host-0/spu": 20001, "t1-host-0/fed": 8080, "t1-host-0/metrics": 20002,
    "t1-host-1/spu": 20003, "t1-host-1/fed": 20004, "t1-host-1/metrics": 20005,
}  # fmt: skip


def kits(*parties: Raw, image: Raw = IMAGE, partners: tuple[str, ...] = ()) -> list[PartyKit]:
    listed = list(parties or (party("alice", "host"), party("bob", "guest")))
    return party_kits(WORK, listed, lambda _name: image, lambda domain: Party(is_partner=domain in partners))


def test_cluster_define_is_right_for_every_pod() -> None:
    host, guest = kits()
    listed = [define_party(host, host.pod_names("t1"), NUMBERS), define_party(guest, guest.pod_names("t1"), {})]
    parties = define_parties(listed)
    assert json.loads(cluster_define(parties, host.index, 1)) == {
        "parties": [
            {
                "name": "alice",
                "role": "host",
                "services": [
                    {"portName": "spu", "endpoints": ["t1-host-0-spu.alice.svc", "t1-host-1-spu.alice.svc"]},
                    {"portName": "fed", "endpoints": ["t1-host-0-fed.alice.svc:8080", "t1-host-1-fed.alice.svc:20004"]},
                ],
            },
            {
                "name": "bob",
                "role": "guest",
                "services": [{"portName": "spu", "endpoints": ["t1-guest-0-spu.bob.svc"]}],
            },
        ],
        "selfPartyIdx": 0,
        "selfEndpointIdx": 1,
    }
    assert json.loads(cluster_define(parties, guest.index, 0))["selfPartyIdx"] == 1


def test_callers_of_plain_tcp_need_the_number_of_a_port_that_is_known_here() -> None:
    image = app_image("app", template(container(ports=[{"name": "raw", "scope": "Cluster", "protocol": "TCP"}])))
    own, partner = kits(party("alice"), party("bob"), image=image, partners=("bob",))
    assert define_party(own, own.pod_names("t1"), {"t1-0/raw": 20001})["services"] == [
        {"portName": "raw", "endpoints": ["t1-0-raw.alice.svc:20001"]}
    ]
    assert define_party(partner, partner.pod_names("t1"), {})["services"] == [
        {"portName": "raw", "endpoints": ["t1-0-raw.bob.svc"]}
    ]


def test_allocated_ports() -> None:
    [host, _] = kits()
    assert json.loads(allocated_ports(host, {"spu": 20003, "fed": 20004, "metrics": 20005})) == {
        "ports": [
            {"name": "spu", "port": 20003, "scope": "Cluster", "protocol": "GRPC"},
            {"name": "fed", "port": 20004, "scope": "Domain", "protocol": "HTTP"},
            {"name": "metrics", "port": 20005, "scope": "Local", "protocol": "HTTP"},
        ]
    }


def test_a_pod() -> None:
    [host, _] = kits()
    ports = {"spu": 20003, "fed": 20004, "metrics": 20005}
    made = pod_template(host, WORK, ports, "DEFINE", config_name="t1-host-1-config", priority_class="high")
    assert made == {
        "metadata": {
            "labels": {
                "kuscia.secretflow/controller": "kusciatask",
                "kuscia.secretflow/task-uid": "uid-1",
                "kuscia.secretflow/communication-role-server": "true",
                "kuscia.secretflow/communication-role-client": "true",
                "task.kuscia.secretflow/pod-role": "host",
            },
            "annotations": {
                "kuscia.secretflow/initiator": "alice",
                "kuscia.secretflow/task-id": "t1",
                "kuscia.secretflow/image-id": "sha256:abc",
                "kuscia.secretflow/should_be_scraped": "true",
                "kuscia.secretflow/metric_path": "/m",
                "kuscia.secretflow/metric_port": "20005",
            },
        },
        "spec": {
            "schedulerName": "muster-scheduler",
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "priorityClassName": "high",
            "nodeSelector": {"kuscia.secretflow/namespace": "alice"},
            "tolerations": [{"key": "kuscia.secretflow/agent", "operator": "Exists", "effect": "NoSchedule"}],
            "volumes": [{"name": "config-template", "configMap": {"name": "t1-host-1-config"}}],
            "containers": [
                {
                    "name": "main",
                    "image": "repo/app:1.0",
                    "imagePullPolicy": "IfNotPresent",
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "command": ["run"],
                    "args": ["-c", "x"],
                    "workingDir": "/work",
                    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}},
                    "ports": [
                        {"name": "spu", "containerPort": 20003, "protocol": "TCP"},
                        {"name": "fed", "containerPort": 20004, "protocol": "TCP"},
                        {"name": "metrics", "containerPort": 20005, "protocol": "TCP"},
                    ],
                    "env": [
                        {"name": "LEVEL", "value": "info"},
                        {"name": "TASK_ID", "value": "t1"},
                        {"name": "KUSCIA_DOMAIN_ID", "value": "alice"},
                        {"name": "TASK_CLUSTER_DEFINE", "value": "DEFINE"},
                        {"name": "ALLOCATED_PORTS", "value": allocated_ports(host, ports)},
                        {"name": "TASK_INPUT_CONFIG", "value": '{"sf": "x"}'},
                        {"name": "KUSCIA_PORT_SPU_NUMBER", "value": "20003"},
                        {"name": "KUSCIA_PORT_FED_NUMBER", "value": "20004"},
                        {"name": "KUSCIA_PORT_METRICS_NUMBER", "value": "20005"},
                    ],
                    "livenessProbe": {"httpGet": {"path": "/healthz", "port": 20004}, "periodSeconds": 20},
                    "readinessProbe": {"tcpSocket": {"port": "spu"}},
                    "volumeMounts": [
                        {
                            "name": "config-template",
                            "mountPath": "/etc/kuscia/task.conf",
                            "subPath": "task.conf",
                            "readOnly": True,
                        }
                    ],
                }
            ],
        },
    }


def test_files_are_rendered_for_the_pod_and_only_those_that_are_mounted() -> None:
    [host, _] = kits()
    assert config_files(host, WORK, {"spu": 1, "fed": 2, "metrics": 3}, "D") == {"task.conf": '{"id": "t1", "level": "info"}'}


def test_a_broken_template_names_image_file_and_place() -> None:
    [host, _] = kits(image=app_image("app", HOST, GUEST, files={"task.conf": "{{.X"}))
    with pytest.raises(KitError, match=r"AppImage app, configTemplates\[task.conf\], line 1, column 1") as caught:
        config_files(host, WORK, {}, "D")
    assert caught.value.reason == "ConfigRenderFailed"
    assert not caught.value.is_waiting


def test_a_service_that_partners_reach() -> None:
    host, _ = kits(party("alice", "host", bandwidthLimits=[{"destinationID": "bob", "limitKBps": 1024}]), party("bob", "guest"))
    assert service(host, WORK, "t1-host-1", "spu", number=20003, selector=pod_selector("t1-host-1")) == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "t1-host-1-spu",
            "namespace": "alice",
            "labels": {
                "kuscia.secretflow/controller": "kusciatask",
                "kuscia.secretflow/task-uid": "uid-1",
                "kuscia.secretflow/port-name": "spu",
                "kuscia.secretflow/port-scope": "Cluster",
                "kuscia.secretflow/loadbalancer": "domainroute",
            },
            "annotations": {
                "kuscia.secretflow/initiator": "alice",
                "kuscia.secretflow/task-id": "t1",
                "kuscia.secretflow/protocol": "GRPC",
                "kuscia.secretflow/access-domain": "alice,bob",
                "kuscia.secretflow/bandwidth-limit-bob": "1024",
            },
        },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"task.kuscia.secretflow/pod-name": "t1-host-1"},
            "ports": [{"name": "spu", "port": 20003, "protocol": "TCP", "targetPort": "spu"}],
        },
    }


def test_a_service_inside_the_party() -> None:
    host, _ = kits()
    made = service(host, WORK, "t1-host-0", "fed", number=8080, selector={})
    assert "kuscia.secretflow/loadbalancer" not in made["metadata"]["labels"]
    assert made["metadata"]["annotations"]["kuscia.secretflow/access-domain"] == "alice"


@pytest.mark.parametrize(
    ("policy", "parties", "access"),
    [
        pytest.param(None, ["alice/host", "bob/guest"], "alice,bob", id="no policy: all parties"),
        pytest.param(None, ["alice/host"], "alice", id="one party: itself"),
        pytest.param([(["guest"], ["spu"])], ["alice/host", "bob/guest"], "bob", id="those of a role"),
        pytest.param([(["guest"], ["spu"])], ["alice/host", "bob/guest", "carol/guest"], "bob,carol", id="two of a role"),
        pytest.param([(["guest"], ["fed"])], ["alice/host", "bob/guest"], "alice", id="a port that the policy does not open"),
        pytest.param([(["judge"], ["spu"])], ["alice/host", "bob/guest"], "alice", id="a role that nobody has"),
        pytest.param(
            [(["guest"], ["spu"]), (["third"], ["spu"])],
            ["alice/host", "bob/guest", "carol/third"],
            "bob,carol",
            id="two rules",
        ),
    ],
)
def test_who_may_reach_a_port(policy: list[tuple[list[str], list[str]]] | None, parties: list[str], access: str) -> None:
    fields: dict[str, Any] = {}
    if policy is not None:
        rules = [{"from": {"roles": roles}, "ports": [{"port": port} for port in ports]} for roles, ports in policy]
        fields["networkPolicy"] = {"ingresses": rules}
    host = template(container(ports=[PORTS[0]]), role="host", **fields)
    image = app_image("app", host, template())
    made = kits(*(party(*one.split("/")) for one in parties), image=image)
    assert made[0].access["spu"] == access


@pytest.mark.parametrize(
    ("owner", "port", "name"),
    [
        pytest.param("t1-0", "spu", "t1-0-spu", id="plain"),
        pytest.param("1t-0", "spu", "svc-1t-0-spu", id="begins with a digit"),
        pytest.param("a" * 59, "spu", "a" * 59 + "-spu", id="as long as may be"),
    ],
)
def test_service_names(owner: str, port: str, name: str) -> None:
    assert service_name(owner, port) == name


@given(
    st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,80}[a-z0-9])?", fullmatch=True),
    st.from_regex(r"[a-z0-9]{1,15}", fullmatch=True),
)
def test_every_service_name_is_valid_and_its_own(owner: str, port: str) -> None:
    name = service_name(owner, port)
    assert validate_dns1035_label(name) == []
    assert service_name(f"{owner}x", port) != name


def test_pod_names() -> None:
    assert pod_name("t1", "", 0) == "t1-0"
    assert pod_name("t1", "host", 11) == "t1-host-11"


BASE = template(
    container("a", args=["x"], env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}], workingDir="/w",
              resources={"requests": {"cpu": "1", "kuscia.io/bandwidth": "10"}, "limits": {"cpu": "2"}}),
    container("b"),
    replicas=1,
)  # fmt: skip


@pytest.mark.parametrize(
    ("over", "field", "expected"),
    [
        pytest.param({}, ("replicas",), 1, id="nothing said"),
        pytest.param({"replicas": 3}, ("replicas",), 3, id="replicas"),
        pytest.param({"spec": {"restartPolicy": "OnFailure"}}, ("spec", "restartPolicy"), "OnFailure", id="restart policy"),
        pytest.param(
            {"spec": {"containers": [{"name": "b", "args": ["y"]}]}}, ("spec", "containers", 1, "args"), ["y"], id="by name"
        ),
        pytest.param(
            {"spec": {"containers": [{"name": "b", "args": ["y"]}]}}, ("spec", "containers", 0, "args"), ["x"], id="others stay"
        ),
        pytest.param(
            {"spec": {"containers": [{"name": "z", "args": ["y"]}]}}, ("spec", "containers", 0, "name"), "z", id="by place"
        ),
        pytest.param(
            {"spec": {"containers": [{"name": "z"}]}},
            ("spec", "containers", 0, "workingDir"),
            "/w",
            id="what is not said stays",
        ),
        pytest.param(
            {"spec": {"containers": [{"name": "a", "command": ["c"]}]}},
            ("spec", "containers", 0, "args"),
            None,
            id="a command without its old arguments",
        ),
        pytest.param(
            {"spec": {"containers": [{"name": "a", "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]}]}},
            ("spec", "containers", 0, "env"),
            [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}, {"name": "C", "value": "4"}],
            id="environment by name",
        ),
        pytest.param(
            {"spec": {"containers": [{"name": "a", "resources": {"requests": {"memory": "1Gi", "bandwidth": "5Mbps"}}}]}},
            ("spec", "containers", 0, "resources"),
            {"requests": {"cpu": "1", "memory": "1Gi", "bandwidth": "5Mbps"}, "limits": {"cpu": "2"}},
            id="resources by name, bandwidth under any of its names",
        ),
        pytest.param(
            {"spec": {"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}},
            ("spec", "containers", 2),
            {"name": "c"},
            id="one more",
        ),
    ],
)
def test_merging(over: Raw, field: tuple[str | int, ...], expected: Any) -> None:
    before = json.dumps([BASE, over])
    found: Any = merge_template(BASE, over)
    for step in field:
        found = found.get(step) if isinstance(found, dict) else found[step]
    assert found == expected
    assert json.dumps([BASE, over]) == before


def bandwidth_pod(*resources: Raw, limits: list[Raw] | None = None, replicas: int = 1, index: int = 0) -> Raw:
    containers = [container(f"c{i}", resources=one) for i, one in enumerate(resources)]
    image = app_image("app", template(*containers, replicas=replicas))
    [kit] = kits(party("alice", bandwidthLimits=limits or []), image=image)
    made = pod_template(kit, WORK, {}, "D", pod_index=index)
    pod = {"apiVersion": "v1", "kind": "Pod", **made, "metadata": {**made["metadata"], "name": "p", "namespace": "alice"}}
    resource = next(one for one in CATALOG if (one.group, one.kind) == ("", "Pod"))
    assert validate_object(resource, pod) == []
    return pod


def amounts(pod: Raw) -> list[Raw]:
    return [one.get("resources", {}) for one in pod["spec"]["containers"]]


@pytest.mark.parametrize(
    ("resources", "notes", "expected"),
    [
        pytest.param(
            [{"requests": {"kuscia.io/bandwidth": "100"}}],
            {"muster.dev/bandwidth": "100Mbps"},
            [{"requests": {"kuscia.io/bandwidth": "100"}, "limits": {"kuscia.io/bandwidth": "100"}}],
            id="Kuscia's stays the resource that it is",
        ),
        pytest.param(
            [{"requests": {"bandwidth": "500Mi"}, "limits": {"bandwidth": "1Gbps"}}],
            {
                "muster.dev/bandwidth": "500Mbps",
                "kubernetes.io/egress-bandwidth": "1000000000",
                "kubernetes.io/ingress-bandwidth": "1000000000",
            },
            [{}],
            id="ours is in annotations",
        ),
        pytest.param(
            [{"requests": {"bandwidth": "1Mbps"}}, {"requests": {"kuscia.io/bandwidth": "2", "cpu": "1"}}],
            {"muster.dev/bandwidth": "3Mbps"},
            [{}, {"requests": {"cpu": "1"}}],
            id="of all containers together",
        ),
        pytest.param(
            [{"requests": {"bandwidth": "1Mbps", "bandwidth-ingress": "2Mbps"}}],
            {"muster.dev/bandwidth-egress": "1Mbps", "muster.dev/bandwidth-ingress": "2Mbps"},
            [{}],
            id="by direction",
        ),
        pytest.param(
            [{"limits": {"bandwidth": "1Mbps"}}, {"requests": {"bandwidth": "1Mbps"}}],
            {"muster.dev/bandwidth": "2Mbps"},
            [{}, {}],
            id="no ceiling unless every container has one",
        ),
    ],
)
def test_bandwidth_of_a_pod(resources: list[Raw], notes: Mapping[str, str], expected: list[Raw]) -> None:
    pod = bandwidth_pod(*resources)
    found = {key: value for key, value in pod["metadata"]["annotations"].items() if "bandwidth" in key}
    assert found == notes
    assert amounts(pod) == expected


@pytest.mark.parametrize(
    ("asked", "replicas", "sent"),
    [
        pytest.param("", 1, None, id="a ceiling alone promises nothing"),
        pytest.param("100Mbps", 1, "bob=8.192Mbps", id="no more than the ceiling"),
        pytest.param("1Mbps", 1, "bob=1Mbps", id="no more than was asked for"),
        pytest.param("100Mbps", 2, "bob=4.096Mbps", id="a share for each pod"),
    ],
)
def test_what_counts_on_links(asked: str, replicas: int, sent: str | None) -> None:
    resources = {"requests": {"bandwidth": asked}} if asked else {}
    pod = bandwidth_pod(resources, limits=[{"destinationID": "bob", "limitKBps": 1000}], replicas=replicas)
    found = pod["metadata"]["annotations"].get("muster.dev/bandwidth-to")
    assert found == sent


def test_a_share_replaces_the_template() -> None:
    image = app_image("app", template(container(resources={"requests": {"cpu": "9", "memory": "1Gi"}})))
    [kit] = kits(party("alice"), image=image)
    made = pod_template(kit, WORK, {}, "D", shares=[{"requests": {"cpu": "333m"}}])
    assert amounts(made) == [{"requests": {"cpu": "333m", "memory": "1Gi"}}]


def test_what_is_too_large_for_the_environment_stays_out_of_it() -> None:
    work = Work(kind="task", name="t", uid="u", initiator="a", input_config="x" * (ENV_BYTES_MAX + 1))
    [kit, _] = kits()
    ports = {"spu": 1, "fed": 2, "metrics": 3}
    env = pod_template(kit, work, ports, "D")["spec"]["containers"][0]["env"]
    assert "TASK_INPUT_CONFIG" not in {entry["name"] for entry in env}
    image = app_image("app", HOST, GUEST, files={"task.conf": "{{.TASK_INPUT_CONFIG}}"})
    assert len(config_files(kits(image=image)[0], work, ports, "D")["task.conf"]) == ENV_BYTES_MAX + 1


@pytest.mark.parametrize("kind", ["task", "deployment"])
def test_every_variable_is_documented(kind: Any) -> None:
    host, _ = kits()
    work = msgspec.structs.replace(WORK, kind=kind)
    page = (Path(__file__).parents[2] / "docs" / "app-images.md").read_text()
    told = variables(host, work, {"spu": 1, "fed": 2, "metrics": 3}, "{}")
    assert [name for name in told if f"`{name}`" not in page and not name.startswith("KUSCIA_PORT_")] == []
    assert "`KUSCIA_PORT_SPU_NUMBER`" in page


def test_a_deployment_has_its_own_variables() -> None:
    work = Work(kind="deployment", name="d", uid="u", initiator="alice", input_config="in")
    [kit, _] = kits()
    made = pod_template(kit, work, {"spu": 1, "fed": 2, "metrics": 3}, "D")
    env = {entry["name"]: entry.get("value") for entry in made["spec"]["containers"][0]["env"]}
    assert {name: env[name] for name in ("SERVING_ID", "INPUT_CONFIG", "CLUSTER_DEFINE")} == {
        "SERVING_ID": "d", "INPUT_CONFIG": "in", "CLUSTER_DEFINE": "D",
    }  # fmt: skip
    assert made["spec"]["restartPolicy"] == "Always"


@pytest.mark.parametrize(
    ("parties", "image", "reason", "words"),
    [
        pytest.param([], IMAGE, "ManifestInvalid", r"spec.parties: 0", id="nobody"),
        pytest.param([party("alice", "host"), party("alice", "host")], IMAGE, "DuplicateName", "is there twice", id="twice"),
        pytest.param([party("Alice")], IMAGE, "ManifestInvalid", r"parties\[0\].domainID: \"Alice\"", id="a bad id"),
        pytest.param([party("alice", "Host")], IMAGE, "ManifestInvalid", r"parties\[0\].role: \"Host\"", id="a bad role"),
        pytest.param([party("alice", "judge")], IMAGE, "DeployTemplateNotFound", "role 'judge'", id="no template"),
        pytest.param(
            [party("alice", "host", minReservedPods=3)], IMAGE, "ManifestInvalid", "minReservedPods: 3", id="more than it has"
        ),
        pytest.param([party("alice", "host", template={"replicas": 0})], IMAGE, "ManifestInvalid", "replicas", id="no pods"),
        pytest.param(
            [party("alice", "host", template={"replicas": 5000})], IMAGE, "ManifestInvalid", "replicas", id="too many pods"
        ),
        pytest.param(
            [party("a" * 60, "r" * 60)], app_image("app", template(name="x", replicas=1)), None, "", id="long names are fine"
        ),
        pytest.param(
            [party("alice")],
            app_image("app", template(container("a"), container("a"))),
            "DuplicateName",
            "containers",
            id="two containers of a name",
        ),
        pytest.param(
            [party("alice")],
            app_image("app", template(container(ports=[{"name": "p"}, {"name": "p"}]))),
            "DuplicateName",
            "'p'",
            id="two ports of a name",
        ),
        pytest.param(
            [party("alice")],
            app_image("app", {"name": "x", "spec": {}}),
            "ManifestInvalid",
            "1 to 16 containers",
            id="no containers",
        ),
    ],
)
def test_what_is_wrong_is_named(parties: list[Raw], image: Raw, reason: str | None, words: str) -> None:
    if reason is None:
        assert party_kits(WORK, parties, lambda _name: image, lambda _domain: Party())
        return
    with pytest.raises(KitError, match=words) as caught:
        party_kits(WORK, parties, lambda _name: image, lambda _domain: Party())
    assert caught.value.reason == reason


def test_an_image_that_is_missing_is_waited_for() -> None:
    with pytest.raises(KitError, match="no AppImage 'app'") as caught:
        party_kits(WORK, [party("alice")], lambda _name: None, lambda _domain: Party())
    assert caught.value.is_waiting


JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 70_000) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "name",
                    "spec",
                    "containers",
                    "ports",
                    "port",
                    "scope",
                    "env",
                    "resources",
                    "requests",
                    "bandwidth",
                    "replicas",
                    "role",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(JUNK, JUNK)
def test_junk_is_refused_or_makes_a_pod(one: Any, other: Any) -> None:
    image = app_image("app", template())
    image["spec"]["deployTemplates"] = [one if isinstance(one, dict) else {"name": "x", "spec": {"containers": [other]}}]
    try:
        made = party_kits(WORK, [party("alice", template=other)], lambda _name: image, lambda _domain: Party())
        for kit in made:
            ports = {port.name: 20_000 for port in kit.ports}
            pod_template(kit, WORK, ports, "D")
            config_files(kit, WORK, ports, "D")
    except KitError as error:
        assert str(error)  # noqa: PT017 - most junk is refused, and says why
