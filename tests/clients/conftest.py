"""One real server for the whole package, ways to log in to it, and the programs that are not in the environment of the tests.

The clients are imported inside the tests: some take a second to load, which whoever only collects tests need not wait for.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from muster.client.kubeconfig_file import write_kubeconfig
from tests.cli.support import Up, environment
from tests.server.conftest import namespace  # noqa: F401  a fresh namespace of this package's server
from tests.server.manifests import widget_crd
from tests.server.running import RunningServer, running

ROOT = Path(__file__).parents[2]
GROUP = "clients.example.org"
INSTALL_TIMEOUT_S = 280


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("server")) as made:
        yield made


@pytest.fixture(scope="package")
def kubeconfig(server: RunningServer) -> Path:
    """The file that the server wrote: an administrator, with a bearer token."""
    return server.server.kubeconfig_path


@pytest.fixture(scope="package")
def certificate_kubeconfig(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a client certificate, and no token."""
    certificate, key = server.server.pki.issue_client("carol", ["system:masters"], timedelta(hours=1))
    path = tmp_path_factory.mktemp("certificate") / "kubeconfig"
    write_kubeconfig(
        path,
        server=server.server.url,
        ca=server.server.pki.ca_pem,
        client_certificate=certificate,
        client_key=key,
        user="carol",
    )
    return path


@pytest.fixture(params=["token", "certificate"])
def any_kubeconfig(request: pytest.FixtureRequest, kubeconfig: Path, certificate_kubeconfig: Path) -> tuple[Path, str]:
    """A kubeconfig of either kind, and who one is with it."""
    return (kubeconfig, "admin") if request.param == "token" else (certificate_kubeconfig, "carol")


@pytest.fixture(scope="package")
def nobody_kubeconfig(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Somebody who is known and may do nothing."""
    path = tmp_path_factory.mktemp("nobody") / "kubeconfig"
    token = server.user("nobody")
    write_kubeconfig(path, server=server.server.url, ca=server.server.pki.ca_pem, token=token, user="nobody")
    return path


@pytest.fixture(scope="package")
def widgets(server: RunningServer) -> str:
    """A custom kind, Widget, that is served; its group."""
    server.kubectl("apply", "-f", "-", stdin=widget_crd(GROUP))
    server.kubectl("wait", "--for=condition=Established", f"crd/widgets.{GROUP}", "--timeout=60s")
    return GROUP


@pytest.fixture(scope="package")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of a whole Muster, as `muster up` starts it, with nodes that only pretend to run pods."""
    home = tmp_path_factory.mktemp("simulated")
    with Up(home / "data", "--simulated-nodes", "default=2,alice=1,bob=1", env=environment(home)) as up:
        yield up.kubeconfig


@pytest.fixture
def compact(server: RunningServer) -> Callable[[], None]:
    """Forgets the history of the server's store: whoever resumes from before is told so."""

    async def on_its_loop() -> None:
        server.server.store.compact()

    return lambda: server.call(on_its_loop())


@pytest.fixture(scope="session")
def programs() -> Path:
    """The directory of the programs that tools/client-programs installs; skipped by name where it can't, an error in CI."""
    done = subprocess.run(
        [ROOT / "tools" / "client-programs"], capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        reason = done.stderr.strip().rpartition("\n")[2]
        if os.environ.get("CI"):
            pytest.fail(f"CI must run the tests of other programs: {reason}")
        pytest.skip(reason)
    return Path(done.stdout.strip())
