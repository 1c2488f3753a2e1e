"""A pod of ours as it is made in another cluster, and what comes back of it. Pure.

The copy has a name of its own (the pod's, and a hash of its uid), so that two pods of one name never meet, and a finalizer:
however it is deleted there, its last status is seen here before it goes. What speaks of our nodes, classes and accounts is left
out, since the other cluster has its own; `template` says what it is to have instead.

Invariant: the same pod, settings and files always give the same copy, so that a second try finds the first one's work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from muster.agent.config import Kubernetes as Settings
from muster.objects.bandwidth import is_bandwidth_resource, raw_pod_bandwidth
from muster.objects.conditions import find_condition, set_condition
from muster.objects.labels import Kubernetes, Kuscia, KusciaLabel, Muster
from muster.objects.meta import metadata_of, name_of, namespace_of, uid_of
from muster.objects.names import validate_label_name
from muster.objects.rules.report import obj, objs, text
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.objects.view import copy_json

CARRIER: Final = "muster.dev/carrier"
"""Label of all that is made there: which agent made it."""
FROM: Final = "muster.dev/carried-from"
"""Annotation of the copy: `namespace/name` of the pod here."""
CARRIED: Final = "Carried"
"""Reason of the pod's condition PodScheduled: its copy has been seen. From then on it is never made again."""
FINALIZER: Final = "muster.dev/carried"
SOURCES_MAX: Final = 64
_MESSAGE_LEN_MAX: Final = 1024
_NAME_LEN_MAX: Final = 63
SourceKey = tuple[str, str]

_OURS: Final = (
    "nodeName", "nodeSelector", "affinity", "topologySpreadConstraints", "schedulerName", "schedulingGates", "priority",
    "priorityClassName", "preemptionPolicy", "runtimeClassName", "overhead", "serviceAccount", "serviceAccountName",
    "resourceClaims", "ephemeralContainers",
)  # fmt: skip
_OUR_TAINTS: Final = (Kuscia.TAINT_AGENT, Kubernetes.TAINT_NOT_READY, Kubernetes.TAINT_UNREACHABLE)
_NOT_COPIED: Final = (Kubernetes.LAST_APPLIED, Muster.PROGRESS, Muster.RECORDS, Muster.TRAFFIC)
NAME: Final = "muster.dev/carried-name"
"""Annotation of the copy: the pod's name here, for files that show it."""
_ELSEWHERE: Final = {
    "metadata.name": f"metadata.annotations['{NAME}']",
    "metadata.namespace": f"metadata.labels['{KusciaLabel.OWNER_NAMESPACE}']",
    "metadata.uid": f"metadata.labels['{KusciaLabel.POD_UID}']",
}
_ADDED_LISTS: Final = ("tolerations", "imagePullSecrets", "hostAliases", "volumes", "env", "envFrom", "volumeMounts")


class Carrier(msgspec.Struct, frozen=True, kw_only=True):
    """Who carries, and where to."""

    node: str
    identity: str
    """Of the agent; pods of others are left alone."""
    namespace: str
    settings: Settings = Settings()

    @property
    def label(self) -> str:
        return hashlib.sha256(f"{self.identity}\n{self.node}".encode()).hexdigest()[:20]

    @property
    def selector(self) -> str:
        return f"{CARRIER}={self.label}"


def remote_name(pod: Raw) -> str:
    digest = hashlib.sha256(uid_of(pod).encode()).hexdigest()[:10]
    return f"{name_of(pod)[: _NAME_LEN_MAX - 11].rstrip('-.')}-{digest}"


def source_name(pod: Raw, key: SourceKey) -> str:
    """Of the copy of a config map or secret."""
    digest = hashlib.sha256(f"{key[0]}/{key[1]}".encode()).hexdigest()[:10]
    return f"{remote_name(pod)}-{digest}"


def origin(copy: Raw) -> tuple[str, str, str]:
    """Namespace, name and uid of the pod that it is a copy of."""
    namespace, _, name = str(obj(metadata_of(copy), "annotations").get(FROM, "")).partition("/")
    return namespace, name, str(obj(metadata_of(copy), "labels").get(KusciaLabel.POD_UID, ""))


# -- there --------------------------------------------------------------------------------------------------------------------


def remote_pod(pod: Raw, carrier: Carrier, aliases: Mapping[str, list[str]] | None = None) -> Raw:
    """The copy to make. `aliases` are names by address, for its hosts file."""
    spec = copy_json(obj(pod, "spec"))
    for field in _OURS:
        spec.pop(field, None)
    spec["tolerations"] = [t for t in spec.get("tolerations") or () if obj({"t": t}, "t").get("key") not in _OUR_TAINTS]
    spec["automountServiceAccountToken"] = False
    spec["enableServiceLinks"] = False
    _drop_account(spec)
    _keep_identity(spec, pod, carrier)
    for reference in _references(spec):
        reference.where[reference.field] = source_name(pod, reference.key)
    if carrier.settings.strip_bandwidth:
        _strip_bandwidth(spec)
    if aliases:
        spec["hostAliases"] = [
            *(spec.get("hostAliases") or ()),
            *({"ip": ip, "hostnames": names} for ip, names in sorted(aliases.items())),
        ]
    old = metadata_of(pod)
    annotations = {k: v for k, v in obj(old, "annotations").items() if k not in _NOT_COPIED}
    annotations |= {k: v for k, v in _cni_bandwidth(pod).items() if k not in annotations}
    merged = merge(
        {"metadata": {"labels": dict(obj(old, "labels")), "annotations": annotations}, "spec": spec}, _template(carrier)
    )
    metadata = merged["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": remote_name(pod),
            "namespace": carrier.namespace,
            "labels": {**metadata["labels"], **made_labels(pod, carrier)},
            "annotations": {**metadata["annotations"], FROM: f"{namespace_of(pod)}/{name_of(pod)}", NAME: name_of(pod)},
            "finalizers": [FINALIZER],
        },
        "spec": {key: value for key, value in merged["spec"].items() if value not in ([], {})},
    }


def made_labels(pod: Raw, carrier: Carrier) -> dict[str, str]:
    """Of all that is made there for a pod."""
    return {
        CARRIER: carrier.label,
        Kubernetes.MANAGED_BY: "muster",
        KusciaLabel.POD_UID: uid_of(pod),
        KusciaLabel.OWNER_NAMESPACE: namespace_of(pod),
        KusciaLabel.NODE_NAME: carrier.node[:_NAME_LEN_MAX].rstrip("-.")[:_NAME_LEN_MAX],
    }


def sources_of(pod: Raw) -> dict[SourceKey, bool]:
    """The config maps and secrets that the pod names, and whether it can do without them."""
    spec = copy_json(obj(pod, "spec"))
    _drop_account(spec)
    found: dict[SourceKey, bool] = {}
    for reference in _references(spec):
        found[reference.key] = found.get(reference.key, True) and bool(reference.where.get("optional"))
    return found


def remote_source(pod: Raw, carrier: Carrier, key: SourceKey, source: Raw) -> Raw:
    made: Raw = {
        "apiVersion": "v1",
        "kind": key[0],
        "metadata": {
            "name": source_name(pod, key),
            "namespace": carrier.namespace,
            "labels": made_labels(pod, carrier),
            "annotations": {FROM: f"{namespace_of(pod)}/{key[1]}"},
        },
    }
    made.update({field: copy_json(source[field]) for field in ("data", "binaryData") if source.get(field)})
    if key[0] == "Secret":
        kind = text(source, "type")
        # The other cluster checks these against accounts of its own.
        made["type"] = "Opaque" if not kind or kind == "kubernetes.io/service-account-token" else kind
    return made


def merge(base: Any, over: Any, field: str = "") -> Any:
    """`over` wins. Objects by member; containers by name, or all when it has none; some lists grow; others are replaced."""
    if isinstance(base, dict) and isinstance(over, dict):
        merged = {**base, **{key: merge(base[key], value, key) if key in base else value for key, value in over.items()}}
        return {key: value for key, value in merged.items() if value is not None}
    if isinstance(base, list) and isinstance(over, list):
        if field in ("containers", "initContainers"):
            return [_merge_container(one, over) for one in base]
        if field in _ADDED_LISTS:
            named = {one["name"] for one in over if isinstance(one, dict) and "name" in one}
            return [*(one for one in base if not (isinstance(one, dict) and one.get("name") in named)), *over]
    return copy_json(over)


def _merge_container(container: Raw, over: list[Any]) -> Raw:
    for one in over:
        if isinstance(one, dict) and one.get("name") in (None, "", "*", container.get("name")):
            container = merge(container, {key: value for key, value in one.items() if key != "name"})
    return container


def _template(carrier: Carrier) -> Raw:
    template = carrier.settings.template
    metadata = obj(template, "metadata")
    return {
        "metadata": {word: {str(k): str(v) for k, v in obj(metadata, word).items()} for word in ("labels", "annotations")},
        "spec": obj(template, "spec"),
    }


def _keep_identity(spec: Raw, pod: Raw, carrier: Carrier) -> None:
    """Containers are told of the pod here, not of its copy; but files with all labels or annotations have the copy's."""
    if not spec.get("hostname") and not validate_label_name(name_of(pod)):
        spec["hostname"] = name_of(pod)
    known = {
        "metadata.name": name_of(pod),
        "metadata.namespace": namespace_of(pod),
        "metadata.uid": uid_of(pod),
        "spec.nodeName": carrier.node,
        "spec.serviceAccountName": text(obj(pod, "spec"), "serviceAccountName"),
    }
    for container in _containers(spec):
        for _, entry in objs(container, "env", ""):
            path = text(obj(obj(entry, "valueFrom"), "fieldRef"), "fieldPath")
            if path in known:
                entry.pop("valueFrom")
                entry["value"] = known[path].replace("$(", "$$(")
    for _, volume in objs(spec, "volumes", ""):
        projected = [obj(source, "downwardAPI") for _, source in objs(obj(volume, "projected"), "sources", "")]
        for source in (obj(volume, "downwardAPI"), *projected):
            for _, item in objs(source, "items", ""):
                field = obj(item, "fieldRef")
                if text(field, "fieldPath") in _ELSEWHERE:
                    field["fieldPath"] = _ELSEWHERE[field["fieldPath"]]


class _Reference(msgspec.Struct, frozen=True):
    """A place in a pod that names a config map or secret."""

    where: Raw
    kind: str
    field: str = "name"

    @property
    def key(self) -> SourceKey:
        return self.kind, str(self.where[self.field])


def _references(spec: Raw) -> list[_Reference]:
    found: list[_Reference] = []
    for _, volume in objs(spec, "volumes", ""):
        found.append(_Reference(obj(volume, "configMap"), "ConfigMap"))
        found.append(_Reference(obj(volume, "secret"), "Secret", "secretName"))
        for _, source in objs(obj(volume, "projected"), "sources", ""):
            found.append(_Reference(obj(source, "configMap"), "ConfigMap"))
            found.append(_Reference(obj(source, "secret"), "Secret"))
    for container in _containers(spec):
        for _, entry in objs(container, "envFrom", ""):
            found.append(_Reference(obj(entry, "configMapRef"), "ConfigMap"))
            found.append(_Reference(obj(entry, "secretRef"), "Secret"))
        for _, entry in objs(container, "env", ""):
            found.append(_Reference(obj(obj(entry, "valueFrom"), "configMapKeyRef"), "ConfigMap"))
            found.append(_Reference(obj(obj(entry, "valueFrom"), "secretKeyRef"), "Secret"))
    found += [_Reference(entry, "Secret") for _, entry in objs(spec, "imagePullSecrets", "")]
    return [one for one in found if one.where.get(one.field)]


def _containers(spec: Raw) -> Iterator[Raw]:
    for word in ("initContainers", "containers"):
        for _, container in objs(spec, word, ""):
            yield container


def _drop_account(spec: Raw) -> None:
    """Tokens of our accounts are worth nothing there, and nobody's business."""

    def is_token(volume: Raw) -> bool:
        return any("serviceAccountToken" in source for _, source in objs(obj(volume, "projected"), "sources", ""))

    gone = {text(volume, "name") for _, volume in objs(spec, "volumes", "") if is_token(volume)}
    if not gone:
        return
    spec["volumes"] = [volume for _, volume in objs(spec, "volumes", "") if text(volume, "name") not in gone]
    for container in _containers(spec):
        mounts = [mount for _, mount in objs(container, "volumeMounts", "") if text(mount, "name") not in gone]
        container["volumeMounts"] = mounts


def _strip_bandwidth(spec: Raw) -> None:
    for container in _containers(spec):
        for amounts in ("requests", "limits"):
            asked = obj(obj(container, "resources"), amounts)
            for name in [name for name in asked if is_bandwidth_resource(name)]:
                del asked[name]


def _cni_bandwidth(pod: Raw) -> dict[str, str]:
    """The ceiling, as the bandwidth plugin of container networks reads it: bits per second."""
    limit = raw_pod_bandwidth(pod).limit
    if limit is None:
        return {}
    found = {Kubernetes.EGRESS_BANDWIDTH: limit.egress_bps, Kubernetes.INGRESS_BANDWIDTH: limit.ingress_bps}
    return {name: str(bps) for name, bps in found.items() if bps is not None}


# -- and back -----------------------------------------------------------------------------------------------------------------


def has_ended(copy: Raw) -> bool:
    """Whether nothing of it runs any more, as far as that cluster knows."""
    metadata = metadata_of(copy)
    is_gone = bool(metadata.get("deletionTimestamp")) and not metadata.get("deletionGracePeriodSeconds")
    return is_gone or obj(copy, "status").get("phase") in ("Succeeded", "Failed")


def was_carried(pod: Raw) -> bool:
    """Whether its copy has been seen. That stands in the condition PodScheduled, from `status_back` and nobody else."""
    condition = find_condition(obj(pod, "status").get("conditions"), "PodScheduled")
    return condition is not None and condition.get("reason") == CARRIED


def status_back(pod: Raw, copy: Raw, now: float) -> Raw:
    """The pod's status, from its copy's. Conditions that others here have set stay."""
    old, there = obj(pod, "status"), obj(copy, "status")
    where = f"pod {namespace_of(copy)}/{name_of(copy)} of the other cluster"
    status: Raw = {
        "phase": there.get("phase") or "Pending",
        "containerStatuses": copy_json(there.get("containerStatuses") or []),
        "reason": there.get("reason"),
        "message": there.get("message"),
    }
    for field in ("initContainerStatuses", "podIP", "podIPs", "hostIP", "hostIPs", "qosClass"):
        if there.get(field):
            status[field] = copy_json(there[field])
    status["startTime"] = there.get("startTime") or old.get("startTime") or format_time(now)
    conditions = [c for c in old.get("conditions") or () if isinstance(c, dict)]
    conditions = set_condition(conditions, type_="PodScheduled", status="True", now=now, reason=CARRIED, message=where)
    for condition in (c for c in there.get("conditions") or () if isinstance(c, dict)):
        if condition.get("type") == "PodScheduled":
            if condition.get("status") != "True" and status["phase"] == "Pending":
                status["reason"] = condition.get("reason")
                status["message"] = f"{where} is not placed: {condition.get('message', '')}"[:_MESSAGE_LEN_MAX]
            continue
        conditions = _with(conditions, copy_json(condition))
    status["conditions"] = conditions
    if has_ended(copy) and status["phase"] not in ("Succeeded", "Failed"):
        status |= lost(pod, f"{where} was deleted by force", status)
    return status


def _with(conditions: list[Raw], one: Raw) -> list[Raw]:
    """In the place of the one of its type, so that the same conditions give the same list."""
    if not any(c.get("type") == one.get("type") for c in conditions):
        return [*conditions, one]
    return [one if c.get("type") == one.get("type") else c for c in conditions]


def lost(pod: Raw, message: str, status: Raw | None = None) -> Raw:
    """What is reported of a pod whose end nobody has seen."""
    known = status if status is not None else obj(pod, "status")
    ended = {"exitCode": 137, "reason": "Lost", "message": message}
    states = [
        {
            **one,
            "ready": False,
            "started": False,
            "state": one["state"] if "terminated" in obj(one, "state") else {"terminated": ended},
        }
        for one in known.get("containerStatuses") or ()
    ]
    return {"phase": "Failed", "reason": "Lost", "message": message, "containerStatuses": states}


def waiting(pod: Raw, reason: str, message: str, now: float) -> Raw:
    """The status of a pod that can't be made there, yet."""
    containers = [
        {
            "name": text(container, "name"),
            "image": text(container, "image"),
            "imageID": "",
            "ready": False,
            "started": False,
            "restartCount": 0,
            "state": {"waiting": {"reason": reason, "message": message[:_MESSAGE_LEN_MAX]}},
        }
        for _, container in objs(obj(pod, "spec"), "containers", "")
    ]
    began = obj(pod, "status").get("startTime") or format_time(now)
    return {"phase": "Pending", "containerStatuses": containers, "startTime": began}
