"""JSON merge patch (RFC 7386): objects merge, null removes, everything else replaces.

Pure; neither argument is changed, and the result shares nothing with them, unless the caller says that it may.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.objects.patch.common import check_depth, clone
from muster.objects.status import BadRequest, Raw, shown


def apply_merge_patch(doc: Mapping[str, Any], patch: Any, *, is_shared: bool = False) -> Raw:
    """`doc` with `patch` merged in. BadRequest when `patch` is no object, or nested too deeply.

    `is_shared`: parts of `doc` that the patch does not touch may be part of the result, which spares copying them.
    """
    if not isinstance(patch, dict):
        raise BadRequest(f"a merge patch for an object must be an object itself, not {shown(patch)}")
    check_depth(patch, "the merge patch")
    return _merged(doc if is_shared else clone(dict(doc)), patch)


def _merged(target: Mapping[str, Any], patch: Raw) -> Raw:
    result = dict(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            inner = result.get(key)
            result[key] = _merged(inner if isinstance(inner, dict) else {}, value)
        else:
            result[key] = clone(value)
    return result
