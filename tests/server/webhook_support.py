"""Real admission webhooks for tests: an HTTPS server on loopback, and configurations that name it.

What a path answers is a function of the AdmissionReview that it was sent; every question is kept. `Kubernetes` makes a real
kube-apiserver look like a `RunningServer` as far as these tests go, so that one scenario can be tried on both.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import http.server
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from cryptography.x509.oid import ExtendedKeyUsageOID

from muster.bench.kubernetes import ControlPlane
from muster.objects.status import Raw
from muster.objects.time import wall_clock
from muster.server.certificates import Authority, cert_pem, key_pem, new_key, self_signed
from tests.server.running import Reply
from tests.waiting import blocked_until

NAMES = ("127.0.0.1", "localhost", "hooks.default.svc", "hooks.services.svc")
DAY = timedelta(days=1)

Behaviour = Callable[[Raw], "Raw | bytes | Sent"]


class Sent:
    """An HTTP answer as it is to be written: `code` 0 closes the connection without one. `then` is called with the connection
    when it was."""

    def __init__(
        self,
        code: int,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        then: Callable[[socket.socket], None] | None = None,
    ) -> None:
        self.code = code
        self.then = then
        self.body = body
        self.headers = dict(headers or {})


def allow(review: Raw) -> Raw:
    return answer(review, allowed=True)


def answer(review: Raw, **response: Any) -> Raw:
    return {
        "apiVersion": review["apiVersion"],
        "kind": "AdmissionReview",
        "response": {"uid": review["request"]["uid"], **response},
    }


def deny(**status: Any) -> Callable[[Raw], Raw]:
    return lambda review: answer(review, allowed=False, **({"status": status} if status else {}))


def patch(*operations: Raw) -> Callable[[Raw], Raw]:
    text = base64.b64encode(json.dumps(operations).encode()).decode()
    return lambda review: answer(review, allowed=True, patchType="JSONPatch", patch=text)


def add_label(key: str, value: str) -> Callable[[Raw], Raw]:
    """Whether or not there are labels yet."""

    def behave(review: Raw) -> Raw:
        labels = review["request"]["object"]["metadata"].get("labels")
        if labels is None:
            return patch({"op": "add", "path": "/metadata/labels", "value": {key: value}})(review)
        return patch({"op": "add", "path": f"/metadata/labels/{key}", "value": value})(review)

    return behave


def nothing_there(review: Raw) -> Sent:
    return Sent(404)


class HookServer:
    """Answers on loopback until it is stopped. `held` keeps what asks for `hold` waiting until it is set."""

    def __init__(self, work_dir: Path) -> None:
        now, ca_key, key = wall_clock(), new_key(), new_key()
        authority = Authority(self_signed("webhook-test-ca", ca_key, now, DAY), ca_key)
        usage = ExtendedKeyUsageOID.SERVER_AUTH
        leaf = authority.issue(key, common_name="hooks", usage=usage, now=now, lifetime=DAY, names=NAMES)
        pair = work_dir / "hooks.pem"
        pair.write_bytes(cert_pem(leaf) + key_pem(key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair)
        self.ca_bundle = base64.b64encode(authority.pem).decode()
        self.certificate = cert_pem(leaf)
        self.behaviours: dict[str, Behaviour] = {"/probe": allow}
        self.asked: list[tuple[str, Raw]] = []
        """(path, AdmissionReview), in order."""
        self.held = threading.Event()
        outer: HookServer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                path = urlsplit(self.path).path
                review = json.loads(body)
                outer.asked.append((path, review))
                behave = outer.behaviours.get(path, nothing_there)
                self._send(behave(review))

            def _send(self, said: Raw | bytes | Sent) -> None:
                if not isinstance(said, Sent):
                    said = Sent(200, said if isinstance(said, bytes) else json.dumps(said).encode())
                if not said.code:
                    self.close_connection = True
                    return
                with contextlib.suppress(OSError):  # the caller need not wait for us
                    self.send_response(said.code)
                    for name, value in {"content-length": str(len(said.body)), **said.headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(said.body)
                if said.then is not None:
                    self.close_connection = True
                    said.then(self.connection)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args: Any) -> None:
                pass  # callers that do not trust us, or go away

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=False
        )
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.held.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=30)

    def hold(self, review: Raw) -> Raw:
        self.held.wait(timeout=60)
        return allow(review)

    def url(self, path: str) -> str:
        return f"https://127.0.0.1:{self.port}{path}"

    def questions(self, path: str) -> list[Raw]:
        return [review["request"] for at, review in self.asked if at == path]

    def webhook(
        self, path: str, namespace: str, *, name: str = "", resources: tuple[str, ...] = ("configmaps",), **more: Any
    ) -> Raw:
        """A webhook at `path` that is asked about `resources` in one namespace."""
        made: Raw = {
            "name": name or f"{path.strip('/')}.hooks.example.com",
            "clientConfig": {"url": self.url(path), "caBundle": self.ca_bundle},
            "rules": [
                {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": list(resources), "scope": "*"}
            ],
            "namespaceSelector": {"matchLabels": {"hooks": namespace}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 5,
        }
        return {**made, **more}


class Api(Protocol):
    def request(self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None) -> Reply: ...


class Kubernetes:
    """A real kube-apiserver."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._tls = ssl.create_default_context(cafile=str(plane.ca_path))

    def request(self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None) -> Reply:
        sent = {"authorization": f"Bearer {self._plane.admin_token}", "content-type": "application/json", **(headers or {})}
        payload = None if body is None else json.dumps(body).encode()
        with contextlib.closing(http.client.HTTPSConnection("127.0.0.1", self._plane.port, context=self._tls, timeout=60)) as c:
            c.request(method, path, payload, sent)
            found = c.getresponse()
            return Reply(found.status, found.headers, found.read())


CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
MERGE = {"content-type": "application/merge-patch+json"}


@contextlib.contextmanager
def configured(
    api: Api, hooks: HookServer, namespace: str, *webhooks: Raw, kind: str = "Validating", name: str = ""
) -> Iterator[str]:
    """A webhook configuration, in force: a webhook behind all others is asked about a probe until it is heard of."""
    plural, name = f"{kind.lower()}webhookconfigurations", name or f"{namespace}-{kind.lower()}"
    last = hooks.webhook(
        "/probe",
        namespace,
        name=f"probe.{name}.example.com",
        objectSelector={"matchLabels": {"probe": name}},
    )
    body = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [*webhooks, last],
    }
    reply = api.request("POST", f"{CONFIGURATIONS}/{plural}", body)
    assert reply.code == 201, reply.body
    probe = {"metadata": {"generateName": "probe-", "labels": {"probe": name}}}

    def is_in_force() -> bool:
        count = len(hooks.questions("/probe"))
        api.request("POST", f"/api/v1/namespaces/{namespace}/configmaps?dryRun=All", probe)
        return len(hooks.questions("/probe")) > count

    try:
        # The probe may be refused, or not get as far, because of the others; then their being asked tells as much.
        before = len(hooks.asked)
        blocked_until(lambda: is_in_force() or len(hooks.asked) > before or not _is_let_pass(api, namespace, probe))
        hooks.asked[:] = [(path, review) for path, review in hooks.asked if path == "/probe"]
        yield name
    finally:
        api.request("DELETE", f"{CONFIGURATIONS}/{plural}/{name}")


def written(api: Api, method: str, path: str, body: Raw) -> None:
    """A creation or a merge patch after which the server's own cache has the object: a kube-apiserver tries the
    next change on its cached copy first, and would ask its webhooks about that, too."""
    reply = api.request(method, path, body, headers=MERGE if method == "PATCH" else None)
    assert reply.code in (200, 201), reply.body
    meta = reply.json["metadata"]
    cached = (path if method == "PATCH" else f"{path}/{meta['name']}") + "?resourceVersion=0"
    blocked_until(lambda: api.request("GET", cached).json["metadata"].get("resourceVersion") == meta["resourceVersion"])


def _is_let_pass(api: Api, namespace: str, probe: Raw) -> bool:
    return api.request("POST", f"/api/v1/namespaces/{namespace}/configmaps?dryRun=All", probe).code == 201


def new_namespace(api: Api, name: str) -> str:
    """A namespace that webhooks of its name select, with its default account."""
    reply = api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": {"hooks": name}}})
    assert reply.code == 201, reply.body
    blocked_until(lambda: api.request("GET", f"/api/v1/namespaces/{name}/serviceaccounts/default").code == 200)
    return name
