"""AppImage: what its fields do, shown by tasks that run it. Those of the pod template are in `template_cases`."""

from __future__ import annotations

import json

from tests.fields.cases import CROSS, Case, container, container_of, env, pod, pods, service
from tests.fields.record import Record
from tests.fields.template_cases import PIECES, nothing

from muster.objects.labels import KusciaAnnotation, KusciaLabel
from muster.objects.meta import annotations_of
from muster.objects.status import Raw

_TEMPLATE = "spec.deployTemplates.spec"
_PORTS = f"{_TEMPLATE}.containers.ports"
_POLICY = "spec.deployTemplates.networkPolicy"


def _status(record: Record, name: str) -> Raw:
    return record.status("KusciaTask", f"{CROSS}/{name}")


def image(record: Record) -> None:
    made = pod(record, "a-image")
    assert {one["image"] for one in made["spec"]["containers"]} == {"registry.example/team/app:2.1"}
    assert annotations_of(made)[KusciaAnnotation.IMAGE_ID] == "sha256:0123456789abcdef"
    assert "spec.image.name" in record.refused["AppImage/a-image-without"]


def config_templates(record: Record) -> None:
    made = container(record, "a-files")
    files = record.first("ConfigMap", "alice/a-files-0-config")["data"]
    assert json.loads(files["all.json"]) == {
        "task": "a-files",
        "input": 'say "so"',
        "mine": "hello",
        "none": "",
        "secret": "",
        "self": 0,
        "first": "a-files-0-peer.alice.svc",
        "port": made["ports"][0]["containerPort"],
    }
    assert "spec.configTemplates[broken.json]" in record.refused["AppImage/a-files-broken"]


def name(record: Record) -> None:
    assert container(record, "a-named")["command"] == ["as-host"]
    assert "deployTemplates[same]" in _status(record, "a-named-guest")["message"], "0 replicas, for messages"


def role(record: Record) -> None:
    found = {one["metadata"]["name"]: container_of(one)["command"] for one in pods(record, "a-role")}
    assert {key: found[key] for key in ("a-role-guest-0", "a-role-third-0", "a-role-0")} == {
        "a-role-guest-0": ["named"],
        "a-role-third-0": ["other"],
        "a-role-0": ["other"],
    }
    assert found["a-role-none-0"] == ["named"]
    assert _status(record, "a-role-wrong")["reason"] == "DeployTemplateNotFound"
    assert "spec.deployTemplates[1].role" in record.refused["AppImage/a-role-twice"]


def replicas(record: Record) -> None:
    found = [one["metadata"]["name"] for one in pods(record, "a-replicas")]
    assert found == ["a-replicas-host-0", "a-replicas-host-1", "a-replicas-host-2", "a-replicas-guest-0"]


def network_policy(record: Record) -> None:
    def callers(port: str, role_: str) -> str:
        party = "bob" if role_ == "client" else "alice"
        return annotations_of(service(record, f"{party}/a-policy-{role_}-0-{port}"))[KusciaAnnotation.ACCESS_DOMAIN]

    assert callers("api", "server") == "bob"
    assert callers("closed", "server") == "alice", "nobody is named: the party itself"
    assert callers("open", "client") == "alice,bob", "no policy: every party of the task"
    assert "networkPolicy.ingresses[0].ports[0].port" in record.refused["AppImage/a-policy-wrong"]


def port_name(record: Record) -> None:
    made = container(record, "a-portname")
    assert made["ports"][0]["name"] == "my-api"
    assert env(made)["KUSCIA_PORT_MY_API_NUMBER"] == str(made["ports"][0]["containerPort"])
    assert service(record, "alice/a-portname-0-my-api")["spec"]["ports"][0]["targetPort"] == "my-api"
    assert "containers[1].ports[0].name" in record.refused["AppImage/a-portname-twice"]


def port_number(record: Record) -> None:
    numbers = sorted(container(record, f"a-portnumber-{one}")["ports"][0]["containerPort"] for one in "ab")
    assert numbers[0] == 9777
    assert 20_000 <= numbers[1] <= 32_766


def protocol(record: Record) -> None:
    for port, spoken in (("grpc", "GRPC"), ("http", "HTTP")):
        assert annotations_of(service(record, f"alice/a-protocol-0-{port}"))[KusciaAnnotation.PROTOCOL] == spoken
    told = json.loads(env(container(record, "a-protocol"))["ALLOCATED_PORTS"])["ports"]
    assert {one["name"]: one["protocol"] for one in told} == {"grpc": "GRPC", "http": "HTTP"}
    assert "protocol" in record.refused["AppImage/a-protocol-wrong"]


def scope(record: Record) -> None:
    assert set(record.keys("Service", "alice/a-scope-")) == {"alice/a-scope-0-far", "alice/a-scope-0-near"}
    far, near = service(record, "alice/a-scope-0-far"), service(record, "alice/a-scope-0-near")
    assert far["metadata"]["labels"][KusciaLabel.LOAD_BALANCER] == "domainroute"
    assert KusciaLabel.LOAD_BALANCER not in near["metadata"]["labels"]
    assert annotations_of(far)[KusciaAnnotation.ACCESS_DOMAIN] == "alice,bob"
    assert annotations_of(near)[KusciaAnnotation.ACCESS_DOMAIN] == "alice"
    [made] = [one for one in pods(record, "a-scope") if one["metadata"]["namespace"] == "alice"]
    define = json.loads(env(container_of(made))["TASK_CLUSTER_DEFINE"])
    endpoints = {one["portName"]: one["endpoints"] for one in define["parties"][0]["services"]}
    number = {one["name"]: one["containerPort"] for one in container_of(made)["ports"]}["near"]
    assert endpoints == {"far": ["a-scope-0-far.alice.svc"], "near": [f"a-scope-0-near.alice.svc:{number}"]}


CASES = (
    Case(
        file="spec.image",
        fields=("spec.image.name", "spec.image.tag", "spec.image.id"),
        does="image of every container, `name:tag`; the id goes to the node in the annotation `image-id`, to be compared there",
        check=image,
        refused=("AppImage/a-image-without",),
    ),
    Case(
        file="spec.configTemplates",
        does="files rendered for each pod by Kuscia's rules; `KUSCIA_API_TOKEN` and `KUSCIA_DOMAIN_KEY_DATA` are "
        "empty: an application "
        "has no use for the keys of its party",
        check=config_templates,
        refused=("AppImage/a-files-broken",),
    ),
    Case(file="spec.deployTemplates.name", does="for people and messages; parties choose by role", check=name),
    Case(
        file="spec.deployTemplates.role",
        does="roles that it is for, with commas; without one, for all others. No role may have two",
        check=role,
        refused=("AppImage/a-role-twice",),
    ),
    Case(file="spec.deployTemplates.replicas", does="pods of each party; 1 when left out", check=replicas),
    Case(
        file=_POLICY,
        fields=(f"{_POLICY}.ingresses.from.roles", f"{_POLICY}.ingresses.ports.port"),
        does="the parties in these roles may reach these ports: annotation `access-domain` of the service. "
        "Without a policy all parties of the "
        "task may; where it names nobody, the party itself (Kuscia: everybody)",
        check=network_policy,
        refused=("AppImage/a-policy-wrong",),
    ),
    *(piece.case("AppImage", _TEMPLATE, "a") for piece in PIECES),
    Case(
        file=f"{_PORTS}.name",
        does="name in the pod, in services `<pod>-<port>` and variables `KUSCIA_PORT_<NAME>_NUMBER`; unique in the pod",
        check=port_name,
        refused=("AppImage/a-portname-twice",),
    ),
    Case(
        file=f"{_PORTS}.port",
        does="a wish: given when nobody in the party has it, else one from 20000 to 32766 (Kuscia never looks at it)",
        check=port_number,
    ),
    Case(
        file=f"{_PORTS}.protocol",
        does="`HTTP` (default) or `GRPC`: annotation of the service, and in `ALLOCATED_PORTS`",
        check=protocol,
        refused=("AppImage/a-protocol-wrong",),
    ),
    Case(
        file=f"{_PORTS}.scope",
        does="`Cluster`: a service that other parties reach through the gateway; `Domain`: a service of the own "
        "party; `Local`: none",
        check=scope,
    ),
)
NOTHING = {
    "spec.image.sign": "kept; signatures are not checked. `spec.image.id` pins an image",
    **nothing(_TEMPLATE),
}
