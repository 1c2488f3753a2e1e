"""How a command fails: one line on stderr and an exit code that a script can rely on.

Commands raise `CliError`, or let an `ApiError` pass; `muster.cli.main` is the only place that turns either into text and a
code. Pure: nothing here prints.
"""

from __future__ import annotations

import enum

from muster.objects import status

MESSAGE_LEN_MAX = 4000


class ExitCode(enum.IntEnum):
    """Every code that `muster` ends with. `docs/cli.md` lists them; a test compares."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    FORBIDDEN = 5
    CONFLICT = 6
    TIMEOUT = 7
    JOB_ENDED = 8
    NOT_ENDED = 124
    INTERRUPTED = 130
    PIPE_CLOSED = 141

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.FAILURE: "the operation failed, or part of it did",
    ExitCode.USAGE: "the command line is wrong; nothing was tried",
    ExitCode.UNREACHABLE: "no kubeconfig, or the server cannot be reached",
    ExitCode.NOT_FOUND: "the object, kind or data directory does not exist",
    ExitCode.FORBIDDEN: "the server refused the credentials, the user lacks a permission, or a policy forbids the object",
    ExitCode.CONFLICT: "the object exists already, changed meanwhile, or another field manager owns a field",
    ExitCode.TIMEOUT: "the time allowed ran out; the operation may still complete",
    ExitCode.JOB_ENDED: "the job that was waited for was stopped or cancelled, or a party rejected it",
    ExitCode.NOT_ENDED: "the job that was waited for had not ended when the time allowed ran out; it goes on",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
    ExitCode.PIPE_CLOSED: "the reader of the output went away, as in `muster get pods | head -1`",
}


class CliError(Exception):
    """A failure whose message is already fit for the user: it names the object, the field, the value and the way out."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILURE) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class UsageError(CliError):
    """The arguments contradict each other in a way that the option parser cannot see."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.USAGE)


_API_CODES: tuple[tuple[type[status.ApiError], ExitCode], ...] = (
    (status.NotFound, ExitCode.NOT_FOUND),
    (status.Unauthorized, ExitCode.FORBIDDEN),
    (status.Forbidden, ExitCode.FORBIDDEN),
    (status.Conflict, ExitCode.CONFLICT),
    (status.AlreadyExists, ExitCode.CONFLICT),
    (status.Timeout, ExitCode.TIMEOUT),
)


def exit_code_of(error: BaseException) -> ExitCode:
    if isinstance(error, CliError):
        return error.code
    if isinstance(error, status.ApiError):
        from muster.client.errors import BadResponse, Unreachable

        if isinstance(error, Unreachable | BadResponse):
            return ExitCode.UNREACHABLE
    for cls, code in _API_CODES:
        if isinstance(error, cls):
            return code
    return ExitCode.FAILURE


def one_line(text: str) -> str:
    """`text` without line breaks or other control characters, so that an error is one line whatever a server sent."""
    joined = " ".join(part.strip() for part in text.splitlines() if part.strip())
    clean = "".join(c if c.isprintable() else " " for c in joined)
    return clean if len(clean) <= MESSAGE_LEN_MAX else clean[: MESSAGE_LEN_MAX - 1] + "…"


def message_of(error: BaseException) -> str:
    """The one line for `error`. An ApiError's causes are added where its message does not already contain them."""
    if isinstance(error, CliError):
        return one_line(error.message)
    if isinstance(error, status.Unauthorized) and error.message == status.Unauthorized.reason:
        return (
            "the server refused the credentials; check the token or certificate in the kubeconfig, or choose another --context"
        )
    if isinstance(error, status.ApiError):
        missing = [f"{c.field}: {c.message}" if c.field else c.message for c in error.causes if c.message not in error.message]
        return one_line(f"{error.message}: {'; '.join(missing)}" if missing else error.message)
    if isinstance(error, OSError) and error.strerror:
        return one_line(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
    return one_line(f"internal error: {type(error).__name__}: {error} (this is a bug; --debug shows where)")
