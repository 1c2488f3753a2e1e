"""The client against a real kube-apiserver."""

from __future__ import annotations

import asyncio
import datetime
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from muster.bench.kubernetes import ControlPlane
from muster.client import ApiClient, PatchType, SyncClient, WriteOptions
from muster.client.config import Auth, ClientConfig, ExecPlugin, Impersonation, Tls
from muster.client.errors import PathNotServed
from muster.objects.requests import EventType, Preconditions
from muster.objects.resources import Resource
from muster.objects.status import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Raw,
    TooManyRequests,
    Unauthorized,
    UnsupportedMediaType,
)
from muster.objects.time import wall_clock
from muster.objects.view import View
from muster.server.certificates import Authority, Key, cert_pem, key_pem, new_key

pytestmark = pytest.mark.kubernetes


@pytest.fixture
async def client(kubernetes: ControlPlane) -> AsyncIterator[ApiClient]:
    async with await ApiClient.from_kubeconfig(kubernetes.kubeconfig_path) as opened:
        yield opened


@pytest.fixture
async def place(client: ApiClient) -> str:
    made = await client.create(await client.find("ns"), {"metadata": {"generateName": "test-client-"}})
    return str(made["metadata"]["name"])


@pytest.fixture
async def pods(client: ApiClient) -> Resource:
    return await client.resource("", "Pod")


@pytest.fixture
async def maps(client: ApiClient) -> Resource:
    return await client.find("cm")


def pod(name: str, **labels: str) -> Raw:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [{"name": "main", "image": "none"}]}}


class LeanMeta(View):
    name: str
    uid: str = ""


class LeanSpec(View):
    node_name: str = ""


class LeanPod(View):
    metadata: LeanMeta
    spec: LeanSpec


# --- who we are ---------------------------------------------------------------------------------------------------------------


def client_certificate(plane: ControlPlane, user: str, group: str) -> tuple[bytes, bytes]:
    """A certificate of the cluster's own CA, as an admin would issue it."""
    ca_key = serialization.load_pem_private_key((plane.work_dir / "ca.key").read_bytes(), None)
    assert isinstance(ca_key, Key)
    authority = Authority(x509.load_pem_x509_certificate(plane.ca_path.read_bytes()), ca_key)
    key, hour = new_key(), datetime.timedelta(hours=1)
    usage = ExtendedKeyUsageOID.CLIENT_AUTH
    made = authority.issue(key, common_name=user, groups=[group], usage=usage, now=wall_clock(), lifetime=hour)
    return cert_pem(made), key_pem(key)


def connection(plane: ControlPlane, *, auth: Auth | None = None, **tls: Any) -> ClientConfig:
    return ClientConfig(server=plane.url, tls=Tls(ca=plane.ca_path, **tls), auth=auth or Auth())


async def may_list_secrets(config: ClientConfig) -> bool:
    async with ApiClient(config) as opened:
        review = await opened.resource("authorization.k8s.io", "SelfSubjectAccessReview")
        spec = {"resourceAttributes": {"verb": "list", "resource": "secrets"}}
        answer = await opened.create(review, {"metadata": {}, "spec": spec})
        return bool(answer["status"]["allowed"])


async def test_client_certificates(kubernetes: ControlPlane) -> None:
    certificate, key = client_certificate(kubernetes, "root", "system:masters")
    assert await may_list_secrets(connection(kubernetes, client_certificate=certificate, client_key=key))
    certificate, key = client_certificate(kubernetes, "nobody", "nothing")
    assert not await may_list_secrets(connection(kubernetes, client_certificate=certificate, client_key=key))


async def test_tokens_files_and_plugins(kubernetes: ControlPlane, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(kubernetes.admin_token)
    assert await may_list_secrets(connection(kubernetes, auth=Auth(token_file=file)))
    version = "client.authentication.k8s.io/v1beta1"
    answer = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": kubernetes.admin_token}}
    code = f"print({msgspec.json.encode(answer).decode()!r})"
    plugin = ExecPlugin(api_version=version, command=sys.executable, args=("-c", code), interactive_mode="Never")
    assert await may_list_secrets(connection(kubernetes, auth=Auth(exec_plugin=plugin)))


async def test_wrong_token_and_none_at_all(kubernetes: ControlPlane) -> None:
    async with ApiClient(connection(kubernetes, auth=Auth(token="wrong"))) as opened:
        with pytest.raises(Unauthorized):
            await opened.version()
    async with ApiClient(connection(kubernetes)) as opened:
        with pytest.raises(Forbidden, match="system:anonymous"):
            await opened.list(Resource(group="", version="v1", kind="Secret", plural="secrets"))


async def test_impersonation(kubernetes: ControlPlane) -> None:
    config = connection(kubernetes, auth=Auth(token=kubernetes.admin_token))
    nobody = msgspec.structs.replace(config, impersonate=Impersonation(user="nobody"))
    assert not await may_list_secrets(nobody)
    master = Impersonation(user="nobody", groups=("some", "system:masters"))
    assert await may_list_secrets(msgspec.structs.replace(config, impersonate=master))


# --- what is there ------------------------------------------------------------------------------------------------------------


async def test_discovery(client: ApiClient) -> None:
    known = {(r.group, r.kind): r for r in reversed(await client.resources())}
    assert known["", "Pod"].namespaced
    assert not known["", "Node"].namespaced
    assert known["apps", "Deployment"].subresources >= {"status", "scale"}
    assert (await client.find("deploy")).qualified == "deployments.apps"
    assert (await client.find("sc")).kind == "StorageClass"
    budget = await client.resource("policy", "PodDisruptionBudget")
    assert budget.version in ("v1", "v1beta1")
    await client.list(budget, "default")
    with pytest.raises(NotFound, match="did you mean"):
        await client.find("podz")
    with pytest.raises(NotFound):
        await client.resource("no.such.group", "Thing")


async def test_version_readiness_and_openapi(client: ApiClient) -> None:
    assert (await client.version())["major"] == "1"
    assert await client.minor_version() >= 20
    assert await client.is_ready()
    assert "io.k8s.api.core.v1.Pod" in (await client.openapi())["definitions"]
    with pytest.raises(PathNotServed):
        await client.list(Resource(group="no.such.group", version="v1", kind="Thing", plural="things"))


# --- objects ------------------------------------------------------------------------------------------------------------------


async def test_life_of_an_object(client: ApiClient, maps: Resource, place: str) -> None:
    made = await client.create(maps, {"metadata": {"generateName": "x-"}, "data": {"a": "1"}}, place)
    name = made["metadata"]["name"]
    assert name.startswith("x-")
    with pytest.raises(AlreadyExists):
        await client.create(maps, {"metadata": {"name": name}}, place)
    assert await client.get(maps, name, place) == made
    made["data"]["a"] = "2"
    updated = await client.update(maps, made)
    with pytest.raises(Conflict):
        await client.update(maps, made)
    assert (await client.update(maps, updated, options=WriteOptions(dry_run=True)))["data"] == {"a": "2"}
    with pytest.raises(Conflict):
        await client.delete(maps, name, place, preconditions=Preconditions(uid="another"))
    answer = await client.delete(maps, name, place)
    assert (answer["kind"], answer["details"]["uid"]) == ("Status", made["metadata"]["uid"])
    with pytest.raises(NotFound):
        await client.get(maps, name, place)


async def test_four_kinds_of_patch(client: ApiClient, pods: Resource, place: str) -> None:
    await client.create(pods, pod("p", a="1"), place)
    merged = await client.patch(pods, "p", {"metadata": {"labels": {"a": None, "b": "2"}}}, place)
    assert merged["metadata"]["labels"] == {"b": "2"}
    steps: list[Raw] = [{"op": "replace", "path": "/metadata/labels/b", "value": "3"}]
    stepped = await client.patch(pods, "p", steps, place, patch_type=PatchType.JSON)
    assert stepped["metadata"]["labels"] == {"b": "3"}
    image = {"spec": {"containers": [{"name": "main", "image": "other"}]}}
    strategic = await client.patch(pods, "p", image, place, patch_type=PatchType.STRATEGIC)
    assert [c["image"] for c in strategic["spec"]["containers"]] == ["other"]
    assert strategic["spec"]["containers"][0]["terminationMessagePath"], "the rest of the container is kept"
    applied = await client.apply(
        pods, {"metadata": {"name": "p", "labels": {"c": "4"}}}, place, WriteOptions(field_manager="me")
    )
    assert applied["metadata"]["labels"] == {"b": "3", "c": "4"}
    taken = {"metadata": {"name": "p", "labels": {"c": "5"}}}
    with pytest.raises(Conflict) as caught:
        await client.apply(pods, taken, place, WriteOptions(field_manager="you"))
    assert [cause.field for cause in caught.value.causes] == [".metadata.labels.c"]
    forced = await client.apply(pods, taken, place, WriteOptions(field_manager="you", force=True))
    assert forced["metadata"]["labels"]["c"] == "5"
    with pytest.raises(NotFound):
        await client.patch(pods, "none", {}, place)
    status = await client.patch(pods, "p", {"status": {"message": "hello"}}, place, subresource="status")
    assert status["status"]["message"] == "hello"
    with pytest.raises(Invalid):
        await client.patch(pods, "p", {"spec": {"containers": None}}, place)


async def test_strategic_patch_is_not_for_custom_kinds(client: ApiClient) -> None:
    crds = await client.resource("apiextensions.k8s.io", "CustomResourceDefinition")
    names = {"plural": "sprockets", "singular": "sprocket", "kind": "Sprocket", "listKind": "SprocketList"}
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = {"group": "client.test.dev", "scope": "Cluster", "names": names, "versions": [version]}
    await client.create(crds, {"metadata": {"name": "sprockets.client.test.dev"}, "spec": spec})
    while True:
        try:
            kind = await client.resource("client.test.dev", "Sprocket")
            await client.create(kind, {"metadata": {"name": "s"}})
            break
        except NotFound:  # it takes the server a moment
            await asyncio.sleep(0.05)
    with pytest.raises(UnsupportedMediaType):
        await client.patch(kind, "s", {"spec": {}}, patch_type=PatchType.STRATEGIC)
    await client.delete(crds, "sprockets.client.test.dev")


async def test_lists_pages_selectors_and_views(client: ApiClient, pods: Resource, place: str) -> None:
    await asyncio.gather(*(client.create(pods, pod(f"p{n}", parity=str(n % 2)), place) for n in range(7)))
    page = await client.list(pods, place, limit=3)
    assert (len(page.items), page.remaining, page.items[0]["kind"]) == (3, 4, "Pod")
    assert [item["metadata"]["name"] async for item in client.items(pods, place, page_size=2)] == [f"p{n}" for n in range(7)]
    odd = await client.list(pods, place, label_selector="parity in (1)", field_selector="metadata.name!=p1")
    assert [item["metadata"]["name"] for item in odd.items] == ["p3", "p5"]
    lean = await client.list_views(pods, LeanPod, place)
    assert [one.metadata.name for one in lean.items] == [f"p{n}" for n in range(7)]
    table = await client.table(pods, place)
    assert table["kind"] == "Table"
    assert [row["cells"][0] for row in table["rows"]] == [f"p{n}" for n in range(7)]
    one = await client.table(pods, place, name="p1")
    assert len(one["rows"]) == 1
    await client.delete_collection(pods, place, label_selector="parity=0")


async def test_watch_kinds(client: ApiClient, pods: Resource, place: str) -> None:
    start = (await client.list(pods, place)).resource_version
    await client.create(pods, pod("w"), place)
    await client.patch(pods, "w", {"metadata": {"labels": {"a": "b"}}}, place)
    await client.delete(pods, "w", place, grace_period_s=0)
    raw = []
    async for event in client.watch(pods, place, resource_version=start):
        raw.append((event.type, event.object["kind"], event.object["metadata"]["name"]))
        if event.type is EventType.DELETED:
            break
    assert {(kind, name) for _, kind, name in raw} == {("Pod", "w")}
    assert [kind for kind, _, _ in raw][:2] == [EventType.ADDED, EventType.MODIFIED]
    async for seen in client.watch_views(pods, LeanPod, place, resource_version=start):
        assert seen.view is not None
        assert seen.view.metadata.name == "w"
        break
    async for table in client.watch_tables(pods, place, resource_version=start):
        assert table.object["rows"][0]["cells"][0] == "w"
        break
    selected = []
    async for event in client.watch(pods, place, resource_version=start, label_selector="a=b"):
        selected.append(event.type)
        if event.type is EventType.DELETED:
            break
    assert selected[0] is EventType.ADDED, "it began to match"


async def test_deprecation_warnings(kubernetes: ControlPlane) -> None:
    heard: list[str] = []
    async with await ApiClient.from_kubeconfig(kubernetes.kubeconfig_path, on_warning=heard.append) as opened:
        for kind in await opened.resources():
            if kind.version.startswith("v1beta") and "list" in kind.verbs:
                await opened.list(kind)
    assert any("deprecated" in text for text in heard)


# --- pods and workloads -------------------------------------------------------------------------------------------------------


async def test_bindings(client: ApiClient, pods: Resource, place: str) -> None:
    made = await client.create(pods, pod("b"), place)
    with pytest.raises(Conflict, match="uid"):
        await client.bind("b", place, "node-1", uid="another")
    assert "nodeName" not in (await client.get(pods, "b", place))["spec"]
    await client.bind("b", place, "node-1", uid=made["metadata"]["uid"], annotations={"by": "test"})
    bound = await client.get(pods, "b", place)
    assert (bound["spec"]["nodeName"], bound["metadata"]["annotations"]["by"]) == ("node-1", "test")
    with pytest.raises(Conflict):
        await client.bind("b", place, "node-1")
    with pytest.raises(NotFound):
        await client.bind("none", place, "node-1")


async def test_hundreds_of_bindings_in_flight(client: ApiClient, pods: Resource, place: str) -> None:
    names = [f"p{n:03}" for n in range(300)]
    await asyncio.gather(*(client.create(pods, pod(name), place) for name in names))
    await asyncio.gather(*(client.bind(name, place, f"node-{number % 7}") for number, name in enumerate(names)))
    lean = await client.list_views(pods, LeanPod, place)
    assert {one.metadata.name: one.spec.node_name for one in lean.items} == {
        name: f"node-{number % 7}" for number, name in enumerate(names)
    }
    assert (client.stats.in_flight, client.stats.waiting) == (0, 0)


async def test_evictions(client: ApiClient, pods: Resource, place: str) -> None:
    budgets = await client.resource("policy", "PodDisruptionBudget")
    for name in ("kept", "free"):
        await client.create(pods, pod(name, app=name), place)
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}
    await client.create(budgets, {"metadata": {"name": "keep"}, "spec": spec}, place)
    async for event in client.watch(budgets, place):
        if event.object.get("status", {}).get("observedGeneration") == 1:
            break
    # Only healthy pods are protected.
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    for name in ("kept", "free"):
        await client.bind(name, place, "node-1")
        await client.patch(pods, name, ready, place, subresource="status", patch_type=PatchType.STRATEGIC)
    with pytest.raises(TooManyRequests):
        await client.evict("kept", place)
    with pytest.raises(Conflict):
        await client.evict("free", place, uid="another")
    await client.evict("free", place, dry_run=True)
    assert not (await client.get(pods, "free", place))["metadata"].get("deletionTimestamp")
    await client.evict("free", place, grace_period_s=0)
    with pytest.raises(NotFound):
        await client.get(pods, "free", place)


async def test_scale(client: ApiClient, place: str) -> None:
    kind = await client.find("deployments.apps")
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod("x")["spec"]}
    spec = {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    await client.create(kind, {"metadata": {"name": "d"}, "spec": spec}, place)
    assert (await client.get_scale(kind, "d", place))["spec"] == {}
    assert (await client.scale(kind, "d", 2, place))["spec"]["replicas"] == 2
    assert (await client.get(kind, "d", place))["spec"]["replicas"] == 2


async def test_service_account_tokens(client: ApiClient, place: str) -> None:
    accounts = await client.find("sa")
    await client.create(accounts, {"metadata": {"name": "robot"}}, place)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {}, "spec": {"audiences": ["x"]}}
    answer = await client.create(accounts, request, place, name="robot", subresource="token")
    assert answer["status"]["token"].count(".") == 2


async def test_logs_of_a_pod_without_a_node(client: ApiClient, pods: Resource, place: str) -> None:
    await client.create(pods, pod("l"), place)
    assert [line async for line in client.logs("l", place)] == [], "not scheduled: nothing yet"
    with pytest.raises(NotFound):
        _ = [line async for line in client.logs("none", place)]


def test_the_blocking_face(kubernetes: ControlPlane) -> None:
    with SyncClient.from_kubeconfig(kubernetes.kubeconfig_path) as client:
        place = client.create(client.find("ns"), {"metadata": {"generateName": "test-sync-"}})["metadata"]["name"]
        maps = client.resource("", "ConfigMap")
        start = client.list(maps, place).resource_version
        for number in range(5):
            client.create(maps, {"metadata": {"name": f"m{number}"}}, place)
        seen = []
        for event in client.watch(maps, place, resource_version=start, field_selector="metadata.name!=kube-root-ca.crt"):
            seen.append(event.object["metadata"]["name"])
            if len(seen) == 5:
                break
        assert seen == [f"m{number}" for number in range(5)]
        assert client.stats.streams == 0
        assert {item["metadata"]["name"] for item in client.items(maps, place, page_size=2)} >= set(seen)
