from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from muster.client.discovery import AGGREGATED, Discovery, find_word
from muster.client.errors import BadResponse
from muster.objects.resources import Resource
from muster.objects.status import NotFound, ServiceUnavailable

ALL = ["create", "delete", "get", "list", "patch", "update", "watch"]


def entry(name: str, kind: str, *, namespaced: bool = True, **more: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "namespaced": namespaced, "singularName": "", "verbs": ALL, **more}


def group(name: str, *versions: str, preferred: str) -> dict[str, Any]:
    return {
        "name": name,
        "versions": [{"groupVersion": f"{name}/{v}", "version": v} for v in versions],
        "preferredVersion": {"version": preferred},
    }


class FakeServer:
    """Serves `documents`; a value that is an exception is raised."""

    def __init__(self, documents: dict[str, Any]) -> None:
        self.documents = documents
        self.asked: list[str] = []

    async def fetch(self, path: str, accept: str) -> bytes:
        self.asked.append(path)
        await asyncio.sleep(0)
        document = self.documents.get(path, NotFound(f"404 {path}"))
        if isinstance(document, Exception):
            raise document
        if isinstance(document, dict) and "aggregated" in document:
            document = document["aggregated"] if AGGREGATED in accept else document["plain"]
        return msgspec.json.encode(document)


def old_server() -> FakeServer:
    policy, widgets = group("policy", "v1beta1", preferred="v1beta1"), group("example.dev", "v2", "v1", preferred="v1")
    return FakeServer(
        {
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "groups": [policy, widgets]},
            "/apis/policy": policy,
            "/apis/example.dev": widgets,
            "/api/v1": {
                "kind": "APIResourceList",
                "resources": [
                    entry("pods", "Pod", shortNames=["po"], categories=["all"]),
                    entry("pods/status", "Pod"),
                    entry("pods/eviction", "Eviction", group="policy", version="v1beta1"),
                    entry("nodes", "Node", namespaced=False, shortNames=["no"]),
                    entry("events", "Event", shortNames=["ev"]),
                ],
            },
            "/apis/policy/v1beta1": {
                "kind": "APIResourceList",
                "resources": [entry("poddisruptionbudgets", "PodDisruptionBudget")],
            },
            "/apis/example.dev/v1": {"kind": "APIResourceList", "resources": [entry("widgets", "Widget", shortNames=["po"])]},
            "/apis/example.dev/v2": {
                "kind": "APIResourceList",
                "resources": [entry("widgets", "Widget"), entry("gadgets", "Gadget"), entry("widgets/scale", "Scale")],
            },
        }
    )


def aggregated_server() -> FakeServer:
    def resource(name: str, kind: str, scope: str = "Namespaced", **more: Any) -> dict[str, Any]:
        return {"resource": name, "responseKind": {"kind": kind}, "scope": scope, "verbs": ALL, **more}

    eviction = {
        "subresource": "eviction",
        "responseKind": {"group": "policy", "version": "v1", "kind": "Eviction"},
        "verbs": ["create"],
    }
    core = {
        "kind": "APIGroupDiscoveryList",
        "items": [
            {
                "metadata": {},
                "versions": [
                    {
                        "version": "v1",
                        "resources": [
                            resource("pods", "Pod", shortNames=["po"], singularResource="pod", subresources=[eviction]),
                            resource("nodes", "Node", "Cluster"),
                        ],
                    }
                ],
            }
        ],
    }
    widgets = {
        "metadata": {"name": "example.dev"},
        "versions": [
            {"version": "v1", "resources": [resource("widgets", "Widget")], "freshness": "Current"},
            {"version": "v2", "resources": None, "freshness": "Stale"},
        ],
    }
    rest = {"kind": "APIGroupDiscoveryList", "items": [widgets]}
    return FakeServer(
        {
            "/api": {"aggregated": core, "plain": {"kind": "APIVersions", "versions": ["v1"]}},
            "/apis": {"aggregated": rest, "plain": {"kind": "APIGroupList"}},
        }
    )


async def test_one_kind_asks_for_its_group_only() -> None:
    server = old_server()
    discovery = Discovery(server.fetch)
    found = await discovery.resource("policy", "PodDisruptionBudget")
    assert (found.api_version, found.plural) == ("policy/v1beta1", "poddisruptionbudgets")
    assert server.asked == ["/apis/policy", "/apis/policy/v1beta1"]
    await discovery.resource("policy", "PodDisruptionBudget")
    assert len(server.asked) == 2, "kept"


async def test_the_preferred_version_wins_and_others_fill_in() -> None:
    discovery = Discovery(old_server().fetch)
    assert (await discovery.resource("example.dev", "Widget")).version == "v1"
    assert (await discovery.resource("example.dev", "Gadget")).version == "v2"
    assert (await discovery.resource("", "Pod")).subresources == frozenset({"status", "eviction"})


async def test_what_is_missing_is_asked_for_again() -> None:
    server = old_server()
    discovery = Discovery(server.fetch)
    with pytest.raises(NotFound, match=r'no kind "Job" in group "batch".*installed'):
        await discovery.resource("batch", "Job")
    batch = group("batch", "v1", preferred="v1")
    server.documents["/apis/batch"] = batch
    server.documents["/apis/batch/v1"] = {"resources": [entry("jobs", "Job")]}
    assert (await discovery.resource("batch", "Job")).plural == "jobs"


async def test_a_kind_that_went_away() -> None:
    server = old_server()
    discovery = Discovery(server.fetch)
    await discovery.resource("example.dev", "Widget")
    discovery.invalidate()
    del server.documents["/apis/example.dev"]
    with pytest.raises(NotFound):
        await discovery.resource("example.dev", "Widget")


async def test_concurrent_callers_share_one_load() -> None:
    server = old_server()
    discovery = Discovery(server.fetch)
    await asyncio.gather(*(discovery.resource("", "Pod") for _ in range(20)))
    assert server.asked == ["/api", "/api/v1"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("pods", "v1 pods"),
        ("pod", "v1 pods"),
        ("Pod", "v1 pods"),
        ("po", "v1 pods"),
        ("NO", "v1 nodes"),
        ("widgets", "example.dev/v1 widgets"),
        ("widgets.example.dev", "example.dev/v1 widgets"),
        ("widgets.v2.example.dev", "example.dev/v2 widgets"),
        ("po.example.dev", "example.dev/v1 widgets"),
        ("widgets.exam", "example.dev/v1 widgets"),
        ("gadget", "example.dev/v2 gadgets"),
    ],
)
@pytest.mark.parametrize("make", [old_server, aggregated_server])
async def test_words(make: Any, word: str, expected: str) -> None:
    if make is aggregated_server and ("v2" in expected or word in ("NO", "po.example.dev")):
        return
    found = await Discovery(make().fetch).find(word)
    assert f"{found.api_version} {found.plural}" == expected


async def test_an_unknown_word_suggests() -> None:
    with pytest.raises(NotFound, match=r'no resource type "widgts"; did you mean widgets'):
        await Discovery(old_server().fetch).find("widgts")


async def test_aggregated_takes_two_requests() -> None:
    server = aggregated_server()
    discovery = Discovery(server.fetch)
    known = await discovery.resources()
    assert sorted(server.asked) == ["/api", "/apis"]
    assert [(r.api_version, r.plural, r.namespaced) for r in known] == [
        ("v1", "pods", True),
        ("v1", "nodes", False),
        ("example.dev/v1", "widgets", True),
    ]
    assert known[0].subresources == frozenset({"eviction"})
    assert known[0].short_names == ("po",)


@pytest.mark.parametrize(("make", "expected"), [(old_server, "policy/v1beta1"), (aggregated_server, "policy/v1")])
async def test_the_version_of_an_eviction(make: Any, expected: str) -> None:
    discovery = Discovery(make().fetch)
    await discovery.resources()
    assert await discovery.body_version("", "v1", "pods/eviction", "?") == expected
    assert await discovery.body_version("", "v1", "pods/nothing", "default") == "default"


async def test_a_broken_extension_server_hides_nothing_else() -> None:
    server = old_server()
    server.documents["/apis/example.dev/v1"] = ServiceUnavailable("down")
    discovery = Discovery(server.fetch)
    assert (await discovery.find("pods")).kind == "Pod"
    assert list(discovery.failed) == [("example.dev", "v1")]
    assert (await discovery.resource("example.dev", "Widget")).version == "v2"
    server.documents["/apis/example.dev/v2"] = ServiceUnavailable("down")
    discovery.invalidate()
    with pytest.raises(ServiceUnavailable):
        await discovery.resource("example.dev", "Widget")


async def test_what_is_no_api_server() -> None:
    server = FakeServer({"/api": ["a", "list"], "/apis": {}})
    with pytest.raises(BadResponse, match="not a Kubernetes-style API server"):
        await Discovery(server.fetch).resource("", "Pod")


def test_short_names_cannot_hide_a_plural() -> None:
    first = Resource(group="a", version="v1", kind="A", plural="as", short_names=("bs",))
    second = Resource(group="b", version="v1", kind="B", plural="bs")
    assert find_word([first, second], "bs") == second
    assert find_word([first, second], "") is None


async def test_the_catalog_fills_in_what_servers_do_not_tell() -> None:
    from muster.objects.catalog import CATALOG

    found = await Discovery(old_server().fetch).resource("", "Pod")
    known = CATALOG.by_kind("", "Pod")
    assert (found.view, found.columns, found.selectable_fields) == (known.view, known.columns, known.selectable_fields)
