"""What the parts of the agent promise each other. Values and protocols, no I/O; every part is tested against these alone.

Who calls whom: `pods` (the controller of this node's pods) decides with `lifecycle` and acts through a `ContainerRuntime`, a
`Cgroups` and a `Networks`. The runtimes start everything through `shim.client.Shims`. `metrics` reads usage from the last two.
All methods run on the agent's event loop; what may block for long (unpacking, large copies) goes to a thread inside the part.

Invariants that all parts keep:
- every method may be repeated: `ensure`, `create` and `remove` of what is already so change nothing;
- what was made is found again after a crash by listing (`list`), so that what nobody wants any more can be removed;
- a failure raises `AgentError` with a reason and a message for the pod's status, and leaves nothing half made that `remove`
  does not take away.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

State = Literal["starting", "running", "exited"]
MountKind = Literal["bind", "tmpfs"]
START_ERROR: Final = "StartError"
"""`Exited.reason` of a run whose program was never executed."""


class AgentError(Exception):
    """Why something can't be done for a pod. `reason` is CamelCase, as it stands in a container's `waiting` state."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Missing(msgspec.Struct, frozen=True):
    """Something that this machine, or the rights of this agent, do not allow; `so` is what follows for the work."""

    feature: str
    why: str
    so: str

    def __str__(self) -> str:
        return f"{self.feature}: {self.why}; {self.so}"


# -- what a container is to be -------------------------------------------------------------------------------------------------


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a container or a pod was granted. None: no limit of its own."""

    cpu_request_milli: int = 0
    cpu_limit_milli: int | None = None
    memory_request_bytes: int = 0
    memory_limit_bytes: int | None = None
    pids_max: int | None = None
    disk_limit_bytes: int | None = None
    """`ephemeral-storage`: the writable layer, the logs and the emptyDirs together."""
    devices: tuple[str, ...] = ()
    """Paths of device nodes that it may use besides the usual ones."""


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """`target` is inside the container. A `bind` shows `source` (a file or directory on the host) there."""

    target: str
    source: str = ""
    kind: MountKind = "bind"
    read_only: bool = False
    size_bytes: int | None = None
    """Of a tmpfs."""


class Security(msgspec.Struct, frozen=True, kw_only=True):
    """From the security contexts of pod and container. `user` None: the pod's own unprivileged one (process), the image's
    (runc)."""

    user: int | None = None
    group: int | None = None
    groups: tuple[int, ...] = ()
    read_only_root: bool = False
    may_gain_privileges: bool = False
    add_capabilities: tuple[str, ...] = ()
    drop_capabilities: tuple[str, ...] = ()


class LogLimits(msgspec.Struct, frozen=True):
    """A run's log never takes more than `bytes_max` * `files_max` on disk."""

    bytes_max: int = 16 * 2**20
    files_max: int = 5


class ContainerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a container, everything resolved: variables, volumes, users. Made by `pods`, taken by a runtime."""

    name: str
    attempt: int
    image: str = ""
    command: tuple[str, ...] = ()
    """Replaces the image's entry point; empty: the image's own."""
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    cwd: str = ""
    mounts: tuple[Mount, ...] = ()
    limits: Limits = Limits()
    security: Security = Security()
    log: LogLimits = LogLimits()
    termination_message_path: str = "/dev/termination-log"
    has_tty: bool = False


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """What the containers of one pod share. Part of the `PodRecord`, so that a new agent has the same."""

    uid: str
    namespace: str
    name: str
    hostname: str
    user: int
    """The pod's own unprivileged user and group on this machine; no two pods have the same at one time."""
    netns: str = ""
    """Path of its network namespace; empty: the host's."""
    ip: str = ""


# -- what became of it ---------------------------------------------------------------------------------------------------------


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """Written by the shim when the container's first process runs. A process is (pid, start, boot), never a bare pid."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/<pid>/stat."""
    boot_id: str
    at: float
    shim_pid: int
    shim_start_ticks: int


class Exited(msgspec.Struct, frozen=True, kw_only=True):
    """Written by the shim when it is over, or by the agent when it finds that shim and process are gone."""

    code: int
    """As a shell says it: 128 + n for signal n."""
    signal: int = 0
    at: float = 0.0
    oom_killed: bool = False
    reason: str = ""
    """`StartError` when it never ran, `Lost` when nobody knows how it ended; otherwise it follows from the code."""
    message: str = ""


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a container as its files and /proc have it now."""

    state: State
    started: Started | None = None
    exited: Exited | None = None


class ExecResult(msgspec.Struct, frozen=True):
    code: int
    output: bytes
    """Both streams, at most the first 10 KiB."""
    is_timeout: bool = False


class StreamTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of this node, and one of its containers where one is meant, as somebody names them who wants a connection."""

    namespace: str
    pod: str
    container: str = ""
    uid: str = ""
    """"": whichever pod has that name."""


class ExecWant(msgspec.Struct, frozen=True, kw_only=True):
    """A command to run beside a container while somebody talks to it."""

    argv: tuple[str, ...]
    has_stdin: bool = False
    """Otherwise it reads from /dev/null."""
    has_tty: bool = False
    """Streams are one terminal, which is the command's controlling terminal: what it prints is on `stdout`."""


class ExecSession(Protocol):
    """A command that runs with its streams open. The descriptors do not block, are not inheritable, and belong to the session:
    only `close` and `close_stdin` close them."""

    stdin: int
    """To write to; -1 without. Of a terminal the same as `stdout`."""
    stdout: int
    stderr: int
    """-1 of a terminal."""

    def close_stdin(self) -> None:
        """The command reads its end. On a terminal nothing: there the end is a character."""
        ...

    def resize(self, columns: int, rows: int) -> None:
        """Of a terminal; otherwise nothing."""
        ...

    async def wait(self) -> int:
        """The exit code, as a shell says it. What it has left behind may still hold the streams open."""
        ...

    async def close(self) -> None:
        """Kill what still runs of it, and close the descriptors. May be repeated."""
        ...


class RunRef(msgspec.Struct, frozen=True):
    """Names one run of a container."""

    uid: str
    container: str
    attempt: int


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """An image that is ready for use. The process runtime has none: everything is empty."""

    id: str = ""
    """`sha256:...` of its configuration."""
    reference: str = ""
    root: str = ""
    """Directory with the unpacked file system."""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    cwd: str = ""
    user: str = ""
    stop_signal: str = ""


# -- the parts -----------------------------------------------------------------------------------------------------------------


class ContainerRuntime(Protocol):
    """How containers run on this machine: `process` and `runc`."""

    name: str

    def missing(self) -> Sequence[Missing]:
        """What it can't do here. Empty on a machine that allows everything."""
        ...

    async def open(self) -> None:
        """Ready to start. Takes no containers back: `observe` finds them."""
        ...

    async def close(self) -> None:
        """Everything that runs goes on running."""
        ...

    async def image(self, reference: str, policy: str) -> Image:
        """Have the image here. AgentError `ErrImagePull`, `ErrImageNeverPull`, `InvalidImageName`."""
        ...

    async def start(self, sandbox: Sandbox, spec: ContainerSpec, image: Image) -> None:
        """Start this run, once: a second call for the same attempt starts nothing. Returns when the shim has it in hand."""
        ...

    def observe(self, ref: RunRef) -> RunState | None:
        """None: no such run was ever begun here. Finds runs of earlier agents; one whose shim and process are gone without
        a word is `exited` with reason `Lost`."""
        ...

    async def signal(self, ref: RunRef, signal: int) -> None:
        """To the container's first process; SIGKILL ends all of its processes."""
        ...

    async def exec(self, ref: RunRef, argv: Sequence[str], timeout_s: float) -> ExecResult:
        """Run a command beside it, in its namespaces and limits, as its user."""
        ...

    async def open_exec(self, ref: RunRef, want: ExecWant) -> ExecSession:
        """The same with its streams open, for as long as the one who asked stays. AgentError `ExecFailed`."""
        ...

    async def remove(self, sandbox: Sandbox, ref: RunRef) -> None:
        """Kill what is left and take away what was mounted or made for this run, except logs and records."""
        ...

    def changed(self) -> AsyncIterator[RunRef]:
        """Runs that have started or ended, as soon as it is known. For one listener."""
        ...


class Cgroups(Protocol):
    """The resource limits of this node's pods. Container paths are inside pod paths."""

    def missing(self) -> Sequence[Missing]: ...

    def create_pod(self, uid: str, limits: Limits) -> None: ...

    def create_container(self, uid: str, container: str, limits: Limits) -> None: ...

    def update(self, uid: str, container: str | None, limits: Limits) -> None:
        """Other limits for what runs already."""
        ...

    def procs_files(self, uid: str, container: str) -> Sequence[str]:
        """Files into which a process writes 0 to enter; open to root only."""
        ...

    def oci_path(self, uid: str, container: str) -> str:
        """`linux.cgroupsPath` of a bundle."""
        ...

    def oom_file(self, uid: str, container: str) -> str:
        """Has a line `oom_kill N`: `oomFile` of a launch. Empty where the kernel does not tell."""
        ...

    def oom_kills(self, uid: str, container: str) -> int: ...

    def kill(self, uid: str, container: str | None = None) -> int:
        """SIGKILL to every process inside, also to what forks meanwhile; how many there were."""
        ...

    def usage(self, uid: str, container: str | None = None) -> CgroupUsage | None: ...

    def remove(self, uid: str, container: str | None = None) -> None: ...

    def list(self) -> set[str]:
        """The uids of pods that have cgroups here."""
        ...


class CgroupUsage(msgspec.Struct, frozen=True, kw_only=True):
    cpu_ns: int
    """Since the cgroup was made."""
    memory_bytes: int
    """Without what the kernel could drop at once (inactive file pages)."""
    memory_with_cache_bytes: int
    pids: int
    throttled_ns: int = 0
    pressure: Mapping[str, float] = msgspec.field(default_factory=dict)
    """PSI `some avg10` in percent, by `cpu`, `memory`, `io`; empty where the kernel has none for it."""


class NetworkWant(msgspec.Struct, frozen=True, kw_only=True):
    """Bits per second. A limit is a ceiling on the pod's own interface; a request a guaranteed share of the uplink."""

    uid: str
    egress_limit_bps: int | None = None
    ingress_limit_bps: int | None = None
    egress_request_bps: int = 0
    ingress_request_bps: int = 0


class PodNetwork(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    netns: str
    ip: str
    gateway: str


class Traffic(msgspec.Struct, frozen=True):
    """Bytes at the pod's own interface since it was made."""

    sent_bytes: int
    received_bytes: int


class Networks(Protocol):
    """Network namespaces of pods, their addresses, and who may send how much."""

    def missing(self) -> Sequence[Missing]: ...

    async def open(self) -> None:
        """Bridge, uplink classes and forwarding are in place; what an earlier agent made is known again."""
        ...

    async def close(self) -> None:
        """Pods keep their network."""
        ...

    async def ensure(self, want: NetworkWant) -> PodNetwork:
        """The pod has a network with these figures. AgentError `NetworkNotReady`."""
        ...

    async def release(self, uid: str) -> Traffic | None:
        """Interface, address and share are free at once; the final count."""
        ...

    async def list(self) -> set[str]: ...

    def traffic(self, uid: str) -> Traffic | None: ...

    def traffic_of_all(self) -> Mapping[str, Traffic]:
        """The same for every pod by uid, at the price of one."""
        ...

    async def set_peers(self, peers: Mapping[str, str]) -> None:
        """Routes to the pods of other nodes: pod CIDR to the address of the node."""
        ...

    async def teardown(self) -> None:
        """Nothing of this agent's is left in the kernel. For leaving for good, and for tests."""
        ...


class LogQuery(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    pod: str
    container: str
    uid: str = ""
    previous: bool = False
    follow: bool = False
    tail_lines: int | None = None
    since: float | None = None
    """An instant."""
    timestamps: bool = False
    limit_bytes: int | None = None


class PodCarrier(Protocol):
    """Carries the pods that are bound to this node: one for local runtimes, one for `kubernetes`.

    `run` follows this node's pods in the store, reports their status there, and returns only when cancelled; what runs goes on.
    """

    async def run(self) -> None: ...

    def logs(self, query: LogQuery) -> AsyncIterator[bytes]:
        """AgentError `NotFound` or `BadRequest` before the first chunk."""
        ...

    async def open_exec(self, target: StreamTarget, want: ExecWant) -> ExecSession:
        """AgentError `NotFound`, `BadRequest` where it can't be now (not running), `NotSupported`, `ExecFailed`."""
        ...

    async def dial(self, target: StreamTarget, port: int) -> socket.socket:
        """A connection, which does not block, to 127.0.0.1 or else ::1 as the pod sees it. AgentError as above, and
        `ConnectionRefused` with a sentence that names the port."""
        ...

    def local_uids(self) -> set[str]:
        """Pods that have something on this machine."""
        ...


class Directories(Protocol):
    """The part of `Layout` that runtimes need."""

    data: Path
    run: Path

    def run_dir(self, uid: str, container: str, attempt: int) -> Path: ...
