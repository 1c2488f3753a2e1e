"""Paths that are not resources: health, version, metrics, discovery, OpenAPI; a Starlette application to which others add.

By the time a request arrives here it is authenticated and authorized (`app.py`). Discovery and OpenAPI are rebuilt when the
kinds that are served change, and then only when somebody asks.

Concurrency: on the event loop. Metrics are rendered on a worker thread.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse
from starlette.responses import Response as HttpResponse
from starlette.routing import BaseRoute, Route

from muster import __version__
from muster.objects.resources import Resource
from muster.objects.schema import schema_of
from muster.objects.status import ApiError, MethodNotAllowed, NotAcceptable, NotFound, Raw
from muster.server import openapi_v2
from muster.server.discovery import AGGREGATED_GROUP, AGGREGATED_VERSIONS, Discovery
from muster.server.metrics import CONTENT_TYPE, Metrics
from muster.server.negotiation import accept_ranges, encode, negotiate
from muster.server.openapi import OpenApi
from muster.store.embedded import EmbeddedStore
from muster.store.embedded.store import KUBERNETES_MINOR

GIT_VERSION = f"v1.{KUBERNETES_MINOR}.0+muster-{__version__}"

Check = Callable[[], str]
"""A health check: "" when all is well, otherwise what is wrong."""


class Routes:
    """Builds the application; `extra` are the routes of other parts of Muster, tried first."""

    def __init__(self, store: EmbeddedStore, metrics: Metrics, address: Callable[[], str]) -> None:
        self._store = store
        self._metrics = metrics
        self._address = address
        self._discovery: Discovery | None = None
        self._openapi: OpenApi | None = None
        self._v2: tuple[bytes, bytes] | None = None
        self.computed: list[Resource] = []
        """Kinds that are served but not stored, beside those of the store's catalog."""
        self.checks: dict[str, Check] = {"ping": lambda: "", "store": self._store_check}
        """Readiness; add to it by name."""
        store.on_resources_changed.append(self._forget)

    def application(self, extra: list[BaseRoute]) -> Starlette:
        own: list[BaseRoute] = [
            Route("/", self._root),
            *(Route(path, self._health) for path in ("/healthz", "/livez", "/readyz")),
            *(Route(path + "/{check}", self._health) for path in ("/healthz", "/livez", "/readyz")),
            Route("/metrics", self._metrics_page),
            *(
                # Clients that are generated from Kubernetes' OpenAPI ask with a slash at the end.
                Route(path + slash, answer)
                for slash in ("", "/")
                for path, answer in (
                    ("/version", self._version),
                    ("/api", self._core),
                    ("/apis", self._groups),
                    ("/api/{version}", self._core_version),
                    ("/apis/{group}", self._group),
                    ("/apis/{group}/{version}", self._group_version),
                )
            ),
            Route("/openapi/v2", self._openapi_v2),
            Route("/openapi/v3", self._openapi_index),
            Route("/openapi/v3/{path:path}", self._openapi_document),
        ]
        app = Starlette(
            routes=[*extra, *own],
            exception_handlers={ApiError: _api_error, HTTPException: _http_error},
        )
        app.router.redirect_slashes = False
        return app

    def _forget(self) -> None:
        self._discovery = self._openapi = self._v2 = None

    @property
    def discovery(self) -> Discovery:
        if self._discovery is None:
            self._discovery = Discovery(self._resources())
        return self._discovery

    @property
    def openapi(self) -> OpenApi:
        if self._openapi is None:
            self._openapi = OpenApi(self._resources(), self._schema)
        return self._openapi

    def _resources(self) -> list[Resource]:
        return [*self._store.catalog.all, *self.computed]

    def _schema(self, resource: Resource) -> Raw | None:
        """Kinds that are answered and never stored have none."""
        if resource in self.computed:
            return schema_of(resource.view) if resource.view is not None else None
        return self._store.schema(resource) if "get" in resource.verbs else None

    # --- health and version

    def _store_check(self) -> str:
        try:
            self._store.list_records(self._store.catalog.by_kind("", "Namespace"), limit=1)
        except ApiError as error:
            return error.message
        return f"storage can't be written: {problem}" if (problem := self._store.write_problem) else ""

    async def _health(self, request: HttpRequest) -> HttpResponse:
        name = request.path_params.get("check", "")
        if name and name not in self.checks:
            raise NotFound(f"no health check {name!r:.80}; there are: {', '.join(self.checks)}")
        # Liveness asks whether a restart would help; a closed store is closed on purpose.
        is_live = request.url.path.startswith("/livez")
        chosen = {name: self.checks[name]} if name else {"ping": self.checks["ping"]} if is_live else self.checks
        problems = {key: check() for key, check in chosen.items()}
        failed = {key: text for key, text in problems.items() if text}
        if "verbose" in request.query_params or failed:
            lines = [f"[-]{key} failed: {text}" if text else f"[+]{key} ok" for key, text in problems.items()]
            verdict = f"{request.url.path.strip('/')} check {'failed' if failed else 'passed'}"
            return PlainTextResponse("\n".join([*lines, verdict, ""]), status_code=503 if failed else 200)
        return PlainTextResponse("ok")

    async def _version(self, request: HttpRequest) -> HttpResponse:
        return _json(
            request,
            {
                "major": "1",
                "minor": str(KUBERNETES_MINOR),
                "gitVersion": GIT_VERSION,
                "gitCommit": "",
                "gitTreeState": "clean",
                "buildDate": "1970-01-01T00:00:00Z",
                "goVersion": "",
                "compiler": f"{platform.python_implementation()} {platform.python_version()}",
                "platform": f"{platform.system().lower()}/{platform.machine()}",
            },
        )

    async def _metrics_page(self, request: HttpRequest) -> HttpResponse:
        body = await asyncio.to_thread(self._metrics.render)
        return HttpResponse(body, media_type=CONTENT_TYPE)

    # --- discovery

    async def _root(self, request: HttpRequest) -> HttpResponse:
        groups = self.discovery.groups
        paths = ["/api", *(f"/api/{version}" for version in groups.get("", {})), "/apis"]
        for group, versions in groups.items():
            if group:
                paths += [f"/apis/{group}", *(f"/apis/{group}/{version}" for version in versions)]
        paths += ["/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]
        return _json(request, {"paths": paths})

    async def _core(self, request: HttpRequest) -> HttpResponse:
        return self._aggregated(request, is_core=True) or _json(request, self.discovery.api_versions(self._address()))

    async def _groups(self, request: HttpRequest) -> HttpResponse:
        return self._aggregated(request, is_core=False) or _json(request, self.discovery.group_list())

    def _aggregated(self, request: HttpRequest, *, is_core: bool) -> HttpResponse | None:
        """The whole of discovery in one answer, when the client prefers it so."""
        for entry in accept_ranges(request.headers.get("accept", "")):
            params = entry.params
            if entry.type != "application/json":
                continue
            if params.get("as") != "APIGroupDiscoveryList":
                return None
            version = params.get("v", "")
            if params.get("g") != AGGREGATED_GROUP or version not in AGGREGATED_VERSIONS:
                continue
            body, tag = self.discovery.aggregated(version, is_core=is_core)
            headers = {"etag": tag, "vary": "accept", "cache-control": "public"}
            if request.headers.get("if-none-match") == tag:
                return HttpResponse(status_code=304, headers=headers)
            media = f"application/json;g={AGGREGATED_GROUP};v={version};as=APIGroupDiscoveryList"
            return HttpResponse(body, media_type=media, headers=headers)
        return None

    async def _core_version(self, request: HttpRequest) -> HttpResponse:
        return self._found(request, self.discovery.resource_list("", request.path_params["version"]))

    async def _group(self, request: HttpRequest) -> HttpResponse:
        return self._found(request, self.discovery.group(request.path_params["group"]))

    async def _group_version(self, request: HttpRequest) -> HttpResponse:
        params = request.path_params
        return self._found(request, self.discovery.resource_list(params["group"], params["version"]))

    def _found(self, request: HttpRequest, value: Any) -> HttpResponse:
        if value is None:
            raise NotFound(f"the server could not find the requested resource ({request.url.path[:200]})")
        return _json(request, value)

    # --- OpenAPI

    async def _openapi_index(self, request: HttpRequest) -> HttpResponse:
        return _json(request, self.openapi.index())

    async def _openapi_document(self, request: HttpRequest) -> HttpResponse:
        path = request.path_params["path"]
        if not self.openapi.has(path):
            raise NotFound(f"no OpenAPI document for {path[:200]!r}; /openapi/v3 lists them")
        body, digest = self.openapi.document(path)
        tag = f'"{digest}"'
        headers = {"etag": tag, "cache-control": "no-cache, private", "vary": "accept"}
        if request.query_params.get("hash") == digest:
            headers["cache-control"] = "public, immutable"
        if request.headers.get("if-none-match") == tag:
            return HttpResponse(status_code=304, headers=headers)
        if not any(entry.type in ("application/json", "*/*", "application/*") for entry in _ranges(request)):
            raise NotAcceptable("OpenAPI v3 is served as application/json")
        return HttpResponse(body, media_type="application/json", headers=headers)

    async def _openapi_v2(self, request: HttpRequest) -> HttpResponse:
        if self._v2 is None:
            document = openapi_v2.document(self._resources(), self._schema)
            self._v2 = (msgspec.json.encode(document), openapi_v2.protobuf(document))
        for entry in _ranges(request):
            if entry.type in openapi_v2.MEDIA_PROTOBUF_NAMES:
                return HttpResponse(self._v2[1], media_type=openapi_v2.MEDIA_PROTOBUF)
            if entry.type in ("application/json", "*/*", "application/*"):
                return HttpResponse(self._v2[0], media_type="application/json")
        raise NotAcceptable(f"OpenAPI v2 is served as application/json and {openapi_v2.MEDIA_PROTOBUF}")


def _ranges(request: HttpRequest) -> Any:
    return accept_ranges(request.headers.get("accept", "") or "*/*")


def _json(request: HttpRequest, value: Any) -> HttpResponse:
    form = negotiate(_without_transforms(request.headers.get("accept", "")), transforms=False)
    return HttpResponse(encode(value, form), media_type=form.content_type, headers={"cache-control": "no-cache, private"})


def _without_transforms(accept: str) -> str:
    """For documents that have one form only: a client that asks for `as=...` and would take plain JSON gets plain JSON."""
    plain = [part for part in accept.split(",") if "as=" not in part]
    return ",".join(plain) if plain else ("" if accept else accept)


async def _api_error(request: HttpRequest, error: Exception) -> HttpResponse:
    assert isinstance(error, ApiError)
    headers = {"retry-after": str(error.retry_after_s or 1)} if error.retry_after_s or error.code == 429 else None
    return HttpResponse(encode(error.to_status()), status_code=error.code, media_type="application/json", headers=headers)


async def _http_error(request: HttpRequest, error: Exception) -> HttpResponse:
    """Starlette's own 404 and 405 as a Status."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    if error.status_code == 405:
        return await _api_error(
            request, MethodNotAllowed(f"the server does not allow {request.method} on {path}; allowed: GET")
        )
    return await _api_error(request, NotFound(f"the server could not find the requested resource ({path})"))
