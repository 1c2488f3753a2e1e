"""Which objects a command line names: `pods`, `pods,svc`, `pod a b`, `pod/a job/b`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from muster.cli.errors import UsageError


class Reference(msgspec.Struct, frozen=True):
    """A kind as the user wrote it, and the names asked for; no names means all objects of the kind."""

    word: str
    names: tuple[str, ...] = ()


def parse_references(args: Sequence[str], *, example: str) -> list[Reference]:
    """`example` is a right command line, for the messages. Raises UsageError."""
    if not args:
        raise UsageError(f"name a kind, for example: {example}")
    if any("/" in arg for arg in args):
        return _with_slashes(args, example)
    words = args[0].split(",")
    if any(not word for word in words):
        raise UsageError(f"'{args[0]}' holds an empty kind; write kinds as in: {example}")
    names = tuple(dict.fromkeys(args[1:]))
    if any(not name for name in names):
        raise UsageError(f"a name is empty; for all objects of a kind leave the name away: {example}")
    return [Reference(word, names) for word in dict.fromkeys(words)]


def _with_slashes(args: Sequence[str], example: str) -> list[Reference]:
    found: dict[str, list[str]] = {}
    for arg in args:
        word, slash, name = arg.partition("/")
        if not slash:
            raise UsageError(
                f"'{arg}' stands beside KIND/NAME arguments and is neither; write all as KIND/NAME, or as in: {example}"
            )
        if not word or not name or "/" in name or "," in word:
            raise UsageError(f"'{arg}' is not of the form KIND/NAME, for example pod/web-1")
        if name not in found.setdefault(word, []):
            found[word].append(name)
    return [Reference(word, tuple(names)) for word, names in found.items()]
