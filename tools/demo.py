"""`make demo`: Muster on this machine, in front of you, in about a minute.

Two parties, each with an agent, find out which customers both have, and nothing else of each other's: a private set
intersection, run as a job by real processes under real limits. A second job asks for more bandwidth than is left: it waits,
says why, and starts when the first has ended. Then the plug is pulled in the middle of a write storm, and nothing is lost.
Everything that is printed with a `$` was run. What was started is stopped; with --keep it stays, and how to use it is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from muster.client import ApiClient
from muster.objects.catalog import CATALOG
from muster.objects.labels import Kuscia, Muster
from muster.objects.reason_codes import Reason
from muster.objects.status import ApiError

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
EXAMPLE = Path("examples") / "psi"
READY_TIMEOUT_S = 60
JOB_TIMEOUT_S = 180
STORM_S = 1.0
CLIENTS = 16
ITEMS, COMMON = 20_000, 5_000
BANDWIDTH_MBPS = 1
"""What the first job has: so little that it runs for some ten seconds on any machine, and the second can be seen waiting."""


def say(text: str) -> None:
    click.secho(f"\n# {text}", fg="cyan")


class Demo:
    def __init__(self, public: Path) -> None:
        self.public = public
        self.data_dir = public / "data"
        self.kubeconfig = self.data_dir / "kubeconfig"
        self.server: subprocess.Popen[str] | None = None
        self.environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": f"{BIN}:{os.environ['PATH']}"}

    def start(self) -> None:
        command = ["muster", "up", "--data-dir", str(self.data_dir), "--listen", "127.0.0.1:0", "--agents", "alice,bob"]
        click.secho("$ " + " ".join(command), bold=True)
        started = time.monotonic()
        log = (self.data_dir.parent / "muster-up.log").open("a")
        # A session of its own: Ctrl-C here stops the demo, which then stops the server in order.
        self.server = subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
        log.close()
        assert self.server.stdout is not None
        for line in self.server.stdout:
            click.echo(line, nl=False)
            if "KUBECONFIG=" in line:
                click.secho(f"  ready after {time.monotonic() - started:.1f} s", fg="green")
                return
        raise SystemExit(f"muster up did not start; {self.data_dir.parent}/muster-up.log says why")

    def stop(self) -> None:
        """The server, the agents and their tasks."""
        command = ["muster", "down", "--tasks", "--force", "--data-dir", str(self.data_dir)]
        subprocess.run(command, env=self.environment, stdout=subprocess.DEVNULL, check=False)
        if self.server is not None and self.server.poll() is None:
            self.server.wait(READY_TIMEOUT_S)

    def pull_the_plug(self) -> None:
        assert self.server is not None
        self.server.kill()
        self.server.wait()

    def run(self, command: str, *, fails: bool = False) -> str:
        """What a person types, and what is answered."""
        click.secho(f"$ {command}", bold=True)
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"],
            cwd=ROOT,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        click.echo(done.stdout, nl=False)
        if (done.returncode != 0) != fails:
            raise SystemExit(f"the demo expected this command to {'fail' if fails else 'succeed'}")
        return done.stdout

    def data(self, command: str) -> Any:
        words = ["muster", *shlex.split(command), "-o", "json"]
        return json.loads(subprocess.run(words, env=self.environment, text=True, stdout=subprocess.PIPE, check=True).stdout)

    def wait(self, command: str, check: Callable[[Any], object], timeout_s: float = READY_TIMEOUT_S) -> Any:
        """Until what the command shows is as it should be."""
        until = time.monotonic() + timeout_s
        while not check(found := self.data(command)):
            if time.monotonic() > until:
                raise SystemExit(
                    f"the demo waited {timeout_s:g} s in vain for {command}:\n{json.dumps(found, indent=1)[:4000]}"
                )
            time.sleep(0.2)
        return found


async def storm(demo: Demo) -> tuple[set[str], int]:
    """Many clients create objects until the plug is pulled; the names that were acknowledged."""
    maps = CATALOG.by_kind("", "ConfigMap")
    acknowledged: set[str] = set()
    attempts = 0

    async def writer(client: ApiClient, number: int) -> None:
        nonlocal attempts
        with contextlib.suppress(ApiError, OSError):
            for i in range(100_000):
                name = f"storm-{number}-{i}"
                attempts += 1
                metadata = {"name": name, "namespace": "default", "labels": {"demo": "storm"}}
                await client.create(maps, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}, "default")
                acknowledged.add(name)

    async with await ApiClient.from_kubeconfig(demo.kubeconfig) as client:
        writers = [asyncio.create_task(writer(client, number)) for number in range(CLIENTS)]
        await asyncio.sleep(STORM_S)
        demo.pull_the_plug()
        await asyncio.sleep(0.2)
        for task in writers:
            task.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
    return acknowledged, attempts


async def stored(demo: Demo) -> set[str]:
    maps = CATALOG.by_kind("", "ConfigMap")
    async with await ApiClient.from_kubeconfig(demo.kubeconfig) as client:
        page = await client.list(maps, "default", label_selector="demo=storm")
        return {item["metadata"]["name"] for item in page.items}


def is_ready(node: Any) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))


def show_traffic(demo: Demo, job: str) -> None:
    """What each task has sent and received, as its agent has counted it at the task's own interface."""
    for pod in demo.data("get pods --all-namespaces")["items"]:
        metadata = pod["metadata"]
        if metadata["name"].startswith(f"{job}-") and (said := (metadata.get("annotations") or {}).get(Muster.TRAFFIC)):
            counted = json.loads(said)
            click.echo(f"  {metadata['namespace']}: {counted['sentBytes']:,} bytes sent, {counted['receivedBytes']:,} received")


def play(demo: Demo) -> None:
    say("One command starts Muster here: the API, the scheduler, and an agent for each of two parties. Loopback only.")
    demo.start()
    demo.run(f"muster apply -f {EXAMPLE}/parties.yaml")
    nodes = demo.wait("get nodes", lambda found: sum(is_ready(node) for node in found["items"]) == 2)["items"]
    demo.run("kubectl get nodes -o wide")

    say("Kuscia's manifests work unchanged. A wrong one gets one answer that names every field, and changes nothing.")
    demo.run("kubectl apply -f examples/first-look/bad-job.yaml", fails=True)

    say(f"Alice and bob each have {ITEMS:,} customers. Which ones do both have? Neither shows the other its list.")
    prepare, data = f"python {EXAMPLE}/prepare.py", demo.public / "lists"
    demo.run(f"{prepare} data --items {ITEMS} --common {COMMON} {data} && head -n 3 {data}/*.csv")
    # All that a node has for tasks: no room beside a job that holds a part of it.
    wide = min(int(node["status"]["allocatable"].get(Kuscia.RESOURCE_BANDWIDTH, 1000)) for node in nodes)
    asked = min(BANDWIDTH_MBPS, wide // 2)
    # Without root there are no networks of their own: tasks share this machine's.
    manifests = f"{prepare} manifests --data {data}" + ("" if os.geteuid() == 0 else " --host 127.0.0.1")
    demo.run(f"{manifests} --bandwidth {asked}Mbps app job | muster apply -f -")
    demo.wait("job tree psi", lambda tree: tree["phase"] == "Running")

    say(f"It runs, as two processes under limits. A second job asks for {wide} Mbps, all that a node has: it waits.")
    demo.run(f"{manifests} --wide {wide}Mbps wide-job | muster apply -f -")
    demo.wait(
        "job tree psi-wide", lambda tree: any(task.get("reason") == Reason.BANDWIDTH_INSUFFICIENT for task in tree["tasks"])
    )
    demo.run("muster explain kusciajob/psi-wide")
    demo.wait("job tree psi", lambda tree: tree.get("progress", 0) > 0.2 or tree["phase"] != "Running")
    demo.run("muster job tree psi && muster top bandwidth")

    say("The result. What travelled was points of an elliptic curve; examples/psi/README.md says why that is sound.")
    demo.run(f"muster job watch psi --timeout {JOB_TIMEOUT_S}")
    demo.run("muster job logs psi")
    show_traffic(demo, "psi")

    say(
        f"The second job has its bandwidth now. While it runs, the plug: {CLIENTS} clients write, then the server gets SIGKILL."
    )
    demo.wait("job tree psi-wide", lambda tree: any(task["phase"] in ("Running", "Succeeded") for task in tree["tasks"]))
    acknowledged, attempts = asyncio.run(storm(demo))
    click.echo(f"  {attempts:,} objects sent, {len(acknowledged):,} acknowledged, then silence.")
    demo.start()
    lost = acknowledged - asyncio.run(stored(demo))
    click.echo(f"  acknowledged and lost: {len(lost)}.")
    if lost:
        raise SystemExit("an acknowledged write was lost: this is a bug, please report it")
    demo.run(f"muster job watch psi-wide --timeout {JOB_TIMEOUT_S}")
    demo.run("muster job tree psi-wide")

    say("And what this server holds now:")
    demo.run("muster status")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave everything running afterwards")
    keep = parser.parse_args().keep
    # Not below /tmp: tasks have one of their own. They read their lists from here, as users that own nothing.
    directory = Path(tempfile.mkdtemp(prefix="muster-demo-", dir="/var/tmp"))
    directory.chmod(0o755)
    demo = Demo(directory)
    kept = False
    try:
        play(demo)
        kept = keep
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        if kept:
            say("It is still running. To use it, and to stop it:")
            click.echo(f"  export KUBECONFIG={demo.kubeconfig}\n  {BIN}/muster down --tasks --data-dir {demo.data_dir}")
            click.echo(f"  rm -r {directory}")
        else:
            demo.stop()
            shutil.rmtree(directory)
    if not kept:
        say("Stopped and cleaned up. `make demo KEEP=1` leaves it running.")


if __name__ == "__main__":
    main()
