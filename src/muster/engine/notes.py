"""Reading a document that a person wrote: take what is right, note all that is wrong with its path, and go on.

Every method returns a usable value, so that one mistake does not hide the next. Pure; one `Notes` per reading.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

ERRORS_MAX = 100
_SHOWN_LEN = 80


class Notes:
    def __init__(self) -> None:
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.left_out = 0
        """Errors past ERRORS_MAX, which are only counted."""

    def error(self, path: str, message: str) -> None:
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(f"{path}: {message}" if path else message)
        else:
            self.left_out += 1

    def warn(self, path: str, message: str) -> None:
        if len(self.warnings) < ERRORS_MAX:
            self.warnings.append(f"{path}: {message}" if path else message)

    def all_errors(self) -> tuple[str, ...]:
        more = (f"and {self.left_out} more errors",) if self.left_out else ()
        return (*self.errors, *more)

    def mapping(self, value: object, path: str) -> Mapping[str, Any]:
        """`value` as a mapping; null and absent are an empty one."""
        if value is None:
            return {}
        if isinstance(value, Mapping):
            strange = [key for key in value if not isinstance(key, str)]
            for key in strange:
                self.error(path, f"the key {shown(key)} must be text")
            return {k: v for k, v in value.items() if isinstance(k, str)} if strange else value
        self.error(path, f"must be a mapping, not {shown(value)}")
        return {}

    def sequence(self, value: object, path: str, length_max: int) -> Sequence[Any]:
        if value is None:
            return ()
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            self.error(path, f"must be a list, not {shown(value)}")
            return ()
        if len(value) > length_max:
            self.error(path, f"has {len(value)} entries; there may be {length_max}")
            return value[:length_max]
        return value

    def text(self, value: object, path: str, *, length_max: int = 253) -> str:
        """Text that is not empty; empty when it is wrong."""
        if not isinstance(value, str):
            self.error(path, f"must be text, not {shown(value)}" if value is not None else "is missing")
        elif not value or value != value.strip():
            self.error(path, f"must not be empty or begin or end with a space, as {shown(value)} does")
        elif len(value) > length_max:
            self.error(path, f"is {len(value)} characters long; {length_max} are allowed")
        else:
            return value
        return ""

    def boolean(self, value: object, path: str) -> bool:
        if value is not None and not isinstance(value, bool):
            self.error(path, f"must be true or false, not {shown(value)}")
        return value is True

    def known(self, value: Mapping[str, Any], path: str, names: Iterable[str]) -> None:
        """Say which members are none of `names`."""
        allowed = tuple(names)
        for key in value:
            if key not in allowed:
                near = difflib.get_close_matches(key[:_SHOWN_LEN], allowed, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(allowed)}"
                self.error(f"{path}.{key:.80}" if path else f"{key:.80}", f"is not known; {hint}")


def shown(value: object) -> str:
    """A value for a message: short whatever it is."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, int) and value.bit_length() > 256:
        return "a number of that size"  # Python refuses to write out very large ones
    text = repr(value)
    return text if len(text) <= _SHOWN_LEN else f"{text[:_SHOWN_LEN]}..."
