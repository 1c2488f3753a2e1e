"""Running `muster` as users do: as a process with its own environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

TIMEOUT_S = 120.0


def environment(home: Path, **extra: str) -> dict[str, str]:
    """This process's environment with a home of its own and no kubeconfig, so that nothing of the developer's leaks in."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("KUBE", "MUSTER", "XDG_", "_MUSTER"))}
    return kept | {"HOME": str(home), "NO_COLOR": "1"} | extra


def muster(
    *args: str, env: Mapping[str, str], stdin: str | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "muster.cli.main", *args],
        env=dict(env),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        cwd=cwd,
    )


class Up:
    """A real `muster up` as a child process. `with Up(...) as up:` waits until it is ready and stops it at the end."""

    def __init__(self, data_dir: Path, *args: str, env: Mapping[str, str]) -> None:
        self.data_dir = data_dir
        self.kubeconfig = data_dir / "kubeconfig"
        # Most tests need no agent, and are faster without one.
        self._args = args if any("agent" in arg for arg in args) else (*args, "--without", "agent")
        self._env = dict(env)
        self.lines: list[str] = []
        self.child: subprocess.Popen[str]

    def __enter__(self) -> Up:
        self.child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "muster.cli.main",
                "up",
                "--data-dir",
                str(self.data_dir),
                "--listen",
                "127.0.0.1:0",
                *self._args,
            ],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            raise AssertionError(f"muster up ended with {self.child.wait()}: {self.errors()}")
        self.lines.append(line)
        return self

    def errors(self) -> str:
        """Everything on stderr; call it after the process has ended."""
        assert self.child.stderr is not None
        return self.child.stderr.read()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.child.send_signal(number)
        return self.child.wait(TIMEOUT_S)

    def __exit__(self, *_: object) -> None:
        if self.child.poll() is None:
            self.stop()
        for stream in (self.child.stdout, self.child.stderr):
            assert stream is not None
            stream.close()
