"""What the tests of field ownership share: a small kind, and apply and update with their standing checks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.objects.patch.strategies import SCHEMA

from muster.objects.patch import apply_server_side, track_update
from muster.objects.patch.fieldset import path_text, paths
from muster.objects.status import Conflict, Raw

NOW = 1e9
LATER = 2e9


def thing(spec: Raw | None = None, **metadata: Any) -> Raw:
    raw: Raw = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "thing", **metadata}}
    if spec is not None:
        raw["spec"] = spec
    return raw


def apply(
    live: Raw | None, config: Raw, manager: str = "me", *, force: bool = False, now: float = NOW, schema: Any = SCHEMA
) -> Raw:
    """Applies, and checks that no argument changed and that applying again changes nothing."""
    before = copy.deepcopy((live, config))
    result = apply_server_side(live, config, manager, schema, now, force)
    assert (live, config) == before
    assert apply_server_side(result, config, manager, schema, now + 100, force) == result
    return result


def update(
    old: Raw | None, new: Raw, manager: str = "editor", *, now: float = NOW, subresource: str = "", schema: Any = SCHEMA
) -> Raw:
    before = copy.deepcopy((old, new))
    result = track_update(old, new, manager, schema, now, subresource)
    assert (old, new) == before
    return result


def owned(raw: Raw) -> dict[str, set[str]]:
    """Who owns what, as `manager/Operation[/subresource]` and paths."""
    found = {}
    for entry in raw["metadata"].get("managedFields", []):
        assert entry["fieldsType"] == "FieldsV1"
        name = "/".join(filter(None, [entry["manager"], entry["operation"], entry.get("subresource", "")]))
        assert name not in found
        found[name] = {path_text(path) for path in paths(entry["fieldsV1"])}
    return found


def conflicts(caught: pytest.ExceptionInfo[Conflict]) -> dict[str, str]:
    assert {cause.reason for cause in caught.value.causes} == {"FieldManagerConflict"}
    return {cause.field: cause.message for cause in caught.value.causes}
