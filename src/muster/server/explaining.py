"""Muster's own API for questions about scheduling: `/muster/v1/explain`.

    GET  /muster/v1/explain/{kind}/{namespace}/{name}    why work waits, or where it is
    POST /muster/v1/explain                              the same by `{"key": "Kind/namespace/name"}`, or a manifest: itself, or
                                                         as `{"manifest": ..., "namespace": ...}`

`?nodes=N` shows so many nodes one by one. The answer is `{"items": [...]}`, one item for each unit.

Everybody who is authenticated may knock (role `system:basic-user`); then it takes `get` on the work that is asked about, or
`create` on scheduleexplanations in the namespace for a manifest. The scheduler knows work by kind and name, whatever its group:
where two groups have a kind of that name (`Job`), and both an object of that name, it takes `get` on both. Other work in an
answer is named if the caller may `get` it, else counted. Nothing is stored.

Concurrency: on the event loop that the scheduler also uses, between two of its steps. See `asking` for what a body may be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from muster.engine.answer_values import NODES_MAX, NODES_SHOWN, Question, to_raw
from muster.engine.answers import UnknownWork, answers
from muster.engine.hypothetical import ManifestError
from muster.engine.machine import Engine
from muster.objects.bandwidth_demands import FindImage
from muster.objects.resources import Resource
from muster.objects.status import ApiError, BadRequest, Cause, Invalid, NotFound
from muster.policy.places import places_of
from muster.server.asking import Sight, answer_json, number_asked, object_of, read_body, require, running
from muster.server.rbac import Attributes
from muster.store.embedded import EmbeddedStore

PATH: Final = "/muster/v1/explain"
_GROUP, _KINDS = "scheduling.koordinator.sh", "scheduleexplanations"


class Explaining:
    """`engine` gives the scheduler's engine, None while it does not run; `store` the kinds and objects that there are;
    `find_image` the AppImages that manifests name."""

    def __init__(
        self,
        engine: Callable[[], Engine | None],
        store: Callable[[], EmbeddedStore],
        find_image: FindImage = lambda name: None,
    ) -> None:
        self._engine = engine
        self._store = store
        self._find_image = find_image

    def routes(self) -> list[BaseRoute]:
        return [
            Route(PATH, self._post, methods=["POST"]),
            Route(PATH + "/{kind}/{namespace}/{name}", self._get, methods=["GET"]),
        ]

    async def _get(self, request: Request) -> Response:
        kind, namespace, name = (request.path_params[part] for part in ("kind", "namespace", "name"))
        return self._answer(request, self._by_key(request, kind, namespace, name))

    async def _post(self, request: Request) -> Response:
        body = object_of(await read_body(request))
        key = body.get("key")
        if key is not None:
            words = key.split("/") if isinstance(key, str) else []
            if len(words) == 2:
                words = ["Pod", *words]
            if len(words) != 3 or not all(words):
                raise BadRequest(f"key: {key!r:.200} is not of the form KIND/NAMESPACE/NAME")
            return self._answer(request, self._by_key(request, *words))
        manifest = body.get("manifest", body)
        if not isinstance(manifest, dict):
            raise BadRequest("manifest: must be an object, as in a YAML file")
        metadata = manifest.get("metadata")
        named = metadata.get("namespace") if isinstance(metadata, dict) else None
        namespace = str(named or body.get("namespace") or "default")
        profile = body.get("profile") if manifest is not body else None
        require(request, Attributes(verb="create", group=_GROUP, resource=_KINDS, namespace=namespace))
        question = Question(
            manifest=manifest,
            namespace=namespace,
            profile=str(profile or ""),
            nodes_max=_nodes(request),
        )
        return self._answer(request, question)

    def _by_key(self, request: Request, kind: str, namespace: str, name: str) -> Question:
        catalog = self._store().catalog
        resource = catalog.find(kind)
        if resource is None or not resource.namespaced:
            raise NotFound(f"no kind {kind!r:.100} here that has pods; see muster api-resources")
        alike = {one.qualified: one for one in catalog.all if one.kind == resource.kind and one.namespaced}
        for one in alike.values():
            if one.group == resource.group or self._is_there(one, namespace, name):
                asked = Attributes(verb="get", group=one.group, resource=one.plural, namespace=namespace, name=name)
                require(request, asked)
        return Question(key=f"{resource.kind}/{namespace}/{name}", nodes_max=_nodes(request))

    def _is_there(self, resource: Resource, namespace: str, name: str) -> bool:
        try:
            self._store().get_record(resource, name, namespace)
        except ApiError:
            return False
        return True

    def _answer(self, request: Request, question: Question) -> Response:
        engine = running(self._engine)
        places = places_of(engine)
        sees = Sight(request).sees_units(places.job_of if places is not None else lambda unit: "")
        try:
            found = answers(engine, question, self._find_image, sees)
        except UnknownWork as error:
            raise NotFound(str(error)) from None
        except ManifestError as error:
            raise Invalid(f"the manifest can't be tried: {error}", causes=[Cause(field="", message=str(error))]) from None
        return answer_json({"items": [to_raw(one) for one in found]})


def _nodes(request: Request) -> int:
    return number_asked(request, "nodes", NODES_SHOWN, NODES_MAX)
