"""Tables: the rows that `kubectl get` prints, made on the server as Kubernetes does.

A kind has a `Printer`: column headers, and one function from an object to its cells. Kinds that kubectl users know by heart
have their own in `printers`; all others get theirs from the printer columns of the resource.

Pure; the present instant is handed in, for ages. A cell that can't be computed reads `<invalid>`: whatever is stored, a table
always comes out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from muster.objects import jsonpath
from muster.objects.ages import INVALID, UNKNOWN, since
from muster.objects.resources import Column, Conversion, Resource
from muster.objects.status import Raw
from muster.server.cells import Printer
from muster.server.printers import PRINTERS

CELL_LEN_MAX = 4_096
MATCHES_MAX = 100
"""A column's path may match anything any number of times; a cell shows the beginning of it."""

_NAME_COLUMN: Raw = {
    "name": "Name",
    "type": "string",
    "format": "name",
    "description": "The object's name, unique in its namespace",
    "priority": 0,
}


def table(
    resource: Resource,
    raws: Iterable[Raw],
    now: float,
    *,
    version: str = "v1",
    include: str = "Metadata",
    list_meta: Mapping[str, Any] | None = None,
    with_columns: bool = True,
) -> Raw:
    """A `meta.k8s.io` Table. `include` is what each row carries: None, Metadata or Object."""
    printer = printer_for(resource)
    api_version = f"meta.k8s.io/{version}"
    return {
        "kind": "Table",
        "apiVersion": api_version,
        "metadata": dict(list_meta or {}),
        "columnDefinitions": _definitions(printer) if with_columns else [],
        "rows": [_row(printer, raw, now, include, api_version) for raw in raws],
    }


def printer_for(resource: Resource) -> Printer:
    conversion = resource.conversion
    if conversion is not None:
        return _converting(conversion, resource.kind, resource.columns)
    own = PRINTERS.get((resource.group, resource.kind))
    return own if own is not None else _generic(resource.columns)


@functools.lru_cache(maxsize=64)
def _converting(conversion: Conversion, kind: str, columns: tuple[Column, ...]) -> Printer:
    """Of objects in another version than they are kept in: a table shows the same of them in every version."""
    own = PRINTERS.get((conversion.stored_group, kind))
    if own is None:
        return _generic(columns)
    return Printer(own.columns, lambda raw, now: own.cells(conversion.to_stored(raw), now), names_itself=own.names_itself)


def partial_metadata(raw: Raw, api_version: str = "meta.k8s.io/v1") -> Raw:
    return {"kind": "PartialObjectMetadata", "apiVersion": api_version, "metadata": raw.get("metadata", {})}


def _row(printer: Printer, raw: Raw, now: float, include: str, api_version: str) -> Raw:
    metadata = raw.get("metadata")
    name = metadata.get("name", "") if isinstance(metadata, dict) else ""
    try:
        cells = list(printer.cells(raw, now))
    except Exception:  # noqa: BLE001 - stored objects may have any shape, and one must not hide the others
        cells = [INVALID] * len(printer.columns)
    row: Raw = {"cells": cells if printer.names_itself else [name, *cells]}
    if include == "Object":
        row["object"] = raw
    elif include != "None":
        row["object"] = partial_metadata(raw, api_version)
    return row


def _definitions(printer: Printer) -> list[Raw]:
    own = [_definition(column) for column in printer.columns]
    return own if printer.names_itself else [_NAME_COLUMN, *own]


def _definition(column: Column) -> Raw:
    # Ages are computed here, so to the client they are text.
    shown = "string" if column.type == "date" else column.type
    return {
        "name": column.name,
        "type": shown,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    }


# --- columns given by JSONPath


@functools.lru_cache(maxsize=1024)
def _generic(columns: tuple[Column, ...]) -> Printer:
    shown = columns or (Column(name="Age", path=".metadata.creationTimestamp", type="date"),)
    getters = [_getter(column) for column in shown]
    return Printer(shown, lambda raw, now: [get(raw, now) for get in getters])


def _getter(column: Column) -> Callable[[Raw, float], Any]:
    try:
        path = jsonpath.compile(column.path)
    except ValueError:
        return lambda raw, now: INVALID
    convert = _CONVERTERS.get(column.type, _as_text)

    def get(raw: Raw, now: float) -> Any:
        try:
            found = path.find(raw)
            if not found:
                return None if column.type != "date" else UNKNOWN
            return convert(found[0] if len(found) == 1 else found[:MATCHES_MAX], now)
        except Exception:  # noqa: BLE001 - one cell must never break a table
            return INVALID

    return get


def _as_text(value: Any, now: float) -> Any:
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return msgspec.json.encode(value).decode()[:CELL_LEN_MAX]


def _as_integer(value: Any, now: float) -> Any:
    return value if isinstance(value, int) and not isinstance(value, bool) else int(value)


def _as_number(value: Any, now: float) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else float(value)


def _as_boolean(value: Any, now: float) -> Any:
    return value if isinstance(value, bool) else str(value).lower() == "true"


def _as_age(value: Any, now: float) -> Any:
    return since(value, now)


_CONVERTERS: Mapping[str, Callable[[Any, float], Any]] = {
    "integer": _as_integer,
    "number": _as_number,
    "boolean": _as_boolean,
    "date": _as_age,
}
