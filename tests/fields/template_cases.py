"""The pod template: the same fields in an AppImage's deploy templates, and in a party's template that is laid over them.

The manifests of AppImage are run by a task; those of KusciaTask and KusciaDeployment are laid over the AppImage `base`
(manifests/common.yaml), which says something else about every field.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from tests.fields.cases import CROSS, Case, container_of, env, pods
from tests.fields.record import Record

from muster.objects.labels import KusciaAnnotation, KusciaLabel, Muster
from muster.objects.meta import annotations_of
from muster.objects.status import Raw

_PROBE_FIELDS = (
    "exec", "httpGet", "tcpSocket", "grpc", "initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold",
    "failureThreshold",
)  # fmt: skip


class Made(msgspec.Struct, frozen=True):
    """What came of one manifest: the object of this name, and its first pod."""

    record: Record
    kind: str
    name: str

    @property
    def pod(self) -> Raw:
        found = pods(self.record, self.name)
        assert found, f"{self.kind} {self.name} has no pods: {self.record.status(self.kind, f'{CROSS}/{self.name}')}"
        return found[0]

    @property
    def main(self) -> Raw:
        return container_of(self.pod)

    @property
    def is_overlay(self) -> bool:
        return not self.name.startswith("a-")

    @property
    def is_deployment(self) -> bool:
        return self.kind == "KusciaDeployment"


# -- checks --------------------------------------------------------------------------------------------------------------------


def restart_policy(made: Made) -> None:
    assert made.pod["spec"]["restartPolicy"] == "OnFailure"
    other = Made(made.record, made.kind, f"{made.name[0]}-workingdir")
    assert other.pod["spec"]["restartPolicy"] == "Never", "what base says, and what no template of a task says"
    if made.is_deployment:
        assert pods(made.record, "d-roles")[0]["spec"]["restartPolicy"] == "Always", "what no template of a deployment says"


def affinity(made: Made) -> None:
    assert "nodeAffinity" in made.pod["spec"]["affinity"]
    assert "podAntiAffinity" not in made.pod["spec"]["affinity"], "the template's own affinity wins over the affinity mode"
    key = f"alice/{made.pod['metadata']['name']}"
    assert made.record.last("Pod", key)["spec"]["nodeName"].startswith("alice-ssd")


def name(made: Made) -> None:
    assert [one["name"] for one in made.pod["spec"]["containers"]] == ["main", "side"]
    assert container_of(made.pod, "side")["command"] == ["aside"]
    assert made.main["command"] == (["base-command"] if made.is_overlay else ["run"])


def command(made: Made) -> None:
    assert made.main["command"] == ["field-command", "--fast"]
    assert "args" not in made.main, "command and args come together"


def args(made: Made) -> None:
    assert (made.main["command"], made.main["args"]) == (["field-command"], ["one", "2"])


def working_dir(made: Made) -> None:
    assert made.main["workingDir"] == "/field"
    if made.is_overlay:
        assert made.main["command"] == ["base-command"], "what is not named stays"


def config_volume_mounts(made: Made) -> None:
    [mount] = made.main["volumeMounts"]
    assert (mount["mountPath"], mount["subPath"]) == ("/etc/field.json", "field.json")
    [volume] = made.pod["spec"]["volumes"]
    files = made.record.first("ConfigMap", f"alice/{volume['configMap']['name']}")["data"]
    assert volume["name"] == mount["name"]
    assert {file: json.loads(text) for file, text in files.items()} == {"field.json": {"id": made.name, "me": "alice"}}


def env_from(made: Made) -> None:
    assert made.main["envFrom"] == [{"prefix": "P_", "configMapRef": {"name": "settings", "optional": True}}]


def environment(made: Made) -> None:
    found = env(made.main)
    assert found["FIELD"] == "yes"
    assert found["KUSCIA_DOMAIN_ID"] == "alice"
    assert ("BASE" in found) == made.is_overlay, "by name"
    [node] = [one for one in made.main["env"] if one["name"] == "NODE"]
    assert node["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"


def requests(made: Made) -> None:
    assert made.main["resources"]["requests"] == {"cpu": "1500m", "memory": "1Gi"}
    assert annotations_of(made.pod)[Muster.BANDWIDTH] == "20Mbps", (
        "Kubernetes has no such resource: the scheduler reads the annotation"
    )


def limits(made: Made) -> None:
    assert made.main["resources"]["limits"] == {"cpu": "3", "memory": "3Gi"}
    if made.is_overlay:
        assert made.main["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}, "by resource"


def claims(made: Made) -> None:
    status = made.record.status(made.kind, f"{CROSS}/{made.name}")
    assert status["phase"] == "Failed"
    assert "claims" in status["message"]
    assert not pods(made.record, made.name)


def probe(word: str, made: Made) -> None:
    found: dict[str, Any] = {one["name"]: one[word] for one in made.pod["spec"]["containers"]}
    times = {one: found["main"][one] for one in _PROBE_FIELDS if one.endswith(("Seconds", "Threshold"))}
    assert found["main"]["httpGet"]["path"] == "/ok"
    assert found["main"]["httpGet"]["port"] == "api"
    assert times == {
        "initialDelaySeconds": 4,
        "timeoutSeconds": 5,
        "periodSeconds": 6,
        "successThreshold": 2 if word == "readinessProbe" else 1,
        "failureThreshold": 7,
    }
    if word != "readinessProbe":
        assert found["main"]["terminationGracePeriodSeconds"] == 9
    assert found["by-exec"]["exec"] == {"command": ["check", "-q"]}
    assert found["by-tcp"]["tcpSocket"]["port"] == "tcp"
    [port] = container_of(made.pod, "by-grpc")["ports"]
    assert (found["by-grpc"]["grpc"]["port"], found["by-grpc"]["grpc"]["service"]) == (port["containerPort"], "health")


def metric_probe(made: Made) -> None:
    notes = annotations_of(made.pod)
    [port] = [one["containerPort"] for one in made.main["ports"] if one["name"] == "api"]
    assert notes[KusciaAnnotation.SHOULD_BE_SCRAPED] == "true"
    assert notes[KusciaAnnotation.METRIC_PATH] == "/field/metrics"
    assert notes[KusciaAnnotation.METRIC_PORT] == str(port)


def image_pull_policy(made: Made) -> None:
    assert made.main["imagePullPolicy"] == "Never"
    other = Made(made.record, made.kind, f"{made.name[0]}-workingdir")
    assert other.main["imagePullPolicy"] == ("Always" if made.is_overlay else "IfNotPresent")


def security_context(made: Made) -> None:
    assert made.main["securityContext"] == {"privileged": True, "runAsUser": 1000}


def ports(made: Made) -> None:
    numbers = {one["name"]: one["containerPort"] for one in made.main["ports"]}
    assert set(numbers) == {"far", "near", "own"}, "the whole list, instead of the AppImage's"
    assert numbers["far"] == 9100
    owner = made.name if made.is_deployment else f"{made.name}-0"
    services = {key: made.record.first("Service", key) for key in made.record.keys("Service", f"alice/{owner}-")}
    assert set(services) == {f"alice/{owner}-far", f"alice/{owner}-near"}
    far, near = services[f"alice/{owner}-far"], services[f"alice/{owner}-near"]
    assert annotations_of(far)[KusciaAnnotation.PROTOCOL] == "GRPC"
    assert annotations_of(near)[KusciaAnnotation.PROTOCOL] == "HTTP"
    assert far["metadata"]["labels"][KusciaLabel.PORT_SCOPE] == "Cluster"
    assert near["metadata"]["labels"][KusciaLabel.PORT_SCOPE] == "Domain"


# -- the table -----------------------------------------------------------------------------------------------------------------


class Piece(msgspec.Struct, frozen=True):
    """A field of the template, by its path within it; `leaves` are the fields that it holds, where it holds any."""

    path: str
    does: str
    check: Callable[[Made], None]
    leaves: tuple[str, ...] = ()

    def case(self, kind: str, prefix: str, initial: str) -> Case:
        slug = self.path.removeprefix("containers.").replace(".", "").lower()
        owner = "KusciaTask" if kind == "AppImage" else kind

        def check(record: Record) -> None:
            self.check(Made(record, owner, f"{initial}-{slug}"))

        file = f"{prefix}.{self.path}"
        fields = tuple(f"{file}.{leaf}" for leaf in self.leaves)
        return Case(file=file, fields=fields, does=self.does, check=check)


def _probe_piece(word: str, does: str) -> Piece:
    leaves = _PROBE_FIELDS if word == "readinessProbe" else (*_PROBE_FIELDS, "terminationGracePeriodSeconds")
    said = f"{does}; in the pod as it is, a wished port number replaced by the one that was given out"
    return Piece(f"containers.{word}", said, partial(probe, word), leaves)


PIECES = (
    Piece("restartPolicy", "of the pods; `Never` when left out, for deployments `Always`", restart_policy),
    Piece("affinity", "of the pods, as it is", affinity),
    Piece(
        "containers.name", "name of the container; a party's template finds it by name, then by place, and adds the rest", name
    ),
    Piece("containers.command", "of the container; a party's template replaces it together with `args`", command),
    Piece("containers.args", "of the container", args),
    Piece("containers.workingDir", "of the container", working_dir),
    Piece(
        "containers.configVolumeMounts",
        "the rendered configuration template `subPath` as the file `mountPath`; each pod has its own ConfigMap",
        config_volume_mounts,
        ("mountPath", "subPath"),
    ),
    Piece("containers.envFrom", "of the container", env_from),
    Piece("containers.env", "of the container, merged by name; variables that Kuscia gives out win", environment),
    Piece(
        "containers.resources.requests", "of the container; bandwidth becomes an annotation that the scheduler counts", requests
    ),
    Piece("containers.resources.limits", "of the container", limits),
    Piece(
        "containers.resources.claims",
        "handed on; a template has no place to say what the claim is, so the server refuses the pod, and the status says so",
        claims,
    ),
    _probe_piece("livenessProbe", "while it fails the container is restarted"),
    _probe_piece("readinessProbe", "while it fails the pod is not ready"),
    _probe_piece("startupProbe", "until it succeeds the other probes wait"),
    Piece(
        "containers.metricProbe",
        "annotations `should_be_scraped`, `metric_path`, `metric_port` of the pod, as Kuscia writes them",
        metric_probe,
        ("path", "port"),
    ),
    Piece("containers.imagePullPolicy", "of the container; `IfNotPresent` when left out", image_pull_policy),
    Piece("containers.securityContext", "of the container, all of it (Kuscia: `privileged` alone)", security_context),
)
PORTS = Piece(
    "containers.ports",
    "the whole list, instead of the AppImage's",
    ports,
    ("name", "port", "protocol", "scope"),
)
_NOT_FOR_READINESS = "Kubernetes has it for liveness and startup probes alone"


def overlay_cases(kind: str, initial: str) -> tuple[Case, ...]:
    return tuple(piece.case(kind, "spec.parties.template.spec", initial) for piece in (*PIECES, PORTS))


def nothing(prefix: str) -> dict[str, str]:
    return {f"{prefix}.containers.readinessProbe.terminationGracePeriodSeconds": _NOT_FOR_READINESS}
