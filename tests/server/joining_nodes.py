"""Machines that join a real server over HTTP, as an agent does, with keys of their own."""

from __future__ import annotations

import ipaddress
import ssl
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from muster.objects.status import Raw
from muster.objects.time import wall_clock
from muster.server.certificates import Key, key_pem, new_key
from muster.server.config import ServerLimits
from muster.server.joining import mint_token
from tests.server.running import Reply, RunningServer

MANY = ServerLimits(join_per_minute_max=100_000, join_per_address_minute_max=100_000)
"""For servers that many machines of a test join, all from one address."""
DOMAINS = "/apis/kuscia.secretflow/v1alpha1/domains"
JOIN = "/muster/v1/nodes/join"
RENEW = "/muster/v1/nodes/renew"
MERGE = {"content-type": "application/merge-patch+json"}


def csr_pem(key: Any, names: Iterable[str] = (), common_name: str = "whatever") -> str:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    alternatives: list[x509.GeneralName] = []
    for name in names:
        try:
            alternatives.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            alternatives.append(x509.DNSName(name))
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(_PEM).decode()


_PEM = serialization.Encoding.PEM


class Machine:
    """One machine with its key and, once it has joined, its certificate."""

    def __init__(self, server: RunningServer, name: str, domain: str = "", machine_id: str = "") -> None:
        self.server = server
        self.name = name
        self.domain = domain
        self.machine_id = machine_id or f"id-of-{name}"
        self.key: Key = new_key()
        self.certificate = ""
        self._tls: ssl.SSLContext | None = None

    def body(self, token: str, **changes: Any) -> Raw:
        made = {"domain": self.domain, "name": self.name, "token": token, "machineID": self.machine_id}
        return {**made, "csr": csr_pem(self.key), **changes}

    def try_join(self, token: str, **changes: Any) -> Reply:
        reply = self.server.request("POST", JOIN, self.body(token, **changes), token="")
        if reply.code == 200:
            self._take(reply)
        return reply

    def join(self) -> Machine:
        reply = self.try_join(token_for(self.server, self.domain))
        assert reply.code == 200, reply.body
        return self

    def renew(self) -> Reply:
        key = new_key()
        reply = self.request("POST", RENEW, {"csr": csr_pem(key)})
        if reply.code == 200:
            self.key = key
            self._take(reply)
        return reply

    def _take(self, reply: Reply) -> None:
        self.certificate = reply.json["certificate"]
        self._tls = None

    @property
    def tls(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=str(self.server.server.ca_path))
            with tempfile.TemporaryDirectory() as directory:
                pem = Path(directory) / "both.pem"
                pem.write_bytes(self.certificate.encode() + key_pem(self.key))
                self._tls.load_cert_chain(pem)
        return self._tls

    def request(self, method: str, path: str, body: Any = None, **more: Any) -> Reply:
        """With its certificate, and nothing else."""
        return self.server.request(method, path, body, token="", tls=self.tls, **more)

    @property
    def x509(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.certificate.encode())


def token_for(server: RunningServer, domain: str = "") -> str:
    return server.call(mint_token(server.server.store, domain, wall_clock))


def party(server: RunningServer, name: str) -> str:
    domain = {"apiVersion": "kuscia.secretflow/v1alpha1", "kind": "Domain", "metadata": {"name": name}, "spec": {}}
    server.create(DOMAINS, domain)
    return name


def bound_pod(server: RunningServer, namespace: str, name: str, node: str, **spec: Any) -> Raw:
    container = {"name": "main", "image": "none", **spec.pop("container", {})}
    pod = {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [container], **spec}}
    return server.create(f"/api/v1/namespaces/{namespace}/pods", pod)
