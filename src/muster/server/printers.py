"""How the kinds that kubectl users know by heart are shown: the columns of `kubectl get`, in its order and words.

Pure: one function per kind from an object to its cells. Objects may have any shape, so these read through the helpers in
`cells`; what still goes wrong is caught where the row is made. Pods have a file of their own (`pod_printer`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from muster.objects.ages import UNKNOWN, human_duration, since
from muster.objects.status import Raw
from muster.objects.time import parse_time
from muster.server.autoscaler_printer import AUTOSCALER_PRINTER
from muster.server.cells import (
    NONE,
    Cells,
    Printer,
    age,
    column,
    containers_and_images,
    items,
    number,
    pairs,
    part,
    selector_text,
    shortened,
    text,
)
from muster.server.pod_printer import POD_PRINTER

_ROLE_PREFIX = "node-role.kubernetes.io/"
_AGE = column("Age", "date")
_CREATED = column("Created At", "string")
_CONTAINERS = (column("Containers", wide=True), column("Images", wide=True))
_SELECTOR = column("Selector", wide=True)


def _node(raw: Raw, now: float) -> Sequence[Any]:
    status, meta = part(raw, "status"), part(raw, "metadata")
    conditions = [c for c in items(status, "conditions") if c.get("type") == "Ready"]
    states = ["Ready" if c.get("status") == "True" else "NotReady" for c in conditions] or ["Unknown"]
    if part(raw, "spec").get("unschedulable"):
        states.append("SchedulingDisabled")
    labels = part(meta, "labels")
    roles = sorted(
        {key[len(_ROLE_PREFIX) :] for key in labels if key.startswith(_ROLE_PREFIX) and len(key) > len(_ROLE_PREFIX)}
    )
    if labels.get("kubernetes.io/role"):
        roles.append(str(labels["kubernetes.io/role"]))
    info = part(status, "nodeInfo")
    addresses = {text(a, "type"): text(a, "address") for a in reversed(items(status, "addresses"))}
    return [
        ",".join(states),
        ",".join(roles) or NONE,
        age(raw, now),
        text(info, "kubeletVersion"),
        addresses.get("InternalIP", NONE),
        addresses.get("ExternalIP", NONE),
        text(info, "osImage", UNKNOWN),
        text(info, "kernelVersion", UNKNOWN),
        text(info, "containerRuntimeVersion", UNKNOWN),
    ]


def _service(raw: Raw, now: float) -> Sequence[Any]:
    spec = part(raw, "spec")
    kind = text(spec, "type", "ClusterIP")
    ports = ",".join(
        f"{number(p, 'port')}{':' + str(p['nodePort']) if p.get('nodePort') else ''}/{text(p, 'protocol', 'TCP')}"
        for p in items(spec, "ports")
    )
    return [
        kind,
        text(spec, "clusterIP", NONE),
        _external_ip(kind, spec, part(raw, "status")),
        ports or NONE,
        age(raw, now),
        pairs(spec.get("selector")),
    ]


def _external_ip(kind: str, spec: Raw, status: Raw) -> str:
    fixed = [str(ip) for ip in spec.get("externalIPs") or []]
    if kind == "ExternalName":
        return text(spec, "externalName", NONE)
    if kind == "LoadBalancer":
        given = [text(i, "ip") or text(i, "hostname") for i in items(part(status, "loadBalancer"), "ingress")]
        return ",".join([*given, *fixed]) or "<pending>"
    return ",".join(fixed) or NONE


def _event(raw: Raw, now: float) -> Sequence[Any]:
    series = part(raw, "series")
    first = raw.get("firstTimestamp") or raw.get("eventTime") or part(raw, "metadata").get("creationTimestamp")
    last = series.get("lastObservedTime") or raw.get("lastTimestamp") or first
    about, source = part(raw, "involvedObject"), part(raw, "source")
    parts = [text(source, "component") or text(raw, "reportingComponent")]
    parts += [text(source, "host")] if source.get("host") else []
    name = text(about, "kind").lower()
    return [
        since(last, now),
        text(raw, "type"),
        text(raw, "reason"),
        f"{name}/{text(about, 'name')}" if about.get("name") else name,
        text(about, "fieldPath"),
        ", ".join(p for p in parts if p),
        text(raw, "message").strip(),
        since(first, now),
        number(series, "count") or number(raw, "count") or 1,
        text(part(raw, "metadata"), "name"),
    ]


def _deployment(raw: Raw, now: float) -> Sequence[Any]:
    spec, status = part(raw, "spec"), part(raw, "status")
    names, images = containers_and_images(part(spec, "template"))
    return [
        f"{number(status, 'readyReplicas')}/{spec.get('replicas', 1)}",
        number(status, "updatedReplicas"),
        number(status, "availableReplicas"),
        age(raw, now),
        names,
        images,
        selector_text(part(spec, "selector")),
    ]


def _replica_set(raw: Raw, now: float) -> Sequence[Any]:
    spec, status = part(raw, "spec"), part(raw, "status")
    names, images = containers_and_images(part(spec, "template"))
    selector = part(spec, "selector")
    # A ReplicationController's selector is a plain map of labels.
    shown = selector_text(selector) if {"matchLabels", "matchExpressions"} & selector.keys() else pairs(selector)
    wanted = spec.get("replicas", 1)
    return [wanted, number(status, "replicas"), number(status, "readyReplicas"), age(raw, now), names, images, shown]


def _stateful_set(raw: Raw, now: float) -> Sequence[Any]:
    spec = part(raw, "spec")
    names, images = containers_and_images(part(spec, "template"))
    ready = f"{number(part(raw, 'status'), 'readyReplicas')}/{spec.get('replicas', 1)}"
    return [ready, age(raw, now), names, images]


def _daemon_set(raw: Raw, now: float) -> Sequence[Any]:
    spec, status = part(raw, "spec"), part(raw, "status")
    names, images = containers_and_images(part(spec, "template"))
    counts = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled", "numberAvailable")
    return [
        *(number(status, key) for key in counts),
        pairs(part(spec, "template", "spec").get("nodeSelector")),
        age(raw, now),
        names,
        images,
        selector_text(part(spec, "selector")),
    ]


def _job(raw: Raw, now: float) -> Sequence[Any]:
    spec, status = part(raw, "spec"), part(raw, "status")
    names, images = containers_and_images(part(spec, "template"))
    wanted: Any = spec.get("completions")
    if wanted is None:
        parallelism = spec.get("parallelism", 1)
        wanted = f"1 of {parallelism}" if isinstance(parallelism, int) and parallelism > 1 else 1
    duration = ""
    if status.get("startTime"):
        end = parse_time(status["completionTime"]) if status.get("completionTime") else now
        duration = human_duration(end - parse_time(status["startTime"]))
    return [
        _job_state(spec, status, part(raw, "metadata")),
        f"{number(status, 'succeeded')}/{wanted}",
        duration,
        age(raw, now),
        names,
        images,
        selector_text(part(spec, "selector")),
    ]


def _job_state(spec: Raw, status: Raw, meta: Raw) -> str:
    true = {text(c, "type") for c in items(status, "conditions") if c.get("status") == "True"}
    for condition, shown in (("Complete", "Complete"), ("Failed", "Failed")):
        if condition in true:
            return shown
    if meta.get("deletionTimestamp"):
        return "Terminating"
    for condition, shown in (
        ("Suspended", "Suspended"),
        ("FailureTarget", "FailureTarget"),
        ("SuccessCriteriaMet", "SuccessCriteriaMet"),
    ):
        if condition in true:
            return shown
    return "Suspended" if spec.get("suspend") else "Running"


def _cron_job(raw: Raw, now: float) -> Sequence[Any]:
    spec, status = part(raw, "spec"), part(raw, "status")
    template = part(spec, "jobTemplate", "spec")
    names, images = containers_and_images(part(template, "template"))
    last = status.get("lastScheduleTime")
    return [
        text(spec, "schedule"),
        text(spec, "timeZone", NONE),
        "True" if spec.get("suspend") else "False",
        len(items(status, "active")),
        since(last, now) if last else NONE,
        age(raw, now),
        names,
        images,
        selector_text(part(template, "selector")),
    ]


def _config_map(raw: Raw, now: float) -> Sequence[Any]:
    return [len(part(raw, "data")) + len(part(raw, "binaryData")), age(raw, now)]


def _secret(raw: Raw, now: float) -> Sequence[Any]:
    return [text(raw, "type", "Opaque"), len(part(raw, "data")), age(raw, now)]


def _service_account(raw: Raw, now: float) -> Sequence[Any]:
    return [len(items(raw, "secrets")), age(raw, now)]


def _access_modes(spec: Raw) -> str:
    short = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}
    return ",".join(short.get(str(mode), str(mode)) for mode in spec.get("accessModes") or [])


def _persistent_volume(raw: Raw, now: float) -> Sequence[Any]:
    spec, status, claim = part(raw, "spec"), part(raw, "status"), part(raw, "spec", "claimRef")
    return [
        text(part(spec, "capacity"), "storage"),
        _access_modes(spec),
        text(spec, "persistentVolumeReclaimPolicy"),
        "Terminating" if part(raw, "metadata").get("deletionTimestamp") else text(status, "phase"),
        f"{text(claim, 'namespace')}/{text(claim, 'name')}" if claim else "",
        text(spec, "storageClassName"),
        text(spec, "volumeAttributesClassName", "<unset>"),
        text(status, "reason"),
        age(raw, now),
        text(spec, "volumeMode", "<unset>"),
    ]


def _persistent_volume_claim(raw: Raw, now: float) -> Sequence[Any]:
    spec, status = part(raw, "spec"), part(raw, "status")
    bound = bool(spec.get("volumeName"))
    return [
        "Terminating" if part(raw, "metadata").get("deletionTimestamp") else text(status, "phase", "Pending"),
        text(spec, "volumeName"),
        text(part(status, "capacity"), "storage") if bound else "",
        _access_modes(status) if bound else "",
        text(spec, "storageClassName"),
        text(spec, "volumeAttributesClassName", "<unset>"),
        age(raw, now),
        text(spec, "volumeMode", "<unset>"),
    ]


def _resource_quota(raw: Raw, now: float) -> Sequence[Any]:
    hard, used = part(raw, "status", "hard"), part(raw, "status", "used")
    terms = [(key, f"{key}: {used.get(key, 0)}/{hard[key]}") for key in sorted(hard)]
    requests = ", ".join(shown for key, shown in terms if not key.startswith("limits."))
    limits = ", ".join(shown for key, shown in terms if key.startswith("limits."))
    return [requests, limits, age(raw, now)]


def _created(raw: Raw, now: float) -> Sequence[Any]:
    return [text(part(raw, "metadata"), "creationTimestamp")]


def _binding(raw: Raw, now: float) -> Sequence[Any]:
    ref, subjects = part(raw, "roleRef"), items(raw, "subjects")
    users = [text(s, "name") for s in subjects if s.get("kind") == "User"]
    groups = [text(s, "name") for s in subjects if s.get("kind") == "Group"]
    accounts = [f"{text(s, 'namespace')}/{text(s, 'name')}" for s in subjects if s.get("kind") == "ServiceAccount"]
    role = f"{text(ref, 'kind')}/{text(ref, 'name')}"
    return [role, age(raw, now), ", ".join(users), ", ".join(groups), ", ".join(accounts)]


def _priority_class(raw: Raw, now: float) -> Sequence[Any]:
    policy = text(raw, "preemptionPolicy", "PreemptLowerPriority")
    return [number(raw, "value"), bool(raw.get("globalDefault")), age(raw, now), policy]


def _disruption_budget(raw: Raw, now: float) -> Sequence[Any]:
    spec = part(raw, "spec")
    bounds = [text(spec, key, "N/A") for key in ("minAvailable", "maxUnavailable")]
    return [*bounds, number(part(raw, "status"), "disruptionsAllowed"), age(raw, now)]


def _endpoints(raw: Raw, now: float) -> Sequence[Any]:
    shown = []
    for subset in items(raw, "subsets"):
        for address in items(subset, "addresses"):
            ports = items(subset, "ports")
            shown += [f"{text(address, 'ip')}:{number(p, 'port')}" for p in ports] or [text(address, "ip")]
    return [shortened(shown), age(raw, now)]


def _endpoint_slice(raw: Raw, now: float) -> Sequence[Any]:
    ports = [str(p.get("port") or "*") for p in items(raw, "ports")]
    addresses = [str(a) for e in items(raw, "endpoints") for a in e.get("addresses") or []]
    return [text(raw, "addressType"), shortened(ports), shortened(addresses), age(raw, now)]


def _storage_class(raw: Raw, now: float) -> Sequence[Any]:
    return [
        text(raw, "provisioner"),
        text(raw, "reclaimPolicy", "Delete"),
        text(raw, "volumeBindingMode", "Immediate"),
        bool(raw.get("allowVolumeExpansion")),
        age(raw, now),
    ]


def _ingress(raw: Raw, now: float) -> Sequence[Any]:
    spec = part(raw, "spec")
    hosts = [text(rule, "host", "*") for rule in items(spec, "rules")]
    given = items(part(raw, "status", "loadBalancer"), "ingress")
    address = ",".join(text(i, "ip") or text(i, "hostname") for i in given)
    return [
        text(spec, "ingressClassName", NONE),
        shortened(hosts or ["*"]),
        address,
        "80, 443" if spec.get("tls") else "80",
        age(raw, now),
    ]


def _network_policy(raw: Raw, now: float) -> Sequence[Any]:
    return [selector_text(part(raw, "spec", "podSelector")), age(raw, now)]


def _webhooks(raw: Raw, now: float) -> Sequence[Any]:
    return [len(items(raw, "webhooks")), age(raw, now)]


def _printer(cells: Cells, *columns: Any) -> Printer:
    return Printer(tuple(column(c) if isinstance(c, str) else c for c in columns), cells)


def _int(name: str) -> Any:
    return column(name, "integer")


_RBAC = "rbac.authorization.k8s.io"
_ROLE_BINDING = _printer(
    _binding, "Role", _AGE, column("Users", wide=True), column("Groups", wide=True), column("ServiceAccounts", wide=True)
)
_WEBHOOKS = _printer(_webhooks, _int("Webhooks"), _AGE)
_EVENT = Printer(
    (
        *(column(name) for name in ("Last Seen", "Type", "Reason", "Object")),
        column("Subobject", wide=True),
        column("Source", wide=True),
        column("Message"),
        column("First Seen", wide=True),
        column("Count", "integer", wide=True),
        column("Name", wide=True),
    ),
    _event,
    names_itself=True,
)
_COUNTS = ("Desired", "Current", "Ready")

PRINTERS: Mapping[tuple[str, str], Printer] = {
    ("", "Pod"): POD_PRINTER,
    ("", "Node"): _printer(
        _node,
        *("Status", "Roles", _AGE, "Version"),
        *(
            column(name, wide=True)
            for name in ("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime")
        ),
    ),
    ("", "Service"): _printer(_service, "Type", "Cluster-IP", "External-IP", "Port(s)", _AGE, _SELECTOR),
    ("", "Event"): _EVENT,
    ("", "ConfigMap"): _printer(_config_map, _int("Data"), _AGE),
    ("", "Secret"): _printer(_secret, "Type", _int("Data"), _AGE),
    ("", "ServiceAccount"): _printer(_service_account, _int("Secrets"), _AGE),
    ("", "PersistentVolume"): _printer(
        _persistent_volume,
        *("Capacity", "Access Modes", "Reclaim Policy", "Status", "Claim", "StorageClass", "VolumeAttributesClass", "Reason"),
        _AGE,
        column("VolumeMode", wide=True),
    ),
    ("", "PersistentVolumeClaim"): _printer(
        _persistent_volume_claim,
        *("Status", "Volume", "Capacity", "Access Modes", "StorageClass", "VolumeAttributesClass", _AGE),
        column("VolumeMode", wide=True),
    ),
    ("", "ResourceQuota"): _printer(_resource_quota, "Request", "Limit", _AGE),
    ("", "LimitRange"): _printer(_created, _CREATED),
    ("", "ReplicationController"): _printer(_replica_set, *map(_int, _COUNTS), _AGE, *_CONTAINERS, _SELECTOR),
    ("", "Endpoints"): _printer(_endpoints, "Endpoints", _AGE),
    ("apps", "Deployment"): _printer(
        _deployment, "Ready", _int("Up-to-date"), _int("Available"), _AGE, *_CONTAINERS, _SELECTOR
    ),
    ("apps", "ReplicaSet"): _printer(_replica_set, *map(_int, _COUNTS), _AGE, *_CONTAINERS, _SELECTOR),
    ("apps", "StatefulSet"): _printer(_stateful_set, "Ready", _AGE, *_CONTAINERS),
    ("apps", "DaemonSet"): _printer(
        _daemon_set, *map(_int, (*_COUNTS, "Up-to-date", "Available")), "Node Selector", _AGE, *_CONTAINERS, _SELECTOR
    ),
    ("autoscaling", "HorizontalPodAutoscaler"): AUTOSCALER_PRINTER,
    ("batch", "Job"): _printer(_job, "Status", "Completions", "Duration", _AGE, *_CONTAINERS, _SELECTOR),
    ("batch", "CronJob"): _printer(
        _cron_job, "Schedule", "Timezone", "Suspend", _int("Active"), "Last Schedule", _AGE, *_CONTAINERS, _SELECTOR
    ),
    ("discovery.k8s.io", "EndpointSlice"): _printer(_endpoint_slice, "AddressType", "Ports", "Endpoints", _AGE),
    ("policy", "PodDisruptionBudget"): _printer(
        _disruption_budget, "Min Available", "Max Unavailable", _int("Allowed Disruptions"), _AGE
    ),
    ("scheduling.k8s.io", "PriorityClass"): _printer(
        _priority_class, _int("Value"), column("Global-Default", "boolean"), _AGE, "PreemptionPolicy"
    ),
    ("storage.k8s.io", "StorageClass"): _printer(
        _storage_class, "Provisioner", "ReclaimPolicy", "VolumeBindingMode", column("AllowVolumeExpansion", "boolean"), _AGE
    ),
    ("networking.k8s.io", "Ingress"): _printer(_ingress, "Class", "Hosts", "Address", "Ports", _AGE),
    ("networking.k8s.io", "NetworkPolicy"): _printer(_network_policy, "Pod-Selector", _AGE),
    (_RBAC, "Role"): _printer(_created, _CREATED),
    (_RBAC, "ClusterRole"): _printer(_created, _CREATED),
    (_RBAC, "RoleBinding"): _ROLE_BINDING,
    (_RBAC, "ClusterRoleBinding"): _ROLE_BINDING,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _printer(_created, _CREATED),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): _WEBHOOKS,
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): _WEBHOOKS,
}
