"""The store: every source gives the same image; what is damaged, foreign or used is told apart."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.contracts import AgentError, Image
from muster.agent.images import MARK, ImageStore, check_id
from muster.agent.images_names import parse
from muster.agent.images_tar import Limits
from tests.agent.images_building import LayerTar, config_of, digest, docker_files, oci_files, write_archive, write_directory

SETTINGS = {
    "Entrypoint": ["/bin/app"],
    "Cmd": ["serve"],
    "Env": ["A=1", "B=x=y"],
    "WorkingDir": "/w",
    "User": "app",
    "StopSignal": "SIGINT",
}


def layers() -> list[bytes]:
    return [
        LayerTar().directory("bin").file("bin/app", b"v1", mode=0o755).bytes(),
        LayerTar().file("bin/.wh.app").file("new", b"n").bytes(),
    ]


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images", tmp_path / "pods", Limits(bytes_max=10_000_000), is_durable=False)


def oci_directory(path: Path) -> str:
    return f"oci:{write_directory(oci_files(layers(), SETTINGS), path / 'layout')}"


def oci_archive(path: Path) -> str:
    return f"oci-archive:{write_archive(oci_files(layers(), SETTINGS, compressed=False), path / 'a.tar')}"


def docker_archive(path: Path) -> str:
    return f"docker-archive:{write_archive(docker_files(layers(), SETTINGS), path / 'd.tar')}"


def docker_gzip(path: Path) -> str:
    return f"docker-archive:{write_archive(docker_files(layers(), SETTINGS), path / 'd.tar.gz', 'w:gz')}"


def guessed(path: Path) -> str:
    return str(write_archive(docker_files(layers(), SETTINGS), path / "whatever"))


@pytest.mark.parametrize("source", [oci_directory, oci_archive, docker_archive, docker_gzip, guessed])
def test_every_source_gives_the_same_image(tmp_path: Path, store: ImageStore, source: Callable[[Path], str]) -> None:
    listed = store.load(source(tmp_path))
    assert listed.names == ("example/app:1",)
    assert listed.id == digest(config_of(layers(), SETTINGS))
    image = store.find(parse("example/app:1"))
    assert image is not None
    assert (image.entrypoint, image.command, image.cwd) == (("/bin/app",), ("serve",), "/w")
    assert (image.env, image.user, image.stop_signal) == ((("A", "1"), ("B", "x=y")), "app", "SIGINT")
    assert sorted(p.name for p in Path(image.root).rglob("*")) == ["bin", "new"]
    assert store.find(parse(listed.id)) == Image(**{**_fields(image), "reference": listed.id})
    assert os.listdir(store.root / "tmp") == []
    assert store.root.stat().st_mode & 0o077 == 0


def _fields(image: Image) -> dict[str, Any]:
    return {name: getattr(image, name) for name in image.__struct_fields__}


def test_a_plain_directory_is_an_image(tmp_path: Path, store: ImageStore) -> None:
    (tmp_path / "fs/bin").mkdir(parents=True)
    (tmp_path / "fs/bin/x").write_text("hello")
    (tmp_path / "fs/l").symlink_to("/bin/x")
    os.mkfifo(tmp_path / "fs/pipe")
    listed = store.load(f"dir:{tmp_path / 'fs'}", "plain")
    assert listed.names == ("plain:latest",)
    image = store.find(parse("plain"))
    assert image is not None
    assert (Path(image.root) / "bin/x").read_text() == "hello"
    assert sorted(os.listdir(image.root)) == ["bin", "l"]


def test_a_name_can_move_and_the_last_one_takes_the_image_along(tmp_path: Path, store: ImageStore) -> None:
    store.load(oci_directory(tmp_path), "one:1")
    first = store.load(oci_directory(tmp_path), "two:1")
    assert first.names == ("one:1", "two:1")
    other = write_directory(oci_files([LayerTar().file("z", b"z").bytes()]), tmp_path / "other")
    store.load(f"oci:{other}", "two:1")
    assert [listed.names for listed in sorted(store.list(), key=lambda item: item.names)] == [("one:1",), ("two:1",)]
    store.remove("one:1")
    assert [listed.names for listed in store.list()] == [("two:1",)]
    with pytest.raises(AgentError, match="muster image list"):
        store.remove("one:1")


def use(store: ImageStore, tmp_path: Path, name: str) -> Path:
    run = tmp_path / "pods/uid/containers/c/0/root"
    run.mkdir(parents=True, exist_ok=True)
    image = store.find(parse(name))
    assert image is not None
    store.hold(image, run)
    return run / MARK


def test_what_a_container_uses_stays(tmp_path: Path, store: ImageStore) -> None:
    listed = store.load(oci_directory(tmp_path), "one:1")
    mark = use(store, tmp_path, "one:1")
    for text in ("one:1", listed.id):
        with pytest.raises(AgentError) as e:
            store.remove(text)
        assert e.value.reason == "ImageInUse"
    mark.unlink()
    store.remove(listed.id)
    assert store.list() == []
    assert os.listdir(store.root / "roots") == []


def test_an_image_that_went_meanwhile_is_not_used(tmp_path: Path, store: ImageStore) -> None:
    store.load(oci_directory(tmp_path), "one:1")
    image = store.find(parse("one:1"))
    assert image is not None
    store.remove("one:1")
    with pytest.raises(AgentError, match="removed meanwhile"):
        store.hold(image, tmp_path)
    assert not (tmp_path / MARK).exists()


@pytest.fixture
def four(tmp_path: Path, store: ImageStore) -> dict[int, str]:
    """Ids of four images of about 1000 bytes: 0 is used, 3 was loaded; last used at the second of their number."""
    ids = {}
    for n, origin in enumerate(("pulled", "pulled", "pulled", "loaded")):
        data = LayerTar().file("f", bytes([n]) * 1000).bytes()
        source = write_directory(oci_files([data]), tmp_path / str(n))
        found = store.unpack(store._local(f"oci:{source}"), [f"i{n}:1"], origin)  # type: ignore[arg-type]
        ids[n] = found.id
        os.utime(store.root / "roots" / found.id.removeprefix("sha256:") / "image.json", (n, n))
    use(store, tmp_path, "i0:1")
    return ids


def test_collecting_takes_the_longest_unused_pulled_images(store: ImageStore, four: dict[int, str]) -> None:
    assert store.collect(10_000) == ([], 0)
    assert store.collect(3_500) == ([four[1]], 0)
    assert store.collect(0) == ([four[2]], 0)
    assert sorted(listed.names[0] for listed in store.list()) == ["i0:1", "i3:1"]


@pytest.mark.parametrize(
    ("wanted", "gone", "short"),
    [
        pytest.param({"room_bytes": 1}, [1], 0, id="a little room"),
        pytest.param({"room_bytes": 1500}, [1, 2], 0, id="more room"),
        pytest.param({"room_bytes": 5000}, [1, 2], 3000, id="more than there is"),
        pytest.param({"unused_since": 2}, [1], 0, id="by age"),
        pytest.param({"unused_since": 100}, [1, 2], 0, id="all are old"),
        pytest.param({"room_bytes": 5000, "kept_since": 1}, [1], 4000, id="what was used a moment ago stays"),
        pytest.param({"unused_since": 2, "kept_since": 0}, [1], 0, id="age counts all the same"),
        pytest.param({"bytes_max": 0, "kept_since": 0}, [], 0, id="nothing was unused for long"),
    ],
)
def test_what_is_collected(
    store: ImageStore, four: dict[int, str], wanted: dict[str, int], gone: list[int], short: int
) -> None:
    assert store.collect(**{"bytes_max": 10**6} | wanted) == ([four[n] for n in gone], short)


def test_an_image_in_use_is_never_old(tmp_path: Path, store: ImageStore, four: dict[int, str]) -> None:
    os.utime(store.root / "roots" / four[0].removeprefix("sha256:") / "image.json", (0, 0))
    store.collect(10**6)
    assert (store.root / "roots" / four[0].removeprefix("sha256:") / "image.json").stat().st_mtime > 1000


def broken(change: Callable[[dict[str, bytes]], None]) -> dict[str, bytes]:
    files = oci_files(layers(), SETTINGS)
    change(files)
    return files


def swap_layer(files: dict[str, bytes]) -> None:
    name = max(files, key=lambda key: len(files[key]) if files[key].startswith(b"\x1f\x8b") else 0)
    files[name] = gzip.compress(LayerTar().file("evil", b"!").bytes())


def swap_document(part: bytes) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        name = next(key for key, data in files.items() if key.startswith("blobs") and part in data)
        files[name] = files[name] + b" "

    return change


def cut_layer(files: dict[str, bytes]) -> None:
    name = max(files, key=lambda key: len(files[key]) if files[key].startswith(b"\x1f\x8b") else 0)
    files[name] = files[name][:-20]


def point_outside(files: dict[str, bytes]) -> None:
    files["index.json"] = files["index.json"].replace(b'"sha256:', b'"sha256:../../../', 1)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        pytest.param(broken(swap_layer), "digest", id="another layer"),
        pytest.param(broken(cut_layer), "uncompressed|digest", id="layer cut off"),
        pytest.param(broken(swap_document(b'"diff_ids"')), "damaged", id="another configuration"),
        pytest.param(broken(swap_document(b'"layers"')), "damaged", id="another manifest"),
        pytest.param(broken(point_outside), "a digest is", id="a digest that is a path"),
        pytest.param(broken(lambda f: f.__delitem__("index.json")), "not found", id="no index"),
        pytest.param({"index.json": b"[" * 100_000}, "not JSON", id="JSON without end"),
        pytest.param({"index.json": b'{"manifests": {}}'}, "a list", id="wrong type"),
    ],
)
def test_damaged(tmp_path: Path, store: ImageStore, files: dict[str, bytes], says: str) -> None:
    with pytest.raises(AgentError, match=says) as e:
        store.load(f"oci:{write_directory(files, tmp_path / 'l')}", "x:1")
    assert e.value.reason == "ErrImagePull"
    assert store.list() == []
    assert os.listdir(store.root / "tmp") == []


@pytest.mark.parametrize(
    ("config", "says"),
    [
        pytest.param({"architecture": "s390x"}, "s390x", id="other machine"),
        pytest.param({"os": "windows"}, "windows", id="other system"),
        pytest.param({"config": {"Entrypoint": "sh"}}, "Entrypoint", id="wrong type"),
        pytest.param({"config": {"Env": ["A=\0"]}}, "NUL", id="NUL"),
        pytest.param({"rootfs": {"diff_ids": "x"}}, "diff_ids", id="no list of layers"),
        pytest.param({"rootfs": {"diff_ids": []}}, "layers", id="fewer layers"),
    ],
)
def test_unusable_configuration(tmp_path: Path, store: ImageStore, config: dict[str, Any], says: str) -> None:
    files = docker_files(layers())
    entry = json.loads(files["manifest.json"])[0]
    files[entry["Config"]] = config_of(layers(), {}, **config)
    with pytest.raises(AgentError, match=says):
        store.load(f"docker-archive:{write_archive(files, tmp_path / 'a.tar')}", "x:1")


def test_paths_that_are_no_images(tmp_path: Path, store: ImageStore) -> None:
    (tmp_path / "text").write_text("hello " * 200)
    for path, says in (
        (str(tmp_path / "none"), "No such file"),
        (str(tmp_path / "text"), "tar header"),
        (f"oci:{tmp_path / 'text'}", "not a directory"),
        (f"oci-archive:{tmp_path}", "not a file"),
        ("oci-archive:/dev/zero", "not a file"),
    ):
        with pytest.raises(AgentError, match=says):
            store.load(path, "x:1")
    (tmp_path / "d").mkdir()
    with pytest.raises(AgentError, match="name of its own"):
        store.load(f"dir:{tmp_path / 'd'}")


def test_an_image_over_the_limit_is_refused(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images", limits=Limits(bytes_max=1000), is_durable=False)
    bomb = write_directory(oci_files([LayerTar().file("f", bytes(5000)).bytes()]), tmp_path / "l")
    with pytest.raises(AgentError, match="1000"):
        store.load(f"oci:{bomb}", "x:1")
    assert os.listdir(store.root / "tmp") == []


def test_two_at_once_give_one(tmp_path: Path, store: ImageStore) -> None:
    source = oci_directory(tmp_path)
    problems: list[BaseException] = []

    def load(n: int) -> None:
        try:
            store.load(source, f"n{n}:1")
        except BaseException as e:
            problems.append(e)

    threads = [threading.Thread(target=load, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    (listed,) = store.list()
    assert len(listed.names) == 6


def test_what_a_killed_process_left_is_swept(tmp_path: Path, store: ImageStore) -> None:
    left = store.root / "tmp" / "new-dead"
    left.mkdir(parents=True)
    (left / "lock").touch()
    store.load(oci_directory(tmp_path), "x:1")
    assert not left.exists()


@pytest.mark.parametrize("wanted", ["", "app:1", "sha256:" + "a" * 64])
def test_image_id(wanted: str) -> None:
    image = Image(id="sha256:" + "a" * 64, reference="app:1")
    check_id(image, wanted)
    with pytest.raises(AgentError) as e:
        check_id(image, "sha256:" + "b" * 64)
    assert e.value.reason == "ErrImageIDMismatch"
    assert "app:1" in e.value.message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=8) | st.sampled_from(["sha256:" + "a" * 64, "../x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "manifests",
                    "digest",
                    "config",
                    "layers",
                    "rootfs",
                    "diff_ids",
                    "platform",
                    "annotations",
                    "Config",
                    "Layers",
                    "RepoTags",
                ]
            ),
            inner,
        )
    ),
    max_leaves=12,
)


@given(json_values, json_values, json_values)
def test_any_documents_are_answered(index: Any, manifest: Any, config: Any) -> None:
    """Wrong types in every place: an AgentError, and nothing is left."""
    configs = json.dumps(config).encode()
    if isinstance(manifest, dict):
        manifest = {"config": {"digest": digest(configs)}, **manifest}
    manifests = json.dumps(manifest).encode()
    if isinstance(index, dict):
        index = {"manifests": [{"digest": digest(manifests)}], **index}
    files = {"index.json": json.dumps(index).encode(), "manifest.json": json.dumps(index).encode()}
    files |= {"blobs/sha256/" + digest(data)[7:]: data for data in (manifests, configs)}
    with tempfile.TemporaryDirectory() as directory:
        path = write_directory(files, Path(directory) / "l")
        archive = write_archive(files, Path(directory) / "a.tar")
        store = ImageStore(Path(directory) / "images", is_durable=False)
        for source in (f"oci:{path}", f"oci-archive:{archive}", f"docker-archive:{archive}"):
            with pytest.raises(AgentError):
                store.load(source, "x:1")
        assert store.list() == []
