"""Every field of a view that holds a value, by its dotted path: `spec.tasks.parties.domainID`. Lists and maps add nothing to a
path, and a field that only holds other fields is not one. Pure.

Kubernetes' own structures (affinity, environment entries, what a probe does) are one field each: they go into the pod as they
are, and their inner fields are Kubernetes' to document.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from muster.objects.kinds.base import Native, Object
from muster.objects.view import View

_OBJECT_FIELDS = frozenset({"apiVersion", "kind", "metadata"})


def fields_of(view: type[Object]) -> list[str]:
    return list(_walk(view, ""))


def _walk(view: type[View], prefix: str) -> Iterator[str]:
    hints = typing.get_type_hints(view, include_extras=True)
    for field in msgspec.structs.fields(view):
        if not prefix and field.encode_name in _OBJECT_FIELDS:
            continue
        path = f"{prefix}{field.encode_name}"
        inner = list(_views(hints[field.name]))
        if not inner:
            yield path
        for one in inner:
            yield from _walk(one, f"{path}.")


def _views(hint: Any) -> Iterator[type[View]]:
    """The views that a value of this type may hold."""
    if isinstance(hint, type) and not typing.get_args(hint):
        if issubclass(hint, View) and not issubclass(hint, Native):
            yield hint
        return
    args = typing.get_args(hint)
    for arg in args[:1] if typing.get_origin(hint) is typing.Annotated else args:
        yield from _views(arg)
