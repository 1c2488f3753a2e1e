"""JSON merge patch (RFC 7386): objects merge, null removes, everything else replaces.

Pure; neither argument is changed, and the result shares nothing with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.objects.patch.common import check_depth, clone
from muster.objects.status import BadRequest, Raw, shown


def apply_merge_patch(doc: Mapping[str, Any], patch: Any) -> Raw:
    """`doc` with `patch` merged in. BadRequest when `patch` is no object, or nested too deeply."""
    if not isinstance(patch, dict):
        raise BadRequest(f"a merge patch for an object must be an object itself, not {shown(patch)}")
    check_depth(patch, "the merge patch")
    result: Raw = clone(dict(doc))
    _merge(result, patch)
    return result


def _merge(target: Raw, patch: Raw) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            inner = target.get(key)
            if not isinstance(inner, dict):
                inner = target[key] = {}
            _merge(inner, value)
        else:
            target[key] = clone(value)
