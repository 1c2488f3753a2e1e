"""Where an agent keeps what must outlive it. One place, so that every part finds the same path. Values only, no I/O.

    <data>/agent.lock                         held by the agent that works on this directory
    <data>/credentials/                       kubeconfig, serving key and certificate; 0700
    <data>/images/                            unpacked images, shared by all containers (runc)
    <data>/pods/<uid>/                        0711, root's
        pod.json                              `PodRecord`: what was accepted, and what it was given
        etc/{hosts,hostname,resolv.conf}      seen by every container of the pod
        volumes/<name>/                       one directory for each volume
        report/                               where the pod's work writes progress and records
        containers/<name>/<attempt>/          one run of a container
            launch.json                       `Launch`: written before anything is started
            lock                              held by the shim for as long as it lives
            started.json, exit.json           `Started`, `Exited`: written once, by the shim
            log/                              what it printed, in the format of the container runtime interface
            root/                             its own writable layer (process), or its bundle (runc)
    <run>/                                    on a tmpfs where there is one: gone after a reboot, as what it names is
        events.sock                           where shims tell that something has happened
        netns/<uid>                           network namespaces, mounted here to keep them

Invariant: names under <data>/pods come from uids, container names and numbers that were checked (`safe_part`), never from
anything else that a manifest says.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

_PART: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?")


def safe_part(text: str) -> str:
    """`text`, if it can be one part of a path. ValueError otherwise."""
    if not _PART.fullmatch(text) or ".." in text:
        raise ValueError(f"{text[:80]!r} can't be the name of a directory here")
    return text


class Layout:
    def __init__(self, data: Path, run: Path | None = None) -> None:
        self.data = data
        self.run = run if run is not None else Path("/run/muster") / self.id

    @property
    def id(self) -> str:
        """Short and stable: names interfaces, cgroups and whatever else is shared by agents of one machine."""
        return hashlib.sha256(str(self.data.absolute()).encode()).hexdigest()[:8]

    @property
    def lock(self) -> Path:
        return self.data / "agent.lock"

    @property
    def credentials(self) -> Path:
        return self.data / "credentials"

    @property
    def images(self) -> Path:
        return self.data / "images"

    @property
    def pods(self) -> Path:
        return self.data / "pods"

    @property
    def events_socket(self) -> Path:
        return self.run / "events.sock"

    def netns(self, uid: str) -> Path:
        return self.run / "netns" / safe_part(uid)

    def pod(self, uid: str) -> Path:
        return self.pods / safe_part(uid)

    def record(self, uid: str) -> Path:
        return self.pod(uid) / "pod.json"

    def etc(self, uid: str) -> Path:
        return self.pod(uid) / "etc"

    def volume(self, uid: str, name: str) -> Path:
        return self.pod(uid) / "volumes" / safe_part(name)

    def report(self, uid: str) -> Path:
        return self.pod(uid) / "report"

    def run_dir(self, uid: str, container: str, attempt: int) -> Path:
        """One run of a container; attempts count from 0, as `restartCount` does."""
        return self.pod(uid) / "containers" / safe_part(container) / str(attempt)
