"""Trust between an API server and the webhooks: one CA for all replicas, a certificate for each, the CA in the configurations.

The CA lives in a Secret of the controllers' namespace: whoever comes first makes it, the others read it. Each replica signs a
certificate of its own from it, in memory. The leader writes what is to be trusted into the webhook configurations, and again
whenever somebody takes it out (`WebhookCa`, a controller like any other, so it writes only while it leads).

A CA that ends in time is replaced in three steps, each seen by all before the next, so that an API server trusts every replica
at every moment, whoever leads:

    1. a successor is made, and trusted beside the CA; it signs nothing yet
    2. once the configurations have it, and every replica had time to look, it becomes the CA; the old one stays trusted
    3. replicas sign new certificates when they next look; the old CA is forgotten when it has ended

Concurrency: on the event loop; making keys is plain computation, about a millisecond. Any replica may take a step; of several
who try, one succeeds, because the Secret is written at the version that was read.
"""

from __future__ import annotations

import base64
import binascii
import ssl
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from muster.cli import manifests
from muster.client.files import key_file
from muster.controllers.actions import Patch, target_of
from muster.controllers.runtime import Caches, Controller, Plan, Watch
from muster.objects.status import AlreadyExists, Conflict, NotFound, Raw
from muster.objects.time import Clock
from muster.server import certificates
from muster.store.cache import ObjectKey
from muster.store.contract import Store

AUTHORITY_LIFETIME = timedelta(days=3650)
LEAF_LIFETIME = timedelta(days=90)
LEAF_RENEWAL_AFTER_S = 30 * 86400.0
"""A third of a certificate's life."""
AUTHORITY_SPARE = timedelta(days=180)
"""A CA with less than this left gets a successor."""
CHECK_INTERVAL_S = 300.0
"""How often a replica looks at the Secret."""
ANNOUNCED_FOR_S = 12 * CHECK_INTERVAL_S
"""How old a successor is at least before it signs: every replica that can lead knows it by then."""
REWRITE_INTERVAL_S = 60.0
"""How often the leader compares the configurations with what is to be trusted, also when they do not change."""
ATTEMPTS_MAX = 5


class Authority(certificates.Authority):
    """A CA that lives in a Secret."""

    @classmethod
    def new(cls, now: float) -> Authority:
        key = certificates.new_key()
        return cls(certificates.self_signed("muster-webhook-ca", key, now, AUTHORITY_LIFETIME), key)

    @classmethod
    def read(cls, data: Raw, name: str) -> Authority | None:
        """The CA under `name.crt` and `name.key`; None when there is none that can be used."""
        try:
            certificate = x509.load_pem_x509_certificate(base64.b64decode(data[f"{name}.crt"], validate=True))
            key = serialization.load_pem_private_key(base64.b64decode(data[f"{name}.key"], validate=True), password=None)
            if not isinstance(key, certificates.Key):
                return None
            certificate.verify_directly_issued_by(certificate)
        except (KeyError, TypeError, ValueError, binascii.Error, InvalidSignature):
            return None
        return cls(certificate, key) if certificates.belong_together(certificate, key) else None

    def write(self, name: str) -> Raw:
        key = certificates.key_pem(self.key)
        return {f"{name}.crt": base64.b64encode(self.pem).decode(), f"{name}.key": base64.b64encode(key).decode()}

    @property
    def made_at(self) -> datetime:
        return self.certificate.not_valid_before_utc

    @property
    def ends_at(self) -> datetime:
        return self.certificate.not_valid_after_utc

    def load_leaf(self, context: ssl.SSLContext, names: Sequence[str], now: float) -> x509.Certificate:
        """Sign a certificate for `names` and let `context` use it, for connections from now on."""
        key = certificates.new_key()
        certificate = self.issue(
            key,
            common_name="muster-webhook",
            names=names,
            usage=ExtendedKeyUsageOID.SERVER_AUTH,
            now=now,
            lifetime=LEAF_LIFETIME,
        )
        with key_file(certificates.cert_pem(certificate) + certificates.key_pem(key)) as path:
            context.load_cert_chain(path)
        return certificate


class Trust(msgspec.Struct, frozen=True):
    """What the Secret says: who signs, who is to sign next, and whose signatures may still be around."""

    signer: Authority
    successor: Authority | None = None
    previous: x509.Certificate | None = None

    @property
    def ca_bundle(self) -> str:
        """All that an API server is to trust, as a webhook configuration has it."""
        others = [self.successor.pem] if self.successor is not None else []
        if self.previous is not None:
            others.append(certificates.cert_pem(self.previous))
        return base64.b64encode(b"".join([self.signer.pem, *others])).decode()

    def to_secret(self, namespace: str) -> Raw:
        data = self.signer.write("ca")
        if self.successor is not None:
            data |= self.successor.write("next")
        if self.previous is not None:
            data["previous.crt"] = base64.b64encode(certificates.cert_pem(self.previous)).decode()
        meta = {"name": manifests.WEBHOOK_SECRET, "namespace": namespace, "labels": manifests.labels("webhook")}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque", "data": data}

    @classmethod
    def from_secret(cls, secret: Raw, now: float) -> Trust | None:
        """None when the Secret holds no CA that can be used: then it is made anew."""
        data = secret.get("data") or {}
        at = datetime.fromtimestamp(now, UTC)
        signer, successor = Authority.read(data, "ca"), Authority.read(data, "next")
        if successor is not None and successor.ends_at <= at:
            successor = None
        if signer is None or signer.ends_at <= at:
            return None if successor is None else cls(successor)
        try:
            previous = x509.load_pem_x509_certificate(base64.b64decode(data["previous.crt"], validate=True))
        except (KeyError, TypeError, ValueError, binascii.Error):
            return cls(signer, successor)
        return cls(signer, successor, previous)

    def after(self, now: float, announced: Callable[[bytes], bool]) -> Trust:
        """The next step, if it is time for one; otherwise this. `announced`: whether all configurations have a certificate."""
        at = datetime.fromtimestamp(now, UTC)
        if self.previous is not None and self.previous.not_valid_after_utc <= at:
            return Trust(self.signer, self.successor)
        if self.successor is None:
            is_ending = self.signer.ends_at - AUTHORITY_SPARE <= at
            return Trust(self.signer, Authority.new(now), self.previous) if is_ending else self
        is_old_enough = self.successor.made_at + timedelta(seconds=ANNOUNCED_FOR_S) <= at
        if is_old_enough and announced(self.successor.pem):
            return Trust(self.successor, previous=self.signer.certificate)
        return self


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def certificate_names(namespace: str, extra: Sequence[str]) -> list[str]:
    """What API servers may call a webhook: its Service, loopback, and what the user adds."""
    service = f"{manifests.WEBHOOK}.{namespace}.svc"
    own = [service, f"{service}.cluster.local", "localhost", "127.0.0.1", "::1"]
    return list(dict.fromkeys([*own, *(name for name in extra if name)]))


async def shared_trust(store: Store, namespace: str, clock: Clock) -> Trust:
    """What all replicas share. Makes it, or takes the next step, if need be; of several who try, one succeeds."""
    secrets = await store.resource("", "Secret")
    for _ in range(ATTEMPTS_MAX):
        try:
            secret = await store.get(secrets, manifests.WEBHOOK_SECRET, namespace)
        except NotFound:
            fresh = Trust(Authority.new(clock()))
            try:
                await store.create(secrets, fresh.to_secret(namespace), namespace)
            except AlreadyExists:
                continue
            return fresh
        found = Trust.from_secret(secret, clock())
        if found is None:
            wanted = Trust(Authority.new(clock()))
        else:
            bundles = await _bundles(store) if found.successor is not None else []
            wanted = found.after(clock(), lambda pem: all(pem in bundle for bundle in bundles))  # noqa: B023 - used at once
        replacement = wanted.to_secret(namespace)
        if replacement["data"] == secret.get("data"):
            return wanted
        replacement["metadata"]["resourceVersion"] = secret["metadata"]["resourceVersion"]
        try:
            await store.update(secrets, replacement, namespace)
        except (Conflict, NotFound):
            continue
        return wanted
    raise Conflict(
        f'secrets "{manifests.WEBHOOK_SECRET}" in namespace {namespace} is changed by others all the time; find out by whom',
        kind="secrets",
        name=manifests.WEBHOOK_SECRET,
    )


async def _bundles(store: Store) -> list[bytes]:
    """What API servers trust now: the CAs of each webhook, as PEM."""
    found: list[bytes] = []
    for watch in (VALIDATING, MUTATING):
        try:
            raw = await store.get(await store.resource(watch.group, watch.kind), manifests.NAME)
        except NotFound:
            continue
        for hook in raw.get("webhooks") or []:
            text = (hook.get("clientConfig") or {}).get("caBundle") or ""
            try:
                found.append(base64.b64decode(text, validate=True))
            except (TypeError, ValueError, binascii.Error):
                found.append(b"")
    return found


class Serving:
    """The certificate of one replica, kept up: `check` follows the Secret. `context` is what its webhooks are served with."""

    def __init__(self, store: Store, namespace: str, names: Sequence[str], clock: Clock) -> None:
        self.context = server_context()
        self.trust: Trust
        self.leaf: x509.Certificate
        self._store = store
        self._namespace = namespace
        self._names = names
        self._clock = clock
        self._signed_by = b""
        self._loaded_at = 0.0

    async def check(self) -> bool:
        """Look at the Secret; whether a new certificate was signed."""
        self.trust = await shared_trust(self._store, self._namespace, self._clock)
        signer, now = self.trust.signer, self._clock()
        if signer.pem == self._signed_by and now - self._loaded_at <= LEAF_RENEWAL_AFTER_S:
            return False
        self.leaf = signer.load_leaf(self.context, self._names, now)
        self._signed_by, self._loaded_at = signer.pem, now
        return True


_CONFIGURATION = f"metadata.name={manifests.NAME}"
VALIDATING = Watch(group="admissionregistration.k8s.io", kind="ValidatingWebhookConfiguration", field_selector=_CONFIGURATION)
MUTATING = Watch(group="admissionregistration.k8s.io", kind="MutatingWebhookConfiguration", field_selector=_CONFIGURATION)


def with_ca(configuration: Raw, ca_bundle: str) -> list[Raw] | None:
    """The webhooks of `configuration` with this CA; None when they have it already."""
    hooks = [hook for hook in configuration.get("webhooks") or [] if isinstance(hook, dict)]
    wanted = [hook | {"clientConfig": (hook.get("clientConfig") or {}) | {"caBundle": ca_bundle}} for hook in hooks]
    return None if wanted == hooks else wanted


class WebhookCa(Controller):
    """Keeps the CA in both webhook configurations. The key is their common name."""

    name = "webhook-ca"
    watches = (VALIDATING, MUTATING)

    def __init__(self, ca_bundle: Callable[[], str]) -> None:
        self._ca_bundle = ca_bundle

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        actions = []
        for watch in self.watches:
            found = caches[watch].get(key)
            hooks = with_ca(found.raw, self._ca_bundle()) if found is not None else None
            if found is not None and hooks is not None:
                actions.append(Patch(target_of(found.raw, at_version=True), {"webhooks": hooks}))
        return Plan(actions, requeue_after_s=REWRITE_INTERVAL_S)
