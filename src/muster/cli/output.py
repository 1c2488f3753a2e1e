"""What a command prints: objects as JSON, YAML or names, rows as an aligned table.

stdout carries the result and nothing else; notes, warnings and errors go to stderr. Tables are plain text that `awk` can
take apart: columns stand three blanks apart, a missing value is `<none>`. Pure, apart from `emit`.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from muster.objects import yaml_text
from muster.objects.resources import Resource
from muster.objects.status import Raw

FORMATS = ("table", "wide", "json", "yaml", "name")
CELL_WIDTH_MAX = 2000


def emit(text: str) -> None:
    """Write `text`, whole, to stdout. A large text into a pipe may take several writes, which an unbuffered stream
    (PYTHONUNBUFFERED) leaves to its caller."""
    data = memoryview((text if text.endswith("\n") else text + "\n").encode("utf-8", "backslashreplace"))
    sys.stdout.flush()
    while data:
        data = data[sys.stdout.buffer.write(data) :]
    sys.stdout.buffer.flush()


def to_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def render_value(value: Any, output: str) -> str:
    """`value` in a machine's format; `output` is `json` or `yaml`."""
    return to_json(value) if output == "json" else yaml_text.dump(value)


def without_managed_fields(obj: Raw) -> Raw:
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict) or "managedFields" not in metadata:
        return obj
    return obj | {"metadata": {k: v for k, v in metadata.items() if k != "managedFields"}}


def as_list(items: Sequence[Raw]) -> Raw:
    """Several objects as the one `List` that kubectl prints and reads back."""
    return {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": list(items)}


def qualified_name(resource: Resource, name: str) -> str:
    """`pod/a`, `kusciajob.kuscia.secretflow/a`: a name that `get`, `describe` and `delete` take back."""
    singular = resource.singular or resource.kind.lower()
    return f"{singular}.{resource.group}/{name}" if resource.group else f"{singular}/{name}"


class TableColumn(msgspec.Struct, frozen=True):
    """`priority` above 0 shows only with `-o wide`."""

    name: str
    priority: int = 0


class Table(msgspec.Struct):
    """Rows beside the metadata of the object that each row shows."""

    columns: list[TableColumn]
    rows: list[list[Any]]
    metadata: list[Raw] = []

    @classmethod
    def from_wire(cls, raw: Raw) -> Table:
        """Read a `meta.k8s.io` Table. Watch events after the first may come without column definitions."""
        columns = [TableColumn(str(c.get("name", "")), int(c.get("priority") or 0)) for c in raw.get("columnDefinitions") or []]
        rows, metadata = [], []
        for row in raw.get("rows") or []:
            rows.append(list(row.get("cells") or []))
            metadata.append((row.get("object") or {}).get("metadata") or {})
        return cls(columns, rows, metadata)


class Layout:
    """Turns rows into lines. Keeps the widths it has seen, so that the rows of a watch stay in line."""

    def __init__(self, *, wide: bool = False, headers: bool = True, namespaces: bool = False, labels: bool = False) -> None:
        self._wide = wide
        self._headers = headers
        self._namespaces = namespaces
        self._labels = labels
        self._columns: list[TableColumn] = []
        self._widths: list[int] = []

    def lines(self, table: Table, name_prefix: str = "") -> list[str]:
        """The lines for `table`, headers first if its columns are new."""
        fresh = bool(table.columns) and table.columns != self._columns
        if fresh:
            self._columns, self._widths = table.columns, []
        shown = [i for i, c in enumerate(self._columns) if self._wide or c.priority == 0]
        body = [self._cells(row, meta, shown, name_prefix) for row, meta in zip(table.rows, self._metadata(table), strict=True)]
        head = self._header(shown)
        for cells in ([head] if self._headers else []) + body:
            self._widths += [0] * (len(cells) - len(self._widths))
            self._widths = [max(w, width_of(c)) for w, c in zip(self._widths, cells, strict=False)]
        return [self._join(cells) for cells in ([head] if fresh and self._headers else []) + body]

    @staticmethod
    def _metadata(table: Table) -> list[Raw]:
        return table.metadata or [{} for _ in table.rows]

    def _header(self, shown: Sequence[int]) -> list[str]:
        names = [self._columns[i].name.upper() for i in shown]
        return (["NAMESPACE"] if self._namespaces else []) + names + (["LABELS"] if self._labels else [])

    def _cells(self, row: Sequence[Any], meta: Raw, shown: Sequence[int], name_prefix: str) -> list[str]:
        cells = [cell_text(row[i]) if i < len(row) else "<none>" for i in shown]
        if cells and name_prefix:
            cells[0] = name_prefix + cells[0]
        if self._namespaces:
            cells.insert(0, cell_text(meta.get("namespace")))
        if self._labels:
            cells.append(",".join(f"{k}={v}" for k, v in sorted((meta.get("labels") or {}).items())) or "<none>")
        return cells

    def _join(self, cells: Sequence[str]) -> str:
        padded = [c + " " * (w - width_of(c)) for c, w in zip(cells, self._widths, strict=False)]
        return "   ".join(padded).rstrip()


def cell_text(value: Any) -> str:
    """One cell on one line; control characters (a name in a terminal must not move its cursor) are dropped."""
    if value is None or value == "":
        return "<none>"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(cell_text(v) for v in value) or "<none>"
    text = to_compact(value) if isinstance(value, dict) else str(value)
    text = "".join(c for c in text.replace("\n", " ") if c.isprintable())
    return text if len(text) <= CELL_WIDTH_MAX else text[: CELL_WIDTH_MAX - 1] + "…"


def to_compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def width_of(text: str) -> int:
    """Columns that `text` takes in a terminal; Chinese and other wide characters take two."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def simple_table(headers: Sequence[str], rows: Iterable[Sequence[Any]], *, with_headers: bool = True) -> str:
    """A table without objects behind it."""
    table = Table([TableColumn(h) for h in headers], [list(r) for r in rows])
    return "\n".join(Layout(headers=with_headers).lines(table))


def print_objects(items: Sequence[Raw], output: str, *, single: bool, show_managed: bool = False) -> None:
    """`items` as JSON or YAML: the object itself when exactly one was asked for by name, otherwise a List."""
    shown = list(items) if show_managed else [without_managed_fields(i) for i in items]
    emit(render_value(shown[0] if single and len(shown) == 1 else as_list(shown), output))
