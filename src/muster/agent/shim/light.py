"""The little of Python's larger modules that shims need. Standard library only, and of that its modules of C.

A shim and its child are forks of the zygote: whatever memory that has is mapped for them and unmapped again, and every page
that they touch is copied. `socket`, `signal`, `json`, `contextlib` and `typing` would bring enumerations, regular expressions
and twice the memory; what lies below them is enough. So modules that run in a shim import those only for types.
"""

from __future__ import annotations

import _json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any
else:
    import _signal as signal

__all__ = ["decode", "encode", "ignoring", "signal"]


class ignoring:
    """As `contextlib.suppress`."""

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, self._kinds)


class _Plain:
    """How JSON is read: no hooks, and no control characters in texts."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


_scan = _json.make_scanner(_Plain)  # type: ignore[arg-type]
_quoted = _json.encode_basestring_ascii


def decode(data: bytes) -> Any:
    """JSON that one of ours has written: it begins with its value. ValueError."""
    try:
        return _scan(data.decode(), 0)[0]
    except StopIteration as e:
        raise ValueError("broken JSON") from e


def encode(value: object) -> bytes:
    """JSON of dictionaries, lists, texts, numbers, True, False and None."""
    return _text(value).encode()


def _text(value: object) -> str:
    if isinstance(value, str):
        return str(_quoted(value))
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ",".join([f"{_quoted(name)}:{_text(one)}" for name, one in value.items()]) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([_text(one) for one in value]) + "]"
    raise TypeError(f"{type(value).__name__} has no JSON here")
