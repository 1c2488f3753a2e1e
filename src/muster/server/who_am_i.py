"""Muster's own API for who one is: `GET /muster/v1/people/me`.

The User whose login the caller has, the groups above it, and whom it administers. Lists of one's own work must say whose they
are (`user_access`), so a client has to know this before it can ask for one.

Everybody who is authenticated may ask; the answer is about the caller and about accounts that it may `get` anyway.

Concurrency: on the event loop, from the picture in memory. Pure but for that.
"""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from muster.objects.status import Raw
from muster.server.people import People
from muster.store.embedded.admission import Actor

PATH: Final = "/muster/v1/people/me"
NAMES_MAX: Final = 10_000


class WhoAmI:
    """See the module."""

    def __init__(self, people: People) -> None:
        self._people = people

    def routes(self) -> list[BaseRoute]:
        return [Route(PATH, self._me, methods=["GET"])]

    async def _me(self, request: Request) -> Response:
        actor: Actor = request.scope["muster.actor"]
        return Response(msgspec.json.encode(self.answer(actor.user)), media_type="application/json")

    def answer(self, login: str) -> Raw:
        people = self._people
        me = people.user_of(login)
        below = sorted(people.administered(me)) if me else []
        users = [name for kind, name in below if kind == "User"]
        groups = [name for kind, name in below if kind == "UserGroup"]
        return {
            "login": login,
            "user": me,
            "groups": people.groups_of(me) if me else [],
            "administers": {"users": users[:NAMES_MAX], "groups": groups[:NAMES_MAX]},
        }
