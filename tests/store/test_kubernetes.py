"""What `KubernetesStore` adds to the client: resumed watches, whole lists, conflicts. The contract is in `conformance`."""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.request
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.bench.kubernetes import ControlPlane
from muster.client.api import ApiClient
from muster.client.config import Tls
from muster.client.errors import Untrusted
from muster.objects.resources import Resource
from muster.objects.status import Conflict, Expired, Forbidden, Invalid, MethodNotAllowed, NotFound
from muster.store import kubernetes as module
from muster.store.contract import EventType, Operation, PatchType, Store, WatchEvent, WriteOptions
from muster.store.kubernetes import KubernetesStore
from tests.client.certificates import Authority
from tests.client.scripted import QUICK, Handler, Received, scripted, status
from tests.client.test_stream import event

PODS = Resource(group="", version="v1", kind="Pod", plural="pods")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if not request.node.get_closest_marker("kubernetes"):
        pauses = msgspec.structs.replace(module.WATCH_PAUSES, backoff_first_s=0.001, backoff_max_s=0.002)
        monkeypatch.setattr(module, "WATCH_PAUSES", pauses)


def listed(*versions: int, at: int) -> dict[str, Any]:
    items = [{"metadata": {"name": f"p{v}", "resourceVersion": str(v)}} for v in versions]
    return {"metadata": {"resourceVersion": str(at)}, "items": items}


class Script:
    """A server whose watches go by `connections`, one after another; each is a list of events, bytes, or an instruction."""

    def __init__(self, *connections: list[Any], page: dict[str, Any] | None = None) -> None:
        self.connections = list(connections)
        self.page = page or listed(at=1)
        self.watched_from: list[str] = []

    async def __call__(self, request: Received) -> None:
        if request.params.get("watch") != "true":
            await request.answer(200, self.page)
            return
        self.watched_from.append(request.params.get("resourceVersion", ""))
        steps: list[Any] = self.connections.pop(0) if self.connections else ["hang"]
        if steps and isinstance(steps[0], tuple):
            await request.answer(*steps[0])
            return
        if steps == ["refuse"]:
            request.drop()
            return
        await request.begin_chunks()
        for step in steps:
            if step == "drop":
                request.drop()
                return
            if step == "hang":
                await asyncio.Event().wait()
            await request.chunk(step)
        await request.chunk(b"")


async def collect(script: Script, count: int, **options: Any) -> list[str]:
    async with scripted(script) as server:
        store = KubernetesStore(ApiClient(server.config(), limits=QUICK))
        seen: list[str] = []
        async with aclosing(_generator(store.watch(PODS, **options))) as events:
            async for one in events:
                seen.append(f"{one.type} {one.resource_version}")
                if len(seen) == count:
                    break
        await store.close()
    return seen


def _generator(events: AsyncIterator[WatchEvent]) -> Any:
    return events


TORN = event("MODIFIED", 3)[:25]


@pytest.mark.parametrize(
    ("connections", "expected", "resumed_at"),
    [
        pytest.param([[event("ADDED", 2)], [event("MODIFIED", 3)]], ["ADDED 2", "MODIFIED 3"], ["1", "2"], id="ended in order"),
        pytest.param(
            [[event("ADDED", 2), TORN, "drop"], [event("MODIFIED", 3)]],
            ["ADDED 2", "MODIFIED 3"],
            ["1", "2"],
            id="broken in the middle of an event",
        ),
        pytest.param(
            [[event("BOOKMARK", 9), "drop"], [event("ADDED", 10)]],
            ["BOOKMARK 9", "ADDED 10"],
            ["1", "9"],
            id="a bookmark counts",
        ),
        pytest.param(
            [["refuse"], ["refuse"], ["drop"], [event("ADDED", 2)]], ["ADDED 2"], ["1", "1", "1", "1"], id="away for a while"
        ),
        pytest.param(
            [
                [(503, b"no backend")],
                [(429, status(429, "TooManyRequests"))],
                [(500, status(500, "InternalError"))],
                [event("ADDED", 2)],
            ],
            ["ADDED 2"],
            ["1", "1", "1", "1"],
            id="refused for a while",
        ),
        pytest.param(
            [[event("ADDED", 2), b"{garbage\n"], [event("ADDED", 3)]],
            ["ADDED 2", "ADDED 3"],
            ["1", "2"],
            id="garbage in between",
        ),
        pytest.param([[event("DELETED", 7)], [event("ADDED", 8)]], ["DELETED 7", "ADDED 8"], ["1", "7"], id="after a deletion"),
    ],
)
async def test_a_watch_resumes_where_it_was(connections: list[Any], expected: list[str], resumed_at: list[str]) -> None:
    script = Script(*connections)
    assert await collect(script, len(expected), resource_version="1") == expected
    assert script.watched_from[: len(resumed_at)] == resumed_at


GONE = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}\n'


@pytest.mark.parametrize(
    ("connections", "error"),
    [
        pytest.param([[event("ADDED", 2), GONE]], Expired, id="410 as an event"),
        pytest.param([[event("ADDED", 2)], [(410, status(410, "Gone"))]], Expired, id="410 on resuming"),
        pytest.param([[event("ADDED", 2)], [(403, status(403, "Forbidden"))]], Forbidden, id="no longer allowed"),
        pytest.param([[event("ADDED", 2)], [(404, b"404 page not found")]], NotFound, id="kind removed"),
    ],
)
async def test_what_the_caller_must_act_on(connections: list[Any], error: type[Exception]) -> None:
    seen: list[str] = []
    async with scripted(Script(*connections)) as server:
        store: Store = KubernetesStore(ApiClient(server.config(), limits=QUICK))

        async def read() -> None:
            async for one in store.watch(PODS, resource_version="1"):
                seen.append(one.resource_version)  # noqa: PERF401 - kept when it raises

        with pytest.raises(error):
            await read()
        await store.close()
    assert seen == ["2"]


async def test_a_watch_of_everything_is_a_list_and_a_watch() -> None:
    script = Script([event("MODIFIED", 9)], page=listed(3, 2, at=7))
    assert await collect(script, 3) == ["ADDED 3", "ADDED 2", "MODIFIED 9"]
    assert script.watched_from[0] == "7", "from the list's version, whatever order the items came in"


async def test_bookmarks_are_used_even_when_they_are_not_wanted() -> None:
    script = Script([event("BOOKMARK", 50), "drop"], [event("ADDED", 51)])
    assert await collect(script, 1, resource_version="1", bookmarks=False) == ["ADDED 51"]
    assert script.watched_from[:2] == ["1", "50"]


async def test_a_watch_ends_quietly_at_its_timeout() -> None:
    for timeout_s in (0.1, 1.0, 10.0):  # a busy machine may need more for the first event
        seen = await collect(Script([event("ADDED", 2), "hang"]), 10, resource_version="1", timeout_s=timeout_s)
        if seen:
            break
    assert seen == ["ADDED 2"]
    assert await collect(Script(*[["refuse"]] * 1000), 10, resource_version="1", timeout_s=0.05) == []


async def test_a_server_that_hangs_is_left_after_a_while() -> None:
    script = Script(["hang"], [event("ADDED", 2)])
    async with scripted(script) as server:
        store = KubernetesStore(ApiClient(server.config(), limits=QUICK), watch_window_s=0.05)
        async for one in store.watch(PODS, resource_version="1"):
            assert one.resource_version == "2"
            break
        assert store.client.stats.watch_resumes >= 1
        await store.close()


async def test_an_untrusted_server_ends_a_watch(tmp_path: Path) -> None:
    server_tls = Authority().server_context(tmp_path, hosts=("127.0.0.1",))
    async with scripted(Script(), tls=server_tls) as server:
        config = server.config(tls=Tls(ca=Authority("foreign").certificate))
        store = KubernetesStore(ApiClient(config, limits=QUICK))
        with pytest.raises(Untrusted):
            async for _ in store.watch(PODS, resource_version="1"):
                pass
        await store.close()


async def test_a_whole_list_comes_in_chunks() -> None:
    async def handler(request: Received) -> None:
        number = int(request.params.get("continue", "0"))
        page = listed(number, at=7)
        page["metadata"]["continue"] = str(number + 1) if number < 3 else ""
        await request.answer(200, page)

    async with scripted(handler) as server:
        store = KubernetesStore(ApiClient(server.config(), limits=QUICK))
        page = await store.list(PODS)
        await store.close()
    assert [item["metadata"]["name"] for item in page.items] == ["p0", "p1", "p2", "p3"]
    assert (page.resource_version, page.continue_token) == ("7", "")
    assert {r.params["limit"] for r in server.requests} == {str(module.CHUNK)}


async def test_a_list_that_is_overtaken_by_compaction() -> None:
    async def handler(request: Received) -> None:
        if "continue" in request.params:
            await request.answer(410, status(410, "Expired"))
        elif "limit" in request.params:
            page = listed(1, at=7)
            page["metadata"]["continue"] = "more"
            await request.answer(200, page)
        else:
            await request.answer(200, listed(1, 2, at=9))

    async with scripted(handler) as server:
        store = KubernetesStore(ApiClient(server.config(), limits=QUICK))
        page = await store.list(PODS)
        assert (len(page.items), page.resource_version) == (2, "9")
        with pytest.raises(Expired):
            await store.list(PODS, limit=1, continue_token="more")
        await store.close()


def conflicts(times: int, *, causes: list[dict[str, str]] | None = None) -> tuple[Handler, list[Received]]:
    seen: list[Received] = []

    async def handler(request: Received) -> None:
        seen.append(request)
        if len(seen) <= times:
            await request.answer(409, status(409, "Conflict", "changed", causes=causes or []))
        else:
            await request.answer(200, {"metadata": {"name": "p"}})

    return handler, seen


@pytest.mark.parametrize(
    ("patch", "patch_type", "causes", "is_repeated"),
    [
        pytest.param({"a": 1}, PatchType.MERGE, [], True, id="merge"),
        pytest.param([{"op": "add", "path": "/a", "value": 1}], PatchType.JSON, [], True, id="json"),
        pytest.param({"metadata": {"resourceVersion": "7"}}, PatchType.MERGE, [], False, id="names its version"),
        pytest.param(
            [{"op": "test", "path": "/metadata/resourceVersion", "value": "7"}],
            PatchType.JSON,
            [],
            False,
            id="tests its version",
        ),
        pytest.param(
            {"a": 1},
            PatchType.APPLY,
            [{"reason": "FieldManagerConflict", "field": ".a"}],
            False,
            id="fields of another manager",
        ),
    ],
)
async def test_patches_outlast_other_writers(patch: Any, patch_type: PatchType, causes: Any, is_repeated: bool) -> None:
    handler, seen = conflicts(3, causes=causes)
    async with scripted(handler) as server:
        store = KubernetesStore(ApiClient(server.config(), limits=QUICK))
        if is_repeated:
            await store.patch(PODS, "p", patch, "n", patch_type=patch_type)
            assert len(seen) == 4
        else:
            with pytest.raises(Conflict):
                await store.patch(PODS, "p", patch, "n", patch_type=patch_type)
            assert len(seen) == 1
        await store.close()


async def test_a_patch_gives_up_in_the_end() -> None:
    handler, seen = conflicts(10_000)
    async with scripted(handler) as server:
        store = KubernetesStore(ApiClient(server.config(), limits=QUICK))
        with pytest.raises(Conflict):
            await store.patch(PODS, "p", {}, "n")
        await store.close()
    assert len(seen) == module.CONFLICT_RETRIES_MAX


async def test_no_transactions() -> None:
    async with scripted(Script()) as server:
        store = KubernetesStore(ApiClient(server.config(), limits=QUICK))
        assert not store.is_atomic
        with pytest.raises(MethodNotAllowed, match="is_atomic"):
            await store.transaction([Operation(verb="delete", resource=PODS, name="p")])
        assert server.requests == []
        await store.close()


# --- on a real API server -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def store(kubernetes: ControlPlane) -> AsyncIterator[KubernetesStore]:
    opened = KubernetesStore(await ApiClient.from_kubeconfig(kubernetes.kubeconfig_path))
    yield opened
    await opened.close()


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def namespace(store: KubernetesStore) -> str:
    kind = await store.resource("", "Namespace")
    made = await store.create(kind, {"metadata": {"generateName": "test-kubernetes-"}})
    return str(made["metadata"]["name"])


@pytest.mark.kubernetes
async def test_watch_survives_cut_connections_without_gap_or_repetition(store: KubernetesStore) -> None:
    """A writer writes on while every connection of the watch is cut again and again by a proxy in between."""
    place = await namespace(store)
    kind = await store.resource("", "ConfigMap")
    start = (await store.list(kind, place)).resource_version
    total = 60
    proxied = KubernetesStore(ApiClient(store.client.config, limits=QUICK))
    send = proxied.client.transport._send
    answers: list[Any] = []

    async def remembering(*args: Any) -> Any:
        answers.append(await send(*args))
        return answers[-1]

    proxied.client.transport._send = remembering  # type: ignore[method-assign, assignment]

    async def write() -> None:
        made = await store.create(kind, config_map("counter", n="0"), place)
        for number in range(1, total):
            made["data"]["n"] = str(number)
            made = await store.update(kind, made, place)
            if number % 7 == 0 and answers:
                answers[-1].close()  # the connection is gone in the middle of the stream

    seen: list[str] = []
    writing = asyncio.create_task(write())
    async for one in proxied.watch(kind, place, resource_version=start, field_selector="metadata.name=counter"):
        if one.type is not EventType.BOOKMARK:
            seen.append(one.object["data"]["n"])
        if len(seen) == total:
            break
    await writing
    assert seen == [str(n) for n in range(total)]
    assert proxied.client.stats.watch_resumes > 0
    await proxied.close()


@pytest.mark.kubernetes
async def test_watch_of_everything_on_a_real_server(store: KubernetesStore) -> None:
    place = await namespace(store)
    kind = await store.resource("", "ConfigMap")
    for name in ("a", "b"):
        await store.create(kind, config_map(name), place)
    before = {item["metadata"]["name"] for item in (await store.list(kind, place)).items}
    seen: set[str] = set()
    async for one in store.watch(kind, place):
        seen.add(one.object["metadata"]["name"])
        if seen == before:
            await store.create(kind, config_map("late"), place)
        if "late" in seen:
            break
    assert seen == before | {"late"}


@pytest.mark.slow
@pytest.mark.kubernetes
async def test_watch_survives_the_death_of_the_api_server(kubernetes: ControlPlane, tmp_path: Path) -> None:
    """A control plane of its own, whose API server is killed and started again under a watch."""
    with ControlPlane(kubernetes.assets, tmp_path) as plane:
        store = KubernetesStore(await ApiClient.from_kubeconfig(plane.kubeconfig_path))
        kind = await store.resource("", "ConfigMap")
        start = (await store.list(kind, "default")).resource_version
        seen: list[str] = []
        has_seen = asyncio.Event()

        async def read() -> None:
            async for one in store.watch(kind, "default", resource_version=start, label_selector="of=test"):
                if one.type is not EventType.BOOKMARK:
                    seen.append(one.object["metadata"]["name"])
                    has_seen.set()
                if len(seen) == 4:
                    return

        async def write(name: str) -> None:
            labelled = config_map(name)
            labelled["metadata"]["labels"] = {"of": "test"}
            await store.create(kind, labelled, "default")

        reading = asyncio.create_task(read())
        await write("before-1")
        await write("before-2")
        await has_seen.wait()
        os.kill(plane.apiserver_pid, signal.SIGKILL)
        await asyncio.to_thread(plane.restart_apiserver)
        await write("after-1")
        await write("after-2")
        await reading
        assert seen == ["before-1", "before-2", "after-1", "after-2"]
        assert store.client.stats.watch_resumes > 0
        await store.close()


def compact(plane: ControlPlane) -> None:
    """Make etcd forget all that is past, through its JSON gateway."""

    def call(path: str, body: dict[str, Any]) -> Any:
        url = f"http://127.0.0.1:{plane.etcd_port}/v3/{path}"
        with urllib.request.urlopen(urllib.request.Request(url, msgspec.json.encode(body)), timeout=10) as answer:
            return msgspec.json.decode(answer.read())

    revision = call("kv/range", {"key": "AA=="})["header"]["revision"]
    call("kv/compaction", {"revision": revision, "physical": True})


@pytest.mark.kubernetes
async def test_a_compacted_version_is_expired(store: KubernetesStore, kubernetes: ControlPlane) -> None:
    place = await namespace(store)
    kind = await store.resource("", "Event")  # which the server does not cache: its history is etcd's
    start = (await store.list(kind, place)).resource_version
    about = {"kind": "Pod", "name": "p", "namespace": place}
    for number in range(3):
        await store.create(kind, {"metadata": {"name": f"e{number}"}, "involvedObject": about}, place)
    page = await store.list(kind, place, limit=1)
    seen: list[str] = []
    async for one in store.watch(kind, place, resource_version=start):
        seen.append(one.object["metadata"]["name"])
        if len(seen) == 3:
            break
    assert seen == ["e0", "e1", "e2"]
    await store.create(kind, {"metadata": {"name": "e9"}, "involvedObject": about}, place)
    await asyncio.to_thread(compact, kubernetes)
    with pytest.raises(Expired):
        async for _ in store.watch(kind, place, resource_version=start, timeout_s=30):
            pass
    with pytest.raises(Expired):
        await store.list(kind, place, limit=1, continue_token=page.continue_token)
    assert len((await store.list(kind, place)).items) == 4


@pytest.mark.kubernetes
async def test_update_without_a_version_replaces_custom_objects_too(store: KubernetesStore) -> None:
    crds = await store.resource("apiextensions.k8s.io", "CustomResourceDefinition")
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    names = {"plural": "gizmos", "singular": "gizmo", "kind": "Gizmo", "listKind": "GizmoList", "shortNames": ["gz"]}
    spec = {"group": "store.test.dev", "scope": "Namespaced", "names": names, "versions": [version]}
    await store.create(crds, {"metadata": {"name": "gizmos.store.test.dev"}, "spec": spec})
    while True:
        try:
            kind = await store.resource("store.test.dev", "Gizmo")
            place = await namespace(store)
            made = await store.create(kind, {"metadata": {"name": "g"}, "spec": {"a": 1}}, place)
            break
        except NotFound:  # the server needs a moment to serve what was just defined
            await asyncio.sleep(0.05)
    assert (kind.api_version, kind.short_names, kind.has_status) == ("store.test.dev/v1", ("gz",), True)
    replaced = await store.update(kind, {"metadata": {"name": "g"}, "spec": {"a": 2}}, place)
    assert (replaced["spec"], replaced["metadata"]["uid"]) == ({"a": 2}, made["metadata"]["uid"])
    with pytest.raises(Conflict):
        await store.update(kind, made, place)
    with pytest.raises(NotFound):
        await store.update(kind, {"metadata": {"name": "none"}}, place)
    await store.delete(crds, "gizmos.store.test.dev")


@pytest.mark.kubernetes
async def test_patches_of_many_writers_all_arrive(store: KubernetesStore) -> None:
    place = await namespace(store)
    kind = await store.resource("", "ConfigMap")
    await store.create(kind, config_map("shared"), place)
    await asyncio.gather(*(store.patch(kind, "shared", {"data": {f"k{n}": "v"}}, place) for n in range(40)))
    assert len((await store.get(kind, "shared", place))["data"]) == 40


@pytest.mark.kubernetes
async def test_errors_of_a_real_server_keep_their_causes(store: KubernetesStore) -> None:
    place = await namespace(store)
    kind = await store.resource("", "ConfigMap")
    with pytest.raises(Invalid) as caught:
        await store.create(kind, config_map("Not_A_Name"), place, WriteOptions(dry_run=True))
    assert [cause.field for cause in caught.value.causes] == ["metadata.name"]
    assert (caught.value.kind, caught.value.name) == ("ConfigMap", "Not_A_Name")
