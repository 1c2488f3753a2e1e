"""What is known so far about one request: for its turn, its audit events and the counters.

Concurrency: belongs to the one task that serves the request.
"""

from __future__ import annotations

import re
from typing import Final

from muster.server.audit_policy import Telling
from muster.server.authentication import JOIN_PATHS
from muster.server.exchange import Query, Scope
from muster.server.fair_queue import Ticket
from muster.server.paths import RequestInfo
from muster.server.priority import stranger
from muster.store.embedded.admission import Actor

_AUDIT_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""What a client may call its request; others are given an id."""
_NOWHERE: Final = RequestInfo(verb="", path="")


class Exchange:
    __slots__ = (
        "actor",
        "address",
        "annotations",
        "code",
        "headers",
        "id",
        "impersonator",
        "info",
        "is_fault",
        "is_long",
        "method",
        "notes",
        "only",
        "query",
        "reason",
        "received_s",
        "request_body",
        "response_body",
        "started_s",
        "target",
        "telling",
        "ticket",
        "whose",
    )

    def __init__(self, id_: str, scope: Scope, started_s: float, received_s: float) -> None:
        self.id = id_
        self.method: str = scope["method"]
        self.started_s = started_s
        self.received_s = received_s
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        self.target: str = scope["raw_path"].decode("latin-1")
        if scope["query_string"]:
            self.target += "?" + scope["query_string"].decode("latin-1")
        self.info = _NOWHERE
        self.query = Query(b"")
        self.actor: Actor | None = None
        self.impersonator: Actor | None = None
        self.code = 0
        self.reason = ""
        self.is_long = False
        client = scope.get("client")
        self.address: str = client[0] if client else ""
        self.whose = stranger(self.address)
        self.ticket: Ticket | None = None
        """The seat, from the moment at which it has one."""
        self.notes: dict[str, str] = {}
        """What a route adds to the audit line."""
        self.annotations: dict[str, str] = {}
        self.only = ""
        """A label selector, where the permission holds for no more than that."""
        self.telling: Telling | None = None
        """How much the audit log tells about it, once that is known."""
        self.request_body = self.response_body = b""
        """Kept only where the audit log tells them."""
        self.is_fault = False
        given = self.headers.get("audit-id", "")
        if given and _AUDIT_ID.fullmatch(given):
            self.id = given

    @property
    def user(self) -> str:
        return self.actor.user if self.actor is not None else ""

    @property
    def is_joining(self) -> bool:
        return JOIN_PATHS.get(self.info.path) == self.method
