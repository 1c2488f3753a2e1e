"""The example `examples/psi` in tests: its module, tasks on loopback, and a wire in between that remembers what it carried."""

from __future__ import annotations

import asyncio
import csv
import importlib.util
import json
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).parents[2] / "examples" / "psi"
TIMEOUT_S = 120


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"examples_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def write_csv(path: Path, items: Iterable[str]) -> Path:
    path.write_text("id\n" + "".join(f'"{item}"\n' for item in items), encoding="utf-8")
    return path


class Pair:
    """The tasks of alice (who listens) and bob (who calls) as they would be told about each other."""

    def __init__(self, folder: Path, alice: Iterable[str], bob: Iterable[str], **options: Any) -> None:
        self.folder = folder
        self.alice_port, self.bob_port, self.called_port = free_port(), free_port(), 0
        inputs = {"alice": write_csv(folder / "alice.csv", alice), "bob": write_csv(folder / "bob.csv", bob)}
        self.options = {"inputs": {k: str(v) for k, v in inputs.items()}, "waitSeconds": 60, "silenceSeconds": 60, **options}

    def told(self, party: str, **other_options: Any) -> dict[str, str]:
        is_alice = party == "alice"
        ports = {"alice": self.alice_port if is_alice else self.called_port or self.alice_port, "bob": self.bob_port}
        parties = [
            {"name": name, "role": "", "services": [{"portName": "exchange", "endpoints": [f"127.0.0.1:{port}"]}]}
            for name, port in ports.items()
        ]
        own = {"name": "exchange", "port": ports[party], "scope": "Cluster", "protocol": "TCP"}
        options = {**self.options, "output": str(self.folder / f"{party}-common.csv"), **other_options}
        return {
            "TASK_ID": "psi-1",
            "TASK_CLUSTER_DEFINE": json.dumps({"parties": parties, "selfPartyIdx": 0 if is_alice else 1, "selfEndpointIdx": 0}),
            "ALLOCATED_PORTS": json.dumps({"ports": [own]}),
            "TASK_INPUT_CONFIG": json.dumps(options),
        }

    def start(self, party: str, **other_options: Any) -> subprocess.Popen[str]:
        """As a process of its own."""
        path = self.folder / f"{party}.json"
        path.write_text(json.dumps(self.told(party, **other_options)))
        environment = {"MUSTER_REPORT": str(self.folder / f"{party}.report")}
        return subprocess.Popen(
            [sys.executable, str(FOLDER / "psi.py"), str(path)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def result(self, party: str) -> list[str] | None:
        path = self.folder / f"{party}-common.csv"
        if not path.exists():
            return None
        with path.open(newline="", encoding="utf-8") as file:
            return [row[0] for row in csv.reader(file)][1:]

    def reports(self, party: str) -> list[Any]:
        return [json.loads(line) for line in (self.folder / f"{party}.report").read_text().splitlines()]


def ends(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        output, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    return process.returncode, output, errors


class Wire:
    """A proxy on loopback that keeps every byte it carried, in both directions."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._server: asyncio.Server
        self.carried = bytearray()
        self.port = 0

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                self.carried += data
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()
