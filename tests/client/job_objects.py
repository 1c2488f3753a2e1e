"""Jobs, tasks and pods as a server would give them, for tests of the client and of the command line."""

from __future__ import annotations

from typing import Any

from muster.objects.status import Raw


def kuscia_job(name: str = "train", *, phase: str = "", uid: str = "uid-1", **more: Any) -> Raw:
    """Two tasks of alice and bob, the second after the first."""
    parties = [{"domainID": "alice"}, {"domainID": "bob"}]
    status: Raw = {"phase": phase} if phase else {}
    status |= more.pop("status", {})
    return {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "KusciaJob",
        "metadata": {"name": name, "namespace": "cross-domain", "uid": uid, "resourceVersion": "7", **more.pop("metadata", {})},
        "spec": {
            "initiator": "alice",
            "maxParallelism": 2,
            "tasks": [
                {"alias": "first", "appImage": "app", "taskInputConfig": "{}", "parties": parties},
                {"alias": "then", "appImage": "app", "taskInputConfig": "{}", "dependencies": ["first"], "parties": parties},
            ],
            **more,
        },
        "status": status,
    }


def own_job(name: str = "fit", *, phase: str = "", state: str = "", **more: Any) -> Raw:
    status: Raw = {"phase": phase} if phase else {}
    status |= more.pop("status", {})
    spec: Raw = {"roles": [{"name": "worker", "replicas": 2, "command": ["true"]}], **more.pop("spec", {})}
    if state:
        spec["state"] = state
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "team", "uid": "uid-2", "resourceVersion": "9", **more.pop("metadata", {})},
        "spec": spec,
        "status": status,
    }


def task(alias: str, *, job_uid: str = "uid-1", phase: str = "", name: str = "", **status: Any) -> Raw:
    name = name or f"train-{alias}"
    return {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "KusciaTask",
        "metadata": {
            "name": name,
            "namespace": "cross-domain",
            "uid": f"uid-of-{name}",
            "labels": {"kuscia.secretflow/controller": "kuscia-job", "kuscia.secretflow/job-uid": job_uid},
            "annotations": {"kuscia.secretflow/task-alias": alias},
        },
        "spec": {
            "initiator": "alice",
            "taskInputConfig": "{}",
            "parties": [{"domainID": "alice", "appImageRef": "app"}, {"domainID": "bob", "appImageRef": "app"}],
        },
        "status": {"phase": phase, **status} if phase else status,
    }


def pod(name: str, namespace: str, *, task_uid: str = "", phase: str = "Pending", node: str = "", **more: Any) -> Raw:
    labels = {"kuscia.secretflow/task-uid": task_uid} if task_uid else {}
    spec: Raw = {"containers": [{"name": "main", "image": "x"}]}
    if node:
        spec["nodeName"] = node
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {**labels, **more.pop("labels", {})},
            "annotations": more.pop("annotations", {}),
        },
        "spec": spec,
        "status": {"phase": phase, **more},
    }
