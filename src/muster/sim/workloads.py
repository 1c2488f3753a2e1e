"""Parties, an application and jobs for simulated worlds: the manifests that a user would write, made by functions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from muster.objects.status import Raw

GROUP = "kuscia.secretflow"
VERSION = f"{GROUP}/v1alpha1"
CROSS_DOMAIN = "cross-domain"
APP_NAME = "app"


def domain(name: str) -> Raw:
    return {"apiVersion": VERSION, "kind": "Domain", "metadata": {"name": name}, "spec": {}}


def app_image(name: str = APP_NAME) -> Raw:
    """One container for any role, with a port for the other parties and a configuration file."""
    container = {
        "name": "main",
        "command": ["run"],
        "ports": [{"name": "peer", "protocol": "GRPC", "scope": "Cluster"}],
        "configVolumeMounts": [{"mountPath": "/etc/app.conf", "subPath": "app.conf"}],
    }
    return {
        "apiVersion": VERSION,
        "kind": "AppImage",
        "metadata": {"name": name},
        "spec": {
            "image": {"name": name, "tag": "1"},
            "configTemplates": {"app.conf": '{"task": "{{.TASK_ID}}", "cluster": "{{.TASK_CLUSTER_DEFINE}}"}'},
            "deployTemplates": [{"name": "any", "replicas": 1, "spec": {"restartPolicy": "Never", "containers": [container]}}],
        },
    }


def job_task(
    alias: str, parties: Sequence[str], *, cpu: str = "1", dependencies: Sequence[str] = (), **fields: Any
) -> dict[str, Any]:
    """A task of a KusciaJob; each party asks for `cpu` in all."""
    amounts = {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}
    task: dict[str, Any] = {
        "alias": alias,
        "appImage": APP_NAME,
        "taskInputConfig": "{}",
        "parties": [{"domainID": party, "resources": amounts} for party in parties],
        **fields,
    }
    return {**task, "dependencies": list(dependencies)} if dependencies else task


def kuscia_job(name: str, tasks: Sequence[Mapping[str, Any]], **fields: Any) -> Raw:
    """A KusciaJob whose initiator is the first party of its first task; `fields` go into its spec."""
    spec = {"initiator": tasks[0]["parties"][0]["domainID"], "tasks": list(tasks), **fields}
    return {
        "apiVersion": VERSION,
        "kind": "KusciaJob",
        "metadata": {"name": name, "namespace": CROSS_DOMAIN},
        "spec": spec,
    }
