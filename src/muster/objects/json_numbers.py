"""Numbers in JSON that take a thousand times as long to read as others, and how many of them a text may have.

msgspec is quick for all numbers but those near the ends of what a double can hold, such as 1e308: some microseconds each, so
that a few megabytes of them would keep a server for seconds. Nobody's manifest has them; so a text with many is refused where
it comes in, and is never stored. Pure.
"""

from __future__ import annotations

import re

EXTREME_MAX = 200
"""As many as this are read in a millisecond or two."""
_UNSEEN_BYTES = 2048
"""A text this small has not room for enough of them to matter."""
_LIKE_ONE = re.compile(rb"[0-9][eE][+-]?[0-9]{3}")
_ONE = re.compile(rb"[\[,:\s]-?[0-9][0-9.]*[eE][+-]?[0-9]{3}")


def has_many_extremes(text: bytes | bytearray) -> bool:
    """Whether more than EXTREME_MAX numbers have an exponent of three digits. A string that holds JSON counts as JSON."""
    if len(text) <= _UNSEEN_BYTES:
        return False
    # Digests and keys have something like it by chance, so what looks so is looked at again.
    return _is_found_often(_LIKE_ONE, text) and _is_found_often(_ONE, text)


def _is_found_often(pattern: re.Pattern[bytes], text: bytes | bytearray) -> bool:
    return any(number >= EXTREME_MAX for number, _ in enumerate(pattern.finditer(text)))
