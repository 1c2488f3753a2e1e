"""The one way from this server to the agent of a node: where it listens, and who it must be.

The agent is found by the Node's address and `daemonEndpoints.kubeletEndpoint.Port`. Both sides show a certificate of this
server's CA: ours is `system:apiserver`; the agent's must be for the node's name, and one that the Node lists as good
(`node_index`). Both are checked in the handshake, before anything is sent.

Used by `kubelet_proxy` for logs and by `node_streams` for connections into pods. Concurrency: on the event loop; stateless.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from yarl import URL

from muster.objects.conditions import find_condition
from muster.objects.rules.report import obj, text
from muster.objects.status import (
    ApiError,
    BadRequest,
    InternalError,
    NotFound,
    Raw,
    ServiceUnavailable,
    TooManyRequests,
    Unauthorized,
)
from muster.server.node_index import NodeIndex, serial_of_peer
from muster.server.pki import Pki
from muster.store.embedded import EmbeddedStore

ANSWER_TIMEOUT_S: Final = 30.0
"""From the request to the first byte of the answer."""
ERROR_BYTES_MAX: Final = 4096
"""Of what an agent says when it refuses."""
_ADDRESS_TYPES: Final = ("InternalIP", "ExternalIP", "InternalDNS", "ExternalDNS", "Hostname")


class NodeAgents:
    """See the module."""

    def __init__(self, store: EmbeddedStore, pki: Pki, nodes: NodeIndex) -> None:
        self._store = store
        self._pki = pki
        self._nodes = nodes

    def pod(self, name: str, namespace: str) -> Raw:
        return self._store.get_record(self._store.catalog.by_kind("", "Pod"), name, namespace).raw()

    def url(self, pod: Raw, path: Iterable[str], query: Iterable[tuple[str, str]], what: str) -> URL:
        """Where to ask the agent of the pod's node. `what` begins the sentence when that can't be: `pod "p" is`."""
        metadata, node = obj(pod, "metadata"), text(obj(pod, "spec"), "nodeName")
        place = f'{what} on node "{node:.253}"'
        try:
            raw = self._node(node)
        except NotFound:
            raise ServiceUnavailable(f"{place}, which is gone: its Node was deleted", kind="pods") from None
        address, port = endpoint_of(raw)
        if not address or not port:
            raise ServiceUnavailable(f"{place}, and no agent of that node is connected to this server", kind="pods")
        asked = [*query, ("uid", text(metadata, "uid"))]
        try:
            return URL.build(scheme="https", host=address, port=port, path="/" + "/".join(path), query=asked)
        except ValueError:
            raise ServiceUnavailable(f"{place}, whose address {address!r:.80} makes no sense", kind="pods") from None

    def tls(self, node: str) -> ssl.SSLContext:
        """For one connection: besides the name, the certificate must be one of those that are good now."""
        nodes = self._nodes

        class Checked(ssl.SSLObject):
            def do_handshake(self) -> None:
                super().do_handshake()
                try:
                    nodes.check_certificate(node, serial_of_peer(self.getpeercert()))
                except Unauthorized as error:
                    raise ssl.SSLCertVerificationError(1, error.message) from error

        context = self._pki.client_context()
        context.sslobject_class = Checked
        return context

    def failure(self, node: str, url: URL, error: Exception) -> ApiError:
        """Why there was no answer, as an error of ours."""
        at = place_of(node, url)
        if isinstance(error, ssl.SSLCertVerificationError):
            return InternalError(f"{at}: it has no certificate of this server's for that node ({error}); let it join")
        if isinstance(error, ssl.SSLError):
            return InternalError(f"{at}: no secure connection: {error}")
        why = str(error)[:200] or "no answer in time"
        return ServiceUnavailable(f"{at} does not answer ({why}){self._state(node)}", retry_after_s=5)

    def _node(self, name: str) -> Raw:
        return self._store.get_record(self._store.catalog.by_kind("", "Node"), name).raw()

    def _state(self, node: str) -> str:
        try:
            raw = self._node(node)
        except NotFound:
            return "; its Node was deleted meanwhile"
        ready = find_condition(obj(raw, "status").get("conditions"), "Ready") or {}
        return "" if ready.get("status") == "True" else f"; the node is not ready: {ready.get('reason') or 'Unknown'}"


def place_of(node: str, url: URL) -> str:
    return f'the agent of node "{node}" at {url.host!s:.253}:{url.port}'


def refusal(at: str, code: int, said: bytes) -> ApiError:
    """What an agent said instead of what it was asked for, as an error of ours."""
    message = _message(said)
    if code == 404:
        return NotFound(message)
    if code == 400:
        return BadRequest(message)
    if code == 429:
        return TooManyRequests(message, retry_after_s=5)
    return InternalError(f"{at} answered {code}: {message}")


def _message(said: bytes) -> str:
    try:
        decoded = msgspec.json.decode(said)
    except (msgspec.DecodeError, UnicodeDecodeError):
        decoded = None
    found = decoded.get("message") if isinstance(decoded, dict) else None
    clean = found if isinstance(found, str) else said.decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in clean).strip()[:1000] or "nothing more"


# -- pods and nodes, as they are stored ---------------------------------------------------------------------------------------


def choose_container(pod: Raw, name: str) -> str:
    spec, pod_name = obj(pod, "spec"), text(obj(pod, "metadata"), "name")
    own, initial = _names(spec, "containers"), _names(spec, "initContainers")
    if name:
        if name not in (*own, *initial, *_names(spec, "ephemeralContainers")):
            raise BadRequest(f"container {name[:80]} is not valid for pod {pod_name}")
        return name
    if len(own) == 1:
        return own[0]
    also = f" or one of the init containers: [{' '.join(initial)}]" if initial else ""
    raise BadRequest(f"a container name must be specified for pod {pod_name}, choose one of: [{' '.join(own)}]{also}")


def _names(spec: Raw, key: str) -> list[str]:
    found: Any = spec.get(key)
    return [text(one, "name") for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def endpoint_of(node: Raw) -> tuple[str, int]:
    """Where the agent of a node listens: address and port; "" and 0 when it does not say."""
    status = obj(node, "status")
    found: Any = status.get("addresses")
    addresses = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    port: Any = obj(obj(status, "daemonEndpoints"), "kubeletEndpoint").get("Port")
    for type_ in _ADDRESS_TYPES:
        for one in addresses:
            if one.get("type") == type_ and text(one, "address"):
                return text(one, "address"), port if isinstance(port, int) and 0 < port < 65536 else 0
    return "", 0
