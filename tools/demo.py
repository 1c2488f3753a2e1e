"""`make demo`: Muster on this machine, in front of you, in about half a minute.

Starts a real server on loopback in a fresh directory, applies Kuscia's manifests with an unmodified kubectl, shows how a
wrong one is refused, then pulls the plug in the middle of a write storm and counts what is left. Everything that it
prints with a `$` was run. It stops what it started; with --keep the server stays and the command to use it is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from muster.client import ApiClient
from muster.objects.catalog import CATALOG
from muster.objects.status import ApiError

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
EXAMPLES = Path("examples") / "first-look"
READY_TIMEOUT_S = 60
STORM_S = 1.5
CLIENTS = 16


def say(text: str) -> None:
    click.secho(f"\n# {text}", fg="cyan")


class Demo:
    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.kubeconfig = data_dir / "kubeconfig"
        self.server: subprocess.Popen[str] | None = None
        self.environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": f"{BIN}:{os.environ['PATH']}"}

    def start(self) -> None:
        command = ["muster", "up", "--data-dir", str(self.data_dir), "--listen", "127.0.0.1:0"]
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
        if self.server is not None and self.server.poll() is None:
            self.server.send_signal(signal.SIGTERM)
            self.server.wait(30)

    def pull_the_plug(self) -> None:
        assert self.server is not None
        self.server.kill()
        self.server.wait()

    def run(self, *command: str, fails: bool = False) -> None:
        click.secho("$ " + " ".join(command), bold=True)
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        click.echo(done.stdout, nl=False)
        if (done.returncode != 0) != fails:
            raise SystemExit(f"the demo expected this command to {'fail' if fails else 'succeed'}")


async def storm(demo: Demo) -> tuple[set[str], int]:
    """Many clients create jobs until the plug is pulled; the names that were acknowledged."""
    jobs = CATALOG.by_kind("kuscia.secretflow", "KusciaJob")
    acknowledged: set[str] = set()
    attempts = 0

    async def writer(client: ApiClient, number: int) -> None:
        nonlocal attempts
        with contextlib.suppress(ApiError, OSError):
            for i in range(100_000):
                name = f"storm-{number}-{i}"
                attempts += 1
                await client.create(jobs, _job(name), "cross-domain")
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


def _job(name: str) -> dict[str, object]:
    party = {"domainID": "alice"}
    task = {"alias": "only", "appImage": "intersection", "taskInputConfig": "{}", "parties": [party]}
    return {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "KusciaJob",
        "metadata": {"name": name, "namespace": "cross-domain", "labels": {"demo": "storm"}},
        "spec": {"initiator": "alice", "tasks": [task]},
    }


async def stored(demo: Demo) -> set[str]:
    jobs = CATALOG.by_kind("kuscia.secretflow", "KusciaJob")
    async with await ApiClient.from_kubeconfig(demo.kubeconfig) as client:
        page = await client.list(jobs, "cross-domain", label_selector="demo=storm")
        return {item["metadata"]["name"] for item in page.items}


def play(demo: Demo) -> None:
    say("One command starts Muster here: loopback only, TLS, its own certificates, a kubeconfig for you.")
    demo.start()

    say("It speaks the Kubernetes API, so kubectl works as it is. Kuscia's and Koordinator's kinds are built in.")
    demo.run("kubectl", "api-resources", "--api-group=kuscia.secretflow")

    say("Kuscia's manifests apply unchanged: two parties, an application, a job of two steps between them.")
    for file in ("parties.yaml", "app.yaml", "job.yaml"):
        demo.run("kubectl", "apply", "-f", str(EXAMPLES / file))
    demo.run("kubectl", "get", "domains,appimages")
    demo.run("muster", "get", "kusciajobs", "-n", "cross-domain")

    say("A wrong manifest gets one answer that names every field, and changes nothing.")
    demo.run("kubectl", "apply", "-f", str(EXAMPLES / "bad-job.yaml"), fails=True)

    say(f"Now the plug: {CLIENTS} clients create jobs as fast as they can, and after {STORM_S} s the server gets SIGKILL.")
    acknowledged, attempts = asyncio.run(storm(demo))
    click.echo(f"  {attempts:,} jobs sent, {len(acknowledged):,} acknowledged, then silence.")
    demo.start()
    found = asyncio.run(stored(demo))
    lost = acknowledged - found
    click.echo(f"  {len(found):,} jobs are there; acknowledged and lost: {len(lost)}.")
    if lost:
        raise SystemExit("an acknowledged write was lost: this is a bug, please report it")

    say("And what this server holds now:")
    demo.run("muster", "status")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the server running afterwards")
    keep = parser.parse_args().keep
    directory = Path(tempfile.mkdtemp(prefix="muster-demo-"))
    demo = Demo(directory / "data")
    kept = False
    try:
        play(demo)
        kept = keep
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        if kept:
            say("It is still running. To use it, and to stop it:")
            click.echo(f"  export KUBECONFIG={demo.kubeconfig}\n  {BIN}/muster down --data-dir {demo.data_dir}")
        else:
            demo.stop()
            shutil.rmtree(directory)
    if not kept:
        say("Stopped and cleaned up. `make demo KEEP=1` leaves it running.")


if __name__ == "__main__":
    main()
