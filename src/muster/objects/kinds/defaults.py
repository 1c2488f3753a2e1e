"""Defaults that follow from other fields. The constant ones stand in the schemas and are filled in before these.

`apply_defaults` makes an object what Kubernetes would show after taking it: image pull policies by tag, requests from limits,
a service's target ports, a secret's text moved into its data. Pure; the input is not changed, and may be wrong in any way:
validation comes later. Applying it twice changes nothing.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

import msgspec

from muster.objects.kinds.autoscalers import fill_autoscaler
from muster.objects.kinds.rbac import GROUP as RBAC_GROUP
from muster.objects.quantity import Quantity
from muster.objects.resources import Resource
from muster.objects.status import Raw
from muster.objects.view import copy_json

SESSION_AFFINITY_S: Final = 10_800
_EXPOSED: Final = ("NodePort", "LoadBalancer")
"""Services that can be reached from outside the cluster."""
_INT32_MAX: Final = 2**31 - 1
_CONTAINERS: Final = ("initContainers", "containers", "ephemeralContainers")
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


def apply_defaults(resource: Resource, raw: Raw, old: Raw | None = None, *, is_status: bool = False) -> Raw:
    """`raw`, which has the schema's defaults already, with those that have to be computed.

    `old` is what an update replaces: addresses and ports that were given to a service stay when the update is silent on them.
    `is_status`: all of `raw` but its status and metadata is that of a stored object, which has them already; only the status is
    copied.
    """
    key = (resource.group, resource.kind)
    if key == ("", "Node"):
        return _node(raw)
    fill, empty = _BY_KIND.get(key), _STATUS.get(key)
    if fill is None and empty is None:
        return raw
    result: Raw
    if is_status and "status" in raw:
        result = {**raw, "status": copy_json(raw["status"])}
    else:
        result = _loose_pod(raw) if key == ("", "Pod") else _copied(raw)
    if old is not None and key == ("", "Service"):
        _drop_of_type(result, old)
        _keep_allocated(result, old)
    if fill is not None:
        fill(result)
    if empty is not None:
        status = _made(result, "status")
        for name, value in empty.items():
            status.setdefault(name, value)
    return result


def _copied(raw: Raw) -> Raw:
    """By way of JSON it takes a fraction of the time. What is no JSON is refused later."""
    try:
        copied: Raw = _decode(_encode(raw))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return cast(Raw, copy_json(raw))
    return copied


def qos_class(spec: Mapping[str, Any]) -> str:
    """Guaranteed, Burstable or BestEffort, from requests and limits of cpu and memory."""
    seen, is_guaranteed = False, True
    for container in (*_objects(spec, "containers"), *_objects(spec, "initContainers")):
        resources = _object(container, "resources")
        for name in ("cpu", "memory"):
            request, limit = (_amount(_object(resources, word).get(name)) for word in ("requests", "limits"))
            if request is not None or limit is not None:
                seen = True
            is_guaranteed = is_guaranteed and limit is not None and (request is None or request == limit)
    if not seen:
        return "BestEffort"
    return "Guaranteed" if is_guaranteed else "Burstable"


def image_pull_policy(image: str) -> str:
    """Always for an image without a tag or with `latest`, IfNotPresent for one that names a version or a digest."""
    if "@" in image:
        return "IfNotPresent"
    _, colon, tag = image.rpartition("/")[2].partition(":")
    return "IfNotPresent" if colon and tag != "latest" else "Always"


def _object(parent: Any, key: str) -> Raw:
    value = parent.get(key) if isinstance(parent, dict) else None
    return value if isinstance(value, dict) else {}


def _objects(parent: Any, key: str) -> list[Raw]:
    value = parent.get(key) if isinstance(parent, dict) else None
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _made(parent: Raw, key: str) -> Raw:
    """The object under `key`, put there when it is missing; something to throw away when another thing is there."""
    value = parent.setdefault(key, {})
    return value if isinstance(value, dict) else {}


def _settled(parent: Raw, key: str, text: str) -> Any:
    """What is under `key`, and `text` where nothing is: in the Go types of these fields "" is nothing."""
    if parent.get(key) in (None, ""):
        parent[key] = text
    return parent[key]


def _amount(value: Any) -> Quantity | None:
    try:
        return Quantity.parse(value) if value is not None else None
    except (TypeError, ValueError):
        return None


# -- pods -------------------------------------------------------------------------------------------------------------------


def _pod(raw: Raw) -> None:
    spec = raw.get("spec")
    if not isinstance(spec, dict):
        return
    _pod_spec(spec)
    # Of pods only: a template keeps what its author wrote.
    for owner in (*_containers(spec), spec):
        _requests_from_limits(owner)
    spec.setdefault("enableServiceLinks", True)
    status = _made(raw, "status")
    if not status.get("phase"):
        status["phase"] = "Pending"
        status.setdefault("qosClass", qos_class(spec))
    if "podIP" in status or "podIPs" in status:
        _addresses(status)


def _addresses(status: Raw) -> None:
    """`podIP` is the first of `podIPs`. Where they differ it is the older field, which more clients write, that holds."""
    address, listed = status.get("podIP"), _objects(status, "podIPs")
    if not address and listed:
        status["podIP"] = listed[0].get("ip")
    elif address and not (listed and listed[0].get("ip") == address):
        status["podIPs"] = [{"ip": address}]


def _loose_pod(raw: Raw) -> Raw:
    """A pod that shares with `raw` all but what `_pod` writes to. Most of what is written are pods."""
    result = dict(raw)
    if isinstance(raw.get("status"), dict):
        result["status"] = dict(raw["status"])
    if isinstance(raw.get("spec"), dict):
        spec = result["spec"] = _with_loose_resources(raw["spec"])
        for word in _CONTAINERS:
            if isinstance(spec.get(word), list):
                spec[word] = [_with_loose_resources(item) if isinstance(item, dict) else item for item in spec[word]]
                if spec.get("hostNetwork") is True:
                    for container in _objects(spec, word):
                        _loosen_items(container, "ports")
        _loosen_items(spec, "volumes")
        for volume in _objects(spec, "volumes"):
            if isinstance(volume.get("image"), dict):
                volume["image"] = dict(volume["image"])
    return result


def _with_loose_resources(owner: Raw) -> Raw:
    loose = dict(owner)
    if isinstance(owner.get("resources"), dict):
        resources = loose["resources"] = dict(owner["resources"])
        if isinstance(resources.get("requests"), dict):
            resources["requests"] = dict(resources["requests"])
    return loose


def _loosen_items(owner: Raw, word: str) -> None:
    if isinstance(owner.get(word), list):
        owner[word] = [dict(item) if isinstance(item, dict) else item for item in owner[word]]


def _pod_spec(spec: Raw) -> None:
    for container in _containers(spec):
        if not container.get("imagePullPolicy") and isinstance(container.get("image"), str) and container["image"]:
            container["imagePullPolicy"] = image_pull_policy(container["image"])
        if spec.get("hostNetwork") is True:
            for port in _objects(container, "ports"):
                port.setdefault("hostPort", port.get("containerPort"))
    for volume in _objects(spec, "volumes"):
        if not volume.keys() - {"name"}:
            volume["emptyDir"] = {}
        image = _object(volume, "image")
        if image.get("reference") and not image.get("pullPolicy"):
            image["pullPolicy"] = image_pull_policy(str(image["reference"]))
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec.update({"serviceAccountName": account, "serviceAccount": account})


def _containers(spec: Raw) -> Iterator[Raw]:
    for word in _CONTAINERS:
        yield from _objects(spec, word)


def _requests_from_limits(owner: Raw) -> None:
    resources = _object(owner, "resources")
    limits = _object(resources, "limits")
    if limits:
        requests = _made(resources, "requests")
        for name, amount in limits.items():
            requests.setdefault(name, amount)


def _template(owner: Raw) -> None:
    spec = _object(owner, "template").get("spec")
    if isinstance(spec, dict):
        _pod_spec(spec)


# -- workloads --------------------------------------------------------------------------------------------------------------


def _workload(raw: Raw) -> None:
    _template(_object(raw, "spec"))


def _pod_template(raw: Raw) -> None:
    _template(raw)


def _replication_controller(raw: Raw) -> None:
    spec = _object(raw, "spec")
    _template(spec)
    labels = _object(_object(_object(spec, "template"), "metadata"), "labels")
    if labels:
        spec.setdefault("selector", dict(labels))
        _made(raw, "metadata").setdefault("labels", dict(labels))


def _deployment(raw: Raw) -> None:
    spec = _object(raw, "spec")
    _template(spec)
    strategy = _made(spec, "strategy")
    if _settled(strategy, "type", "RollingUpdate") == "RollingUpdate":
        rolling = _made(strategy, "rollingUpdate")
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")


def _stateful_set(raw: Raw) -> None:
    spec = _object(raw, "spec")
    _template(spec)
    strategy = _made(spec, "updateStrategy")
    if _settled(strategy, "type", "RollingUpdate") == "RollingUpdate":
        _made(strategy, "rollingUpdate").setdefault("partition", 0)
    for claim in _objects(spec, "volumeClaimTemplates"):
        claim.setdefault("apiVersion", "v1")
        claim.setdefault("kind", "PersistentVolumeClaim")
        _claim(claim)


def _daemon_set(raw: Raw) -> None:
    spec = _object(raw, "spec")
    _template(spec)
    strategy = _made(spec, "updateStrategy")
    if _settled(strategy, "type", "RollingUpdate") == "RollingUpdate":
        rolling = _made(strategy, "rollingUpdate")
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)


def _job(raw: Raw) -> None:
    _job_spec(_object(raw, "spec"))


def _job_spec(spec: Raw) -> None:
    if not spec:
        return
    _template(spec)
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", _INT32_MAX if "backoffLimitPerIndex" in spec else 6)
    spec.setdefault("suspend", False)
    spec.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed")


def _cron_job(raw: Raw) -> None:
    spec = _object(raw, "spec")
    spec.setdefault("suspend", False)
    _job_spec(_object(_object(spec, "jobTemplate"), "spec"))


# -- core -------------------------------------------------------------------------------------------------------------------


def _service(raw: Raw) -> None:
    spec = _object(raw, "spec")
    kind, address = spec.get("type"), spec.get("clusterIP")
    for port in _objects(spec, "ports"):
        if port.get("targetPort") in (None, 0, "") and kind != "ExternalName" and "port" in port:
            port["targetPort"] = port["port"]
    if spec.get("sessionAffinity") == "ClientIP":
        _made(_made(spec, "sessionAffinityConfig"), "clientIP").setdefault("timeoutSeconds", SESSION_AFFINITY_S)
    elif spec.get("sessionAffinity") == "None":
        spec.pop("sessionAffinityConfig", None)
    if kind in _EXPOSED:
        _settled(spec, "externalTrafficPolicy", "Cluster")
    if kind == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    if kind != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
        spec.setdefault("ipFamilyPolicy", "SingleStack")
        spec.setdefault("ipFamilies", ["IPv6" if _is_ipv6(address) else "IPv4"])
    if address:
        spec.setdefault("clusterIPs", [address])


def _drop_of_type(raw: Raw, old: Raw) -> None:
    """What belongs to the type that a service had, and was only carried along, goes with the type."""
    spec, before = _object(raw, "spec"), _object(old, "spec")
    if spec.get("type") == before.get("type"):
        return
    words = ["healthCheckNodePort", "allocateLoadBalancerNodePorts"] if spec.get("type") != "LoadBalancer" else []
    if spec.get("type") not in _EXPOSED:
        words.append("externalTrafficPolicy")
        given = {port.get("nodePort") for port in _objects(before, "ports") if isinstance(port.get("nodePort"), int)}
        for port in _objects(spec, "ports"):
            if isinstance(port.get("nodePort"), int) and port["nodePort"] in given:
                del port["nodePort"]
    for word in words:
        if word in spec and spec[word] == before.get(word):
            del spec[word]


def _keep_allocated(raw: Raw, old: Raw) -> None:
    spec, before = _object(raw, "spec"), _object(old, "spec")
    if spec.get("type") == "ExternalName" or before.get("type") == "ExternalName":
        return
    words = ["clusterIP", "clusterIPs"]
    if (spec.get("type"), spec.get("externalTrafficPolicy")) == ("LoadBalancer", "Local"):
        words.append("healthCheckNodePort")
    for word in words:
        if not spec.get(word) and before.get(word):
            spec[word] = copy_json(before[word])
    if spec.get("type") in _EXPOSED:
        given = {f"{port.get('protocol')}/{port.get('port')}": port.get("nodePort") for port in _objects(before, "ports")}
        for port in _objects(spec, "ports"):
            node_port = given.get(f"{port.get('protocol')}/{port.get('port')}")
            if not port.get("nodePort") and node_port:
                port["nodePort"] = node_port


def _is_ipv6(text: Any) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def _node(raw: Raw) -> Raw:
    """All of a node can be given out unless it says otherwise. Nodes are written often: only what changes is copied."""
    status = _object(raw, "status")
    capacity = _object(status, "capacity")
    if not capacity or status.get("allocatable"):
        return raw
    return {**raw, "status": {**status, "allocatable": dict(capacity)}}


def _namespace(raw: Raw) -> None:
    metadata = _made(raw, "metadata")
    labels = metadata.get("labels") or {}
    if metadata.get("name") and isinstance(labels, dict):
        # Selectors go by it, so it is not for anybody to choose.
        metadata["labels"] = {**labels, "kubernetes.io/metadata.name": metadata["name"]}
    _made(raw, "spec").setdefault("finalizers", ["kubernetes"])
    _settled(_made(raw, "status"), "phase", "Active")


def _secret(raw: Raw) -> None:
    """`stringData` is for writing only: it goes into `data`, and wins there."""
    texts = raw.get("stringData")
    if isinstance(texts, dict) and not all(isinstance(text, str | None) for text in texts.values()):
        return  # for the schema to refuse
    raw.pop("stringData", None)
    if isinstance(texts, dict) and texts:
        data = _made(raw, "data")
        for key, text in texts.items():
            data[key] = base64.b64encode((text or "").encode("utf-8", "surrogatepass")).decode("ascii")


def _claim(raw: Raw) -> None:
    _settled(_made(raw, "status"), "phase", "Pending")
    spec = _object(raw, "spec")
    source, reference = spec.get("dataSource"), spec.get("dataSourceRef")
    if isinstance(source, dict) and not reference:
        spec["dataSourceRef"] = dict(source)
    elif isinstance(reference, dict) and not source and not reference.get("namespace"):
        spec["dataSource"] = {key: reference[key] for key in ("apiGroup", "kind", "name") if key in reference}


def _volume(raw: Raw) -> None:
    _settled(_made(raw, "status"), "phase", "Pending")


def _limit_range(raw: Raw) -> None:
    """For containers, limits default to the most, and requests to the limits or else to the least."""
    for item in _objects(_object(raw, "spec"), "limits"):
        if item.get("type") != "Container":
            continue
        limits = {**_object(item, "max"), **_object(item, "default")}
        requests = {**_object(item, "min"), **limits, **_object(item, "defaultRequest")}
        if limits:
            item["default"] = limits
        if requests:
            item["defaultRequest"] = requests


# -- other groups -----------------------------------------------------------------------------------------------------------


def _role_binding(raw: Raw) -> None:
    for subject in _objects(raw, "subjects"):
        if subject.get("kind") in ("User", "Group"):
            _settled(subject, "apiGroup", RBAC_GROUP)


def _network_policy(raw: Raw) -> None:
    spec = _made(raw, "spec")
    spec.setdefault("podSelector", {})
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]


def _priority_class(raw: Raw) -> None:
    raw.setdefault("value", 0)


def _ingress_class(raw: Raw) -> None:
    parameters = _object(_object(raw, "spec"), "parameters")
    if parameters:
        parameters.setdefault("scope", "Cluster")


def _definition(raw: Raw) -> None:
    spec = _object(raw, "spec")
    names = _object(spec, "names")
    if isinstance(names.get("kind"), str):
        _settled(names, "singular", names["kind"].lower())
        _settled(names, "listKind", f"{names['kind']}List")
    spec.setdefault("conversion", {"strategy": "None"})


_BY_KIND: Final[Mapping[tuple[str, str], Callable[[Raw], None]]] = {
    ("", "Pod"): _pod,
    ("", "PodTemplate"): _pod_template,
    ("", "ReplicationController"): _replication_controller,
    ("", "Service"): _service,
    ("", "Namespace"): _namespace,
    ("", "Secret"): _secret,
    ("", "PersistentVolumeClaim"): _claim,
    ("", "PersistentVolume"): _volume,
    ("", "LimitRange"): _limit_range,
    ("apps", "Deployment"): _deployment,
    ("apps", "ReplicaSet"): _workload,
    ("apps", "StatefulSet"): _stateful_set,
    ("apps", "DaemonSet"): _daemon_set,
    ("autoscaling", "HorizontalPodAutoscaler"): fill_autoscaler,
    ("batch", "Job"): _job,
    ("batch", "CronJob"): _cron_job,
    (RBAC_GROUP, "RoleBinding"): _role_binding,
    (RBAC_GROUP, "ClusterRoleBinding"): _role_binding,
    ("networking.k8s.io", "NetworkPolicy"): _network_policy,
    ("networking.k8s.io", "IngressClass"): _ingress_class,
    ("scheduling.k8s.io", "PriorityClass"): _priority_class,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _definition,
}

_STATUS: Final[Mapping[tuple[str, str], Raw]] = {
    ("", "ResourceQuota"): {},
    ("apps", "Deployment"): {},
    ("apps", "ReplicaSet"): {"replicas": 0},
    ("apps", "StatefulSet"): {"replicas": 0, "availableReplicas": 0},
    ("apps", "DaemonSet"): {
        "currentNumberScheduled": 0,
        "desiredNumberScheduled": 0,
        "numberMisscheduled": 0,
        "numberReady": 0,
    },
    ("batch", "Job"): {},
    ("batch", "CronJob"): {},
}
"""Kinds that have a status in Kubernetes though nobody has written one, and what is in it: clients rely on its being there."""
