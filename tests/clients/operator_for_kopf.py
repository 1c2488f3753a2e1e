"""A small operator, run by `kopf run` as it stands: each Widget gets a ConfigMap of its own, and says in its status how it is.

KOPF_TEST_LOG names a file into which it writes what its handlers were called for; KOPF_TEST_GROUP is the group of the kind.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import urllib.request
from pathlib import Path
from typing import Any

import kopf
import yaml

GROUP = os.environ["KOPF_TEST_GROUP"]
LOG = Path(os.environ["KOPF_TEST_LOG"])


def note(what: str, name: str) -> None:
    with LOG.open("a") as file:
        file.write(f"{what} {name}\n")


def _call(method: str, path: str, body: dict[str, Any] | None = None) -> None:
    """A plain HTTP call with the kubeconfig's token: the operator needs no other client."""
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
    request = urllib.request.Request(
        cluster["server"] + path,
        method=method,
        data=json.dumps(body).encode() if body else None,
        headers={"Authorization": f"Bearer {user['token']}", "Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, context=ssl.create_default_context(cadata=ca), timeout=30).close()


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.posting.level = 30
    settings.persistence.finalizer = "widgets.example.org/held"


@kopf.on.create(GROUP, "v1", "widgets")
async def created(name: str, namespace: str, spec: dict[str, Any], patch: kopf.Patch, body: kopf.Body, **_: Any) -> None:
    child: dict[str, Any] = {"metadata": {"name": f"of-{name}"}, "data": {"size": str(spec["size"])}}
    kopf.adopt(child, owner=body)
    await asyncio.to_thread(_call, "POST", f"/api/v1/namespaces/{namespace}/configmaps", child)
    patch.status["phase"] = "Ready"
    note("created", name)


@kopf.on.resume(GROUP, "v1", "widgets")
def resumed(name: str, **_: Any) -> None:
    note("resumed", name)


@kopf.on.update(GROUP, "v1", "widgets", field="spec.size")
def resized(name: str, old: int, new: int, patch: kopf.Patch, **_: Any) -> None:
    patch.status["phase"] = f"Resized-{old}-{new}"
    note("resized", name)


@kopf.timer(GROUP, "v1", "widgets", interval=0.5)
def tick(patch: kopf.Patch, status: dict[str, Any], **_: Any) -> None:
    patch.status["replicas"] = int(status.get("replicas") or 0) + 1


@kopf.on.delete(GROUP, "v1", "widgets")
def deleted(name: str, **_: Any) -> None:
    if Path(f"{LOG}.hold").exists():
        raise kopf.TemporaryError("somebody holds it", delay=0.5)
    note("deleted", name)
