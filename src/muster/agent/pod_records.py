"""The record of a pod: what this node has taken on, in `pod.json`, so that an agent that comes later goes on with it.

A record is on disk, with its directory, before anything of the pod is made and before the store hears of it. So a pod with no
record here that the store shows as started was lost by this machine, and is not started again.

Concurrency: blocking, small files.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import msgspec

from muster.agent.contracts import Sandbox
from muster.agent.layout import Layout, safe_part
from muster.agent.lifecycle_facts import Fate
from muster.objects.status import Raw

log = logging.getLogger(__name__)

RECORD_BYTES_MAX = 8 << 20


class PodRecord(msgspec.Struct, kw_only=True):
    pod: Raw
    """As accepted; its status is left out."""
    sandbox: Sandbox
    started_at: float
    fate: Fate | None = None
    is_clean: bool = False
    devices: dict[str, list[int]] = {}
    """Units of the node's devices that are the pod's, by resource."""
    annotations: dict[str, str] = {}
    """What its work has reported and the store may not know yet."""


_decoder = msgspec.json.Decoder(PodRecord)


def save(layout: Layout, record: PodRecord, *, is_new: bool = False) -> None:
    """Replace the record as a whole. A new one is on the disk, not only on its way, when this returns.

    A new one is written under its own name: there is nothing that it could spoil, half of one reads as none, and then nothing
    of the pod has been started. So one `fsync` will do: it keeps a file that is new together with the names that lead to it."""
    path = layout.record(record.sandbox.uid)
    if is_new:
        layout.pods.mkdir(parents=True, exist_ok=True, mode=0o711)
        path.parent.mkdir(exist_ok=True)
        path.parent.chmod(0o711)
    target = path if is_new else path.with_suffix(".new")
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(msgspec.json.encode(record))
        out.flush()
        if is_new:
            os.fsync(out.fileno())
    if not is_new:
        target.rename(path)


def load(layout: Layout, uid: str) -> PodRecord | None:
    """None when there is none, or none that can be read."""
    path = layout.record(uid)
    try:
        if path.stat().st_size > RECORD_BYTES_MAX:
            raise ValueError(f"it has more than {RECORD_BYTES_MAX} bytes")
        record = _decoder.decode(path.read_bytes())
        if record.sandbox.uid != uid:
            raise ValueError(f"it is the record of {record.sandbox.uid}")
        return record
    except FileNotFoundError:
        return None
    except (OSError, ValueError, msgspec.DecodeError) as e:
        log.warning("%s can't be read, so the pod counts as lost: %s", path, e)
        return None


def known_uids(layout: Layout) -> Iterator[str]:
    """Directories of pods, with or without a record."""
    try:
        names = sorted(os.listdir(layout.pods))
    except FileNotFoundError:
        return
    for name in names:
        try:
            yield safe_part(name)
        except ValueError:
            log.warning("%s is no directory of a pod", layout.pods / name)


def attempts(layout: Layout, uid: str, container: str) -> list[int]:
    """Runs of a container that have a directory, oldest first."""
    try:
        names = os.listdir(layout.run_dir(uid, container, 0).parent)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name) for name in names if name.isdecimal())
