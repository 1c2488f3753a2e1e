"""How fast waiting work is admitted when it stands in many queues, in a process of its own. Blocking.

Two places: `engine` is the order and the engine alone (`queues_process`), `embedded` everything from the creation of a Job to
its end (`queues_embedded_process`).
"""

from __future__ import annotations

import msgspec

from muster.bench.handover import child_line
from muster.bench.lines import Say
from muster.bench.queues_embedded_process import QueuesEmbeddedLine
from muster.bench.queues_process import QueuesLine

SIZES = ((30, 500), (1_000, 50))
"""Queues, and workloads in each."""
DEFAULT_NODES = 100
DEFAULT_POLICY = "balanced"


def measure(queues: int, per_queue: int, *, nodes: int, say: Say, policy: str = DEFAULT_POLICY) -> QueuesLine:
    _announce("engine", queues, per_queue, nodes, policy, say)
    arguments = (str(queues), str(per_queue), str(nodes), policy)
    return msgspec.json.decode(child_line("muster.bench.queues_process", *arguments, say=say), type=QueuesLine)


def measure_embedded(queues: int, per_queue: int, *, nodes: int, say: Say, policy: str = DEFAULT_POLICY) -> QueuesEmbeddedLine:
    _announce("embedded", queues, per_queue, nodes, policy, say)
    arguments = (str(queues), str(per_queue), str(nodes), policy)
    return msgspec.json.decode(child_line("muster.bench.queues_embedded_process", *arguments, say=say), type=QueuesEmbeddedLine)


def _announce(on: str, queues: int, per_queue: int, nodes: int, policy: str, say: Say) -> None:  # noqa: PLR0917
    say(f"queues on {on}: {queues * per_queue:,} workloads in {queues:,} queues, {nodes:,} nodes, policy {policy}")
