"""Muster's own API for the question when work will start, answered by the engine that decides, as it is now.

    GET  /muster/v1/jobs/{namespace}/{name}/eta     of work that waits; `?kind=KusciaTask` for others
    POST /muster/v1/eta                             of a manifest, `{"manifest": ..., "namespace": ...}`, if it were sent now

`gpus=N` (several times; in the body a list) asks what it would be with so many GPUs instead, other resources in proportion. The
answer is `{"items": [...]}`: first as it is, then the others, each with `start` (null where nothing can be said) and `gpus`.

Everybody who is authenticated may knock (role `system:basic-user`); then it takes `get` on the work, or `create` on jobs of the
namespace for a manifest; and where there are Users, `get` on the User and UserGroup that it names, as the answer tells of their
limits and past runs. Nothing is stored, nothing is decided.

Where the API server is a cluster's, a ScheduleExplanation with the annotation `muster.dev/eta` has this answer (`forecast`).

Concurrency: on the event loop that the scheduler also uses, between two of its steps. A question plays the line forward once
for each alternative, of which there are at most SIZES_MAX; each of them takes its turn (`turns`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from muster.controllers.job_work import job_work
from muster.engine.answer_values import Question
from muster.engine.facts import PodFacts
from muster.engine.hypothetical import ManifestError, works_of
from muster.engine.hypothetical import Work as Tried
from muster.engine.machine import Engine
from muster.engine.resources import requests_of
from muster.engine.work import Work, work_of
from muster.objects.bandwidth_demands import FindImage
from muster.objects.kinds.muster_jobs import Job
from muster.objects.status import BadRequest, Cause, Invalid, NotFound, Raw, ServiceUnavailable
from muster.objects.view import view_of
from muster.policy.eta import Start
from muster.policy.order import PolicyOrder
from muster.policy.predict import Prediction
from muster.policy.refusals import Refusal
from muster.quota.limits import Breach
from muster.server.asking import answer_json, object_of, read_body, require, running, unknown_work, work_asked
from muster.server.people import People
from muster.server.queueing import JOBS_PATH
from muster.server.rbac import Attributes
from muster.server.turns import Turns

PATH: Final = "/muster/v1/eta"
SIZES_MAX: Final = 8
GPUS_MAX: Final = 100_000


class Forecasting:
    """`engine` gives the scheduler's engine, None while it does not run; `find_image` the AppImages that manifests name;
    `people` says which User a login is."""

    def __init__(
        self,
        engine: Callable[[], Engine | None],
        find_image: FindImage = lambda name: None,
        turns: Turns | None = None,
        people: Callable[[], People | None] = lambda: None,
    ) -> None:
        self._engine, self._find_image, self._people = engine, find_image, people
        self._turns = turns or Turns()

    def routes(self) -> list[BaseRoute]:
        return [
            Route(PATH, self._post, methods=["POST"]),
            Route(JOBS_PATH + "/{namespace}/{name}/eta", self._get, methods=["GET"]),
        ]

    async def _get(self, request: Request) -> Response:
        key = work_asked(request)
        sizes = _sizes(request.query_params.getlist("gpus"))
        user = request.scope["muster.actor"].user

        def ask(about: Callable[[Engine, PolicyOrder, str], Raw]) -> Raw:
            engine, order = self._asked()
            unit = order.unit_of(key)
            if unit is None:
                raise unknown_work(key)
            return about(engine, order, unit)

        answer = await self._turns.take(user, lambda: ask(functools.partial(about_unit, sizes=[])))
        for size in sizes if answer["items"] else ():
            item = functools.partial(_unit_item, size=size)
            answer["items"].append(await self._turns.take(user, lambda item=item: ask(item)))  # type: ignore[misc]
        return answer_json(answer)

    async def _post(self, request: Request) -> Response:
        body = object_of(await read_body(request))
        manifest = body.get("manifest")
        if not isinstance(manifest, dict):
            raise BadRequest("manifest: must be an object, as in a YAML file")
        metadata = manifest.get("metadata")
        named = metadata.get("namespace") if isinstance(metadata, dict) else None
        namespace = str(named or body.get("namespace") or "default")
        require(request, Attributes(verb="create", group="muster.dev", resource="jobs", namespace=namespace))
        given = body.get("gpus") or []
        sizes = _sizes(given if isinstance(given, list) else [given])
        engine, _ = self._asked()
        user = request.scope["muster.actor"].user
        try:
            found = works_of(manifest, namespace, find_image=self._find_image)[0]
            work = _work(manifest, found.parts[0].pods[0], self._name_of(user), engine.state.now)
            self._require_whose(request, work)
            answer = await self._turns.take(user, lambda: about_manifest(*self._asked(), found, work, []))
            for size in sizes:
                item = functools.partial(_manifest_item, found=found, work=work, size=size)
                answer["items"].append(await self._turns.take(user, lambda item=item: item(*self._asked())))  # type: ignore[misc]
            return answer_json(answer)
        except ManifestError as error:
            raise Invalid(f"the manifest can't be tried: {error}", causes=[Cause(field="", message=str(error))]) from None

    def _name_of(self, login: str) -> str:
        people = self._people()
        return (people.user_of(login) if people is not None else "") or login

    def _require_whose(self, request: Request, work: Work) -> None:
        """Of the limits and runs of others only those are told who may read them."""
        people, login = self._people(), request.scope["muster.actor"].user
        if people is None or not people.users:
            return  # users are not managed here, and names are taken as they are
        if work.user and work.user not in (people.user_of(login), login):
            require(request, Attributes(verb="get", group="muster.dev", resource="users", name=work.user))
        if work.group:
            require(request, Attributes(verb="get", group="muster.dev", resource="usergroups", name=work.group))

    def _asked(self) -> tuple[Engine, PolicyOrder]:
        engine = running(self._engine)
        return engine, _order_of(engine)

    def forecast(self, engine: Engine, question: Question, sizes: Sequence[str]) -> Raw:
        """For whoever asks without HTTP. ApiError, ManifestError."""
        order, wanted = _order_of(engine), _sizes(sizes)
        if question.manifest is not None:
            found = works_of(question.manifest, question.namespace, find_image=self._find_image)[0]
            work = _work(question.manifest, found.parts[0].pods[0], "", engine.state.now)
            return about_manifest(engine, order, found, work, wanted)
        unit = order.unit_of(question.key)
        if unit is None:
            raise NotFound(f"{question.key}: the scheduler knows no pod of it; name a Job or KusciaTask that waits or runs")
        return about_unit(engine, order, unit, wanted)


def _order_of(engine: Engine) -> PolicyOrder:
    order = engine.order.inner if engine.order is not None else None
    if not isinstance(order, PolicyOrder):
        raise ServiceUnavailable("the scheduler here goes by priority and age, and foretells nothing", retry_after_s=60)
    return order


# -- answers -------------------------------------------------------------------------------------------------------------------


def about_unit(engine: Engine, order: PolicyOrder, unit: str, sizes: Sequence[int]) -> Raw:
    """Of a unit that the order knows."""
    now, table = engine.state.now, order.book.table
    row = table.row_of[unit]
    request, work = _request_of_unit(engine, order, unit), table.works[row]
    if not table.is_waiting[row]:
        return {"unit": unit, "state": "running", "started": float(table.started[row]), "items": []}
    place = order.place_of(unit, now)
    start = order.forecaster.of(unit, now)
    items = [_item(_gpus(request), start), *(_unit_item(engine, order, unit, size) for size in sizes)]
    refused = place.refused.message if place is not None and place.refused is not None else ""
    why = f"held: {work.hold}" if work.hold else refused
    limit = refused if int(table.refusal[row]) == Refusal.LIMIT else ""
    position = {"queue": place.queue, "position": place.position, "of": place.of} if place is not None else {}
    told = {"refused": why, "limit": limit, **position, **_expected(order, row)}
    return {"unit": unit, "state": "waiting", "now": now, "items": items, **told}


def about_manifest(engine: Engine, order: PolicyOrder, found: Tried, work: Work, sizes: Sequence[int]) -> Raw:
    """Of work that is not there. The first unit of the manifest counts: a job of several tasks begins with it."""
    now, request = engine.state.now, _request_of(found)
    items = [
        _asked_item(order, work, request, now),
        *(_manifest_item(engine, order, found, work, size) for size in sizes),
    ]
    expected = order.learning.predictor.predict(work, request, now) if order.learning.predictor is not None else None
    breach, run = _turned_away(order, work, request), _told(expected)
    refused = "" if breach is None else breach.message
    told = {"notes": list(found.notes), "refused": refused, "limit": refused, **run}
    return {"unit": "", "state": "asked", "now": now, "items": items, **told}


def _turned_away(order: PolicyOrder, work: Work, request: Mapping[str, int]) -> Breach | None:
    """The limit that starting it now would break."""
    queue = work.queue or order.book.tree.default
    amounts = {name: amount for name, amount in request.items() if amount}
    return order.book.limits.quota.check_start(work.user, queue, amounts, group=work.group)


def _asked_item(order: PolicyOrder, work: Work, request: Mapping[str, int], now: float) -> Raw:
    breach = _turned_away(order, work, request)
    if breach is not None and not breach.ends_by_itself:
        return {**_item(_gpus(request), None), "refused": breach.message}
    return _item(_gpus(request), order.forecaster.asked(work, request, now))


def _unit_item(engine: Engine, order: PolicyOrder, unit: str, size: int) -> Raw:
    """Of the unit with so many GPUs, as if it were not held."""
    work = msgspec.structs.replace(order.book.table.works[order.book.table.row_of[unit]], hold="")
    other = scaled(_request_of_unit(engine, order, unit), size)
    return _item(size, None if other is None else order.forecaster.asked(work, other, engine.state.now, unit))


def _manifest_item(engine: Engine, order: PolicyOrder, found: Tried, work: Work, size: int) -> Raw:
    other = scaled(_request_of(found), size)
    return _item(size, None) if other is None else {**_asked_item(order, work, other, engine.state.now), "gpus": size}


def _request_of_unit(engine: Engine, order: PolicyOrder, unit: str) -> dict[str, int]:
    names, table = engine.state.table.names, order.book.table
    amounts = table.request[:, table.row_of[unit]].tolist()
    return {names[at]: int(amount) for at, amount in enumerate(amounts) if amount and at < len(names)}


def _request_of(found: Tried) -> dict[str, int]:
    pods = [pod for part in found.parts for pod in part.pods]
    request: dict[str, int] = {}
    for pod in pods:
        for name, amount in requests_of(pod).amounts.items():
            request[name] = request.get(name, 0) + amount
    return {**request, "pods": len(pods)}


def _work(manifest: Mapping[str, Any], pod: PodFacts, user: str, now: float) -> Work:
    work = work_of(pod)
    if manifest.get("kind") == "Job" and str(manifest.get("apiVersion", "")).startswith("muster.dev/"):
        try:
            work = job_work(dict(manifest), view_of(Job, dict(manifest)))
        except (msgspec.ValidationError, ValueError) as error:
            raise ManifestError(str(error)) from None
    return msgspec.structs.replace(work, user=work.user or user, submitted=now, hold="")


def scaled(request: Mapping[str, int], gpus: int) -> dict[str, int] | None:
    """The same with so many GPUs, and all else but the number of pods in proportion; None where there are none."""
    have = _gpus(request)
    if not have:
        return None
    return {name: amount if name == "pods" else max(round(amount * gpus / have), 1) for name, amount in request.items()}


def _gpus(request: Mapping[str, int]) -> int:
    return sum(amount for name, amount in request.items() if name.endswith("/gpu"))


def _item(gpus: int, start: Start | None) -> Raw:
    return {"gpus": gpus, "start": None if start is None else msgspec.to_builtins(start)}


def _expected(order: PolicyOrder, row: int) -> Raw:
    return _told(order.learning.of(row))


def _told(expected: Prediction | None) -> Raw:
    """How long it will run, and where best."""
    if expected is None:
        return {}
    where = {"affinityGrounds": expected.affinity_grounds} if expected.affinity_grounds else {}
    return {"runS": expected.run_s, "runHighS": expected.high_s, "grounds": expected.grounds, **where}


def _sizes(given: Sequence[object]) -> list[int]:
    if len(given) > SIZES_MAX:
        raise BadRequest(f"gpus: {len(given)} sizes; ask about at most {SIZES_MAX} at once")
    found = []
    for one in given:
        text = str(one)
        if isinstance(one, bool) or not (text.isascii() and text.isdecimal() and len(text) <= 6 and 1 <= int(text) <= GPUS_MAX):
            raise BadRequest(f"gpus: {text!r:.50} is not a whole number from 1 to {GPUS_MAX}")
        found.append(int(text))
    return found
