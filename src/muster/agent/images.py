"""The images of one agent: unpacked once, shared read-only by all containers, found by name or id.

    <images>/lock                   flock: exclusive to change names or take an image away, shared to begin a run of one
    <images>/names.json             name -> id, where it came from
    <images>/roots/<hex of id>/     image.json, root/ (the file system); complete, since it was renamed into place
    <images>/tmp/                   what is being unpacked or taken away

Blocking; the agent calls it in threads, the command line directly. Several processes may work on one directory.
Invariants: a root under `roots` is complete and was verified by digest; it is never changed; it is not removed while a run
is marked as using it (`<pods>/<uid>/containers/<name>/<attempt>/root/image`).
"""

from __future__ import annotations

import ctypes
import fcntl
import math
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from muster.agent.contracts import AgentError, Image
from muster.agent.images_names import ImageId, LocalPath, Name, Reference, parse, parse_name
from muster.agent.images_sources import Source, guess_kind, machine_architecture, opened, read_layer
from muster.agent.images_tar import LayerError, Limits
from muster.agent.images_unpack import Unpacker

Origin = Literal["loaded", "pulled"]
MARK: Final = "image"
"""File in a run's `root` directory: the id of the image that it uses."""
NAMES_MAX: Final = 10_000


class _Settings(msgspec.Struct, frozen=True):
    """The part of an image's configuration that a container needs. Every field may be null."""

    Entrypoint: list[str] | None = None
    Cmd: list[str] | None = None
    Env: list[str] | None = None
    WorkingDir: str | None = None
    User: str | None = None
    StopSignal: str | None = None


class _Config(msgspec.Struct, frozen=True):
    architecture: str = ""
    os: str = "linux"
    config: _Settings | None = None


class Named(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    origin: Origin
    source: str = ""
    """Where the operator or a pull found it."""
    digest: str = ""
    """Of the manifest in the registry."""


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept about an unpacked image."""

    image: Image
    bytes: int
    entries: int


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    names: tuple[str, ...]
    origin: str
    bytes: int
    is_used: bool


def check_id(image: Image, wanted: str) -> None:
    """Kuscia's annotation kuscia.secretflow/image-id: where it is a digest, the image here must be exactly that one."""
    if wanted.startswith("sha256:") and image.id != wanted:
        raise AgentError(
            "ErrImageIDMismatch",
            f"image {image.reference!r} has the id {image.id or 'none'} on this node, but the app's image id is {wanted}; "
            "load that very image, or correct the AppImage's spec.image.id",
        )


class ImageStore:
    def __init__(self, root: Path, pods: Path | None = None, limits: Limits | None = None, *, is_durable: bool = True) -> None:
        """`pods`: where runs mark what they use. `is_durable`: an image is on the disk before it has its place."""
        self.root = root
        self._pods = pods
        self._limits = limits or Limits()
        self._is_durable = is_durable

    # -- reading -------------------------------------------------------------------------------------------------------------

    def find(self, reference: Reference) -> Image | None:
        """By name or id; None when it is not here. A path is never found this way."""
        if isinstance(reference, ImageId):
            return self._stored(reference.id, reference.id)
        if isinstance(reference, LocalPath):
            return None
        named = self.named(reference)
        return self._stored(named.id, str(reference)) if named else None

    def named(self, name: Name) -> Named | None:
        names = self._names()
        if not name.digest:
            return names.get(str(name))
        same_path = (n for key, n in names.items() if key.rpartition(":")[0] == name.path or key == str(name))
        return next((n for n in same_path if n.digest == name.digest), None)

    def list(self) -> Sequence[Listed]:
        names, used = self._names(), self._used()
        listed = []
        for directory in sorted(self._roots()):
            stored = self._read(directory)
            if stored is None:
                continue
            of = {key: n for key, n in names.items() if n.id == stored.image.id}
            origin = "loaded" if any(n.origin == "loaded" for n in of.values()) else "pulled"
            listed.append(
                Listed(
                    id=stored.image.id,
                    names=tuple(sorted(of)),
                    origin=origin,
                    bytes=stored.bytes,
                    is_used=stored.image.id in used,
                )
            )
        return listed

    # -- changing ------------------------------------------------------------------------------------------------------------

    def load(self, path: str, name: str = "") -> Listed:
        """For the operator: an image from this machine's files, `path` as it stands or with its kind (`oci-archive:/p`).
        Named `name`, or what the source calls it. AgentError says what is wrong."""
        reference = self._local(path)
        wanted = [str(parse_name(name))] if name else []
        image = self.unpack(reference, wanted or None, "loaded")
        return next(listed for listed in self.list() if listed.id == image.id)

    def unpack(
        self, reference: LocalPath, names: Sequence[str] | None, origin: Origin, digest: str = "", source: str = ""
    ) -> Image:
        """Have the image of a local source here, under these names (None: those of the source itself)."""
        shown = source or f"{reference.kind}:{reference.path}"
        with self.scratch() as scratch:
            try:
                with opened(reference, scratch, self._limits) as found:
                    if names is None:
                        names = [str(parse_name(n)) for n in found.names if "/" in n or ":" in n]
                        if not names:
                            raise AgentError("InvalidImageName", f"{shown}: it has no name of its own; give it one")
                    stored = self._settle(found, scratch, shown)
            except LayerError as e:
                raise AgentError("ErrImagePull", f"image {shown}: {e}") from e
            except OSError as e:
                raise AgentError("ErrImagePull", f"image {shown}: {e.strerror}: {e.filename or self.root}") from e
            with self._locked():
                known = self._names()
                if len(known) + len(names) > NAMES_MAX:
                    raise AgentError("ErrImagePull", f"{NAMES_MAX} images have names here; remove some (muster image rm)")
                entry = Named(id=stored.id, origin=origin, source=shown, digest=digest or found.digest)
                self._write_names({**known, **dict.fromkeys(names, entry)})
        return msgspec.structs.replace(stored, reference=names[0] if names else stored.id)

    def remove(self, text: str) -> str:
        """Take a name away, and the image with its last name; an id takes all its names. Returns the id."""
        reference = parse(text)
        with self._locked():
            names = self._names()
            if isinstance(reference, ImageId):
                image_id, gone = reference.id, {key for key, n in names.items() if n.id == reference.id}
                if not gone and not self._directory(image_id).is_dir():
                    raise AgentError("NotFound", f"no image {text!r} here; muster image list shows what there is")
            elif isinstance(reference, Name) and (named := names.get(str(reference))):
                image_id, gone = named.id, {str(reference)}
            else:
                raise AgentError("NotFound", f"no image {text[:80]!r} here; muster image list shows what there is")
            left = {key: n for key, n in names.items() if key not in gone}
            is_last = all(n.id != image_id for n in left.values())
            if is_last and image_id in self._used():
                raise AgentError("ImageInUse", f"image {text!r} is used by a container of this node; remove its pod first")
            self._write_names(left)
            if is_last:
                self._drop(image_id)
        self._sweep()
        return image_id

    def collect(
        self, bytes_max: int, *, room_bytes: int = 0, unused_since: float = -math.inf, kept_since: float = math.inf
    ) -> tuple[Sequence[str], int]:
        """Take pulled images away that nothing uses, the longest unused first, until all together have at most `bytes_max` and
        `room_bytes` have become free; in any case those that were not used since `unused_since`. Loaded ones stay, and those
        that were used since `kept_since`. Returns the ids, and how much is short of `room_bytes`."""
        gone = []
        with self._locked():
            listed = self.list()
            for item in listed:
                if item.is_used:
                    self._touch(item.id)
            total, freed = sum(item.bytes for item in listed), 0
            rest = [(self._used_at(item.id), item) for item in listed if not item.is_used and item.origin != "loaded"]
            for used_at, item in sorted(rest, key=lambda one: one[0]):
                has_room = total - freed <= bytes_max and freed >= room_bytes
                if used_at >= unused_since and (has_room or used_at > kept_since):
                    break
                self._write_names({key: n for key, n in self._names().items() if n.id != item.id})
                self._drop(item.id)
                freed += item.bytes
                gone.append(item.id)
        self._sweep()
        return gone, max(room_bytes - freed, 0)

    def hold(self, image: Image, run_root: Path) -> None:
        """Mark that the run uses the image, so that it stays until the mark is gone. AgentError when it is gone already."""
        with self._locked(shared=True):
            if not self._directory(image.id).is_dir():
                raise AgentError(
                    "ErrImagePull", f"image {image.reference!r} ({image.id}) was removed meanwhile; it is fetched anew"
                )
            (run_root / MARK).write_text(image.id)
            self._touch(image.id)

    # -- inside --------------------------------------------------------------------------------------------------------------

    @staticmethod
    def _local(path: str) -> LocalPath:
        if path.startswith(("oci-archive:", "oci:", "docker-archive:", "dir:")):
            kind, _, rest = path.partition(":")
            found = parse(f"{kind}:{rest if rest.startswith('/') else './' + rest}")
            assert isinstance(found, LocalPath)
            return found
        try:
            return LocalPath(kind=guess_kind(Path(path)), path=path)
        except LayerError as e:
            raise AgentError("ErrImagePull", f"{path}: {e}") from e
        except OSError as e:
            raise AgentError("ErrImagePull", f"{path}: {e.strerror}") from e

    def _settle(self, source: Source, scratch: Path, shown: str) -> Image:
        """Unpack it, unless it is here already. LayerError for a source that is not what it says."""
        if (known := self._stored(source.id, shown)) is not None:
            return known
        image = _describe(source)
        place = scratch / "image"
        (place / "root").mkdir(parents=True)
        (place / "root").chmod(0o755)
        with Unpacker(place / "root", self._limits) as unpacker:
            for layer in source.layers:
                read_layer(layer, unpacker.apply)
        stored = Stored(image=image, bytes=unpacker.bytes, entries=unpacker.entries)
        (place / "image.json").write_bytes(msgspec.json.encode(stored))
        if self._is_durable:
            _sync(place)
        target = self._directory(source.id)
        try:
            os.rename(place, target)
        except OSError:
            if not target.is_dir():  # Otherwise somebody else was quicker with the same.
                raise
        return msgspec.structs.replace(image, root=str(target / "root"))

    def _directory(self, image_id: str) -> Path:
        return self.root / "roots" / image_id.removeprefix("sha256:")

    def _roots(self) -> Iterator[Path]:
        with suppress(FileNotFoundError):
            yield from (self.root / "roots").iterdir()

    def _read(self, directory: Path) -> Stored | None:
        try:
            return msgspec.json.decode((directory / "image.json").read_bytes(), type=Stored)
        except (OSError, msgspec.MsgspecError):
            return None

    def _stored(self, image_id: str, reference: str) -> Image | None:
        directory = self._directory(image_id)
        stored = self._read(directory)
        if stored is None:
            return None
        return msgspec.structs.replace(stored.image, root=str(directory / "root"), reference=reference)

    def _names(self) -> dict[str, Named]:
        try:
            return msgspec.json.decode((self.root / "names.json").read_bytes(), type=dict[str, Named])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as e:
            path = self.root / "names.json"
            raise AgentError("ImageStoreError", f"{path} can't be read: {e}; remove it, and load the images again") from e

    def _write_names(self, names: dict[str, Named]) -> None:
        new = self.root / f"names.json.{uuid.uuid4().hex}"
        with new.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(names)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.root / "names.json")

    def _used(self) -> set[str]:
        if self._pods is None:
            return set()
        found = set()
        for mark in self._pods.glob(f"*/containers/*/*/root/{MARK}"):
            with suppress(OSError):
                found.add(mark.read_text())
        return found

    def _touch(self, image_id: str) -> None:
        with suppress(OSError):
            os.utime(self._directory(image_id) / "image.json")

    def _used_at(self, image_id: str) -> float:
        with suppress(OSError):
            return (self._directory(image_id) / "image.json").stat().st_mtime
        return 0.0

    def _drop(self, image_id: str) -> None:
        with suppress(FileNotFoundError):
            os.rename(self._directory(image_id), self.root / "tmp" / f"gone-{uuid.uuid4().hex}")

    def _sweep(self) -> None:
        for path in (self.root / "tmp").glob("gone-*"):
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def _locked(self, *, shared: bool = False) -> Iterator[None]:
        self._prepare()
        with (self.root / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            yield

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A directory of one's own; what dead processes left is taken away by the way."""
        self._prepare()
        path = self.root / "tmp" / f"new-{uuid.uuid4().hex}"
        with self._locked():  # So that nobody sweeps it between its making and its lock.
            self._sweep_abandoned()
            path.mkdir()
            lock = (path / "lock").open("w")
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            lock.close()

    def _sweep_abandoned(self) -> None:
        for path in (self.root / "tmp").glob("new-*/lock"):
            with suppress(OSError), path.open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)

    def _prepare(self) -> None:
        if not (self.root / "tmp").is_dir() or not (self.root / "roots").is_dir():
            for path in (self.root, self.root / "roots", self.root / "tmp"):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.root.chmod(0o700)  # Files of images keep their set-user-id bits: nobody else of this machine reaches them.


def _describe(source: Source) -> Image:
    try:
        config = msgspec.json.decode(source.config, type=_Config)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise LayerError(f"its configuration can't be used: {e}") from e
    if config.os != "linux" or config.architecture not in ("", machine_architecture()):
        raise LayerError(f"it is for {config.os}/{config.architecture}, this machine is linux/{machine_architecture()}")
    settings = config.config or _Settings()
    texts = [*(settings.Entrypoint or ()), *(settings.Cmd or ()), *(settings.Env or ())]
    texts += [settings.WorkingDir or "", settings.User or "", settings.StopSignal or ""]
    if len(texts) > 4096 or any("\0" in text or len(text) > 128 * 1024 for text in texts):
        raise LayerError("its configuration has too many or too long words, or one with a NUL")
    env = tuple((key, value) for key, equals, value in (e.partition("=") for e in settings.Env or ()) if equals and key)
    return Image(
        id=source.id,
        entrypoint=tuple(settings.Entrypoint or ()),
        command=tuple(settings.Cmd or ()),
        env=env,
        cwd=settings.WorkingDir or "",
        user=settings.User or "",
        stop_signal=settings.StopSignal or "",
    )


def _sync(path: Path) -> None:
    """Everything of the file system that `path` is on. Where that can't be asked for, all of the machine."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
            os.sync()
    finally:
        os.close(fd)
