"""The agent's configuration: a YAML file, every field optional, every mistake named with its field and value. Pure but `load`.

Amounts that are not given are measured (`measuring`). Field names in the file are camelCase, as in Kubernetes.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from muster.objects.bandwidth import parse_bandwidth
from muster.objects.names import validate_label_key, validate_label_name, validate_label_value, validate_subdomain
from muster.objects.quantity import Quantity

RuntimeName = Literal["process", "runc", "kubernetes"]
FILE_BYTES_MAX = 256 * 1024
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


class ConfigError(Exception):
    """Everything that is wrong with the file, one line each: `field: value: what is wrong`."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class _Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class Capacity(_Section, frozen=True):
    """What the node has, where measuring would be wrong; `kuscia.io/bandwidth` is `bandwidth`."""

    cpu: str = ""
    memory: str = ""
    ephemeral_storage: str = ""
    pods: int | None = None
    bandwidth: str = ""
    """`1Gbps`, or bare megabits as in Kuscia's file."""
    extended: dict[str, str] = {}
    """Further resources by name, such as `nvidia.com/gpu: "2"`."""
    share: float = 1.0
    """The part of the machine that is this agent's, where several share it. Applies to what is measured."""
    share_offset: float = 0.0
    """Where its part begins, from 0 to 1: decides which of the GPUs are its, since those can't be divided."""


class Reserved(_Section, frozen=True):
    """Held back for the machine itself. Defaults as in Kuscia."""

    cpu: str = "500m"
    memory: str = "500Mi"
    ephemeral_storage: str = "1Gi"
    bandwidth: str = "10Mbps"


class Network(_Section, frozen=True):
    """`enabled: auto` uses namespaces where the machine allows them. `podCIDR` is asked of the control plane when empty."""

    enabled: Literal["auto", "always", "never"] = "auto"
    pod_cidr: str = msgspec.field(default="", name="podCIDR")
    uplink: str = ""
    """The interface towards other machines; the one of the default route when empty."""
    masquerade: bool = True
    """Tasks reach beyond the node under the node's address."""
    mtu: int = 1500


class Process(_Section, frozen=True):
    user_range: tuple[int, int] = (2_000_000_000, 2_000_065_535)
    """Unprivileged users for pods: first and last."""
    hide: list[str] = []
    """Further directories of the host that tasks must not see."""


class Runc(_Section, frozen=True):
    binary: str = ""
    """`runc` or `crun`, whichever works, when empty."""
    insecure_registries: list[str] = []
    """Hosts (with port) that are spoken to without TLS, or without checking it."""
    registries: list[str] = msgspec.field(default_factory=lambda: ["*"])
    """Patterns of hosts that images may be pulled from; a name without a host is the empty one. Empty list: never pull."""
    image_directories: list[str] = []
    """A pod's image may name a path (`oci-archive:/p`) below these; anything else is loaded by the operator first."""
    user_namespace: Literal["auto", "always", "never"] = "auto"
    """Whether root in a container is an ordinary user of the host; `auto`: where the machine can."""
    images_bytes_max: str = "20Gi"
    """Above, pulled images that nothing uses go, the longest unused first."""
    images_high_percent: int = 85
    images_low_percent: int = 80
    """Of the disk that they are on: when so much of it is used, they go until no more than the low mark is."""
    images_unused_seconds: int = 0
    """Pulled images that nothing has used for so long go; 0: age alone is no reason."""


class Kubernetes(_Section, frozen=True):
    """For RunK: where pods are created, and what is added to them."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    template: dict[str, Any] = {}
    """A partial pod (metadata.labels, metadata.annotations, spec...) merged over every pod that is created there."""
    strip_bandwidth: bool = True


class Logs(_Section, frozen=True):
    bytes_max: str = "16Mi"
    files_max: int = 5


class Timing(_Section, frozen=True):
    heartbeat_seconds: int = 10
    lease_seconds: int = 40
    status_seconds: int = 60
    fence_seconds: int = 0
    """After so long without reaching the control plane the agent kills its tasks, so that they may be started elsewhere;
    0: never."""
    metric_seconds: int = 15
    report_seconds: int = 60


class Serving(_Section, frozen=True):
    """The kubelet's log endpoint."""

    listen: str = ""
    """`HOST:PORT`, port 0 for any free one. When empty: loopback if the control plane is on loopback, else the uplink's
    address; any free port."""
    address: str = ""
    """The address that the control plane reaches it by; the listening one, or the uplink's, when empty."""


class AgentConfig(_Section, frozen=True):
    name: str = ""
    """Of the node; the host's name (with the party's before it) when empty."""
    domain: str = ""
    """The party that it works for; empty: none."""
    runtime: RuntimeName = "process"
    labels: dict[str, str] = {}
    taints: list[dict[str, str]] = []
    capacity: Capacity = Capacity()
    reserved: Reserved = Reserved()
    network: Network = Network()
    process: Process = Process()
    runc: Runc = Runc()
    kubernetes: Kubernetes = Kubernetes()
    logs: Logs = Logs()
    timing: Timing = Timing()
    serving: Serving = Serving()
    allowed_host_paths: list[str] = []
    """hostPath volumes may show these directories and what is below them; nothing else of the host."""
    devices: list[str] = []
    """Device nodes to offer besides the GPUs that are found, as `NAME=/dev/PATH`."""


def load(path: Path) -> AgentConfig:
    """ConfigError names every mistake."""
    try:
        data = path.read_bytes()
    except OSError as e:
        raise ConfigError([f"{path}: can't be read: {e.strerror}"]) from e
    return parse(data)


def parse(data: bytes) -> AgentConfig:
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError([f"the file has {len(data)} bytes; at most {FILE_BYTES_MAX} are read"])
    try:
        raw = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        raise ConfigError([f"not YAML: {str(e).splitlines()[0]}"]) from e
    try:
        config = msgspec.convert(raw if raw is not None else {}, AgentConfig)
    except msgspec.ValidationError as e:
        raise ConfigError([str(e)]) from e
    if problems := check(config):
        raise ConfigError(problems)
    return config


def check(config: AgentConfig) -> list[str]:
    """What is wrong beyond types. Every problem, not only the first."""
    problems: list[str] = []
    if config.name and (found := validate_subdomain(config.name)):
        problems.append(f"name: {config.name!r}: {found[0]}")
    if config.domain and (found := validate_label_name(config.domain)):
        problems.append(f"domain: {config.domain!r}: {found[0]}")
    for section, fields in (
        ("capacity", ("cpu", "memory", "ephemeral_storage")),
        ("reserved", ("cpu", "memory", "ephemeral_storage")),
    ):
        for field in fields:
            problems += _quantity(f"{section}.{field}", getattr(getattr(config, section), field))
    problems += [p for name, value in config.capacity.extended.items() for p in _quantity(f"capacity.extended[{name}]", value)]
    problems += _quantity("logs.bytesMax", config.logs.bytes_max)
    problems += _quantity("runc.imagesBytesMax", config.runc.images_bytes_max)
    low, high = config.runc.images_low_percent, config.runc.images_high_percent
    if not 0 < low <= high <= 100:
        problems.append(
            f"runc.imagesLowPercent: {low}: it is above 0 and at most runc.imagesHighPercent ({high}), and that 100"
        )
    if config.runc.images_unused_seconds < 0:
        problems.append(f"runc.imagesUnusedSeconds: {config.runc.images_unused_seconds}: it is 0 (never) or more")
    problems += [
        f"runc.imageDirectories: {path!r}: it is an absolute path, and not / itself"
        for path in config.runc.image_directories
        if not path.startswith("/") or not path.strip("/")
    ]
    for where, text in (("capacity.bandwidth", config.capacity.bandwidth), ("reserved.bandwidth", config.reserved.bandwidth)):
        try:
            if text:
                parse_bandwidth(text)
        except ValueError as e:
            problems.append(f"{where}: {text!r}: {e}")
    if not 0 < config.capacity.share <= 1:
        problems.append(f"capacity.share: {config.capacity.share}: it is above 0 and at most 1")
    if not 0 <= config.capacity.share_offset < 1:
        problems.append(f"capacity.shareOffset: {config.capacity.share_offset}: it is from 0 to below 1")
    problems += _devices(config.devices)
    if config.network.pod_cidr:
        try:
            ipaddress.IPv4Network(config.network.pod_cidr)
        except ValueError as e:
            problems.append(f"network.podCIDR: {config.network.pod_cidr!r}: {e}")
    problems += _labels_and_taints(config)
    if config.serving.listen and not re.fullmatch(r"[^\s/]*:\d{1,5}", config.serving.listen):
        problems.append(f"serving.listen: {config.serving.listen!r}: it is HOST:PORT, as in 127.0.0.1:10250")
    first, last = config.process.user_range
    if not 1000 <= first <= last < 2**32 - 2:
        problems.append(f"process.userRange: [{first}, {last}]: two user ids from 1000 on, the smaller first")
    timing = config.timing
    if not 1 <= timing.heartbeat_seconds < timing.lease_seconds:
        problems.append(
            f"timing.heartbeatSeconds: {timing.heartbeat_seconds}: at least 1, and below leaseSeconds ({timing.lease_seconds})"
        )
    if timing.fence_seconds and timing.fence_seconds < timing.lease_seconds:
        problems.append(
            f"timing.fenceSeconds: {timing.fence_seconds}: it is 0 (never) or at least leaseSeconds ({timing.lease_seconds})"
        )
    return problems


def _devices(devices: list[str]) -> list[str]:
    return [
        f"devices[{at}]: {text!r}: it is NAME=/dev/PATH"
        for at, text in enumerate(devices)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]*=/dev/[^\s]+", text) or "/.." in text
    ]


def _labels_and_taints(config: AgentConfig) -> list[str]:
    problems = []
    for key, value in config.labels.items():
        if found := [*validate_label_key(key), *validate_label_value(value)]:
            problems.append(f"labels[{key}]: {value!r}: {found[0]}")
    for at, taint in enumerate(config.taints):
        if unknown := set(taint) - {"key", "value", "effect"}:
            problems.append(f"taints[{at}]: {sorted(unknown)[0]!r}: a taint has key, value and effect")
        elif found := validate_label_key(taint.get("key", "")):
            problems.append(f"taints[{at}].key: {taint.get('key', '')!r}: {found[0]}")
        elif taint.get("effect") not in _EFFECTS:
            problems.append(f"taints[{at}].effect: {taint.get('effect', '')!r}: one of {', '.join(_EFFECTS)}")
    return problems


def _quantity(field: str, text: str) -> list[str]:
    try:
        if text and Quantity.parse(text).fraction() < 0:
            raise ValueError("an amount is not negative")
    except ValueError as e:
        return [f"{field}: {text!r}: {e}"]
    return []
