"""What Muster's own questions to the scheduler have in common: who may ask, how a question is read, what is answered.

For `explaining`, `forecasting` and `queueing`, on the event loop that the scheduler also uses. A body is at most
BODY_BYTES_MAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from muster.engine.machine import Engine
from muster.objects.status import BadRequest, NotFound, Raw, RequestEntityTooLarge, ServiceUnavailable
from muster.server.authorization import Authorizer, forbidden
from muster.server.decoding import decode_json
from muster.server.rbac import Attributes
from muster.store.embedded.admission import Actor

BODY_BYTES_MAX: Final = 128 * 1024
_DEPTH_MAX: Final = 100
KINDS: Final = {"Job": ("muster.dev", "jobs"), "KusciaTask": ("kuscia.secretflow", "kusciatasks")}
"""What waits in queues by a name of its own: the group and plural of each kind. Of all else the pods do."""


def require(request: Request, asked: Attributes) -> None:
    """Forbidden unless whoever asks may do this."""
    actor: Actor = request.scope["muster.actor"]
    authorizer: Authorizer = request.scope["muster.authorizer"]
    if not authorizer.decide(actor.user, actor.groups, asked).allowed:
        raise forbidden(actor.user, asked)


class Sight:
    """What one caller may see of the work of others; asked once for each namespace and kind, and then by name."""

    def __init__(self, request: Request) -> None:
        self._actor: Actor = request.scope["muster.actor"]
        self._authorizer: Authorizer = request.scope["muster.authorizer"]
        self._known: dict[tuple[str, str], bool] = {}

    @property
    def user(self) -> str:
        return self._actor.user

    def sees(self, work: str) -> bool:
        """By `Kind/namespace/name`. Who may not see all of a namespace may still see what is their own there."""
        kind, _, rest = work.partition("/")
        namespace, _, name = rest.partition("/")
        key = kind, namespace
        if not name:
            return False
        if key not in self._known:
            self._known[key] = self._allows(kind, namespace)
        return self._known[key] or self._allows(kind, namespace, name)

    def sees_units(self, job_of: Callable[[str], str]) -> Callable[[str], bool]:
        """The same for ids of the engine's units, which are seen as the jobs that they are of."""
        return lambda unit: self.sees(job_of(unit) or unit)

    def _allows(self, kind: str, namespace: str, name: str = "") -> bool:
        group, plural = KINDS.get(kind, ("", "pods"))
        asked = Attributes(verb="get", group=group, resource=plural, namespace=namespace, name=name)
        return self._authorizer.decide(self._actor.user, self._actor.groups, asked).allowed


def work_asked(request: Request) -> str:
    """The key of the work that the path names, with `?kind=` for its kind. Forbidden unless whoever asks may get it."""
    kind = request.query_params.get("kind", "Job")
    if kind not in KINDS:
        raise BadRequest(f"kind: {kind!r:.100} does not wait in queues; write one of {', '.join(KINDS)}")
    namespace, name = request.path_params["namespace"], request.path_params["name"]
    group, plural = KINDS[kind]
    require(request, Attributes(verb="get", group=group, resource=plural, namespace=namespace, name=name))
    return f"{kind}/{namespace}/{name}"


def unknown_work(key: str) -> NotFound:
    return NotFound(f"{key}: the scheduler knows no pod of it; check the name, or whether its pods were created yet")


def running(engine: Callable[[], Engine | None]) -> Engine:
    """The scheduler's engine; ServiceUnavailable while it does not run."""
    found = engine()
    if found is None:
        raise ServiceUnavailable("the scheduler does not run here, or not yet; try again", retry_after_s=1)
    return found


def number_asked(request: Request, name: str, default: int, max_: int) -> int:
    """A parameter that is a whole number from 0 to `max_`."""
    text = request.query_params.get(name, str(default))
    if len(text) > len(str(max_)) or not text.isascii() or not text.isdecimal() or int(text) > max_:
        raise BadRequest(f"{name}: {text!r:.50} is not a whole number from 0 to {max_}")
    return int(text)


async def read_body(request: Request) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > BODY_BYTES_MAX:
            raise RequestEntityTooLarge(f"the body is larger than {BODY_BYTES_MAX} bytes; ask about less at once")
        parts.append(chunk)
    return b"".join(parts)


def object_of(body: bytes) -> dict[str, Any]:
    found = decode_json(body, depth_max=_DEPTH_MAX)
    if not isinstance(found, dict):
        raise BadRequest("the body must be a JSON object: a manifest, or {'key': 'KIND/NAMESPACE/NAME'}")
    return found


def answer_json(body: Raw) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
