"""`muster up`, `down`, `status` and `version` as processes, with every reason not to start."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from muster import __version__
from muster.cli.commands.down import still_running
from muster.cli.datadir import Claim
from muster.cli.errors import ExitCode
from tests.cli.conftest import Run
from tests.cli.support import Up, environment, muster

IGNORES_SIGTERM = """
import pathlib, signal, sys, time
from muster.cli.datadir import Claim
signal.signal(signal.SIGTERM, signal.SIG_IGN)
claim = Claim(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_ready_line_files_and_a_clean_stop(tmp_path: Path) -> None:
    data = tmp_path / "with blank"
    with Up(data, env=environment(tmp_path)) as up:
        assert up.lines == [f"export KUBECONFIG='{data}/kubeconfig'\n"]
        assert up.kubeconfig.stat().st_mode & 0o777 == 0o600
        assert (data / "muster.pid").read_text() == f"{up.child.pid}\n"
        record = json.loads((data / "server.json").read_text())
        assert record["pid"] == up.child.pid
        assert record["parts"] == ["server", "controllers"]
        # The line is there to be copied into a shell.
        shell = f"{up.lines[0]}{sys.executable} -m muster.cli.main get ns default -o name"
        done = subprocess.run(["bash", "-c", shell], env=environment(tmp_path), capture_output=True, text=True, check=True)
        assert done.stdout == "namespace/default\n"
        assert up.stop(signal.SIGINT) == ExitCode.OK
        errors = up.errors()
        assert up.child.stdout is not None
        assert up.child.stdout.read() == "", "one line, and no other"
    assert f"muster {__version__} is ready at {record['url']}; running: server, controllers" in errors
    assert "Traceback" not in errors
    left = {p.name for p in data.iterdir()}
    assert {"kubeconfig", "store", "pki"} <= left
    assert not left & {"muster.pid", "server.json"}


@pytest.mark.slow
def test_what_was_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    env = environment(tmp_path)
    with Up(tmp_path / "data", env=env) as up:
        before = up.kubeconfig.read_text()
        manifest = "apiVersion: v1\nkind: Namespace\nmetadata: {name: kept}\n"
        assert muster("apply", "-f", "-", "--kubeconfig", str(up.kubeconfig), env=env, stdin=manifest).returncode == 0
        os.kill(up.child.pid, signal.SIGKILL)
        assert up.child.wait(30) == -signal.SIGKILL
    with Up(tmp_path / "data", "--without", "controllers,agent", env=env) as up:
        assert muster("get", "ns", "kept", "--kubeconfig", str(up.kubeconfig), env=env).returncode == 0
        token = next(line for line in before.splitlines() if "token:" in line)
        assert token in up.kubeconfig.read_text(), "the token stays the same"
        state = json.loads(muster("status", "--data-dir", str(tmp_path / "data"), "-o", "json", env=env).stdout)
        assert state["parts"] == ["server"]
        assert state["leftOut"] == ["controllers", "agent"]
        assert "controllers" not in state
        assert up.stop() == ExitCode.OK
        assert "running: server; left out: controllers, agent; not in this release yet: dashboard" in up.errors()


def test_down_stops_it(tmp_path: Path) -> None:
    env = environment(tmp_path)
    with Up(tmp_path / "data", env=env) as up:
        done = muster("down", "--data-dir", str(tmp_path / "data"), env=env)
        assert done.returncode == ExitCode.OK
        assert done.stdout == f"stopped the server on {tmp_path}/data (process {up.child.pid})\n"
        assert up.child.wait(30) == ExitCode.OK


def test_down_when_nothing_runs(run: Run, tmp_path: Path) -> None:
    assert run("down", "--data-dir", str(tmp_path)).out == f"no server runs on {tmp_path}; nothing to stop\n"
    missing = run("down", "--data-dir", str(tmp_path / "missing"))
    assert missing.code == ExitCode.NOT_FOUND
    assert "does not exist" in missing.err


def test_down_knows_what_goes_on(tmp_path: Path) -> None:
    run_dir = tmp_path / "agents/default/pods/uid/containers/main/0"
    run_dir.mkdir(parents=True)
    assert still_running(tmp_path) == 0
    (run_dir / "started.json").write_text("{}")
    assert still_running(tmp_path) == 1
    (run_dir / "exit.json").write_text("{}")
    assert still_running(tmp_path) == 0


def test_down_never_touches_a_process_that_only_has_the_number(run: Run, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as bystander:
        (tmp_path / "muster.pid").write_text(f"{bystander.pid}\n")
        assert "nothing to stop" in run("down", "--data-dir", str(tmp_path)).out
        assert bystander.poll() is None
        bystander.kill()


def test_down_gives_up_or_kills(run: Run, tmp_path: Path) -> None:
    command = [sys.executable, "-c", IGNORES_SIGTERM, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        late = run("down", "--data-dir", str(tmp_path), "--timeout", "0.2")
        assert late.code == ExitCode.TIMEOUT
        assert "--force" in late.err
        forced = run("down", "--data-dir", str(tmp_path), "--timeout", "0.2", "--force")
        assert (forced.code, forced.out) == (0, f"killed the server on {tmp_path} (process {child.pid}) after 0.2 s\n")
        assert child.wait(30) == -signal.SIGKILL


def test_a_second_server_on_the_same_directory(local: Up, run: Run) -> None:
    done = run("up", "--data-dir", str(local.data_dir), "--listen", "127.0.0.1:0")
    assert done.code == ExitCode.FAILURE
    assert f"process {local.child.pid} runs a server on it" in done.err
    assert done.err.count("\n") == 1
    assert local.child.poll() is None


def refused(tmp_path: Path, data_dir: Path, *args: str) -> str:
    """The one line that `muster up` ends with."""
    done = muster("up", "--data-dir", str(data_dir), *args, env=environment(tmp_path))
    assert done.returncode == ExitCode.FAILURE, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_the_port_is_taken(tmp_path: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        assert "another program listens there" in refused(tmp_path, tmp_path / "data", "--listen", f"127.0.0.1:{port}")
    with Claim(tmp_path / "data"):
        pass  # the directory is free again


def test_an_address_that_this_machine_does_not_have(tmp_path: Path) -> None:
    assert "does not have that address" in refused(tmp_path, tmp_path / "data", "--listen", "192.0.2.1:0")


@pytest.mark.parametrize("where", ["/proc/muster", "/dev/null/data"])
def test_a_directory_that_cannot_be_written(where: str, tmp_path: Path) -> None:
    assert "--data-dir" in refused(tmp_path, Path(where))


def test_a_damaged_store(tmp_path: Path) -> None:
    env = environment(tmp_path)
    with Up(tmp_path / "data", env=env):
        pass
    files = [p for p in (tmp_path / "data" / "store").iterdir() if p.name != "lock"]
    for path in files:
        path.write_bytes(b"this is not what was here before" * 1000)
    assert "is damaged" in refused(tmp_path, tmp_path / "data", "--listen", "127.0.0.1:0")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
@pytest.mark.parametrize(
    ("options", "needle"),
    [("size=16k", "full"), ("size=64k", "full"), ("size=8m,ro", "Read-only file system")],
    ids=["tiny", "small", "ro"],
)
def test_a_disk_that_is_full_or_read_only(options: str, needle: str, tmp_path: Path) -> None:
    data = tmp_path / "disk"
    data.mkdir()
    up = f"{sys.executable} -m muster.cli.main up --data-dir {data} --listen 127.0.0.1:0"
    command = f"mount -t tmpfs -o {options} tmpfs {data} && exec {up}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == ExitCode.FAILURE
    assert needle in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "needle"),
    [
        (["--listen", "nonsense"], "HOST:PORT"),
        (["--listen", "127.0.0.1:70000"], "65535"),
        (["--without", "server"], "there is no such part"),
        (["--without", "dashbord"], "controllers, agent, dashboard"),
        (["--log-level", "loud"], "loud"),
        (["extra"], "extra"),
    ],
)
def test_usage(args: list[str], needle: str, run: Run, tmp_path: Path) -> None:
    done = run("up", "--data-dir", str(tmp_path / "data"), *args)
    assert done.code == ExitCode.USAGE
    assert needle in done.err
    assert not (tmp_path / "data").exists(), "nothing was tried"


def test_listening_for_other_machines_is_warned_about(tmp_path: Path) -> None:
    with Up(tmp_path / "data", "--listen", "0.0.0.0:0", env=environment(tmp_path)) as up:
        assert up.stop() == ExitCode.OK
        errors = up.errors()
    assert "warning: listening on 0.0.0.0, which other machines can reach" in errors


def test_status_of_a_running_server(muster: Run, local: Up) -> None:
    text = muster("status", "--data-dir", str(local.data_dir))
    assert text.code == ExitCode.OK
    assert f"process {local.child.pid} on {local.data_dir}" in text.out
    assert "ready" in text.out
    assert "service-accounts" in text.out
    value = json.loads(muster("status", "-o", "json").out)
    assert value["server"]["ready"] is True
    assert value["objects"]["namespaces"] >= 4
    assert int(value["store"]["resourceVersion"]) > 0
    assert value["store"]["bytes"] > 0
    assert value["controllers"]["healthy"] is True
    assert {c["state"] for c in value["controllers"]["controllers"]} == {"running"}


def test_status_of_a_named_directory_never_tells_of_another_server(muster: Run, tmp_path: Path) -> None:
    done = muster("status", "--data-dir", str(tmp_path))
    assert done.code == ExitCode.UNREACHABLE
    assert str(tmp_path) in done.out


def test_status_of_a_server_that_does_not_run(run: Run, tmp_path: Path) -> None:
    done = run("status", "--data-dir", str(tmp_path))
    assert done.code == ExitCode.UNREACHABLE
    assert "not reachable" in done.out
    value = json.loads(run("status", "--data-dir", str(tmp_path), "-o", "json").out)
    assert value["server"]["reachable"] is False
    assert value["local"] == {"dataDir": str(tmp_path), "running": False}


def test_version(muster: Run, local: Up) -> None:
    value = json.loads(muster("version", "-o", "json").out)
    assert value["client"]["version"] == __version__
    assert __version__ in value["server"]["version"]
    assert muster("version", "--client").out.startswith(f"muster {__version__} (Python ")
    assert "server v1." in muster("version").out


def test_version_without_a_server(run: Run) -> None:
    done = run("version")
    assert done.code == ExitCode.OK
    assert "server not reached: no kubeconfig" in done.out


def test_controllers_metrics_are_on_the_servers_page(muster: Run, local: Up) -> None:
    kubectl = str(Path(sys.executable).parent / "kubectl")
    done = subprocess.run(
        [kubectl, f"--kubeconfig={local.kubeconfig}", "get", "--raw", "/metrics"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert 'muster_controller_reconciles_total{controller="service-accounts",result="done"}' in done.stdout
    assert done.stdout.count("# TYPE process_cpu_seconds_total ") == 1
