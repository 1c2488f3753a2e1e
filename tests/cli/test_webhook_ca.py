from __future__ import annotations

import asyncio
import base64
import ssl
from typing import Any

import pytest

from muster.cli.webhook_ca import Authority, WebhookCa, certificate_names, server_context, shared_authority, with_ca
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
    made = await asyncio.gather(*(shared_authority(store, NAMESPACE, Clock()) for _ in range(5)))
    assert len({authority.pem for authority in made}) == 1
    secret = await secret_of(store)
    assert base64.b64decode(secret["data"]["ca.crt"]) == made[0].pem
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
        one, two = (Authority.new(NOW).to_secret(NAMESPACE)["data"] for _ in range(2))
        data = {"ca.crt": one["ca.crt"], "ca.key": two["ca.key"]}
    secrets = await store.resource("", "Secret")
    await store.create(secrets, {"metadata": {"name": "muster-webhook-ca"}, "type": "Opaque", "data": data}, NAMESPACE)
    authority = await shared_authority(store, NAMESPACE, Clock())
    assert base64.b64decode((await secret_of(store))["data"]["ca.crt"]) == authority.pem


async def test_a_ca_that_ends_soon_is_replaced(store: EmbeddedStore) -> None:
    clock = Clock()
    first = await shared_authority(store, NAMESPACE, clock)
    clock.now += 9 * YEAR_S
    assert (await shared_authority(store, NAMESPACE, clock)).pem == first.pem
    clock.now += YEAR_S
    assert (await shared_authority(store, NAMESPACE, clock)).pem != first.pem


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
    authority = await shared_authority(store, NAMESPACE, Clock())
    controller = WebhookCa(authority)
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
            while await bundles() != [controller.ca_bundle] * 2:
                await asyncio.sleep(0.01)

    await until_there()
    await store.patch(kinds[0], "muster", {"webhooks": [hook]}, None, WriteOptions(field_manager="somebody"))
    await until_there()
    assert "caBundle" not in (await store.get(kinds[0], "other"))["webhooks"][0]["clientConfig"]
    await manager.stop()
