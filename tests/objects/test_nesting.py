"""Depth told from brackets: never more generous than a walk through the value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.nesting import is_nested_within

_texts = st.text(alphabet='[]{}"\\ab\n', max_size=6)
_values = st.recursive(
    _texts | st.integers(0, 9) | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4),
    max_leaves=30,
)


def _depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


@given(_values, st.booleans())
def test_levels_are_counted_exactly(value: Any, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii).encode()
    for levels in range(12):
        assert is_nested_within(text, levels) == (_depth(value) <= levels)


@pytest.mark.parametrize(
    ("text", "levels", "expected"),
    [
        pytest.param(b"[" + b"[]," * 100 + b"{}]", 2, True, id="many, but not deep"),
        pytest.param(b"[" * 40 + b"]" * 40, 40, True, id="as many as levels"),
        pytest.param(b"[" + b"[]," * 50 + b"[" * 30 + b"]" * 31, 40, False, id="deep: left to others"),
        pytest.param(b'["[[[[[[", "\\\\", "\\"]]]"]', 1, True, id="brackets in strings"),
    ],
)
def test_what_is_many_is_not_deep(text: bytes, levels: int, expected: bool) -> None:
    assert is_nested_within(text, levels) is expected
