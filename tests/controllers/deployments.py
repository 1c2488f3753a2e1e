"""Manifests of services, for tests."""

from __future__ import annotations

from typing import Any

from muster.objects.status import Raw

VERSION = "kuscia.secretflow/v1alpha1"


def app_image(name: str = "serving", *, tag: str = "1", **container: Any) -> Raw:
    """One container with a port for other parties, one for its own, one for itself, and a file."""
    main = {
        "name": "main",
        "command": ["serve"],
        "ports": [
            {"name": "api", "protocol": "HTTP", "scope": "Cluster"},
            {"name": "admin", "protocol": "HTTP", "scope": "Domain"},
            {"name": "debug", "scope": "Local"},
        ],
        "configVolumeMounts": [{"mountPath": "/etc/serve.conf", "subPath": "serve.conf"}],
        "resources": {"requests": {"cpu": "1"}},
        **container,
    }
    return {
        "apiVersion": VERSION,
        "kind": "AppImage",
        "metadata": {"name": name},
        "spec": {
            "image": {"name": name, "tag": tag},
            "configTemplates": {"serve.conf": '{"id": "{{.SERVING_ID}}", "cluster": "{{.CLUSTER_DEFINE}}"}'},
            "deployTemplates": [{"name": "any", "replicas": 2, "spec": {"containers": [main]}}],
        },
    }


def party(name: str, replicas: int | None = None, *, role: str = "", image: str = "serving", **more: Any) -> Raw:
    template: Raw = {key: more.pop(key) for key in ("strategy", "spec") if key in more}
    if replicas is not None:
        template["replicas"] = replicas
    made: Raw = {"domainID": name, "appImageRef": image, "template": template, **more}
    return {**made, "role": role} if role else made


def deployment(*parties: Raw, name: str = "credit", annotations: dict[str, str] | None = None, **spec: Any) -> Raw:
    return {
        "apiVersion": VERSION,
        "kind": "KusciaDeployment",
        "metadata": {"name": name, "namespace": "cross-domain", "annotations": annotations or {}},
        "spec": {"initiator": parties[0]["domainID"], "inputConfig": "{}", "parties": list(parties), **spec},
    }
