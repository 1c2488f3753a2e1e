"""Pulling from a real registry on loopback with a real skopeo, and what a pod's reference may and may not do."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web

from muster.agent.config import Runc
from muster.agent.contracts import AgentError
from muster.agent.images import ImageStore
from muster.agent.images_pulling import Images
from muster.agent.images_registry import said
from muster.agent.images_tar import Limits
from tests.agent.images_building import LayerTar, digest, oci_files, write_archive, write_directory

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def need_skopeo() -> None:
    if shutil.which("skopeo") is None:
        if os.environ.get("CI"):
            pytest.fail("CI must run the registry tests: skopeo is not installed (tools/agent-tools)")
        pytest.skip("skopeo is not installed")


class Registry:
    """Repositories by name and tag. Counts what is asked."""

    def __init__(self) -> None:
        self.tags: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.address = ""

    def put(self, name: str, content: bytes) -> None:
        files = oci_files([LayerTar().file("content", content).bytes()])
        for data in files.values():
            self.blobs[digest(data)] = data
        self.tags[name] = next(d for d in files.values() if b'"layers"' in d and b'"mediaType"' in d)

    async def handle(self, request: web.Request) -> web.Response:
        path = request.match_info["path"]
        self.asked.append(path)
        name, _, rest = path.partition("/manifests/")
        if rest:
            found = self.blobs.get(rest) if rest.startswith("sha256:") else self.tags.get(f"{name}:{rest}")
            if found is None:
                return web.json_response({"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}, status=404)
            return web.Response(body=found, content_type=MANIFEST, headers={"Docker-Content-Digest": digest(found)})
        blob = self.blobs.get(path.rpartition("/blobs/")[2]) if "/blobs/" in path else b"{}"
        return web.Response(body=blob) if blob is not None else web.Response(status=404)


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    need_skopeo()
    made = Registry()
    app = web.Application()
    app.router.add_get("/v2/{path:.*}", made.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        made.address = f"127.0.0.1:{runner.addresses[0][1]}"
        yield made
    finally:
        await runner.cleanup()


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images", tmp_path / "pods", Limits(bytes_max=10_000_000), is_durable=False)


def content(root: str) -> str:
    return (Path(root) / "content").read_text()


async def test_policies(registry: Registry, store: ImageStore) -> None:
    images = Images(store, Runc(insecure_registries=[registry.address]))
    name = f"{registry.address}/group/app:1"
    registry.put("group/app:1", b"one")
    with pytest.raises(AgentError) as e:
        await images.get(name, "Never")
    assert (e.value.reason, registry.asked) == ("ErrImageNeverPull", [])
    first = await images.get(name, "IfNotPresent")
    assert content(first.root) == "one"
    registry.asked.clear()
    assert await images.get(name, "IfNotPresent") == first
    assert registry.asked == []
    assert await images.get(name, "Always") == first
    assert not any("blobs" in path for path in registry.asked), "the same: nothing is fetched"
    registry.put("group/app:1", b"two")
    assert (await images.get(name, "IfNotPresent")).id == first.id
    second = await images.get(name, "Always")
    assert content(second.root) == "two"
    exact = await images.get(f"{registry.address}/group/app@{digest(registry.tags['group/app:1'])}", "IfNotPresent")
    assert exact.id == second.id
    assert await images.get(second.id, "Never") is not None
    assert [p.name for p in (store.root / "tmp").iterdir()] == []


async def test_what_an_operator_loaded_stands_for_the_registry(registry: Registry, store: ImageStore, tmp_path: Path) -> None:
    name = f"{registry.address}/app"
    store.load(f"oci:{write_directory(oci_files([LayerTar().file('content', b'mine').bytes()]), tmp_path / 'l')}", name)
    images = Images(store, Runc(insecure_registries=[registry.address]))
    assert content((await images.get(name, "Always")).root) == "mine"
    assert registry.asked == []


async def test_many_at_once_pull_once(registry: Registry, store: ImageStore) -> None:
    images = Images(store, Runc(insecure_registries=[registry.address]))
    registry.put("app:1", b"x")
    found = await asyncio.gather(*(images.get(f"{registry.address}/app:1", "IfNotPresent") for _ in range(5)))
    assert len({image.id for image in found}) == 1
    assert sum("blobs" in path for path in registry.asked) == 2, "one configuration, one layer"


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        pytest.param("/none:1", "manifest unknown", id="not in the registry"),
        pytest.param(f"/app@sha256:{'0' * 64}", "manifest unknown", id="another digest"),
    ],
)
async def test_not_there(registry: Registry, store: ImageStore, reference: str, says: str) -> None:
    images = Images(store, Runc(insecure_registries=[registry.address]))
    with pytest.raises(AgentError, match=says) as e:
        await images.get(registry.address + reference, "IfNotPresent")
    assert e.value.reason == "ErrImagePull"
    assert store.list() == []


async def test_a_registry_that_lies(registry: Registry, store: ImageStore) -> None:
    registry.put("app:1", b"x")
    layer = next(key for key, data in registry.blobs.items() if data.startswith(b"\x1f\x8b"))
    registry.blobs[layer] = b"evil"
    images = Images(store, Runc(insecure_registries=[registry.address]))
    with pytest.raises(AgentError) as e:
        await images.get(f"{registry.address}/app:1", "IfNotPresent")
    assert e.value.reason == "ErrImagePull"
    assert store.list() == []
    assert [p.name for p in (store.root / "tmp").iterdir()] == []


async def test_registries_that_are_not_allowed(registry: Registry, store: ImageStore) -> None:
    images = Images(store, Runc(insecure_registries=[registry.address], registries=["*.example"]))
    for name in (f"{registry.address}/app:1", "app:1"):
        with pytest.raises(AgentError, match=r"runc\.registries"):
            await images.get(name, "IfNotPresent")
    assert registry.asked == []


async def test_a_pull_that_is_given_up_leaves_nothing(registry: Registry, store: ImageStore) -> None:
    registry.put("app:1", b"x")
    images = Images(store, Runc(insecure_registries=[registry.address]))
    task = asyncio.create_task(images.get(f"{registry.address}/app:1", "IfNotPresent"))
    while not registry.asked:
        await asyncio.sleep(0.01)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert not (store.root / "tmp").exists() or not any((store.root / "tmp").iterdir())
    assert content((await images.get(f"{registry.address}/app:1", "IfNotPresent")).root) == "x"


async def test_paths_only_where_the_operator_allows(store: ImageStore, tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "allowed-not"
    for directory in (allowed, other):
        directory.mkdir()
        write_archive(oci_files([LayerTar().file("content", b"x").bytes()]), directory / "a.tar")
    (allowed / "link.tar").symlink_to(other / "a.tar")
    images = Images(store, Runc(image_directories=[str(allowed)]))
    assert content((await images.get(f"oci-archive:{allowed}/a.tar", "")).root) == "x"
    for path in (f"{other}/a.tar", f"{allowed}/../allowed-not/a.tar", f"{allowed}/link.tar", "/etc/passwd", "/"):
        with pytest.raises(AgentError, match="imageDirectories") as e:
            await images.get(f"oci-archive:{path}", "")
        assert e.value.reason == "InvalidImageName"
    with pytest.raises(AgentError, match="imageDirectories"):
        await Images(store, Runc()).get(f"dir:{allowed}", "")


async def test_a_policy_that_is_none(store: ImageStore) -> None:
    with pytest.raises(AgentError, match="imagePullPolicy"):
        await Images(store, Runc()).get("app", "Sometimes")


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        pytest.param(
            'time="2026-01-02T03:04:05Z" level=fatal msg="Error parsing \\"docker://r/x\\": no such host"\n',
            'Error parsing "docker://r/x": no such host',
            id="a log line",
        ),
        pytest.param("first\nunknown flag: --x\n", "unknown flag: --x", id="another line"),
        pytest.param("", "skopeo failed without a word", id="nothing"),
    ],
)
def test_what_skopeo_said(errors: str, words: str) -> None:
    assert said(errors) == words
