"""The small parts around a pod: what is fetched for it, what its /etc says, what it holds on disk, its last words."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.agent.contracts import AgentError, Sandbox
from muster.agent.layout import Layout
from muster.agent.pod_etc import etc_mounts, hosts_text, resolv_text, write_etc
from muster.agent.pod_sources import FRESH_S, KEPT_BYTES_MAX, PodSources
from muster.agent.pods_logs import last_words
from muster.agent.trees import Uncountable, held_bytes
from muster.objects.kinds.pods import PodSpec
from muster.objects.status import ApiError, Forbidden, NotFound, Raw, ServiceUnavailable

SANDBOX = Sandbox(uid="u", namespace="n", name="p", hostname="p", user=1, ip="10.0.0.2")


def spec(**more: Any) -> PodSpec:
    return msgspec.convert({"containers": [{"name": "main"}], **more}, PodSpec)


class OneObject:
    """The part of a store that is asked."""

    def __init__(self) -> None:
        self.answer: Raw | ApiError = {"data": {"k": "1"}}
        self.asked = 0

    async def resource(self, group: str, kind: str) -> str:
        return kind

    async def get(self, resource: str, name: str, namespace: str) -> Raw:
        self.asked += 1
        if isinstance(self.answer, ApiError):
            raise self.answer
        return self.answer


async def test_sources_are_kept_for_a_while_and_used_while_the_store_is_away() -> None:
    now = [0.0]
    store: Any = OneObject()
    sources = PodSources(store, lambda: now[0])
    key = ("ConfigMap", "cm")
    first = await sources.fetch("n", [key, key])
    assert (first, store.asked) == ({key: {"data": {"k": "1"}}}, 1)
    await sources.fetch("n", [key])
    assert store.asked == 1
    now[0] = FRESH_S
    store.answer = ServiceUnavailable("away")
    assert await sources.fetch("n", [key]) == first
    store.answer = {"data": {"k": "2"}}
    sources.forget("n", [key])
    assert await sources.fetch("n", [key]) == {key: {"data": {"k": "2"}}}
    store.answer = NotFound("gone")
    sources.forget("n", [key])
    assert await sources.fetch("n", [key]) == {key: None}
    asked = store.asked
    await sources.fetch("n", [key])
    assert store.asked == asked + 1, "absence is not remembered"


@pytest.mark.parametrize("error", [ServiceUnavailable("away"), Forbidden("no")], ids=["away", "forbidden"])
async def test_sources_that_can_not_be_read(error: ApiError) -> None:
    store: Any = OneObject()
    store.answer = error
    with pytest.raises(AgentError) as caught:
        await PodSources(store, lambda: 0.0).fetch("n", [("Secret", "s")])
    assert caught.value.reason == "CreateContainerConfigError"
    assert "Secret n/s" in caught.value.message


def test_hosts() -> None:
    aliases = [{"ip": "192.0.2.9", "hostnames": ["a", "b"]}, {"ip": "192.0.2.8\n1.1.1.1 evil", "hostnames": ["c"]}]
    text = hosts_text(SANDBOX, spec(subdomain="sub", hostAliases=aliases), "")
    assert text.splitlines() == [
        "127.0.0.1\tlocalhost",
        "::1\tlocalhost ip6-localhost ip6-loopback",
        "10.0.0.2\tp.sub.n.svc.cluster.local p.sub.n.svc p",
        "192.0.2.9\ta b",
    ]


def test_resolvers_of_its_own() -> None:
    config = {"nameservers": ["192.0.2.53"], "searches": ["x.y", "bad one"], "options": [{"name": "ndots", "value": "2"}]}
    text = resolv_text(spec(dnsPolicy="None", dnsConfig=config))
    assert text == "nameserver 192.0.2.53\nsearch x.y\noptions ndots:2\n"
    assert resolv_text(spec(dnsPolicy="None")) == ""


def test_the_hosts_file_is_written_once_and_its_inode_stays(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.pod("u").mkdir(parents=True)
    write_etc(layout, SANDBOX, spec(), "")
    hosts = layout.etc("u") / "hosts"
    hosts.write_text("kept by another\n")
    before = (layout.etc("u") / "hostname").stat().st_ino
    write_etc(layout, msgspec.structs.replace(SANDBOX, hostname="q"), spec(), "")
    assert hosts.read_text() == "kept by another\n"
    assert (layout.etc("u") / "hostname").read_text() == "q\n"
    assert (layout.etc("u") / "hostname").stat().st_ino == before
    assert all(mount.read_only and Path(mount.source).exists() for mount in etc_mounts(layout, "u"))


async def test_sources_of_one_pod_and_all_that_are_kept_are_bounded_in_size() -> None:
    store: Any = OneObject()
    store.answer = {"data": {"k": "x" * (1 << 20)}}
    sources = PodSources(store, lambda: 0.0)
    with pytest.raises(AgentError, match="split the pod"):
        await sources.fetch("n", [("Secret", f"s{n}") for n in range(200)])
    assert store.asked < 70
    for n in range(200):
        await sources.fetch("m", [("Secret", f"s{n}")])
    assert sum(kept.bytes for kept in sources._kept.values()) == sources._bytes <= KEPT_BYTES_MAX
    store.answer = NotFound("gone")
    sources.forget("m", [("Secret", "s199")])
    await sources.fetch("m", [("Secret", "s199")])
    assert sum(kept.bytes for kept in sources._kept.values()) == sources._bytes


def test_held_bytes(tmp_path: Path) -> None:
    assert held_bytes(tmp_path / "nothing") == 0
    top = tmp_path / "top"
    (top / "a" / "b").mkdir(parents=True)
    empty = held_bytes(top)
    (top / "a" / "b" / "file").write_bytes(b"x" * 1_000_000)
    one = held_bytes(top) - empty
    assert 1_000_000 <= one < 1_100_000
    os.link(top / "a" / "b" / "file", top / "again")
    (top / "elsewhere").symlink_to("/usr")
    assert held_bytes(top) - empty == one
    with open(top / "sparse", "wb") as file:
        file.truncate(1 << 40)
    assert held_bytes(top) - empty == one
    with pytest.raises(Uncountable):
        held_bytes(top, entries_max=1)


def test_last_words(tmp_path: Path) -> None:
    assert last_words(tmp_path) == b""
    (tmp_path / "log").mkdir()
    log = tmp_path / "log" / "0.log"
    log.write_bytes(b"t stdout F one\nt stderr P two\nt stderr F half\n")
    assert last_words(tmp_path) == b"one\ntwohalf"
    log.write_bytes(b"".join(b"t stdout F line %d\n" % n for n in range(5000)))
    words = last_words(tmp_path)
    assert words.endswith(b"line 4999")
    assert len(words) <= 2048
    assert len(words.splitlines()) <= 81
