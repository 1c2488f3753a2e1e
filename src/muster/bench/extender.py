"""A filter extender that writes down which nodes kube-scheduler's own filters left over, and then refuses them all.

kube-scheduler calls an extender after its filters and sends the names of the nodes that passed. The answer "none of them" keeps
every pod pending, so that the cluster stays as it is while all pods are tried. A pod that no node can hold never gets here.

`Extender` serves on loopback from threads of its own; `seen` may be read from any thread at any time.
"""

from __future__ import annotations

import http.server
import sys
import threading
from types import TracebackType

import msgspec

BODY_BYTES_MAX = 64 * 1024 * 1024


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""


class _Pod(msgspec.Struct):
    metadata: _Metadata


class _Args(msgspec.Struct):
    """What `nodeCacheCapable: true` sends: names only. Go writes these names without tags, hence the capitals."""

    pod: _Pod = msgspec.field(name="Pod")
    node_names: list[str] | None = msgspec.field(name="NodeNames", default=None)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A scheduler that is stopped drops its connections; that is no error here. Anything else is shown."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


PodKey = tuple[str, str]
"""Namespace and name."""


class Extender:
    """`with Extender() as extender:` serves until the end of the block."""

    def __init__(self) -> None:
        self._seen: dict[PodKey, frozenset[str]] = {}
        self._differing: set[PodKey] = set()
        self._lock = threading.Lock()
        extender = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                if not 0 < length <= BODY_BYTES_MAX:
                    self.send_error(413, f"a body of {length} bytes; up to {BODY_BYTES_MAX} are read")
                    return
                try:
                    body = extender.answer(self.rfile.read(length))
                except msgspec.MsgspecError as error:
                    self.send_error(400, f"not the arguments of a filter: {error}")
                    return
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: one line per pod would drown the test's own output."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="extender", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def seen(self) -> dict[PodKey, frozenset[str]]:
        """For each pod the nodes that passed when it was last tried."""
        with self._lock:
            return dict(self._seen)

    @property
    def differing(self) -> set[PodKey]:
        """Pods that were tried more than once with different results: the cluster did not stand still."""
        with self._lock:
            return set(self._differing)

    def answer(self, body: bytes) -> bytes:
        """Record one call; the JSON to send back."""
        args = msgspec.json.decode(body, type=_Args)
        names = args.node_names or []
        key, passed = (args.pod.metadata.namespace, args.pod.metadata.name), frozenset(names)
        with self._lock:
            if self._seen.get(key, passed) != passed:
                self._differing.add(key)
            self._seen[key] = passed
        return msgspec.json.encode({"NodeNames": [], "FailedNodes": dict.fromkeys(names, "recorded, never taken")})

    def __enter__(self) -> Extender:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
