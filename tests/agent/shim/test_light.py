"""The small stand-ins for larger modules: they read and write the same JSON, and the larger ones stay out of the zygote."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import muster
from muster.agent.shim import light

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_json_is_the_same_as_everybody_elses(value: object) -> None:
    assert json.loads(light.encode(value)) == value
    assert light.decode(json.dumps(value).encode()) == value


@pytest.mark.parametrize("data", [b"", b"{", b'{"a": ', b"nonsense", b'"\xff"', b"\0\0\0"])
def test_what_is_broken_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of which kind does not matter
        light.decode(data)


def test_what_has_no_json_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes has no JSON"):
        light.encode({"a": b"x"})


def test_only_what_is_named_is_ignored() -> None:
    with light.ignoring(FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError
    with pytest.raises(PermissionError), light.ignoring(FileNotFoundError):
        raise PermissionError


def test_the_zygote_has_none_of_the_large_modules() -> None:
    """Every shim and every container's first process pays for what the zygote has imported."""
    package = Path(muster.__file__).resolve().parents[1]
    script = f"import sys; sys.path.insert(0, {str(package)!r}); import muster.agent.shim.zygote; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    assert "muster.agent.shim.shim" in found
    large = {
        "typing",
        "enum",
        "re",
        "json",
        "socket",
        "signal",
        "contextlib",
        "functools",
        "collections",
        "subprocess",
        "msgspec",
    }
    assert found & large == set()
