from __future__ import annotations

import asyncio
import base64
import random
import ssl
from typing import Any

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.cli.webhook_ca import (
    ANNOUNCED_FOR_S,
    AUTHORITY_LIFETIME,
    AUTHORITY_SPARE,
    CHECK_INTERVAL_S,
    Authority,
    Serving,
    Trust,
    WebhookCa,
    certificate_names,
    server_context,
    shared_trust,
    with_ca,
)
from muster.controllers.manager import Manager
from muster.objects.status import Raw
from muster.store.contract import WriteOptions
from muster.store.embedded import EmbeddedStore

NOW = 1_800_000_000.0
YEAR_S = 365 * 86400.0
NAMESPACE = "default"


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def store() -> Any:
    made = await EmbeddedStore.open(None, clock=Clock(), writer="inline")
    await made.create(await made.resource("", "Namespace"), {"metadata": {"name": NAMESPACE}})
    yield made
    await made.close()


async def secret_of(store: EmbeddedStore) -> Raw:
    return await store.get(await store.resource("", "Secret"), "muster-webhook-ca", NAMESPACE)


async def test_the_first_makes_it_and_the_others_read_it(store: EmbeddedStore) -> None:
    made = await asyncio.gather(*(shared_trust(store, NAMESPACE, Clock()) for _ in range(5)))
    assert len({trust.signer.pem for trust in made}) == 1
    secret = await secret_of(store)
    assert base64.b64decode(secret["data"]["ca.crt"]) == made[0].signer.pem
    assert secret["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "muster-install"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({}, id="empty"),
        pytest.param({"ca.crt": "", "ca.key": ""}, id="empty files"),
        pytest.param({"ca.crt": "bm90IGEgY2VydA==", "ca.key": "bm90IGEga2V5"}, id="nonsense"),
        pytest.param("mixed", id="certificate and key of two CAs"),
    ],
)
async def test_a_useless_secret_is_replaced(data: Any, store: EmbeddedStore) -> None:
    if data == "mixed":
        one, two = (Authority.new(NOW).write("ca") for _ in range(2))
        data = {"ca.crt": one["ca.crt"], "ca.key": two["ca.key"]}
    secrets = await store.resource("", "Secret")
    await store.create(secrets, {"metadata": {"name": "muster-webhook-ca"}, "type": "Opaque", "data": data}, NAMESPACE)
    trust = await shared_trust(store, NAMESPACE, Clock())
    assert base64.b64decode((await secret_of(store))["data"]["ca.crt"]) == trust.signer.pem


async def test_a_ca_that_ends_soon_gets_a_successor(store: EmbeddedStore) -> None:
    """With no configuration that would have to be told, it follows as soon as it is old enough."""
    clock = Clock()
    first = await shared_trust(store, NAMESPACE, clock)
    clock.now += 9 * YEAR_S
    assert (await shared_trust(store, NAMESPACE, clock)).ca_bundle == first.ca_bundle
    clock.now = NOW + (AUTHORITY_LIFETIME - AUTHORITY_SPARE).total_seconds() + 1
    second = await shared_trust(store, NAMESPACE, clock)
    assert second.signer.pem == first.signer.pem
    assert second.successor is not None
    assert (await shared_trust(store, NAMESPACE, clock)).ca_bundle == second.ca_bundle
    clock.now += ANNOUNCED_FOR_S
    third = await shared_trust(store, NAMESPACE, clock)
    assert (third.signer.pem, third.successor) == (second.successor.pem, None)
    assert third.previous == first.signer.certificate
    clock.now = NOW + AUTHORITY_LIFETIME.total_seconds() + 1
    assert (await shared_trust(store, NAMESPACE, clock)).previous is None
    assert set((await secret_of(store))["data"]) == {"ca.crt", "ca.key"}


async def test_a_successor_waits_until_the_configurations_have_it(store: EmbeddedStore) -> None:
    clock = Clock()
    first = await shared_trust(store, NAMESPACE, clock)
    kind = await store.resource("admissionregistration.k8s.io", "ValidatingWebhookConfiguration")
    await store.create(kind, {"metadata": {"name": "muster"}, "webhooks": [hook_of(first.ca_bundle)]})
    clock.now = NOW + (AUTHORITY_LIFETIME - AUTHORITY_SPARE).total_seconds() + 1
    second = await shared_trust(store, NAMESPACE, clock)
    clock.now += 10 * ANNOUNCED_FOR_S
    assert (await shared_trust(store, NAMESPACE, clock)).signer.pem == first.signer.pem
    await store.patch(kind, "muster", {"webhooks": [hook_of(second.ca_bundle)]})
    assert (await shared_trust(store, NAMESPACE, clock)).signer.pem != first.signer.pem


async def test_a_ca_that_has_ended_is_followed_by_its_successor_at_once(store: EmbeddedStore) -> None:
    clock = Clock()
    successor = Authority.new(NOW + 9 * YEAR_S)
    secrets = await store.resource("", "Secret")
    await store.create(secrets, Trust(Authority.new(NOW), successor).to_secret(NAMESPACE), NAMESPACE)
    clock.now += 11 * YEAR_S
    assert (await shared_trust(store, NAMESPACE, clock)).signer.pem == successor.pem


def hook_of(ca_bundle: str) -> Raw:
    return {
        "name": "a.b.c",
        "clientConfig": {"url": "https://x/validate", "caBundle": ca_bundle},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }


@given(seed=st.randoms(use_true_random=False))
@settings(max_examples=5)
def test_a_rotation_leaves_no_moment_without_trust(seed: random.Random) -> None:
    """Three replicas look in any order, and any of them leads. After every single step, what the configurations trust covers
    the certificate of every replica, from before the successor is made until after the old CA is forgotten by all."""
    asyncio.run(_rotate(seed))


async def _rotate(seed: random.Random) -> None:
    clock = Clock()
    store = await EmbeddedStore.open(None, clock=clock, writer="inline")
    await store.create(await store.resource("", "Namespace"), {"metadata": {"name": NAMESPACE}})
    replicas = [Serving(store, NAMESPACE, ["x.ns.svc"], clock) for _ in range(3)]
    kinds = [await store.resource("admissionregistration.k8s.io", watch.kind) for watch in WebhookCa.watches]
    for replica in replicas:
        await replica.check()
    first = replicas[0].trust
    for kind in kinds:
        await store.create(kind, {"metadata": {"name": "muster"}, "webhooks": [hook_of(first.ca_bundle)]})

    async def check_trust() -> None:
        for kind in kinds:
            (hook,) = (await store.get(kind, "muster"))["webhooks"]
            pem = base64.b64decode(hook["clientConfig"]["caBundle"])
            for replica in replicas:
                assert any(is_issued_by(replica.leaf, ca) for ca in x509.load_pem_x509_certificates(pem))

    clock.now = NOW + (AUTHORITY_LIFETIME - AUTHORITY_SPARE).total_seconds() - 2 * CHECK_INTERVAL_S
    for _ in range(int(ANNOUNCED_FOR_S / CHECK_INTERVAL_S) + 8):
        leader = seed.choice(replicas)
        steps: list[Any] = [*replicas, *kinds]
        seed.shuffle(steps)
        for step in steps:
            if isinstance(step, Serving):
                await step.check()
            else:
                wanted = with_ca(await store.get(step, "muster"), leader.trust.ca_bundle)
                if wanted is not None:
                    await store.patch(step, "muster", {"webhooks": wanted})
            await check_trust()
        clock.now += CHECK_INTERVAL_S
    assert all(not is_issued_by(replica.leaf, first.signer.certificate) for replica in replicas)
    await store.close()


def is_issued_by(leaf: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


async def test_a_certificate_is_signed_anew_in_time(store: EmbeddedStore) -> None:
    clock = Clock()
    serving = Serving(store, NAMESPACE, ["x.ns.svc"], clock)
    assert await serving.check()
    first = serving.leaf
    clock.now += 29 * 86400.0
    assert not await serving.check()
    clock.now += 2 * 86400.0
    assert await serving.check()
    assert serving.leaf.not_valid_after_utc > first.not_valid_after_utc
    assert is_issued_by(serving.leaf, serving.trust.signer.certificate)


async def test_a_certificate_that_clients_trust(tmp_path: Any) -> None:
    from muster.objects.time import wall_clock

    authority = Authority.new(wall_clock())
    context = server_context()
    authority.load_leaf(context, certificate_names("ns", ["10.1.2.3"]), wall_clock())
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    client = ssl.create_default_context(cadata=authority.pem.decode())
    for name in ("muster-webhook.ns.svc", "muster-webhook.ns.svc.cluster.local", "localhost", "127.0.0.1", "10.1.2.3"):
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=name)
        writer.close()
        await writer.wait_closed()
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname="other.ns.svc")
    server.close()


def configuration(*bundles: str | None) -> Raw:
    hooks = [
        {"name": f"h{i}", "clientConfig": {"url": "https://x"} | ({"caBundle": b} if b else {})} for i, b in enumerate(bundles)
    ]
    return {"metadata": {"name": "muster"}, "webhooks": hooks}


@pytest.mark.parametrize(
    ("before", "changes"),
    [
        pytest.param(configuration(None), True, id="no CA yet"),
        pytest.param(configuration("b2xk"), True, id="another CA"),
        pytest.param(configuration("bmV3", None), True, id="one of two"),
        pytest.param(configuration("bmV3", "bmV3"), False, id="already there"),
        pytest.param(configuration(), False, id="no webhooks"),
        pytest.param({"metadata": {}}, False, id="nothing"),
    ],
)
def test_with_ca(before: Raw, changes: bool) -> None:
    hooks = with_ca(before, "bmV3")
    assert (hooks is not None) == changes
    for hook in hooks or []:
        assert hook["clientConfig"] == {"url": "https://x", "caBundle": "bmV3"}


async def test_the_controller_writes_the_ca_and_keeps_it_there(store: EmbeddedStore) -> None:
    bundle = [(await shared_trust(store, NAMESPACE, Clock())).ca_bundle]
    controller = WebhookCa(lambda: bundle[0])
    kinds = [await store.resource("admissionregistration.k8s.io", w.kind) for w in controller.watches]
    hook = {
        "name": "a.b.c",
        "clientConfig": {"url": "https://x/validate"},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    other = {"metadata": {"name": "other"}, "webhooks": [hook]}
    for kind in kinds:
        await store.create(kind, {"metadata": {"name": "muster"}, "webhooks": [hook]})
        await store.create(kind, other)
    manager = Manager(store, [controller], clock=Clock())
    manager.start()

    async def bundles() -> list[str]:
        found = [await store.get(kind, "muster") for kind in kinds]
        return [c["webhooks"][0]["clientConfig"].get("caBundle", "") for c in found]

    async def until_there() -> None:
        async with asyncio.timeout(20):
            while await bundles() != bundle * 2:
                await asyncio.sleep(0.01)

    await until_there()
    await store.patch(kinds[0], "muster", {"webhooks": [hook]}, None, WriteOptions(field_manager="somebody"))
    await until_there()
    assert "caBundle" not in (await store.get(kinds[0], "other"))["webhooks"][0]["clientConfig"]
    await manager.stop()
