"""What is asked of the agent's endpoint: paths and parameters, read and checked. Pure; `BadQuery` names the parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from muster.agent.contracts import ExecWant, LogQuery, StreamTarget
from muster.objects.time import parse_time

WORDS_MAX: Final = 1000
COMMAND_BYTES_MAX: Final = 64 * 1024
PORTS_MAX: Final = 32
_SHOWN: Final = 40


class BadQuery(Exception):
    pass


class Query(Protocol):
    """Parameters, of which some stand there several times."""

    def get(self, name: str, default: str, /) -> str: ...

    def getall(self, name: str, default: Sequence[str], /) -> Sequence[str]: ...


def read_query(path: Mapping[str, str], query: Mapping[str, str], now: float) -> LogQuery:
    if query.get("sinceTime") and query.get("sinceSeconds"):
        raise BadQuery("sinceTime and sinceSeconds: give one of them")
    since = None
    if text := query.get("sinceTime", ""):
        try:
            since = parse_time(text)
        except ValueError as error:
            raise BadQuery(f"sinceTime: {error}") from error
    if (seconds := _number(query, "sinceSeconds", 1)) is not None:
        since = now - seconds
    return LogQuery(
        namespace=path["namespace"],
        pod=path["pod"],
        container=path["container"],
        uid=query.get("uid", ""),
        previous=_flag("previous", query.get("previous", "")),
        follow=_flag("follow", query.get("follow", "")),
        tail_lines=_number(query, "tailLines", 0),
        since=since,
        timestamps=_flag("timestamps", query.get("timestamps", "")),
        limit_bytes=_number(query, "limitBytes", 1),
    )


class ExecAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A command, and which of its streams the one who asks wants to hear."""

    target: StreamTarget
    want: ExecWant
    has_stdout: bool
    has_stderr: bool


def read_exec(path: Mapping[str, str], query: Query) -> ExecAsk:
    argv = tuple(query.getall("command", ()))
    if not argv or not argv[0]:
        raise BadQuery("command: there is none to run")
    if len(argv) > WORDS_MAX:
        raise BadQuery(f"command: {len(argv)} words; there may be {WORDS_MAX}")
    if (size := sum(len(word.encode("utf-8", "surrogateescape")) for word in argv)) > COMMAND_BYTES_MAX:
        raise BadQuery(f"command: {size} bytes; there may be {COMMAND_BYTES_MAX}")
    if any("\x00" in word for word in argv):
        raise BadQuery("command: a word of it has a null byte")
    has_stdin, has_stdout, has_stderr, has_tty = (
        _flag(name, query.get(name, "")) for name in ("input", "output", "error", "tty")
    )
    if not (has_stdin or has_stdout or has_stderr):
        raise BadQuery("input, output, error: ask for one of them at least")
    return ExecAsk(
        target=_target(path, query),
        want=ExecWant(argv=argv, has_stdin=has_stdin, has_tty=has_tty),
        has_stdout=has_stdout,
        has_stderr=has_stderr and not has_tty,
    )


def read_ports(path: Mapping[str, str], query: Query) -> tuple[StreamTarget, tuple[int, ...]]:
    """The pod, and the ports where some are given: `ports=80,443` and `ports=80&ports=443` are the same."""
    given = query.getall("ports", ())
    if any(len(text) > 6 * PORTS_MAX for text in given):
        raise BadQuery(f"ports: too long; there may be {PORTS_MAX}")
    words = [word for text in given if text for word in text.split(",")]
    if len(words) > PORTS_MAX:
        raise BadQuery(f"ports: {len(words)} of them; there may be {PORTS_MAX}")
    return _target(path, query), tuple(read_port("ports", word) for word in words)


def read_port(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 5 or not 0 < int(text) < 2**16:
        raise BadQuery(f"{name}: {text[:_SHOWN]!r} is no port from 1 to 65535")
    return int(text)


def _target(path: Mapping[str, str], query: Query) -> StreamTarget:
    return StreamTarget(
        namespace=path["namespace"], pod=path["pod"], container=path.get("container", ""), uid=query.get("uid", "")
    )


def _flag(name: str, text: str) -> bool:
    if text.lower() in ("true", "1", "t"):
        return True
    if text.lower() in ("false", "0", "f", ""):
        return False
    raise BadQuery(f"{name}: {text[:_SHOWN]!r} is neither true nor false")


def _number(query: Mapping[str, str], name: str, least: int) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < least:
        raise BadQuery(f"{name}: {text[:_SHOWN]!r} is no whole number from {least} on")
    return int(text)
