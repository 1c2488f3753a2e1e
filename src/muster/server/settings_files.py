"""Files of settings in Kubernetes' own forms, written by an administrator: read whole, checked whole, refused with the place.

`read` gives the text, `decode` a typed value from it. Every mistake is a `SettingsError` that names the file, the line, the
field and what is wrong there. Blocking reads; no state; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import msgspec
import yaml

from muster.objects import yaml_text

FILE_BYTES_MAX: Final = 1024 * 1024
_DEPTH_MAX: Final = 32
_NODES_MAX: Final = 50_000
_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?:key in )?(?P<path>\$[^`]*)`)?$", re.DOTALL)
_STEP: Final = re.compile(r"\.([A-Za-z0-9_]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `([^`]*)`")

T = TypeVar("T")
Step = str | int


class SettingsError(Exception):
    """Settings that can't be used; the message names the file, the line, the field and the way out."""


class Document:
    """The text of a settings file, for saying where something in it stands."""

    def __init__(self, source: str, text: str) -> None:
        self.source = source
        self._text = text

    def refuse(self, path: Sequence[Step], message: str) -> NoReturn:
        """Raise SettingsError about the field at `path`."""
        line = self._line(path)
        where = f"{self.source}, line {line}" if line else self.source
        field = said(path)
        raise SettingsError(f"{where}: {field}: {message}" if field else f"{where}: {message}")

    def _line(self, path: Sequence[Step]) -> int:
        """Of the field, or of the nearest thing around it. The text is known to be YAML within limits."""
        node = yaml.compose(self._text, Loader=yaml.SafeLoader)
        line = node.start_mark.line + 1 if node is not None else 0
        for step in path:
            found: yaml.Node | None = None
            at = None
            if isinstance(node, yaml.MappingNode):
                found, at = next(((value, key) for key, value in node.value if key.value == step), (None, None))
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                found = at = node.value[step]
            if found is None or at is None:
                break
            node, line = found, at.start_mark.line + 1
        return line


def said(path: Sequence[Step]) -> str:
    """`rules[2].level`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def read(path: Path, option: str) -> str:
    """The text of a small file that `option` names."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(f"{option} {path}: {error.strerror or error}; name a file that can be read") from error
    if len(data) > FILE_BYTES_MAX:
        raise SettingsError(f"{option} {path}: larger than {FILE_BYTES_MAX} bytes; that is no file of settings")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SettingsError(f"{option} {path}: not text in UTF-8 ({error.reason} at byte {error.start})") from error


def decode(text: str, source: str, type_: type[T], *, kind: str, api_versions: Sequence[str]) -> tuple[T, Document]:
    """The one document in `text` as `type_`, whose fields are all that it may have beside kind and apiVersion."""
    document = Document(source, text)
    try:
        raw = yaml_text.load(text, depth_max=_DEPTH_MAX, nodes_max=_NODES_MAX)
    except yaml_text.YamlError as error:
        where = f"{source}, line {error.line}" if error.line else source
        raise SettingsError(f"{where}: not valid YAML: {error}") from error
    if not isinstance(raw, dict):
        raise SettingsError(f"{source}: holds no {kind}; it must be a mapping with apiVersion, kind and the settings")
    if raw.get("kind") != kind:
        document.refuse(["kind"], f"{raw.get('kind')!r:.80} is not {kind}")
    if raw.get("apiVersion") not in api_versions:
        document.refuse(["apiVersion"], f"{raw.get('apiVersion')!r:.80} is not {' or '.join(api_versions)}")
    body = {key: value for key, value in raw.items() if key not in ("kind", "apiVersion", "metadata")}
    try:
        return msgspec.convert(body, type_), document
    except msgspec.ValidationError as error:
        found = _AT.match(str(error))
        assert found is not None
        path: list[Step] = [
            name or (int(index) if index.isdigit() else 0) for name, index in _STEP.findall(found["path"] or "")
        ]
        what = found["what"]
        if unknown := _UNKNOWN.match(what):
            document.refuse([*path, unknown[1]], "there is no such field, or it is not supported here")
        document.refuse(path, what)
