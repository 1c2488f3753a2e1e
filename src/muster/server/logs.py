"""Logging: one JSON object per line on standard error, or plain text where that is a terminal, through structlog; the
libraries' own log records join it.

Call `setup` once where a process starts. Modules take their logger with `logger(__name__)`; without `setup` (in tests, or
when imported as a library) the same calls go to the standard library's logging and its handlers.

Never logged: bodies, tokens, keys.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import msgspec
import structlog

_encoder = msgspec.json.Encoder(enc_hook=str)
_SHARED: list[structlog.typing.Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
    structlog.processors.format_exc_info,
]


def _through_standard_logging(final: structlog.typing.Processor) -> None:
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *_SHARED, final],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def setup(level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send everything at `level` and above to `stream` (standard error): as JSON lines, or as text where somebody reads along.
    A later call replaces the earlier."""
    _through_standard_logging(structlog.stdlib.ProcessorFormatter.wrap_for_formatter)
    handler = logging.StreamHandler(stream or sys.stderr)
    render = _render_plain if handler.stream.isatty() else _render
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("uvicorn", "asyncio", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def logger(name: str) -> structlog.stdlib.BoundLogger:
    bound: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return bound


def _render(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    event["message"] = event.pop("event", "")
    return _encoder.encode(event).decode()


def _render_plain(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    """`warning: what happened (key=value)`; a trace stands below."""
    message, level = event.pop("event", ""), event.pop("level", "info")
    trace = "".join(f"\n{event.pop(key)}" for key in ("exception", "stack") if key in event)
    for key in ("timestamp", "logger"):
        event.pop(key, None)
    more = f" ({', '.join(f'{key}={value}' for key, value in event.items())})" if event else ""
    return f"{level}: {message}{more}{trace}"


if not structlog.is_configured():
    # structlog's own default prints to standard output, which belongs to the command line.
    _through_standard_logging(structlog.stdlib.render_to_log_kwargs)
