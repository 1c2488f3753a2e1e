"""Talking to Muster, or to any Kubernetes-style API: kubeconfig, objects, watches, patches; async, with a blocking face.

    async with await ApiClient.from_kubeconfig() as client:
        pods = await client.find("pods")
        for pod in (await client.list(pods, "default")).items:
            print(pod["metadata"]["name"])

`SyncClient` has the same methods for scripts and notebooks. Names are loaded when they are used: importing a part of this
package (`muster.client.kubeconfig`) does not import an HTTP library. See docs/client.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster.client.api import ApiClient
    from muster.client.config import Auth, ClientConfig, Impersonation, Tls
    from muster.client.errors import BadResponse, CredentialError, OutcomeUnknown, Unreachable, Untrusted
    from muster.client.jobs import JobDiff, JobFilter, JobPage, Jobs, JobTree, LogLine, LogQuery, Outcome
    from muster.client.kubeconfig import Kubeconfig, KubeconfigError, load, write_kubeconfig
    from muster.client.sync import SyncClient
    from muster.client.transport import TransportLimits
    from muster.objects.requests import (
        EventType,
        Page,
        PatchType,
        Preconditions,
        ViewEvent,
        ViewPage,
        WatchEvent,
        WriteOptions,
    )

_HOMES = {
    "muster.client.api": ("ApiClient",),
    "muster.client.config": ("Auth", "ClientConfig", "Impersonation", "Tls"),
    "muster.client.errors": ("BadResponse", "CredentialError", "OutcomeUnknown", "Unreachable", "Untrusted"),
    "muster.client.jobs": ("JobDiff", "JobFilter", "JobPage", "JobTree", "Jobs", "LogLine", "LogQuery", "Outcome"),
    "muster.client.kubeconfig": ("Kubeconfig", "KubeconfigError", "load", "write_kubeconfig"),
    "muster.client.sync": ("SyncClient",),
    "muster.client.transport": ("TransportLimits",),
    "muster.objects.requests": (
        *("EventType", "Page", "PatchType", "Preconditions"),
        *("ViewEvent", "ViewPage", "WatchEvent", "WriteOptions"),
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "ApiClient",
    "Auth",
    "BadResponse",
    "ClientConfig",
    "CredentialError",
    "EventType",
    "Impersonation",
    "JobDiff",
    "JobFilter",
    "JobPage",
    "JobTree",
    "Jobs",
    "Kubeconfig",
    "KubeconfigError",
    "LogLine",
    "LogQuery",
    "Outcome",
    "OutcomeUnknown",
    "Page",
    "PatchType",
    "Preconditions",
    "SyncClient",
    "Tls",
    "TransportLimits",
    "Unreachable",
    "Untrusted",
    "ViewEvent",
    "ViewPage",
    "WatchEvent",
    "WriteOptions",
    "load",
    "write_kubeconfig",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)
