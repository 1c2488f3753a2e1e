"""The objects of a task's or deployment's party: pod template, services, rendered config. The second half of `task_kit`. Pure.

`pod_template` is the one place where a party's part becomes a pod: the task controller makes one for each pod, the deployment
controller one for all. Differences from Kuscia, on purpose:

- the cluster definition, the ports and the rendered files belong to one pod, where Kuscia's belong to the first pod of a task
  in a namespace, so that further replicas and roles find wrong numbers in theirs;
- files are rendered here and mounted as they are; Kuscia's agent renders them on the node;
- a variable of more than `ENV_BYTES_MAX` is left out of the environment, where the kernel would refuse to start the process;
  templates still have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from muster.controllers.task_kit import (
    KitError,
    PartyKit,
    Work,
    allocated_ports,
    merge_env,
    merge_resources,
    service_name,
    short,
)
from muster.controllers.templating import RenderError, render_all
from muster.engine.configuration import DEFAULT_NAME as SCHEDULER_NAME
from muster.objects.bandwidth import Directions, Limit, PodBandwidth, is_bandwidth_resource, kbps_to_bps, resource_bandwidth
from muster.objects.bandwidth_demands import pod_annotations, share
from muster.objects.bandwidth_peers import Peer, format_peers
from muster.objects.bandwidth_units import NOTHING
from muster.objects.labels import Kuscia, KusciaAnnotation, KusciaLabel, Muster
from muster.objects.reason_codes import Reason
from muster.objects.rules.report import obj, objs, text
from muster.objects.status import Raw
from muster.objects.view import copy_json

CONFIG_VOLUME: Final = "config-template"
POD_NAME_LABEL: Final = "task.kuscia.secretflow/pod-name"
POD_ROLE_LABEL: Final = "task.kuscia.secretflow/pod-role"
LOAD_BALANCER_VALUE: Final = "domainroute"
ENV_BYTES_MAX: Final = 100_000
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_COPIED: Final = ("command", "args", "workingDir", "envFrom", "securityContext")


def variables(kit: PartyKit, work: Work, ports: Mapping[str, int], define: str) -> dict[str, str]:
    """What the application of one pod is told, as variables; `ports` are its numbers by port name."""
    is_task = work.kind == "task"
    found = {
        "KUSCIA_DOMAIN_ID": kit.domain_id,
        "TASK_ID" if is_task else "SERVING_ID": work.name,
        "TASK_CLUSTER_DEFINE" if is_task else "CLUSTER_DEFINE": define,
        "ALLOCATED_PORTS": allocated_ports(kit, ports),
        "TASK_INPUT_CONFIG" if is_task else "INPUT_CONFIG": work.input_config,
    }
    for port in kit.ports:
        found[f"KUSCIA_PORT_{port.name.upper().replace('-', '_')}_NUMBER"] = str(ports.get(port.name, port.number))
    return found


def config_files(kit: PartyKit, work: Work, ports: Mapping[str, int], define: str) -> dict[str, str]:
    """The files that the containers mount, rendered. KitError when a template is wrong.

    A pod has one set of files. Where two containers give a variable different values, the first one's counts.
    """
    mounts = [
        mount for _, container in objs(kit.spec, "containers", "") for _, mount in objs(container, "configVolumeMounts", "")
    ]
    wanted = {text(mount, "subPath") for mount in mounts}
    templates = {key: value for key, value in kit.config_templates.items() if "" in wanted or key in wanted}
    if not templates:
        return {}
    known: dict[str, str] = {}
    for _, container in objs(kit.spec, "containers", ""):
        for _, entry in objs(container, "env", ""):
            known.setdefault(text(entry, "name").upper(), text(entry, "value"))
    known.update(variables(kit, work, ports, define))
    try:
        return render_all(kit.app_image, templates, known)
    except RenderError as error:
        raise KitError(Reason.CONFIG_RENDER_FAILED, str(error)) from None


def config_map(kit: PartyKit, work: Work, name: str, files: Mapping[str, str]) -> Raw:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": kit.domain_id,
            "labels": dict(work.labels),
            "annotations": dict(work.annotations),
        },
        "data": dict(files),
    }


def pod_template(
    kit: PartyKit,
    work: Work,
    ports: Mapping[str, int],
    define: str,
    *,
    config_name: str = "",
    shares: Sequence[Raw] = (),
    pod_index: int = 0,
    priority_class: str = "",
) -> Raw:
    """The metadata and spec of a party's pod, as in a Deployment's template. `config_name` is the config map with its files.

    `shares` are the resources of each container where a party's total was divided; `pod_index` tells which share of what
    the party may send to its peers this pod has.
    """
    told = [
        {"name": name, "value": value}
        for name, value in variables(kit, work, ports, define).items()
        if len(value.encode("utf-8", "surrogatepass")) <= ENV_BYTES_MAX
    ]
    asked = [obj(container, "resources") for _, container in objs(kit.spec, "containers", "")]
    asked = [merge_resources(one, shares[i]) if i < len(shares) else one for i, one in enumerate(asked)]
    bandwidth = _bandwidth(asked)
    keeps_resource = all(_is_plain_kuscia(one) for one in asked)
    containers = [
        _container(kit, container, ports, told, _plain(asked[i], keeps_resource=keeps_resource), has_config=bool(config_name))
        for i, (_, container) in enumerate(objs(kit.spec, "containers", ""))
    ]
    annotations = {**work.annotations, **pod_annotations(bandwidth), **_metric_annotations(kit, ports)}
    if kit.image_id:
        annotations[KusciaAnnotation.IMAGE_ID] = kit.image_id
    if sent := _sent(kit, bandwidth, pod_index):
        annotations[Muster.BANDWIDTH_TO] = sent
    labels = {
        **work.labels,
        KusciaLabel.COMMUNICATION_ROLE_SERVER: "true",
        KusciaLabel.COMMUNICATION_ROLE_CLIENT: "true",
    }
    if kit.role:
        labels[POD_ROLE_LABEL] = kit.role
    spec: Raw = {
        "schedulerName": SCHEDULER_NAME,
        "restartPolicy": text(kit.spec, "restartPolicy") or ("Never" if work.kind == "task" else "Always"),
        "automountServiceAccountToken": False,
        "nodeSelector": {KusciaLabel.NODE_NAMESPACE: kit.domain_id},
        "tolerations": [{"key": Kuscia.TAINT_AGENT, "operator": "Exists", "effect": "NoSchedule"}],
        "containers": containers,
    }
    if obj(kit.spec, "affinity"):
        spec["affinity"] = copy_json(obj(kit.spec, "affinity"))
    if priority_class:
        spec["priorityClassName"] = priority_class
    if config_name:
        spec["volumes"] = [{"name": CONFIG_VOLUME, "configMap": {"name": config_name}}]
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}


def _container(
    kit: PartyKit, template: Raw, ports: Mapping[str, int], told: Sequence[Raw], resources: Raw, *, has_config: bool
) -> Raw:
    wished = {port.number: ports.get(port.name, port.number) for port in kit.ports if port.number}
    made: Raw = {
        "name": text(template, "name"),
        "image": kit.image,
        "imagePullPolicy": text(template, "imagePullPolicy") or "IfNotPresent",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": merge_env(template.get("env"), list(told)),
    }
    made.update({key: copy_json(template[key]) for key in _COPIED if template.get(key)})
    if resources:
        made["resources"] = resources
    names = [text(port, "name") for _, port in objs(template, "ports", "")]
    if names:
        made["ports"] = [{"name": name, "containerPort": ports.get(name, 0), "protocol": "TCP"} for name in names]
    for word in _PROBES:
        if isinstance(template.get(word), dict):
            made[word] = _probe(template[word], wished)
    mounts = [mount for _, mount in objs(template, "configVolumeMounts", "")]
    if mounts and has_config:
        made["volumeMounts"] = [
            {"name": CONFIG_VOLUME, "mountPath": text(mount, "mountPath"), "subPath": text(mount, "subPath"), "readOnly": True}
            for mount in mounts
        ]
    return made


def _probe(template: Raw, wished: Mapping[int, int]) -> Raw:
    """A probe that names the number that the template wished for means the port that got another one."""
    probe = {key: copy_json(value) for key, value in template.items() if value not in (0, None)}
    for word in ("httpGet", "tcpSocket", "grpc"):
        target = probe.get(word)
        if isinstance(target, dict) and isinstance(target.get("port"), int):
            target["port"] = wished.get(target["port"], target["port"])
    return probe


def _metric_annotations(kit: PartyKit, ports: Mapping[str, int]) -> dict[str, str]:
    for _, container in objs(kit.spec, "containers", ""):
        probe = obj(container, "metricProbe")
        port = probe.get("port")
        if not probe or port in (None, ""):
            continue
        number = ports.get(port, port) if isinstance(port, str) else port
        return {
            KusciaAnnotation.SHOULD_BE_SCRAPED: "true",
            KusciaAnnotation.METRIC_PATH: text(probe, "path") or "/metrics",
            KusciaAnnotation.METRIC_PORT: str(number),
        }
    return {}


def service(kit: PartyKit, work: Work, owner_name: str, port_name: str, *, number: int, selector: Mapping[str, str]) -> Raw:
    """The headless service of one port. `owner_name` is the pod's name, or the prefix of a deployment's services."""
    port = next(port for port in kit.ports if port.name == port_name)
    labels = {**work.labels, KusciaLabel.PORT_NAME: port.name, KusciaLabel.PORT_SCOPE: port.scope}
    if port.scope != "Domain":
        labels[KusciaLabel.LOAD_BALANCER] = LOAD_BALANCER_VALUE
    annotations = {
        **work.annotations,
        KusciaAnnotation.PROTOCOL: port.protocol,
        KusciaAnnotation.ACCESS_DOMAIN: kit.access.get(port.name, kit.domain_id),
        **{f"{KusciaAnnotation.BANDWIDTH_LIMIT_PREFIX}{peer}": str(kbps) for peer, kbps in kit.limits},
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(owner_name, port.name),
            "namespace": kit.domain_id,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": dict(selector),
            "ports": [{"name": port.name, "port": number, "protocol": "TCP", "targetPort": port.name}],
        },
    }


def pod_selector(pod_name: str) -> dict[str, str]:
    """The label by which a service finds its one pod."""
    return {POD_NAME_LABEL: short(pod_name)}


# -- bandwidth --------------------------------------------------------------------------------------------------------------


def _bandwidth(asked: Sequence[Raw]) -> PodBandwidth:
    """Of all containers together. A pod has a ceiling only when all of its containers have one."""
    found = [resource_bandwidth(one) for one in asked]
    request = sum((one.request for one in found), NOTHING)
    limits = [one.limit or Limit() for one in found]
    egress = [limit.egress_bps for limit in limits]
    ingress = [limit.ingress_bps for limit in limits]
    limit = Limit(_sum(egress), _sum(ingress))
    return PodBandwidth(Directions(request.egress_bps, request.ingress_bps), None if limit == Limit() else limit)


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) and known else None


def _is_plain_kuscia(resources: Raw) -> bool:
    """Whether bandwidth is asked for as Kubernetes takes an extended resource: one name, and no limit besides the request."""
    requests, limits = obj(resources, "requests"), obj(resources, "limits")
    names = {name for amounts in (requests, limits) for name in amounts if is_bandwidth_resource(name)}
    ours, ceiling = requests.get(Kuscia.RESOURCE_BANDWIDTH), limits.get(Kuscia.RESOURCE_BANDWIDTH)
    return names <= {Kuscia.RESOURCE_BANDWIDTH} and (ours is None or ceiling is None or str(ours) == str(ceiling))


def _plain(resources: Raw, *, keeps_resource: bool) -> Raw:
    """As a pod has them: names of bandwidth that only our own kinds know stand in annotations instead."""
    made: Raw = {}
    for word in ("requests", "limits"):
        amounts = {name: amount for name, amount in obj(resources, word).items() if not is_bandwidth_resource(name)}
        if amounts:
            made[word] = amounts
    if keeps_resource:
        asked = obj(resources, "requests").get(
            Kuscia.RESOURCE_BANDWIDTH, obj(resources, "limits").get(Kuscia.RESOURCE_BANDWIDTH)
        )
        if asked is not None:
            for word in ("requests", "limits"):
                made.setdefault(word, {})[Kuscia.RESOURCE_BANDWIDTH] = str(asked)
    if resources.get("claims"):
        made["claims"] = copy_json(resources["claims"])
    return made


def _sent(kit: PartyKit, bandwidth: PodBandwidth, pod_index: int) -> str:
    """What the pod counts for on Links. A ceiling promises nothing, so it counts only as far as the pod has asked to send."""
    asked_bps = bandwidth.request.egress_bps
    if not asked_bps:
        return ""
    sent: dict[Peer, int] = {}
    for peer, kbps in kit.limits:
        total = PodBandwidth(Directions(kbps_to_bps(kbps), 0))
        sent[Peer("domain", peer)] = min(asked_bps, share(total, kit.replicas, pod_index).request.egress_bps)
    return format_peers(sent)
