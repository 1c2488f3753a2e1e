"""One real server for the whole package; tests keep apart by using namespaces of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.running import RunningServer, running


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("server")) as made:
        yield made


@pytest.fixture
def namespace(server: RunningServer, request: pytest.FixtureRequest) -> str:
    """A fresh namespace, named after the test."""
    stem = "".join(c if c.isalnum() else "-" for c in request.node.name.lower())[:40].strip("-")
    taken = {item["metadata"]["name"] for item in server.request("GET", "/api/v1/namespaces").json["items"]}
    name = next(candidate for candidate in (stem, *(f"{stem}-{n}" for n in range(1000))) if candidate not in taken)
    server.namespace(name)
    for kind in ("serviceaccounts", "configmaps"):  # what the server itself puts in, so that it does not come in between
        with server.watch(f"/api/v1/namespaces/{name}/{kind}") as watch:
            assert watch.next()["type"] == "ADDED"
    return name
