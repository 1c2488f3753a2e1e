"""Names of services in hosts files: what stands there, for whom, and how it is kept."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.layout import Layout
from muster.agent.names import (
    ADDRESSES_MAX,
    MARK,
    Backends,
    EndpointsView,
    NameKeeper,
    ServiceView,
    backends,
    rewrite,
    service_lines,
    with_services,
)
from muster.objects.status import Raw
from muster.objects.time import wall_clock
from muster.objects.view import view_of
from muster.store.embedded import EmbeddedStore
from tests.waiting import until

WEB = Backends(("10.0.0.1",))


def parsed(text: str) -> dict[str, set[str]]:
    """Name to addresses, as a resolver reads it."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        for name in words[1:]:
            found.setdefault(name, set()).add(words[0])
    return found


def at(addresses: set[str], *names: str) -> dict[str, set[str]]:
    return dict.fromkeys(names, addresses)


@pytest.mark.parametrize(
    ("namespace", "services", "expected"),
    [
        pytest.param("shop", {}, {}, id="nothing"),
        pytest.param(
            "shop",
            {("shop", "web"): WEB},
            at({"10.0.0.1"}, "web", "web.shop", "web.shop.svc", "web.shop.svc.cluster.local"),
            id="of the same namespace",
        ),
        pytest.param(
            "bank",
            {("shop", "web"): WEB},
            at({"10.0.0.1"}, "web.shop.svc", "web.shop.svc.cluster.local"),
            id="of another namespace",
        ),
        pytest.param(
            "bank",
            {("shop", "web"): Backends(("10.0.0.1", "10.0.0.2"))},
            at({"10.0.0.1", "10.0.0.2"}, "web.shop.svc", "web.shop.svc.cluster.local"),
            id="several addresses",
        ),
        pytest.param(
            "bank",
            {("shop", "web"): Backends(hosts=(("w0", "10.0.0.1"),))},
            at({"10.0.0.1"}, "w0.web.shop.svc", "w0.web.shop.svc.cluster.local"),
            id="a host of another namespace",
        ),
        pytest.param(
            "shop",
            {("shop", "web"): Backends(hosts=(("w0", "10.0.0.1"),))},
            at({"10.0.0.1"}, "w0.web", "w0.web.shop", "w0.web.shop.svc", "w0.web.shop.svc.cluster.local"),
            id="a host of the same namespace",
        ),
        pytest.param(
            "bank",
            {("shop", "a"): Backends(external_name="web.shop.svc.cluster.local"), ("shop", "web"): WEB},
            at({"10.0.0.1"}, "a.shop.svc", "a.shop.svc.cluster.local", "web.shop.svc", "web.shop.svc.cluster.local"),
            id="an alias",
        ),
        pytest.param(
            "bank",
            {("shop", "a"): Backends(external_name="192.0.2.1")},
            at({"192.0.2.1"}, "a.shop.svc", "a.shop.svc.cluster.local"),
            id="an alias of an address",
        ),
        pytest.param("bank", {("shop", "a"): Backends(external_name="example.com")}, {}, id="a name for DNS"),
        pytest.param(
            "bank",
            {("s", "a"): Backends(external_name="b.s.svc"), ("s", "b"): Backends(external_name="a.s.svc")},
            {},
            id="aliases in a circle",
        ),
        pytest.param(
            "shop",
            {("shop", "localhost"): WEB},
            at({"10.0.0.1"}, "localhost.shop", "localhost.shop.svc", "localhost.shop.svc.cluster.local"),
            id="localhost stays what it is",
        ),
        pytest.param("shop", {("shop", "web"): Backends(("10.0.0.1\n6.6.6.6 b.com", "x", "fe80::1%a"))}, {}, id="no addresses"),
        pytest.param(
            "bank",
            {("svc", "bob"): Backends(hosts=(("web", "6.6.6.6"),)), ("bob", "web"): WEB},
            {
                **at({"10.0.0.1"}, "web.bob.svc", "web.bob.svc.cluster.local"),
                **at({"6.6.6.6"}, "web.bob.svc.svc", "web.bob.svc.svc.cluster.local"),
            },
            id="a namespace called svc takes nobody's name",
        ),
    ],
)
def test_lines(namespace: str, services: dict[tuple[str, str], Backends], expected: dict[str, set[str]]) -> None:
    assert parsed(service_lines(namespace, services)) == expected


def test_of_very_many_addresses_some_will_do() -> None:
    many = Backends(tuple(f"10.0.{n // 250}.{n % 250}" for n in range(1000)))
    assert len(parsed(service_lines("bank", {("shop", "web"): many}))["web.shop.svc"]) == ADDRESSES_MAX


def test_it_is_bounded_and_own_names_come_first() -> None:
    services = {(namespace, f"s{n}"): WEB for namespace in ("a", "b", "c") for n in range(100)}
    text = service_lines("b", services, bytes_max=9_000)
    assert len(text) < 9_200
    names = parsed(text)
    assert all(f"s{n}.b.svc" in names for n in range(100))
    left_out = 300 - len({name for name in names if re.fullmatch(r"s\d+\.\w\.svc", name)})
    assert left_out > 0
    assert f"# {left_out} more services are left out" in text


NASTY = st.text(st.sampled_from("ab.-\n\t #1\r\0é"), max_size=8)


@given(
    st.dictionaries(
        st.tuples(NASTY, NASTY),
        st.builds(Backends, st.tuples(NASTY, st.ip_addresses().map(str)), st.tuples(st.tuples(NASTY, NASTY)), NASTY),
        max_size=5,
    ),
    NASTY,
)
def test_nothing_but_addresses_and_names_ever_stands_there(services: dict[tuple[str, str], Backends], namespace: str) -> None:
    for line in service_lines(namespace, services).split("\n"):
        if line:
            address, _, names = line.partition("\t")
            ipaddress.ip_address(address)
            assert names.split(" ")
            assert re.fullmatch(r"[-a-z0-9. ]+", names)


@given(st.text(max_size=60).filter(lambda text: MARK not in text), st.sampled_from(["", "10.0.0.1\ta\n", "10.0.0.2\tb c\n"]))
def test_what_is_above_the_mark_stays(own: str, lines: str) -> None:
    once = with_services(own, lines)
    assert once.startswith(own)
    assert once.endswith(lines)
    assert with_services(once, lines) == once
    assert with_services(with_services(once, "x\n"), lines) == once


def test_a_file_is_rewritten_in_place(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    assert not rewrite(path, "10.0.0.1\ta\n")
    path.write_text("127.0.0.1\tlocalhost\n")
    inode = path.stat().st_ino
    for lines in ("10.0.0.1\ta\n10.0.0.2\tb\n", "10.0.0.1\ta\n", ""):
        assert rewrite(path, lines)
        assert path.read_text() == f"127.0.0.1\tlocalhost\n{MARK}\n{lines}"
    assert path.stat().st_ino == inode
    link = tmp_path / "link"
    link.symlink_to(path)
    assert not rewrite(link, "10.0.0.1\ta\n"), "a link may lead anywhere"


@pytest.mark.parametrize(
    ("service", "endpoints", "expected"),
    [
        pytest.param({}, None, Backends(), id="no endpoints"),
        pytest.param(
            {},
            {
                "subsets": [
                    {"addresses": [{"ip": "1.1.1.1", "hostname": "h"}]},
                    {"addresses": [{"ip": "1.1.1.2"}, {"ip": "1.1.1.1"}]},
                ]
            },
            Backends(("1.1.1.1", "1.1.1.2"), (("h", "1.1.1.1"),)),
            id="each address once",
        ),
        pytest.param({}, {"subsets": [{"notReadyAddresses": [{"ip": "1.1.1.1"}]}]}, Backends(), id="not ready"),
        pytest.param({"type": "ExternalName", "externalName": "a.b"}, None, Backends(external_name="a.b"), id="an alias"),
    ],
)
def test_backends(service: Raw, endpoints: Raw | None, expected: Backends) -> None:
    view = view_of(EndpointsView, endpoints) if endpoints is not None else None
    assert backends(view_of(ServiceView, {"spec": service}), view) == expected


# -- the keeper --------------------------------------------------------------------------------------------------------------


class Node:
    def __init__(self, store: EmbeddedStore, layout: Layout) -> None:
        self.store = store
        self.layout = layout
        self.pods: dict[str, str] = {}
        self.keeper = NameKeeper(store, layout, self.pods.items)

    def add_pod(self, uid: str, namespace: str) -> None:
        path = self.layout.etc(uid)
        path.mkdir(parents=True)
        (path / "hosts").write_text("127.0.0.1\tlocalhost\n")
        self.pods[uid] = namespace

    def names(self, uid: str) -> dict[str, set[str]]:
        return parsed((self.layout.etc(uid) / "hosts").read_text())

    async def serve(self, name: str, *addresses: str) -> None:
        services, endpoints = await self.store.resource("", "Service"), await self.store.resource("", "Endpoints")
        meta = {"name": name, "namespace": "shop"}
        spec = {"clusterIP": "None", "ports": [{"port": 80}]}
        await self.store.create(services, {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}, "shop")
        subsets = [{"addresses": [{"ip": ip} for ip in addresses], "ports": [{"port": 80}]}]
        await self.store.create(
            endpoints, {"apiVersion": "v1", "kind": "Endpoints", "metadata": meta, "subsets": subsets}, "shop"
        )


@contextlib.asynccontextmanager
async def running(tmp_path: Path) -> AsyncIterator[Node]:
    store = await EmbeddedStore.open(tmp_path / "store", clock=wall_clock)
    namespaces = await store.resource("", "Namespace")
    await store.create(namespaces, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    node = Node(store, Layout(tmp_path / "data", tmp_path / "run"))
    task = asyncio.create_task(node.keeper.run())
    try:
        yield node
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()


async def soon(check: Callable[[], bool]) -> None:
    async def ask() -> bool:
        return check()

    await until(ask)


async def test_files_follow_the_services(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.add_pod("u1", "bank")
        inode = (node.layout.etc("u1") / "hosts").stat().st_ino
        await node.serve("web", "10.0.0.1")
        await soon(lambda: node.names("u1").get("web.shop.svc") == {"10.0.0.1"})
        endpoints, services = await node.store.resource("", "Endpoints"), await node.store.resource("", "Service")
        moved = {"subsets": [{"addresses": [{"ip": "10.0.0.2"}], "ports": [{"port": 80}]}]}
        await node.store.patch(endpoints, "web", moved, "shop")
        await soon(lambda: node.names("u1").get("web.shop.svc") == {"10.0.0.2"})
        node.add_pod("late", "shop")
        await soon(lambda: node.names("late").get("web") == {"10.0.0.2"})
        await node.store.delete(services, "web", "shop")
        await soon(lambda: "web.shop.svc" not in node.names("u1") and "web" not in node.names("late"))
        assert node.names("u1")["localhost"] == {"127.0.0.1"}
        assert (node.layout.etc("u1") / "hosts").stat().st_ino == inode


async def test_a_new_pod_can_be_filled_at_once_and_one_without_a_file_holds_up_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.serve("web", "10.0.0.1")
        node.add_pod("probe", "bank")
        await soon(lambda: "web.shop.svc" in node.names("probe"))
        node.pods["no-file"] = "bank"
        node.keeper.fill("no-file", "bank")
        node.add_pod("u2", "shop")
        node.keeper.fill("u2", "shop")
        assert node.names("u2")["web"] == {"10.0.0.1"}
        await node.serve("db", "10.0.0.9")
        await soon(lambda: node.names("u2").get("db") == {"10.0.0.9"})
