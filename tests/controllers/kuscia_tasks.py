"""Builders for tasks and what they need: AppImages, Domains, KusciaTasks."""

from __future__ import annotations

from typing import Any

from muster.objects.status import Raw

API_VERSION = "kuscia.secretflow/v1alpha1"
NAMESPACES = ("default", "kube-system", "kube-node-lease", "kube-public", "cross-domain", "alice", "bob", "carol")


def container(name: str = "main", **fields: Any) -> Raw:
    return {"name": name, "command": ["run"], **fields}


def template(*containers: Raw, name: str = "app", role: str = "", replicas: int | None = None, **fields: Any) -> Raw:
    made: Raw = {"name": name, "spec": {"containers": list(containers or (container(),))}, **fields}
    if role:
        made["role"] = role
    return made | ({"replicas": replicas} if replicas is not None else {})


def app_image(name: str = "app", *templates: Raw, files: dict[str, str] | None = None, **image: str) -> Raw:
    spec: Raw = {"image": {"name": "repo/app", "tag": "1.0", **image}, "deployTemplates": list(templates or (template(),))}
    if files:
        spec["configTemplates"] = files
    return {"apiVersion": API_VERSION, "kind": "AppImage", "metadata": {"name": name}, "spec": spec}


def domain(name: str, role: str = "") -> Raw:
    return {"apiVersion": API_VERSION, "kind": "Domain", "metadata": {"name": name}, "spec": {"role": role} if role else {}}


def party(domain_id: str, role: str = "", image: str = "app", **fields: Any) -> Raw:
    made: Raw = {"domainID": domain_id, "appImageRef": image, **fields}
    return made | ({"role": role} if role else {})


def task(name: str = "t1", *parties: Raw, annotations: dict[str, str] | None = None, **spec: Any) -> Raw:
    meta: Raw = {"name": name, "namespace": "cross-domain"}
    if annotations:
        meta["annotations"] = annotations
    return {
        "apiVersion": API_VERSION,
        "kind": "KusciaTask",
        "metadata": meta,
        "spec": {
            "initiator": "alice",
            "taskInputConfig": '{"sf": 1}',
            "parties": list(parties or (party("alice", "host"), party("bob", "guest"))),
            **spec,
        },
    }
