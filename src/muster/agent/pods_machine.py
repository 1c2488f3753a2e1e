"""The parts of this node that pods are made of, handed around together. Values only."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from muster.agent.config import AgentConfig
from muster.agent.contracts import Cgroups, ContainerRuntime, Networks
from muster.agent.layout import Layout
from muster.agent.pod_sources import PodSources
from muster.agent.pod_tokens import PodTokens
from muster.objects.time import Clock


class Machine(msgspec.Struct, kw_only=True):
    """The parts of this node that pods are made of."""

    layout: Layout
    config: AgentConfig
    runtime: ContainerRuntime
    cgroups: Cgroups
    networks: Networks | None
    sources: PodSources
    tokens: PodTokens
    clock: Clock
    node: str
    host_ip: str = ""
    allocatable: Mapping[str, str] = msgspec.field(default_factory=dict)
    units: Mapping[str, tuple[tuple[str, ...], ...]] = msgspec.field(default_factory=dict)
    """Device paths of each unit of a resource."""
    fill_names: Callable[[str, str], object] | None = None
    """Puts the names of services into a pod's hosts file: by uid and namespace."""
    dial: Callable[[str, int], Awaitable[socket.socket]] | None = None
    """Connects to a port inside a network namespace (`pods_streams`)."""
