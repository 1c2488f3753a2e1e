"""What the server remembers of nodes to decide what each may do: who has joined, which pods are bound where, what those name.

Fed from the store as it changes (`memory`), so that a node that was deleted a moment ago is nobody for the very next request.

    joined      the certificates that a Node's annotation `muster.dev/joined` lists; deleting the Node takes them away
    domains     the parties that exist, by uid: a node's certificate ends with the party that it was made for
    pods        (namespace, name) by node, kept without decoding anything
    named       the Secrets and ConfigMaps that a pod names, found out when a node first asks, and kept while the pod is there

Concurrency: on the event loop, no locks. Invariant: what is not known here is not allowed.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from muster.objects.labels import Muster
from muster.objects.meta import annotations_of, name_of, uid_of
from muster.objects.status import Cause, NotFound, Raw, Unauthorized
from muster.store.embedded import EmbeddedStore
from muster.store.embedded.records import Key, Record

NODE_USER_PREFIX: Final = "system:node:"
NODES_GROUP: Final = "system:nodes"
PARTY_GROUP_PREFIX: Final = "muster:party:"
FORGOTTEN: Final = "NodeForgotten"
"""The reason of the cause that a 401 carries when a node's certificate was good once."""
NODE_FIELD: Final = "spec.nodeName"
PHASE_FIELD: Final = "status.phase"
SERIALS_MAX: Final = 2
"""Certificates of one node that are good at a time: the present one, and the one that was renewed last."""
_OVER: Final = ("Succeeded", "Failed")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Named = frozenset[tuple[str, str]]
"""(`secrets` or `configmaps`, name)."""


class Joined(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The annotation `muster.dev/joined`."""

    serials: tuple[str, ...]
    """In lower-case hexadecimal digits; the newest last."""
    machine_id: str = msgspec.field(name="machineID")
    domain: str = ""
    domain_uid: str = msgspec.field(default="", name="domainUID")
    token: str = ""
    """The id of the token that it joined with."""
    at: str = ""

    def to_text(self) -> str:
        return msgspec.json.encode(self).decode()


def joined_of(node: Mapping[str, Any]) -> Joined | None:
    """None when the node did not join with a token, or when what is there can't be read: then no certificate is good."""
    text = annotations_of(node).get(Muster.JOINED)
    try:
        return msgspec.json.decode(text, type=Joined) if text else None
    except msgspec.MsgspecError:
        return None


def node_of_user(user: str, groups: Sequence[str]) -> str:
    """The node that a user is; "" for everybody else."""
    return user.removeprefix(NODE_USER_PREFIX) if user.startswith(NODE_USER_PREFIX) and NODES_GROUP in groups else ""


def party_of(groups: Sequence[str]) -> str:
    return next((group.removeprefix(PARTY_GROUP_PREFIX) for group in groups if group.startswith(PARTY_GROUP_PREFIX)), "")


def ranges_of(spec: Raw) -> tuple[Network, ...]:
    """The pod addresses that a Node has; what is none is left out."""
    listed = spec.get("podCIDRs")
    found: list[Network] = []
    for text in dict.fromkeys([spec.get("podCIDR"), *(listed if isinstance(listed, list) else ())]):
        if isinstance(text, str) and text:
            with contextlib.suppress(ValueError):
                found.append(ipaddress.ip_network(text, strict=False))
    return tuple(found)


class NodeIndex:
    """See the module."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self._joined: dict[str, Joined] = {}
        self._domains: dict[str, str] = {}
        self._node_of: dict[Key, str] = {}
        self._pods: dict[str, set[Key]] = {}
        self._named: dict[Key, tuple[str, Named]] = {}
        """By pod: its uid, and what it names."""
        self.on_revoked: list[Callable[[str], None]] = []
        """Called with the name of a node of which a certificate is not good any more."""

    # --- fed by the store

    def apply_node(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        name = name_of(raw)
        before, now = self._joined.get(name), None if deleted else joined_of(raw)
        if now == before:
            return
        if now is None:
            self._joined.pop(name, None)
        else:
            self._joined[name] = now
        if before is not None and not set(before.serials) <= set(now.serials if now is not None else ()):
            self._revoke(name)

    def apply_domain(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        name = name_of(raw)
        before = self._domains.pop(name, None)
        if not deleted:
            self._domains[name] = uid_of(raw)
        if before is not None and before != self._domains.get(name):
            for node, joined in list(self._joined.items()):
                if joined.domain == name:
                    self._revoke(node)

    def apply_pod(self, record: Record, *, deleted: bool) -> None:
        key = record.key
        node = "" if deleted else record.fields.get(NODE_FIELD, "")
        before = self._node_of.get(key, "")
        if deleted:
            self._named.pop(key, None)
        if node == before:
            return
        if before:
            self._pods[before].discard(key)
            if not self._pods[before]:
                del self._pods[before]
            del self._node_of[key]
        if node:
            self._node_of[key] = node
            self._pods.setdefault(node, set()).add(key)

    def _revoke(self, node: str) -> None:
        for tell in self.on_revoked:
            tell(node)

    # --- asked

    def joined(self, node: str) -> Joined | None:
        return self._joined.get(node)

    def domain_uid(self, domain: str) -> str:
        return self._domains.get(domain, "")

    def check_certificate(self, node: str, serial: str) -> None:
        """Unauthorized unless the certificate with this serial number (as `serial_of_peer` gives it) is good now."""
        joined = self._joined.get(node)
        if joined is None:
            why = f'node "{node:.253}" is not known here as one that joined, or its Node was deleted'
        elif serial not in joined.serials:
            why = f'this certificate of node "{node}" was replaced by a newer one'
        elif joined.domain and self._domains.get(joined.domain) != joined.domain_uid:
            why = f'the Domain "{joined.domain}" that node "{node}" joined was deleted'
        else:
            return
        message = f"Unauthorized: {why}; let it join again with a new token"
        raise Unauthorized(message, causes=[Cause("", why, FORGOTTEN)])

    def is_bound(self, node: str, namespace: str, name: str) -> bool:
        """Whether this pod is bound to the node."""
        return bool(node) and self._node_of.get((namespace, name)) == node

    def unfinished(self, node: str) -> int:
        """How many pods that are bound to the node have not ended."""
        return sum(1 for record in self._records(node) if record.fields.get(PHASE_FIELD) not in _OVER)

    def names(self, node: str, plural: str, namespace: str, name: str) -> bool:
        """Whether an unfinished pod that is bound to the node names this Secret or ConfigMap, or runs as this account."""
        return any(
            record.namespace == namespace
            and record.fields.get(PHASE_FIELD) not in _OVER
            and (plural, name) in self._named_by(record)
            for record in self._records(node, namespace)
        )

    def _records(self, node: str, namespace: str | None = None) -> Iterator[Record]:
        pods = self._store.catalog.by_kind("", "Pod")
        for key in self._pods.get(node, ()):
            if namespace is not None and key[0] != namespace:
                continue
            try:
                yield self._store.get_record(pods, key[1], key[0])
            except NotFound:
                continue

    def _named_by(self, record: Record) -> Named:
        known = self._named.get(record.key)
        if known is None or known[0] != record.uid:
            # What a pod names is fixed when it is created: once is enough.
            known = self._named[record.key] = (record.uid, named_by(record.raw()))
        return known[1]


def _plain(serial: str) -> str:
    """As annotations have it: lower case, without leading zeros."""
    return serial.lower().lstrip("0")


def serial_of_peer(peer: Any) -> str:
    """The serial number of the certificate that a client showed; "" when it showed none."""
    serial = (peer or {}).get("serialNumber", "")
    return _plain(serial) if isinstance(serial, str) else ""


def serial_text(serial: int) -> str:
    return f"{serial:x}"


# -- what a pod names ---------------------------------------------------------------------------------------------------------


def named_by(pod: Raw) -> Named:
    """The Secrets and ConfigMaps that a pod names (volumes, variables, credentials for images), and its service account. Pure,
    for any shape."""
    spec = _dict(pod.get("spec"))
    account = spec.get("serviceAccountName")
    found: set[tuple[str, str]] = {("serviceaccounts", account)} if isinstance(account, str) and account else set()
    for volume in _dicts(spec.get("volumes")):
        found.update(_of_source(volume, "secretName"))
        for source in _dicts(_dict(volume.get("projected")).get("sources")):
            found.update(_of_source(source, "name"))
    for word in ("containers", "initContainers", "ephemeralContainers"):
        for container in _dicts(spec.get(word)):
            for variable in _dicts(container.get("env")):
                source = _dict(variable.get("valueFrom"))
                found.update(_named("secrets", source.get("secretKeyRef"), "name"))
                found.update(_named("configmaps", source.get("configMapKeyRef"), "name"))
            for source in _dicts(container.get("envFrom")):
                found.update(_named("secrets", source.get("secretRef"), "name"))
                found.update(_named("configmaps", source.get("configMapRef"), "name"))
    for reference in _dicts(spec.get("imagePullSecrets")):
        found.update(_named("secrets", reference, "name"))
    return frozenset(found)


def _of_source(source: Raw, secret_key: str) -> Iterator[tuple[str, str]]:
    yield from _named("secrets", source.get("secret"), secret_key)
    yield from _named("configmaps", source.get("configMap"), "name")


def _named(plural: str, reference: Any, key: str) -> Iterator[tuple[str, str]]:
    name = _dict(reference).get(key)
    if isinstance(name, str) and name:
        yield plural, name


def _dict(value: Any) -> Raw:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[Raw]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
