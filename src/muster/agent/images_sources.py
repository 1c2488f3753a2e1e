"""Where an image comes from: an OCI layout (a directory or an archive of one), a docker archive, or a plain directory.

All become the same: the bytes of a configuration, and layers that can be opened, each with the digests that it must have.
Digests are checked while a layer is read; a document is checked before it is believed. Blocking; used in a thread.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from muster.agent.images_files import Archive, Directory
from muster.agent.images_names import LocalPath, SourceKind
from muster.agent.images_tar import CHUNK_BYTES, LayerError, Limits, Readable

DOCUMENT_BYTES_MAX: Final = 4 * 2**20
LAYERS_MAX: Final = 500
REF_NAME: Final = "org.opencontainers.image.ref.name"
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    open: Callable[[], Readable]
    """Its bytes, compressed or not."""
    digest: str = ""
    """Of these bytes; empty: only `diff_id` is known."""
    diff_id: str
    """Of the tar inside."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    config: bytes
    layers: tuple[Layer, ...]
    digest: str = ""
    """Of the manifest."""
    names: tuple[str, ...] = ()
    """That the source itself gives to the image."""

    @property
    def id(self) -> str:
        return digest_of(self.config)


class Files(Protocol):
    """Named streams of bytes: a directory, or an archive."""

    def open(self, name: str) -> Readable: ...


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def machine_architecture() -> str:
    machine = os.uname().machine
    return _ARCHITECTURES.get(machine, machine)


@contextmanager
def opened(reference: LocalPath, scratch: Path, limits: Limits) -> Iterator[Source]:
    """LayerError says what is wrong with the file. What is put into `scratch` is the caller's to take away."""
    path = Path(reference.path)
    with ExitStack() as stack:
        try:
            is_directory = path.is_dir()
            if reference.kind in ("oci", "dir") and not is_directory:
                raise LayerError(f"{path}: not a directory")
            if reference.kind == "oci":
                yield read_oci(Directory(path), reference.tag)
            elif reference.kind == "dir":
                yield _plain_directory(path, scratch, limits)
            else:
                archive = stack.enter_context(Archive(path, scratch, limits))
                yield (
                    read_oci(archive, reference.tag) if reference.kind == "oci-archive" else read_docker(archive, reference.tag)
                )
        except (FileNotFoundError, NotADirectoryError) as e:
            raise LayerError(f"{e.filename or path}: not found") from e


def guess_kind(path: Path) -> SourceKind:
    """What lies at a path that an operator named without saying what it is."""
    if path.is_dir():
        return "oci" if (path / "index.json").is_file() and (path / "blobs").is_dir() else "dir"
    with Archive(path, path.parent, Limits(), index_only=True) as archive:
        return "docker-archive" if "manifest.json" in archive.members and "index.json" not in archive.members else "oci-archive"


# -- reading with digests ------------------------------------------------------------------------------------------------------


class Hashed:
    """Passes bytes on and counts and hashes them."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self._hash.update(data)
        return data

    @property
    def digest(self) -> str:
        return "sha256:" + self._hash.hexdigest()


class _Peeked:
    def __init__(self, head: bytes, stream: Readable) -> None:
        self._head, self._stream = head, stream

    def read(self, size: int = CHUNK_BYTES, /) -> bytes:
        if self._head:
            data, self._head = self._head[:size], self._head[size:]
            return data
        return self._stream.read(size)


def read_layer(layer: Layer, take: Callable[[Readable], None]) -> None:
    """Hand the tar inside to `take`, which reads to its end; then compare both digests. LayerError where they differ."""
    outer = Hashed(layer.open())
    head = outer.read(4)
    whole: Readable = _Peeked(head, outer)
    if head.startswith(b"\x1f\x8b"):
        whole = gzip.GzipFile(fileobj=whole, mode="rb")  # type: ignore[call-overload]
    elif head.startswith(b"\x28\xb5\x2f\xfd"):
        raise LayerError(
            "a layer is compressed with zstd; load the image with gzip layers (skopeo copy --dest-compress-format gzip)"
        )
    inner = Hashed(whole)
    try:
        take(inner)
        while inner.read(CHUNK_BYTES):
            pass
        while outer.read(CHUNK_BYTES):
            pass
    except (gzip.BadGzipFile, EOFError, zlib.error) as e:
        raise LayerError(f"a layer can't be uncompressed: {e}") from e
    for what, wanted, found in (("digest", layer.digest, outer.digest), ("diff id", layer.diff_id, inner.digest)):
        if wanted and wanted != found:
            raise LayerError(f"a layer has the {what} {found}, not {wanted}: it is damaged, or not what it says")


def _document(files: Files, name: str, digest: str = "") -> tuple[bytes, Any]:
    stream = files.open(name)
    data = b""
    while len(data) <= DOCUMENT_BYTES_MAX and (more := stream.read(DOCUMENT_BYTES_MAX + 1 - len(data))):
        data += more
    if len(data) > DOCUMENT_BYTES_MAX:
        raise LayerError(f"{name}: longer than {DOCUMENT_BYTES_MAX} bytes")
    if digest and digest_of(data) != digest:
        raise LayerError(f"{name}: its digest is {digest_of(data)}: it is damaged, or not what it says")
    try:
        return data, msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as e:
        raise LayerError(f"{name}: not JSON: {e}") from e


def _blob(digest: object) -> str:
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise LayerError(f"a digest is sha256:<64 hexadecimal digits>, not {str(digest)[:80]!r}")
    return "blobs/sha256/" + digest.removeprefix("sha256:")


def _list(value: object, what: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value) or len(value) > LAYERS_MAX:
        raise LayerError(f"{what}: a list of at most {LAYERS_MAX} objects is expected")
    return value


def diff_ids(config: object) -> list[str]:
    rootfs = config.get("rootfs") if isinstance(config, dict) else None
    found = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(found, list) or not all(isinstance(d, str) and _DIGEST.fullmatch(d) for d in found):
        raise LayerError("config: rootfs.diff_ids: a list of sha256 digests is expected")
    return found


# -- the formats ---------------------------------------------------------------------------------------------------------------


def read_oci(files: Files, tag: str = "") -> Source:
    """One image of a layout: the one with this tag, for this machine's architecture."""
    _, index = _document(files, "index.json")
    entry = _choose(index, tag)
    for _ in range(4):
        digest = entry.get("digest")
        _, manifest = _document(files, _blob(digest), str(digest))
        if not isinstance(manifest, dict):
            raise LayerError(f"{digest}: a manifest is an object")
        if "manifests" not in manifest:
            return _from_manifest(files, manifest, str(digest), entry)
        entry = {**_choose(manifest, ""), "annotations": entry.get("annotations")}
    raise LayerError("index.json: indexes within indexes without end")


def _choose(index: object, tag: str) -> dict[str, Any]:
    manifests = _list(index.get("manifests") if isinstance(index, dict) else None, "index.json: manifests")
    if tag:
        manifests = [m for m in manifests if _annotation(m) == tag or _annotation(m).endswith(":" + tag)]
    ours = [m for m in manifests if _fits(m.get("platform"))]
    if not ours:
        raise LayerError(f"no image {f'with tag {tag} ' if tag else ''}for linux/{machine_architecture()} in it")
    if len(ours) > 1 and not tag and not ours[0].get("platform"):
        raise LayerError(f"{len(ours)} images in it; name one by its tag: {', '.join(_annotation(m) for m in ours)[:200]}")
    return ours[0]


def _annotation(entry: dict[str, Any]) -> str:
    annotations = entry.get("annotations")
    found = annotations.get(REF_NAME) if isinstance(annotations, dict) else None
    return found if isinstance(found, str) else ""


def _fits(platform: object) -> bool:
    if not isinstance(platform, dict):
        return True
    return platform.get("os", "linux") == "linux" and platform.get("architecture", "") in ("", machine_architecture())


def _from_manifest(files: Files, manifest: dict[str, Any], digest: str, entry: dict[str, Any]) -> Source:
    described = manifest.get("config")
    config_digest = described.get("digest") if isinstance(described, dict) else None
    data, config = _document(files, _blob(config_digest), str(config_digest))
    layers = _list(manifest.get("layers"), f"{digest}: layers")
    ids = diff_ids(config)
    if len(ids) != len(layers):
        raise LayerError(f"{digest}: {len(layers)} layers, but the configuration names {len(ids)}")

    def opener(name: str) -> Callable[[], Readable]:
        return lambda: files.open(name)

    return Source(
        config=data,
        digest=digest,
        layers=tuple(
            Layer(open=opener(_blob(layer.get("digest"))), digest=str(layer["digest"]), diff_id=diff_id)
            for layer, diff_id in zip(layers, ids, strict=True)
        ),
        names=(_annotation(entry),) if _annotation(entry) else (),
    )


def read_docker(files: Files, tag: str = "") -> Source:
    """What `docker save` writes."""
    _, manifest = _document(files, "manifest.json")
    images = _list(manifest, "manifest.json")
    if tag:
        images = [i for i in images if any(str(t).endswith(":" + tag) for t in i.get("RepoTags") or [])]
    if len(images) != 1:
        raise LayerError(f"manifest.json: {len(images)} images {f'with tag {tag} ' if tag else ''}in it; name one by its tag")
    image = images[0]
    layers, tags = image.get("Layers"), image.get("RepoTags") or []
    if not isinstance(layers, list) or len(layers) > LAYERS_MAX or not all(isinstance(name, str) for name in layers):
        raise LayerError("manifest.json: Layers: a list of names is expected")
    if not isinstance(tags, list) or not isinstance(image.get("Config"), str):
        raise LayerError("manifest.json: Config is a name, RepoTags a list of names")
    data, config = _document(files, image["Config"])
    ids = diff_ids(config)
    if len(ids) != len(layers):
        raise LayerError(f"manifest.json: {len(layers)} layers, but the configuration names {len(ids)}")

    def opener(name: str) -> Callable[[], Readable]:
        return lambda: files.open(name)

    return Source(
        config=data,
        layers=tuple(Layer(open=opener(name), diff_id=diff_id) for name, diff_id in zip(layers, ids, strict=True)),
        names=tuple(str(t) for t in tags[:100]),
    )


def _plain_directory(path: Path, scratch: Path, limits: Limits) -> Source:
    """A root file system as it lies there, as one layer. Sockets and device nodes are left out."""
    layer = scratch / "directory.tar"
    counted = 0

    def keep(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        nonlocal counted
        counted += info.size
        if counted > limits.bytes_max:
            raise LayerError(f"{path}: more than {limits.bytes_max} bytes")
        info.uname = info.gname = ""
        return info if info.isfile() or info.isdir() or info.issym() or info.islnk() else None

    with tarfile.open(layer, "w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(path, arcname=".", filter=keep)
    hashed = Hashed(layer.open("rb"))
    while hashed.read(CHUNK_BYTES):
        pass
    config = {"architecture": machine_architecture(), "os": "linux", "config": {}}
    config["rootfs"] = {"type": "layers", "diff_ids": [hashed.digest]}
    return Source(
        config=msgspec.json.encode(config),
        layers=(Layer(open=lambda: layer.open("rb"), diff_id=hashed.digest),),
    )
