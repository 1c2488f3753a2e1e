"""A process that records until it is killed: `python -m tests.history.killed DIRECTORY SEED`."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from muster.engine import events as ev
from muster.engine.decisions import Place
from muster.history.recorder import HistoryLimits, Recorder
from muster.history.recording import Recorded
from muster.history.stores import DirectoryStore
from muster.objects.time import wall_clock
from tests.engine.building import node, pod
from tests.history.recording import make_engine


def main(directory: Path, seed: int) -> None:
    chance = random.Random(seed)
    limits = HistoryLimits(flush_s=0.002, block_bytes=2_000, segment_bytes_max=25_000)
    recorder = Recorder(DirectoryStore(directory), clock=wall_clock, limits=limits)
    recorded = Recorded(make_engine(), recorder, make_engine, epoch=seed, holder="to be killed")
    recorded.step([ev.NodeSeen(node(f"n{i}", cpu="16")) for i in range(10)], 0.0)
    now, number, running = 0.0, 0, list[str]()
    while True:
        now += 1.0
        events: list[ev.AnyEvent] = []
        for _ in range(chance.randrange(8)):
            number += 1
            events.append(ev.PodSeen(pod(f"p{number}", cpu=chance.choice(["500m", "1", "4"]))))
        ended = range(min(chance.randrange(8), len(running)))
        events += [ev.PodGone(running.pop(chance.randrange(len(running)))) for _ in ended]
        recorded.renew_if_due()
        for decision in recorded.step(events, now, units_max=4):
            if isinstance(decision, Place):
                running += [placed.uid for placed in decision.pods]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
