"""`muster backup` on this side: where a backup comes from, and how it becomes a file that is whole or is not there.

It is written beside its place under a name that nobody takes for a backup, flushed, read back from the first byte to the last,
and only then given its name. Whatever kills the command leaves the old files as they were.

On the event loop of the command; files are read and written in between, as nothing else waits.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from muster.cli.datadir import KUBECONFIG_FILE
from muster.cli.errors import CliError, ExitCode
from muster.cli.framework import State
from muster.cli.options import Target

if TYPE_CHECKING:
    from muster.store.embedded.archive import Contents
    from muster.store.embedded.database import Row

STEM: Final = "muster-backup"
NAME: Final = re.compile(r"muster-(\d{8}T\d{6}Z)-(\d+)(?:\.(\d+))?\.tar", re.ASCII)
"""Of the files that `--to` makes, which `--keep` counts."""
_DRAFT: Final = re.compile(rf"\.{STEM}\.[0-9a-f]{{12}}\.partial")
_SAME_NAME_MAX: Final = 1000
_PROGRESS_BYTES: Final = 4 << 20


class Source:
    """Where the objects come from: a server, or a data directory on which none runs."""

    def __init__(self, target: Target, state: State, data_dir: Path | None, *, with_keys: bool, now: float) -> None:
        self._target = target
        self._state = state
        self._data_dir = data_dir
        self._with_keys = with_keys
        self._now = now

    async def take(self, draft: Draft) -> Contents:
        """Fill `draft` and give what is in it, verified."""
        if self._data_dir is not None:
            pieces = self._from_file(self._data_dir)
            if pieces is not None:
                draft.begin()
                for piece in pieces:
                    draft.write(piece)
                return draft.verified()
            config = self._data_dir / KUBECONFIG_FILE
            self._target = Target(str(config), None, None, self._target.request_timeout_s)
        draft.begin()
        async for piece in self._from_server():
            draft.write(piece)
        if self._with_keys:
            assert self._data_dir is not None
            self._add_keys(draft, read_keys(self._data_dir))
        return draft.verified()

    def _from_file(self, data_dir: Path) -> Iterator[bytes] | None:
        """None when a server has the store open: then that is to be asked."""
        from muster.store.embedded.archive import write
        from muster.store.embedded.errors import StoreError, StoreLocked
        from muster.store.embedded.restoring import READY
        from muster.store.embedded.snapshot import snapshot_of_file

        if (data_dir / READY).exists():
            raise CliError(
                f"data directory {data_dir}: a restore was interrupted there, so part of it is from before and part from the "
                "backup; 'muster up' on it carries on, and then there is something to save"
            )
        try:
            snapshot = snapshot_of_file(data_dir / "store")
        except StoreLocked:
            self._state.note(f"a server runs on {data_dir}: it is asked")
            return None
        except StoreError as error:
            raise CliError(error.message) from error
        except FileNotFoundError as error:
            why = "; --with-keys saves a data directory, not the server of the kubeconfig" if self._with_keys else ""
            raise CliError(
                f"data directory {data_dir}: there is no store in it{why}; name the right one with --data-dir",
                ExitCode.NOT_FOUND,
            ) from error
        self._state.note(f"no server runs on {data_dir}: its store is read")
        return write(snapshot, self._now, read_keys(data_dir) if self._with_keys else None)

    async def _from_server(self) -> AsyncIterator[bytes]:
        from muster.cli.session import session
        from muster.client.messages import Request
        from muster.objects.status import NotFound
        from muster.server.backups import PATH

        async with session(self._target, self._state) as s:
            try:
                async with s.client.transport.stream(Request(method="GET", path=PATH, accept="*/*")) as stream:
                    async for chunk in stream.chunks():
                        yield chunk
            except NotFound as error:
                raise CliError(
                    "this server has no backup to give: it is another Kubernetes, whose own store (etcd) is to be backed up, "
                    "or an older Muster",
                    ExitCode.NOT_FOUND,
                ) from error

    def _add_keys(self, draft: Draft, keys: dict[str, bytes]) -> None:
        """Keys do not travel: the server's archive is written again, with those of the directory on this machine."""
        from muster.store.embedded.archive import write
        from muster.store.embedded.snapshot import snapshot_of_rows

        rows: list[Row] = []
        contents = draft.verified(rows.extend)
        draft.begin()
        manifest = contents.manifest
        snapshot = snapshot_of_rows(contents.identity, manifest.resource_version, rows)
        for piece in write(
            snapshot, manifest.taken_at_s, keys, store_format=manifest.store_format, muster_version=manifest.muster_version
        ):
            draft.write(piece)


def refuse_another(target: Target, state: State, data_dir: Path) -> None:
    """CliError when the kubeconfig names another server than the one of `data_dir`, which nobody has named: the keys of the one
    are not worth having for a user who means the other. They are told apart by the CA."""
    from muster.cli.session import resolve
    from muster.server.certificates import certificates_in

    try:
        own = set(certificates_in((data_dir / "pki" / "ca.crt").read_bytes()))
    except OSError:
        return  # there are no keys to save, which is said later
    try:
        config = resolve(target, state)
        ca = config.tls.ca
        trusted = b"" if ca is None else ca if isinstance(ca, bytes) else ca.read_bytes()
    except (CliError, OSError):
        if target.kubeconfig is not None or target.context is not None:
            raise
        return  # no kubeconfig, so nobody else can be meant
    if own.intersection(certificates_in(trusted)):
        return
    raise CliError(
        f"{config.source} names the server {config.server}, and data directory {data_dir} is that of another: --with-keys "
        "saves the directory; name it with --data-dir, or leave out --with-keys to save the server",
        ExitCode.CONFLICT,
    )


def read_keys(data_dir: Path) -> dict[str, bytes]:
    from muster.store.embedded.archive import KEYS, is_key

    keys: dict[str, bytes] = {}
    there = sorted(f"pki/{path.name}" for path in (data_dir / "pki").glob("*"))
    for name in dict.fromkeys((*KEYS, *filter(is_key, there))):
        with contextlib.suppress(FileNotFoundError):
            keys[name] = (data_dir / name).read_bytes()
    if "pki/ca.key" not in keys:
        raise CliError(
            f"data directory {data_dir}: there is no pki/ca.key in it; name the right one with --data-dir, or leave out "
            "--with-keys",
            ExitCode.NOT_FOUND,
        )
    return keys


class Draft:
    """A file in `directory` that is no backup yet. Locked while it is written, so that it can be told from a left-over."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / f".{STEM}.{secrets.token_hex(6)}.partial"
        self._file: BinaryIO | None = None
        self._shown = 0
        self.size_bytes = 0

    def begin(self) -> None:
        """Make the file, or empty it."""
        try:
            if self._file is None:
                self._file = self._made()
            self._file.seek(0)
            self._file.truncate()
        except OSError as error:
            raise self._failed(error) from error
        self.size_bytes = self._shown = 0

    def _made(self) -> BinaryIO:
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            file = os.fdopen(descriptor, "w+b")
            os.fchmod(descriptor, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                return file
            file.close()  # another command came between, and took it for a left-over

    def write(self, piece: bytes) -> None:
        assert self._file is not None
        try:
            self._file.write(piece)
        except OSError as error:
            raise self._failed(error) from error
        self.size_bytes += len(piece)
        if self.size_bytes - self._shown >= _PROGRESS_BYTES and sys.stderr.isatty():
            self._shown = self.size_bytes
            click.echo(f"\r{self.size_bytes / (1 << 20):.0f} MiB", err=True, nl=False)

    def verified(self, take: Callable[[list[Row]], None] = lambda rows: None) -> Contents:
        """Flush it and read it back from the disk, whole."""
        from muster.store.embedded.archive import ArchiveError, read

        assert self._file is not None
        if self._shown and sys.stderr.isatty():
            click.echo("\r", err=True, nl=False)
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.seek(0)
            return read(self._file, take)
        except ArchiveError as error:
            raise CliError(f"what came is no whole backup: {error}; nothing was kept") from error
        except OSError as error:
            raise self._failed(error) from error

    def publish(self, path: Path) -> None:
        """Give it its name; never instead of another file."""
        if not self._is_named(path):
            raise exists_already(path)

    def publish_as(self, stem: str) -> Path:
        """Give it the first free one of the names that begin so: of one version there may be several within a second."""
        for number in range(1, _SAME_NAME_MAX):
            path = self._directory / (f"{stem}.tar" if number == 1 else f"{stem}.{number}.tar")
            if self._is_named(path):
                return path
        raise exists_already(path)

    def _is_named(self, path: Path) -> bool:
        try:
            try:
                os.link(self._path, path)
                self._path.unlink()
            except FileExistsError:
                return False
            except OSError:  # a file system without hard links
                if path.exists():
                    return False
                self._path.replace(path)
            sync(self._directory)
        except OSError as error:
            raise self._failed(error) from error
        return True

    def close(self) -> None:
        """Whatever happened: the draft is gone."""
        self._path.unlink(missing_ok=True)
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def _failed(self, error: OSError) -> CliError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return CliError(f"{self._directory}: the disk is full; free some space, or write the backup elsewhere")
        return CliError(f"{self._directory}: the backup can't be written there ({error.strerror}); write it elsewhere")


def exists_already(path: Path) -> CliError:
    return CliError(f"{path} exists already, and a backup replaces no file; name another, or use --to DIR", ExitCode.CONFLICT)


def sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_left_over(directory: Path) -> None:
    """Drafts of commands that were killed. One that is being written is locked."""
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return  # whoever can't look can't write either, and hears of that
    for entry in entries:
        if _DRAFT.fullmatch(entry.name) is None or not entry.is_file(follow_symlinks=False):
            continue
        with contextlib.suppress(OSError), open(entry.path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(entry.path)


def _age(name: re.Match[str]) -> tuple[str, int, int]:
    """By time, then by version, then by how many there were of that."""
    return name[1], int(name[2]), int(name[3] or 1)


def keep_newest(directory: Path, count: int, last: str = "") -> list[str]:
    """Remove the oldest backups that `--to` has made there, but for `count`; which ones were.

    `last` is the name of the one that was just made. It stays and counts as the newest, whatever the clocks said that named the
    others.
    """
    files = (entry.name for entry in os.scandir(directory) if entry.is_file(follow_symlinks=False))
    found = [match for name in files if name != last and (match := NAME.fullmatch(name)) is not None]
    names = [match[0] for match in sorted(found, key=_age)]
    removed = []
    for name in names[: max(0, len(names) - (count - bool(last)))]:
        with contextlib.suppress(FileNotFoundError):
            (directory / name).unlink()
            removed.append(name)
    return removed
