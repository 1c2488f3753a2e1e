"""Trust between an API server and the webhooks: one CA for all replicas, a certificate for each, the CA in the configurations.

The CA lives in a Secret of the controllers' namespace: whoever comes first makes it, the others read it. Each replica signs a
certificate of its own from it, in memory. The leader writes the CA into the webhook configurations, and again whenever
somebody takes it out (`WebhookCa`, a controller like any other, so it writes only while it leads).

Concurrency: `shared_authority` on the event loop; making keys is plain computation, about a millisecond.
"""

from __future__ import annotations

import base64
import binascii
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

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
AUTHORITY_SPARE = timedelta(days=180)
"""A CA with less than this left is replaced."""
ATTEMPTS_MAX = 5


class Authority(certificates.Authority):
    """A CA that lives in a Secret."""

    @classmethod
    def new(cls, now: float) -> Authority:
        key = certificates.new_key()
        return cls(certificates.self_signed("muster-webhook-ca", key, now, AUTHORITY_LIFETIME), key)

    def to_secret(self, namespace: str) -> Raw:
        key = certificates.key_pem(self.key)
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": manifests.WEBHOOK_SECRET,
                "namespace": namespace,
                "labels": manifests.labels("webhook"),
            },
            "type": "Opaque",
            "data": {"ca.crt": base64.b64encode(self.pem).decode(), "ca.key": base64.b64encode(key).decode()},
        }

    @classmethod
    def from_secret(cls, secret: Raw, now: float) -> Authority | None:
        """None when the Secret holds no CA that can be used, or one that ends soon: then it is made anew."""
        data = secret.get("data") or {}
        try:
            certificate = x509.load_pem_x509_certificate(base64.b64decode(data["ca.crt"], validate=True))
            key = serialization.load_pem_private_key(base64.b64decode(data["ca.key"], validate=True), password=None)
            if not isinstance(key, certificates.Key):
                return None
            certificate.verify_directly_issued_by(certificate)
        except (KeyError, TypeError, ValueError, binascii.Error, InvalidSignature):
            return None
        is_pair = certificates.belong_together(certificate, key)
        lasts = certificate.not_valid_after_utc - AUTHORITY_SPARE > datetime.fromtimestamp(now, UTC)
        return cls(certificate, key) if is_pair and lasts else None

    def load_leaf(self, context: ssl.SSLContext, names: Sequence[str], now: float) -> None:
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


async def shared_authority(store: Store, namespace: str, clock: Clock) -> Authority:
    """The CA that all replicas share. Makes it, or makes it anew, if need be; of several who try, one succeeds."""
    secrets = await store.resource("", "Secret")
    for _ in range(ATTEMPTS_MAX):
        try:
            secret = await store.get(secrets, manifests.WEBHOOK_SECRET, namespace)
        except NotFound:
            fresh = Authority.new(clock())
            try:
                await store.create(secrets, fresh.to_secret(namespace), namespace)
            except AlreadyExists:
                continue
            return fresh
        found = Authority.from_secret(secret, clock())
        if found is not None:
            return found
        fresh = Authority.new(clock())
        replacement = fresh.to_secret(namespace)
        replacement["metadata"]["resourceVersion"] = secret["metadata"]["resourceVersion"]
        try:
            await store.update(secrets, replacement, namespace)
        except (Conflict, NotFound):
            continue
        return fresh
    raise Conflict(
        f'secrets "{manifests.WEBHOOK_SECRET}" in namespace {namespace} is changed by others all the time; find out by whom',
        kind="secrets",
        name=manifests.WEBHOOK_SECRET,
    )


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

    def __init__(self, authority: Authority) -> None:
        self.ca_bundle = base64.b64encode(authority.pem).decode()

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        actions = []
        for watch in self.watches:
            found = caches[watch].get(key)
            hooks = with_ca(found.raw, self.ca_bundle) if found is not None else None
            if found is not None and hooks is not None:
                actions.append(Patch(target_of(found.raw, at_version=True), {"webhooks": hooks}))
        return Plan(actions)
