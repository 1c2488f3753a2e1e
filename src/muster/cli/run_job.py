"""The Job that `muster run` makes from its options. Pure: options in, manifest out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from muster.cli.errors import UsageError
from muster.objects.job_pods import pod_name
from muster.objects.labels import Koordinator, Muster
from muster.objects.names import LABEL_LEN_MAX
from muster.objects.status import Raw
from muster.objects.time import format_time, parse_time

ROLE = "main"
NAME_LEN_MAX = 40
"""Of the part of a generated name that comes from the command."""
DEFAULT_NAME = "run"
NO_LIMIT = "none"


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says; empty means that the job does not say it."""

    command: Sequence[str] = ()
    name: str = ""
    image: str = ""
    replicas: int = 1
    cpu: str = ""
    memory: str = ""
    gpu: int = 0
    bandwidth: str = ""
    cpu_limit: str = ""
    memory_limit: str = ""
    bandwidth_limit: str = ""
    """A ceiling; `NO_LIMIT` for none. Without a word, what is asked for is the ceiling too."""
    env: Mapping[str, str] = {}
    workdir: str = ""
    queue: str = ""
    priority: int = 0
    user: str = ""
    type: str = ""
    attributes: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    node_selector: Mapping[str, str] = {}
    pools: Sequence[str] = ()
    estimate_s: float | None = None
    deadline: str = ""
    preemptible: bool = False
    checkpoint_interval_s: float | None = None
    retries: int = 0
    timeout_s: float | None = None


def manifest_of(options: RunOptions) -> Raw:
    """The Job. UsageError when there is nothing to run."""
    if not options.command and not options.image:
        raise UsageError("nothing to run: give a command after --, or an image, as in: muster run --cpu 2 -- python train.py")
    metadata: Raw = {"name": options.name} if options.name else {"generateName": f"{name_for(options)}-"}
    if options.labels:
        metadata["labels"] = dict(options.labels)
    return {"apiVersion": "muster.dev/v1alpha1", "kind": "Job", "metadata": metadata, "spec": _spec(options)}


def _spec(options: RunOptions) -> Raw:
    given: dict[str, Any] = {
        "user": options.user,
        "queue": options.queue,
        "priority": options.priority,
        "type": options.type,
        "attributes": dict(options.attributes),
        "estimate": {"runSeconds": _whole(options.estimate_s)} if options.estimate_s else None,
        "deadline": options.deadline,
        "pools": list(options.pools),
        "preemptible": options.preemptible,
        "checkpointIntervalSeconds": _whole(options.checkpoint_interval_s),
        "retry": {"limit": options.retries} if options.retries else None,
        "activeDeadlineSeconds": _whole(options.timeout_s),
    }
    return {"roles": [_role(options)], **{key: value for key, value in given.items() if value}}


def _role(options: RunOptions) -> Raw:
    requests = {
        "cpu": options.cpu,
        "memory": options.memory,
        Koordinator.RESOURCE_NVIDIA_GPU: str(options.gpu) if options.gpu else "",
        Muster.RESOURCE_BANDWIDTH: options.bandwidth,
    }
    ceilings = {"cpu": options.cpu_limit, "memory": options.memory_limit, Muster.RESOURCE_BANDWIDTH: options.bandwidth_limit}
    limits = {key: ceilings.get(key) or asked for key, asked in requests.items()}
    role: Raw = {"name": ROLE, "replicas": options.replicas}
    given: dict[str, Any] = {
        "image": options.image,
        "command": list(options.command),
        "workingDir": options.workdir,
        "env": [{"name": name, "value": value} for name, value in options.env.items()],
        "nodeSelector": dict(options.node_selector),
    }
    role |= {key: value for key, value in given.items() if value}
    resources = {
        "requests": {key: value for key, value in requests.items() if value},
        "limits": {key: value for key, value in limits.items() if value and value != NO_LIMIT},
    }
    said = {word: amounts for word, amounts in resources.items() if amounts}
    return {**role, "resources": said} if said else role


def _whole(seconds: float | None) -> int | None:
    """At least one: a limit of nothing would end what it is for."""
    return None if seconds is None else max(1, round(seconds))


def name_for(options: RunOptions) -> str:
    """What a name is generated from: `python train.py` is `train`, an image alone is its last part."""
    words = [word for word in options.command if not word.startswith("-")]
    script = next((word for word in words[1:3] if re.search(r"\.(py|sh|R|jl|js|rb|pl)$", word)), words[0] if words else "")
    image = re.split(r"[@:]", options.image.rpartition("/")[2])[0]
    stem = re.sub(r"\.[A-Za-z0-9]+$", "", (script or image).rstrip("/").rpartition("/")[2])
    plain = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    plain = re.sub(r"^[^a-z]+", "", plain)
    longest = LABEL_LEN_MAX - len(pod_name("", ROLE, options.replicas)) - len("-xxxxx")
    return plain[: min(NAME_LEN_MAX, longest)].strip("-") or DEFAULT_NAME


def pairs(values: Sequence[str], option: str) -> dict[str, str]:
    """`K=V` of each; the value may be empty. UsageError names the one that is wrong."""
    found: dict[str, str] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} '{value}': expected NAME=VALUE")
        if key in found:
            raise UsageError(f"{option} '{value}': {key} is given twice; give it once")
        found[key] = text
    return found


def deadline_of(text: str, seconds: float | None, now: float) -> str:
    """A moment as it stands, or so many seconds from `now`."""
    if not text:
        return ""
    if seconds is not None:
        return format_time(now + seconds)
    try:
        moment = parse_time(text)
    except ValueError:
        raise UsageError(f"--deadline '{text}': give a moment like 2026-11-15T20:00:00Z, or a time from now like 8h") from None
    if moment <= now:
        raise UsageError(f"--deadline '{text}': that is over (now it is {format_time(now)}); give a moment that is to come")
    return format_time(moment)
