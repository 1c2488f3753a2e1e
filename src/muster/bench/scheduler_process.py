"""Muster's scheduler alone against a real API server, as `--on kubernetes` runs it: what kube-scheduler's process is there.

`python -m muster.bench.scheduler_process --kubeconfig FILE --report FILE --ready FILE`: the file `--ready` appears when the
scheduler begins to list objects; on SIGTERM it writes what it knows of its decisions to `--report` and ends. No leader
election, as at the peer. One event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvloop

from muster.bench.lines import DecisionTimes
from muster.bench.scheduling import Timed, scheduler_controllers
from muster.client.api import ApiClient
from muster.controllers.long_runs import tune_for_long_runs
from muster.controllers.manager import Manager
from muster.objects.time import wall_clock
from muster.store.kubernetes import KubernetesStore


async def run(kubeconfig: Path, ready: Callable[[], None]) -> DecisionTimes:
    """Until a signal; `ready` is called once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    store = KubernetesStore(await ApiClient.from_kubeconfig(kubeconfig))
    timed = Timed()
    manager = Manager(store, scheduler_controllers(timed), clock=wall_clock, name="muster")
    try:
        manager.start()
        ready()
        await stop.wait()
        for controller in manager.health().controllers:
            logging.info("at the end: %s", controller)
        return timed.times()
    finally:
        await manager.stop()
        await store.close()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m muster.bench.scheduler_process")
    for name in ("--kubeconfig", "--report", "--ready"):
        parser.add_argument(name, type=Path, required=True)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    tune_for_long_runs()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        times = runner.run(run(options.kubeconfig, options.ready.touch))
    options.report.write_bytes(msgspec.json.encode(times))


if __name__ == "__main__":
    main(sys.argv[1:])
