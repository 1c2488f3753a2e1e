"""Objects of Kubernetes' own kinds, with the field for which a server refuses each; "" where it accepts.

Two tests read the tables beside this file: one holds our rules against them, the other a real kube-apiserver. `since` is the
version from which the real one knows the rule or the field.
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec

from muster.objects.catalog import CATALOG
from muster.objects.status import Raw


class Case(msgspec.Struct, frozen=True):
    id: str
    group: str
    kind: str
    body: Raw
    refused: str = ""
    """Field that has to be among the causes. A real server may name its parent: the verdicts are compared, not the paths."""
    since: str = "1.20"


class Change(msgspec.Struct, frozen=True):
    id: str
    group: str
    kind: str
    before: Raw
    after: Raw
    refused: str = ""
    since: str = "1.20"


MAIN: Raw = {"name": "main", "image": "busybox:1.36"}
LABELS = {"matchLabels": {"app": "web"}}
TEMPLATE: Raw = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [MAIN]}}
NEVER: Raw = {"spec": {"restartPolicy": "Never", "containers": [MAIN]}}
CLAIM: Raw = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
PV: Raw = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
HOOK: Raw = {
    "name": "a.b.c",
    "sideEffects": "None",
    "admissionReviewVersions": ["v1"],
    "clientConfig": {"service": {"name": "s", "namespace": "n"}},
    "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
}
RBAC = "rbac.authorization.k8s.io"
ROLE_REF = {"kind": "Role", "name": "r", "apiGroup": RBAC}


def spec(**fields: Any) -> Raw:
    return {"spec": fields}


def pod(**fields: Any) -> Raw:
    return {"spec": {"containers": [MAIN], **fields}}


def container(**fields: Any) -> Raw:
    return {"spec": {"containers": [{**MAIN, **fields}]}}


def resources(**fields: Any) -> Raw:
    return container(resources=fields)


def env(**fields: Any) -> Raw:
    return container(env=[{"name": "A", **fields}])


def node_affinity(**requirement: Any) -> Raw:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}
    return pod(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})


def whole(group: str, kind: str, body: Raw) -> Raw:
    """`body` as a complete object called `case`, in the namespace `default` where the kind has namespaces."""
    resource = CATALOG.by_kind(group, kind)
    metadata = {"name": "case", **({"namespace": "default"} if resource.namespaced else {}), **body.get("metadata", {})}
    # A copy: the tables are shared by every test of the run.
    return copy.deepcopy({"apiVersion": resource.api_version, "kind": kind, **body, "metadata": metadata})
