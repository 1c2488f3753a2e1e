"""A server's life: start, restart, stop, and what can go wrong on the way."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from muster.server.admission import Hook, refused
from muster.server.config import ServerConfig, ServerLimits
from muster.server.listener import ListenError
from muster.server.pki import LEAF_LIFETIME, PkiError
from muster.server.run import Server
from muster.store.embedded import AdmissionRequest, StoreError
from tests.server.running import RunningServer, running

_MAPS = "/api/v1/namespaces/default/configmaps"


def test_restart_keeps_everything(tmp_path: Path) -> None:
    with running(tmp_path) as first:
        first.create(_MAPS, {"metadata": {"name": "c"}})
        token, ca = first.token, first.server.ca_path.read_bytes()
        version = first.request("GET", _MAPS).json["metadata"]["resourceVersion"]
    with running(tmp_path) as second:
        assert second.token == token, "the kubeconfig's token stays valid"
        assert second.server.ca_path.read_bytes() == ca
        assert second.request("GET", f"{_MAPS}/c").code == 200
        with second.watch(f"{_MAPS}?resourceVersion={version}") as watch:
            second.create(_MAPS, {"metadata": {"name": "d"}})
            assert watch.next()["object"]["metadata"]["name"] == "d"


def test_a_lost_kubeconfig_is_made_anew_and_ends_the_old_token(tmp_path: Path) -> None:
    with running(tmp_path) as first:
        old = first.token
        assert old not in "".join(
            p.read_text(errors="replace") for p in tmp_path.rglob("*") if p.is_file() and p.name != "kubeconfig"
        )
    (tmp_path / "kubeconfig").unlink()
    with running(tmp_path) as second:
        assert second.token != old
        assert second.request("GET", "/api", token=old).code == 401
        assert second.request("GET", "/api").code == 200


def test_a_users_token_in_the_kubeconfig_is_not_taken_for_the_administrators(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    with running(tmp_path) as first:
        old, users = first.token, first.user("kim")
    path.write_text(path.read_text().replace(old, users))
    with running(tmp_path) as second:
        assert second.token not in (old, users)
        assert second.request("GET", "/api/v1/nodes").code == 200


def test_what_the_kubeconfig_says(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        path = server.server.kubeconfig_path
        assert path == tmp_path / "kubeconfig"
        assert path.stat().st_mode & 0o777 == 0o600
        assert server.server.url == f"https://127.0.0.1:{server.server.port}"
        assert f"server: {server.server.url}" in path.read_text()
        assert "kube-system" in server.kubectl("get", "ns")


def test_two_servers_on_one_directory(tmp_path: Path) -> None:
    with running(tmp_path) as first:
        with pytest.raises(StoreError, match="in use"):
            RunningServer(ServerConfig(data_dir=tmp_path, port=0))
        assert first.request("GET", "/healthz").code == 200


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{port}.*another program"):
            RunningServer(ServerConfig(data_dir=tmp_path, port=port))
    with running(tmp_path) as server:  # what had been started was undone
        assert server.request("GET", "/healthz").code == 200


@pytest.mark.parametrize("host", ["256.1.1.1", "192.0.2.1"])
def test_an_address_that_is_not_ours(tmp_path: Path, host: str) -> None:
    with pytest.raises(ListenError, match="cannot listen on"):
        RunningServer(ServerConfig(data_dir=tmp_path, host=host, port=0))


def test_ipv6(tmp_path: Path) -> None:
    with running(tmp_path, host="::1") as server:
        assert server.server.url == f"https://[::1]:{server.server.port}"
        assert "default" in server.kubectl("get", "ns")


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="port 70000"):
        Server(ServerConfig(data_dir=Path("x"), port=70000))
    with pytest.raises(ValueError, match="body_bytes_max=0"):
        Server(ServerConfig(data_dir=Path("x"), limits=ServerLimits(body_bytes_max=0)))


def test_a_broken_authority_stops_the_start(tmp_path: Path) -> None:
    with running(tmp_path):
        pass
    (tmp_path / "pki" / "ca.crt").write_text("broken")
    with pytest.raises(PkiError, match="not a certificate"):
        RunningServer(ServerConfig(data_dir=tmp_path, port=0))


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises((StoreError, OSError)):
        RunningServer(ServerConfig(data_dir=tmp_path / "data", port=0))


def _knock(server: RunningServer) -> None:
    for _ in range(1000):
        server.request("GET", "/healthz")


def test_stop_finishes_what_was_begun(tmp_path: Path) -> None:
    server = RunningServer(ServerConfig(data_dir=tmp_path, port=0))
    body = json.dumps({"metadata": {"name": "late"}}).encode()
    head = (
        f"POST {_MAPS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {server.token}\r\nexpect: 100-continue\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with server.raw_socket() as connection:
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        with pytest.raises(OSError):  # noqa: PT011 - refused or reset: nothing new is let in
            _knock(server)
        connection.sendall(body)
        assert connection.recv(100).startswith(b"HTTP/1.1 201")
        stopping.join(timeout=30)
        assert not stopping.is_alive()
    with running(tmp_path) as again:
        assert again.request("GET", f"{_MAPS}/late").code == 200


def test_certificates_are_renewed_while_running(tmp_path: Path) -> None:
    now = [1_800_000_000.0]
    with running(tmp_path, clock=lambda: now[0], certificate_check_interval_s=0.02) as server:

        def serial() -> int:
            with socket.create_connection(("127.0.0.1", server.server.port), timeout=10) as plain:
                context = ssl.create_default_context(cafile=str(server.server.ca_path))
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
                with context.wrap_socket(plain) as connection:
                    return hash(connection.getpeercert(binary_form=True))

        first = serial()
        now[0] += LEAF_LIFETIME.total_seconds() * 0.9
        for _ in range(2000):
            if serial() != first:
                return
        pytest.fail("the certificate was not renewed")


def test_other_names_and_parts(tmp_path: Path) -> None:
    with running(tmp_path, certificate_names=("muster.example.org",), audit_enabled=False) as server:
        assert not (tmp_path / "audit").exists()
        with socket.create_connection(("127.0.0.1", server.server.port), timeout=10) as plain:
            server.tls.wrap_socket(plain, server_hostname="muster.example.org").close()


def test_metrics_and_health(server: RunningServer) -> None:
    server.request("GET", "/api/v1/namespaces")
    text = server.request("GET", "/metrics").body.decode()
    for name in (
        "apiserver_request_total",
        "apiserver_request_duration_seconds_bucket",
        "muster_server_limit",
        "muster_store_objects",
    ):
        assert name in text
    assert 'muster_server_limit{name="body_bytes_max"} 3.145728e+06' in text
    verbose = server.request("GET", "/readyz?verbose").body.decode()
    assert "[+]store ok" in verbose
    assert "readyz check passed" in verbose
    assert server.request("GET", "/readyz/store").body == b"ok"


def test_unknown_kinds_make_no_series(server: RunningServer) -> None:
    for n in range(5):
        server.request("GET", f"/apis/made-up-{n}.example/v1/things")
        server.request("GET", f"/api/v1/namespaces/default/pods/p/made-up-{n}")
    assert "made-up" not in server.request("GET", "/metrics").body.decode()


def test_parts_add_checks_routes_and_hooks(tmp_path: Path) -> None:
    class NoRockets(Hook):
        async def validate(self, request: AdmissionRequest) -> None:
            if request.name == "rocket":
                raise refused(request, "no rockets here")

    async def hello(request: HttpRequest) -> PlainTextResponse:
        return PlainTextResponse(f"hello {request.scope['muster.actor'].user}")

    def prepare(server: Server) -> None:
        server.checks["agent"] = lambda: "no agent has reported"
        server.extra_routes.append(Route("/muster/hello", hello))
        server.extra_hooks.append(NoRockets())

    with running(tmp_path, prepare=prepare) as server:
        ready = server.request("GET", "/readyz")
        assert ready.code == 503
        assert b"[-]agent failed: no agent has reported" in ready.body
        assert server.request("GET", "/livez").code == 200
        assert server.request("GET", "/muster/hello").body == b"hello admin"
        assert server.request("GET", "/muster/hello", token="").code == 401
        rocket = server.request("POST", _MAPS, {"metadata": {"name": "rocket"}})
        assert rocket.message == 'configmaps "rocket" is forbidden: no rockets here'


def test_a_server_starts_without_what_asks_others(tmp_path: Path) -> None:
    """HTTP clients and vectors are loaded when somebody needs them: a start is mostly the loading of modules."""
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from muster.server.config import ServerConfig\n"
        "from muster.server.run import Server\n"
        "async def main():\n"
        f"    server = Server(ServerConfig(data_dir=Path({str(tmp_path)!r}), port=0))\n"
        "    await server.start()\n"
        "    print([name for name in ('aiohttp', 'numpy', 'schemathesis', 'muster.agent') if name in sys.modules])\n"
        "    await server.stop()\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
