"""Objects from manifest files: `-f FILE`, `-f DIR`, `-f -`.

A file that cannot be read whole gives no objects at all, so that a broken document never half-applies the file it stands
in; other files are not affected. Each object knows the file, document and line it came from, and errors say so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from muster.cli.errors import CliError, ExitCode
from muster.objects import yaml_text
from muster.objects.status import Raw

FILE_BYTES_MAX = 64 << 20
FILES_MAX = 10_000
SUFFIXES = (".yaml", ".yml", ".json")


class Document(msgspec.Struct, frozen=True):
    """One object and where it stands. `number` counts the documents of its file from 1."""

    source: str
    number: int
    line: int
    object: Raw

    @property
    def where(self) -> str:
        return f"{self.source}, document {self.number} (line {self.line})"


class Manifests(msgspec.Struct):
    """What could be read, and one message for each file or document that could not."""

    documents: list[Document] = []
    problems: list[str] = []


def read_manifests(names: Sequence[str], *, recursive: bool = False) -> Manifests:
    """Everything under `names`; `-` is standard input. Raises only when a name does not exist at all."""
    result = Manifests()
    for source, path in _sources(names, recursive):
        try:
            result.documents += _documents(source, _read(source, path))
        except CliError as e:
            result.problems.append(e.message)
    return result


def _sources(names: Sequence[str], recursive: bool) -> Iterator[tuple[str, Path | None]]:
    if names.count("-") > 1:
        raise CliError("-f - is given twice: standard input can be read once", ExitCode.USAGE)
    for name in names:
        path = Path(name)
        if name == "-":
            yield "<stdin>", None
        elif path.is_dir():
            found = sorted(
                p for p in (path.rglob("*") if recursive else path.iterdir()) if p.suffix in SUFFIXES and p.is_file()
            )
            if not found:
                raise CliError(f"{name}: the directory holds no file that ends in {', '.join(SUFFIXES)}", ExitCode.NOT_FOUND)
            if len(found) > FILES_MAX:
                raise CliError(f"{name}: {len(found)} files; at most {FILES_MAX} are read at once")
            yield from ((str(p), p) for p in found)
        elif path.exists():
            yield name, path
        else:
            raise CliError(f"{name}: no such file or directory", ExitCode.NOT_FOUND)


def _read(source: str, path: Path | None) -> bytes:
    try:
        if path is None:
            data = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        else:
            with path.open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
    except OSError as e:
        raise CliError(f"{source}: {e.strerror or e}") from e
    if len(data) > FILE_BYTES_MAX:
        raise CliError(f"{source}: larger than {FILE_BYTES_MAX >> 20} MiB; split it")
    return data


def _documents(source: str, data: bytes) -> list[Document]:
    found: list[Document] = []
    number = 0
    try:
        for number, (line, value) in enumerate(yaml_text.load_all(data), start=1):
            found += _objects(source, number, line, value)
    except yaml_text.YamlError as e:
        at = f", line {e.line}" if e.line else ""
        raise CliError(f"{source}, document {number + 1}{at}: {e}; nothing of this file was used") from e
    if not found:
        raise CliError(f"{source}: holds no object")
    return found


def _objects(source: str, number: int, line: int, value: object) -> Iterator[Document]:
    where = f"{source}, document {number} (line {line})"
    if not isinstance(value, dict):
        raise CliError(
            f"{where}: expected an object with apiVersion and kind, found {type(value).__name__}; nothing of this file was used"
        )
    for field in ("apiVersion", "kind"):
        if not isinstance(value.get(field), str) or not value[field]:
            raise CliError(
                f"{where}: {field}: must be a non-empty string, found {value.get(field)!r}; nothing of this file was used"
            )
    items = value.get("items")
    if value["kind"].endswith("List") and isinstance(items, list) and "metadata" not in items:
        for item in items:
            yield from _objects(source, number, line, item)
        return
    metadata = value.get("metadata")
    if not isinstance(metadata, dict):
        raise CliError(f"{where}: metadata: must be an object, found {metadata!r}; nothing of this file was used")
    for field in ("name", "generateName", "namespace"):
        if field in metadata and not (isinstance(metadata[field], str) or metadata[field] is None):
            raise CliError(
                f"{where}: metadata.{field}: must be a string, found {metadata[field]!r}; nothing of this file was used"
            )
    yield Document(source, number, line, value)
