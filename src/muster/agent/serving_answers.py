"""Plain answers of the agent's endpoint: a code and one sentence."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from muster.agent.contracts import AgentError

_CODES: Final = {"NotFound": 404, "BadRequest": 400, "NotSupported": 501, "Unavailable": 503}


def error_code(error: AgentError) -> int:
    return _CODES.get(error.reason, 500)


def text(code: int, sentence: str) -> web.Response:
    return web.Response(status=code, text=sentence + "\n")
