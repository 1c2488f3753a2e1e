"""Nodes that only pretend to run: `muster up --simulated-nodes alice=2,bob=2`.

For trying things out before a real agent joins. Each node is a machine of the simulator with its agent, on the wall clock,
inside the server's own process: it registers, sends heartbeats, takes pods and carries them through their phases, but no
command of a pod is executed. What a pod pretends is said by its annotations, or by variables of its first container:

    muster.dev/simulated-seconds     MUSTER_SIMULATED_SECONDS      how long it runs; `forever` until it is stopped
    muster.dev/simulated-exit-code   MUSTER_SIMULATED_EXIT_CODE    how it ends
    muster.dev/simulated-failures    MUSTER_SIMULATED_FAILURES     so many first runs end so, later ones with 0

Concurrency: one task per node, and one that reports progress, all on the server's event loop. What ran when the process ended
is reported as lost with its machine at the next start: nothing is started a second time.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from muster.cli.errors import UsageError
from muster.objects.labels import Kuscia, KusciaLabel, Muster
from muster.objects.meta import annotations_of, name_of, namespace_of, uid_of
from muster.objects.names import validate_label_name
from muster.objects.resources import Resource
from muster.objects.status import ApiError, NotFound, Raw
from muster.objects.time import Clock
from muster.sim.agent import SimAgent, is_ready
from muster.sim.machine import Machine, PodScript, Process
from muster.store.contract import Store

NODES_MAX = 500
SECONDS_DEFAULT = 3.0
SECONDS_MAX = 30 * 86400.0
PROGRESS_S = 1.0
REGISTER_S = 10.0
POLL_S = 0.02
PROGRESS_STEP = 0.05
REMEMBERED_MAX = 20_000
PARTY_LESS = "default"
"""The word for nodes that belong to no party."""
CAPACITY_DEFAULT = {
    "cpu": "8",
    "memory": "32Gi",
    "ephemeral-storage": "100Gi",
    "pods": "110",
    Kuscia.RESOURCE_BANDWIDTH: "10000",
}


class SimulatedNodes(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for: how many nodes each party has, and what each node has."""

    counts: Mapping[str, int]
    capacity: Mapping[str, str]

    def machines(self) -> list[Machine]:
        return [
            Machine(f"simulated-{party}-{number}", capacity=dict(self.capacity), labels=_labels(party), taints=_taints(party))
            for party, count in self.counts.items()
            for number in range(1, count + 1)
        ]

    def said(self) -> str:
        shown = ", ".join(f"{party} {count}" for party, count in self.counts.items())
        return f"{sum(self.counts.values())} simulated nodes ({shown})"


def _labels(party: str) -> dict[str, str]:
    labels = {Muster.SIMULATED: "true"}
    if party != PARTY_LESS:
        labels |= {KusciaLabel.NODE_NAMESPACE: party, KusciaLabel.NODE_DOMAIN: party}
    return labels


def _taints(party: str) -> list[Raw]:
    """As Kuscia's agents have: only what is meant for the party comes to its nodes."""
    return [] if party == PARTY_LESS else [{"key": Kuscia.TAINT_AGENT, "value": "v1", "effect": "NoSchedule"}]


def parse_simulated(values: Sequence[str], capacities: Sequence[str]) -> SimulatedNodes | None:
    """`alice=2,bob=2` and `cpu=8,memory=32Gi`; None when no nodes are asked for. UsageError names what is wrong."""
    counts: dict[str, int] = {}
    for word, party, text in _pairs(values, "--simulated-nodes", "alice=2,bob=2"):
        if problems := validate_label_name(party):
            raise UsageError(f"--simulated-nodes '{word}': the party '{party}' {problems[0]}")
        if not re.fullmatch(r"[0-9]{1,6}", text) or not 1 <= int(text) <= NODES_MAX:
            raise UsageError(f"--simulated-nodes '{word}': the number of nodes is from 1 to {NODES_MAX}, not '{text}'")
        if party in counts:
            raise UsageError(f"--simulated-nodes '{word}': party '{party}' is given twice; give it once with the sum")
        counts[party] = int(text)
    if sum(counts.values()) > NODES_MAX:
        raise UsageError(f"--simulated-nodes: {sum(counts.values())} nodes in all; at most {NODES_MAX} are simulated")
    capacity = dict(CAPACITY_DEFAULT)
    for word, name, text in _pairs(capacities, "--simulated-capacity", "cpu=8,memory=32Gi,bandwidth=10Gbps"):
        key, value = _amount(word, name, text)
        capacity[key] = value
    if capacities and not counts:
        raise UsageError("--simulated-capacity says what each simulated node has; ask for some with --simulated-nodes")
    return SimulatedNodes(counts=counts, capacity=capacity) if counts else None


def _pairs(values: Sequence[str], option: str, example: str) -> list[tuple[str, str, str]]:
    found = []
    for word in (part.strip() for value in values for part in value.split(",")):
        name, equals, text = word.partition("=")
        if not equals or not name or not text:
            raise UsageError(f"{option} '{word}': expected NAME=VALUE with commas between, as in {example}")
        found.append((word, name.strip(), text.strip()))
    return found


def _amount(word: str, name: str, text: str) -> tuple[str, str]:
    from muster.objects.bandwidth import bps_to_mbps, parse_bandwidth
    from muster.objects.quantity import Quantity

    try:
        if name == Muster.RESOURCE_BANDWIDTH:
            return Kuscia.RESOURCE_BANDWIDTH, str(bps_to_mbps(parse_bandwidth(text)))
        if Quantity.parse(text).fraction() < 0:
            raise ValueError("an amount is not negative")
    except ValueError as error:
        raise UsageError(f"--simulated-capacity '{word}': {error}") from None
    return name, text


class Pretending:
    """All simulated nodes of one server, and what their pods pretend. `start`, then `stop`."""

    def __init__(self, nodes: SimulatedNodes, store: Store, clock: Clock) -> None:
        self.machines = nodes.machines()
        self._store = store
        self._clock = clock
        self._pods: dict[str, tuple[str, str]] = {}
        """Namespace and name of the pods seen, by uid."""
        self._failures: dict[tuple[str, str], set[str]] = {}
        """By namespace and name: the uids of runs that were made to fail."""
        self.runs: dict[str, Process] = {}
        """The last process of each pod seen, by uid; it outlives the pod's end, for its log."""
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns when the nodes are registered, so that work submitted now finds them."""
        for machine in self.machines:
            agent = SimAgent(self._store, machine, clock=self._clock, script_for=functools.partial(self.script, machine))
            self.tasks.append(asyncio.create_task(agent.run(), name=f"simulated node {machine.name}"))
        self.tasks.append(asyncio.create_task(self._report_progress(), name="progress of simulated pods"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REGISTER_S):
                await self._registered()

    async def _registered(self) -> None:
        nodes = await self._store.resource("", "Node")
        for machine in self.machines:
            while not await self._is_ready(nodes, machine.name):  # noqa: ASYNC110 - a state in the store, no event
                await asyncio.sleep(POLL_S)

    async def _is_ready(self, nodes: Resource, name: str) -> bool:
        try:
            return is_ready(await self._store.get(nodes, name))
        except NotFound:
            return False

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks = []

    def find(self, pod: Raw) -> Machine | None:
        node = (pod.get("spec") or {}).get("nodeName")
        return next((machine for machine in self.machines if machine.name == node), None)

    def script(self, machine: Machine, pod: Raw) -> PodScript:
        """What becomes of the pod. Called before each decision about it."""
        uid, place = uid_of(pod), (namespace_of(pod), name_of(pod))
        if uid in machine.processes:
            self.runs.pop(uid, None)
            self.runs[uid] = machine.processes[uid]
            while len(self.runs) > REMEMBERED_MAX:
                del self.runs[next(iter(self.runs))]
        if uid not in self._pods:
            if len(self._pods) >= REMEMBERED_MAX:
                self._pods.clear()
            self._pods[uid] = place
            if was_running(pod) and uid not in machine.processes:
                # An earlier process of this server ran it: its machine is gone, and so is it.
                machine.starts.setdefault(uid, 1)
        exit_code = exit_code_of(pod)
        limit = failures_of(pod)
        if exit_code and limit is not None:
            if place not in self._failures and len(self._failures) >= REMEMBERED_MAX:
                self._failures.clear()
            runs = self._failures.setdefault(place, set())
            if uid not in runs and len(runs) >= limit:
                exit_code = 0
            else:
                runs.add(uid)
        return PodScript(run_s=seconds_of(pod), exit_code=exit_code)

    async def _report_progress(self) -> None:
        """Write how far each pod is, as an application would that reports its progress."""
        told: dict[str, float] = {}
        while True:
            await asyncio.sleep(PROGRESS_S)
            now_s = asyncio.get_running_loop().time()
            running = {uid: m.processes[uid] for m in self.machines for uid in m.running(now_s)}
            told = {uid: share for uid, share in told.items() if uid in running}
            for uid, process in running.items():
                if process.ends_s is None or uid not in self._pods:
                    continue
                share = min(1.0, (now_s - process.started_s) / max(0.001, process.ends_s - process.started_s))
                if share - told.get(uid, 0.0) >= PROGRESS_STEP:
                    told[uid] = share
                    await self._write_progress(uid, share)

    async def _write_progress(self, uid: str, share: float) -> None:
        namespace, name = self._pods[uid]
        patch: Raw = {"metadata": {"uid": uid, "annotations": {Muster.PROGRESS: f"{share:.2f}"}}}
        with contextlib.suppress(ApiError):  # gone, or replaced: the next beat is the retry
            await self._store.patch(await self._store.resource("", "Pod"), name, patch, namespace)


async def remove_left_over(store: Store, keep: Sequence[str]) -> list[str]:
    """Delete simulated nodes that an earlier process had and this one has not: nobody pretends there any more."""
    nodes = await store.resource("", "Node")
    page = await store.list(nodes, label_selector=f"{Muster.SIMULATED}=true")
    removed = [name_of(node) for node in page.items if name_of(node) not in keep]
    for name in removed:
        with contextlib.suppress(NotFound):
            await store.delete(nodes, name)
    return removed


def was_running(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status") or {}
    return any(
        isinstance(one, dict) and isinstance(one.get("state"), dict) and "running" in one["state"]
        for one in status.get("containerStatuses") or ()
    )


# --- what a pod says about itself; a value that can't be read counts as not given --------------------------------------------


def seconds_of(pod: Raw) -> float | None:
    text = _said(pod, Muster.SIMULATED_SECONDS, "MUSTER_SIMULATED_SECONDS")
    if text == "forever":
        return None
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", text):
        return min(SECONDS_MAX, float(text))
    return SECONDS_DEFAULT


def exit_code_of(pod: Raw) -> int:
    text = _said(pod, Muster.SIMULATED_EXIT_CODE, "MUSTER_SIMULATED_EXIT_CODE")
    return int(text) if re.fullmatch(r"[0-9]{1,3}", text) and int(text) < 256 else 0


def failures_of(pod: Raw) -> int | None:
    text = _said(pod, Muster.SIMULATED_FAILURES, "MUSTER_SIMULATED_FAILURES")
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else None


def _said(pod: Raw, annotation: str, variable: str) -> str:
    if annotation in annotations_of(pod):
        return annotations_of(pod)[annotation].strip()
    containers = (pod.get("spec") or {}).get("containers") or ()
    for one in (containers[0].get("env") or ()) if containers and isinstance(containers[0], dict) else ():
        if isinstance(one, dict) and one.get("name") == variable and isinstance(one.get("value"), str):
            return str(one["value"]).strip()
    return ""
