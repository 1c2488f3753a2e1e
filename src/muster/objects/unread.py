"""Fields of foreign kinds that nothing here reads: kept, because the kind is not ours to define, but worth a word.

Kuscia's and Koordinator's kinds keep unknown fields, so a newer version's fields survive; and so would a typing error, in
silence. `unread_fields` finds what no view knows, with the nearest name that one does know, for a warning to the writer.

Pure. The stricter schema is compiled once per view.
"""

from __future__ import annotations

import difflib
import functools
from typing import Any

from muster.objects.resources import Resource
from muster.objects.schema import schema_of
from muster.objects.status import Raw
from muster.objects.structural import Structural
from muster.objects.view import View

_KEEP = "x-kubernetes-preserve-unknown-fields"


def unread_fields(resource: Resource, raw: Raw) -> list[str]:
    """A sentence for each field of `raw` that is kept and that nothing reads; empty for kinds that do not keep any."""
    if resource.view is None or not resource.is_custom:
        return []
    _, unknown = _strict(resource.view).prune(raw)
    return [f'unknown field "{path}": kept, but nothing here reads it{_hint(resource.view, path)}' for path in unknown]


@functools.cache
def _strict(view: type[View]) -> Structural:
    return Structural(_without_keeping(schema_of(view)))


def _without_keeping(schema: Any) -> Any:
    """The schema as if every object with listed properties were closed. What is free by design has no list, and stays free."""
    if isinstance(schema, list):
        return [_without_keeping(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    is_listed = isinstance(schema.get("properties"), dict) and bool(schema["properties"])
    return {key: _without_keeping(value) for key, value in schema.items() if not (key == _KEEP and is_listed)}


def _hint(view: type[View], path: str) -> str:
    *parents, name = path.split(".")
    schema: Any = schema_of(view)
    for word in parents:
        field, _, index = word.partition("[")
        schema = schema.get("properties", {}).get(field, {})
        if index:
            schema = schema.get("items", {})
    near = difflib.get_close_matches(name, schema.get("properties", {}), n=1)
    return f'; did you mean "{near[0]}"?' if near else ""
