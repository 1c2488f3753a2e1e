"""The private set intersection of `examples/psi`: right, silent about items on the wire, and firm with a peer that is not."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples.psi_support import Pair, Wire, ends, load, write_csv

psi = load("psi")
P = 2**255 - 19
ITEM = st.text(
    st.characters(codec="utf-8", exclude_characters='"\r\n\x00', exclude_categories=("Cs", "Cc")), min_size=1, max_size=20
)
SETS = st.lists(ITEM.map(lambda text: f"x{text}x"), max_size=30, unique=True)


async def both(pair: Pair) -> dict[str, list[str] | None]:
    """Both parties in this process, over a real socket."""
    async with asyncio.TaskGroup() as group:
        for party in ("bob", "alice"):
            group.create_task(psi.take_part(psi.Task.read(pair.told(party))))
    return {party: pair.result(party) for party in ("alice", "bob")}


# -- the group ----------------------------------------------------------------------------------------------------------------


@given(st.integers(0, P - 1))
def test_on_the_curve_is_what_eulers_criterion_says(u: int) -> None:
    assert psi.is_on_curve(u) == (pow(u**3 + 486662 * u * u + u, (P - 1) // 2, P) == 1)


@given(st.text(max_size=50), st.text(max_size=10))
def test_items_become_points_of_the_curve_and_the_order_of_secrets_does_not_matter(item: str, salt: str) -> None:
    point = psi.hash_to_curve(item, salt)
    assert psi.is_on_curve(int.from_bytes(point, "little"))
    assert point == psi.hash_to_curve(item, salt)
    assert point != psi.hash_to_curve(item, salt + "!")
    a, b = psi.Secret(), psi.Secret()
    masked = a.mask([point])
    assert psi.is_on_curve(int.from_bytes(masked[0], "little")), "a product tells nothing of the item, not even one bit"
    assert b.double(masked) == a.double(b.mask([point]))


def test_hashes_are_of_different_pieces() -> None:
    """The salt's end can't become the item's beginning."""
    assert psi.hash_to_curve("bc", "a") != psi.hash_to_curve("c", "ab")


TWIST = next(u for u in range(2, 100) if not psi.is_on_curve(u))
BAD_POINTS = [
    pytest.param((0).to_bytes(32, "little"), id="zero"),
    pytest.param((1).to_bytes(32, "little"), id="small order"),
    pytest.param((P - 1).to_bytes(32, "little"), id="small order on the twist"),
    pytest.param(P.to_bytes(32, "little"), id="zero written as p"),
    pytest.param((P + 9).to_bytes(32, "little"), id="not reduced"),
    pytest.param(b"\xff" * 32, id="all ones"),
    pytest.param(TWIST.to_bytes(32, "little"), id="on the twist"),
]


@pytest.mark.parametrize("point", BAD_POINTS)
def test_what_is_no_point_is_refused(point: bytes) -> None:
    with pytest.raises(psi.Failure, match="not a point"):
        psi.Secret().double([psi.hash_to_curve("x", ""), point])


# -- both parties -------------------------------------------------------------------------------------------------------------


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(alice=SETS, bob=SETS, common=SETS)
def test_it_is_the_plain_intersection(tmp_path: Path, alice: list[str], bob: list[str], common: list[str]) -> None:
    pair = Pair(tmp_path, [*common, *alice], [*bob, *common])
    found = asyncio.run(both(pair))
    plain = {name: psi.read_items(tmp_path / f"{name}.csv", "id") for name in ("alice", "bob")}
    for name, other in (("alice", "bob"), ("bob", "alice")):
        assert found[name] == [item for item in plain[name] if item in set(plain[other])]


@pytest.mark.parametrize("first", ["alice", "bob"])
def test_two_processes_of_several_batches(tmp_path: Path, first: str) -> None:
    alice = [f"n{i}" for i in range(psi.BATCH + 300)]
    bob = [f"n{i}" for i in range(psi.BATCH, 3 * psi.BATCH + 5)]
    pair = Pair(tmp_path, alice, bob, show=2)
    second = "bob" if first == "alice" else "alice"
    started = {first: pair.start(first)}
    # The caller calls into the void for a while, or the listener waits.
    asyncio.run(asyncio.sleep(0.5))
    started[second] = pair.start(second)
    for name, process in started.items():
        code, output, errors = ends(process)
        assert (code, errors) == (0, "")
        assert "done: 300 items are common" in output
        assert pair.result(name) == [f"n{i}" for i in range(psi.BATCH, psi.BATCH + 300)]
        reports = pair.reports(name)
        progress = [line["progress"] for line in reports]
        assert progress == sorted(progress)
        assert progress[-1] == 1.0
        assert reports[-1]["records"]["common"] == 300


def test_only_receivers_learn(tmp_path: Path) -> None:
    pair = Pair(tmp_path, ["a", "b", "c"], ["b", "c", "d"], receivers=["bob"])
    assert asyncio.run(both(pair)) == {"alice": None, "bob": ["b", "c"]}


def test_no_item_and_nothing_that_can_be_tried_out_is_on_the_wire(tmp_path: Path) -> None:
    items = [f"customer-{i:05}@bank.example" for i in range(40)]

    async def run() -> bytes:
        pair = Pair(tmp_path, items[:30], items[10:])
        async with Wire(pair.alice_port) as wire:
            pair.called_port = wire.port
            found = await both(pair)
            assert found["alice"] == items[10:30]
            return bytes(wire.carried)

    first, second = asyncio.run(run()), asyncio.run(run())
    assert len(first) > 32 * 60, "the wire has carried the points"
    for item in items:
        for form in (item, item.split("@", maxsplit=1)[0]):
            assert form.encode() not in first
            assert form.encode().hex().encode() not in first
        for name in ("md5", "sha1", "sha256", "sha512"):
            assert hashlib.new(name, item.encode()).digest()[:16] not in first
        assert psi.hash_to_curve(item, "psi-1") not in first, "an unmasked point can be found by guessing"
    points = [{data[at : at + 32] for at in range(len(data) - 32)} for data in (first, second)]
    assert len(points[0] & points[1]) < len(first) // 4, "secrets are fresh: only the greetings are the same in both runs"
    masked = 30 * 32
    assert first[-masked:] not in second


# -- a peer that does not keep to it ------------------------------------------------------------------------------------------


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack("!BI", kind, len(payload)) + payload


def hello(**changes: Any) -> bytes:
    said = {"protocol": psi.PROTOCOL, "task": "psi-1", "party": "bob", "receivers": ["alice", "bob"], "items": 1, **changes}
    return frame(psi.HELLO, json.dumps(said).encode())


def good_point() -> bytes:
    return bytes(X25519PrivateKey.generate().public_key().public_bytes_raw())


async def misbehave(pair: Pair, *frames: bytes, stays: bool = False) -> str:
    """What alice says at the end, when her peer greets and then sends this. Her own list has two items."""
    running = asyncio.ensure_future(psi.take_part(psi.Task.read(pair.told("alice"))))
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", pair.alice_port)
            break
        except OSError:
            await asyncio.sleep(0.01)
    for one in frames:
        writer.write(one)
    if not stays:
        writer.write_eof()
    draining = asyncio.ensure_future(reader.read())
    try:
        with pytest.raises(psi.Failure) as failure:
            await running
        return str(failure.value)
    finally:
        writer.close()
        await asyncio.wait([draining])
        assert pair.result("alice") is None


GREETED = [
    pytest.param((), "closed the connection too early", id="closes at once"),
    pytest.param((b"\x02\x00",), "closed the connection too early", id="half a header"),
    pytest.param((frame(2, b"x" * 32)[:20],), "closed the connection too early", id="half a point"),
    pytest.param((b"\x02\xff\xff\xff\xff",), "sent 4,294,967,295 bytes of kind 2; 32 of kind 2 were to come", id="huge frame"),
    pytest.param((frame(2, b""),), "sent 0 bytes of kind 2", id="fewer points than announced"),
    pytest.param((frame(9, b"x" * 32),), "kind 9", id="unknown kind"),
    pytest.param((b"\x04\x7f\xff\xff\xff",), "kind 4", id="huge farewell"),
    pytest.param((frame(4, b"no disk \xff"),), "has given up: 'no disk \ufffd'", id="gives up"),
    *(pytest.param((frame(2, p.values[0]),), "not a point", id=str(p.id)) for p in BAD_POINTS),  # type: ignore[arg-type]
    pytest.param((frame(2, good_point()), frame(3, b"x" * 32)), "32 bytes of kind 3; 64", id="an answer for one of two items"),
    pytest.param((frame(2, good_point()), frame(3, b"x" * 64)), "sent a point twice", id="the same answer for two items"),
]


@pytest.mark.parametrize(("frames", "says"), GREETED)
async def test_a_peer_that_breaks_the_protocol(tmp_path: Path, frames: tuple[bytes, ...], says: str) -> None:
    assert says in await misbehave(Pair(tmp_path, ["a", "b"], []), hello(), *frames)


async def test_a_peer_that_falls_silent(tmp_path: Path) -> None:
    pair = Pair(tmp_path, ["a", "b"], [], silenceSeconds=0.3)
    assert "silent for 0.3 s" in await misbehave(pair, hello(), stays=True)


STRANGERS = [
    pytest.param(b"", None, id="a probe that says nothing"),
    pytest.param(b"GET / HTTP/1.1\r\n\r\n", "bytes of kind 71", id="a browser"),
    pytest.param(frame(1, b"{"), "does not speak this protocol", id="no JSON"),
    pytest.param(frame(1, b"[" * 4096), "does not speak this protocol", id="deep JSON"),
    pytest.param(b"\x01\xff\xff\xff\xff", "bytes of kind 1", id="a huge greeting"),
    pytest.param(hello(task="other"), 'task: "other" instead of "psi-1"', id="another task's"),
    pytest.param(hello(party="mallory"), 'party: "mallory"', id="another party"),
    pytest.param(hello(receivers=["bob"]), "receivers:", id="another idea of who receives"),
    pytest.param(hello(items=11), "at most 10 (peerItemsMax)", id="too many items"),
    pytest.param(hello(items=-1), "items: -1", id="less than nothing"),
    pytest.param(hello(items=True), "items: True", id="no number"),
]


@pytest.mark.parametrize(("said", "answer"), STRANGERS)
async def test_strangers_are_turned_away_and_the_peer_is_still_served(tmp_path: Path, said: bytes, answer: str | None) -> None:
    pair = Pair(tmp_path, ["a", "b"], ["b"], peerItemsMax=10)
    listening = asyncio.ensure_future(psi.take_part(psi.Task.read(pair.told("alice"))))
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", pair.alice_port)
            break
        except OSError:
            await asyncio.sleep(0.01)
    writer.write(said)
    if answer is None:
        writer.close()
    else:
        told = await reader.read()
        assert (told[0], answer in told[5:].decode()) == (psi.FAILED, True), told
        assert b'"items"' not in told, "a stranger does not learn how many there are"
        writer.close()
    await asyncio.gather(listening, psi.take_part(psi.Task.read(pair.told("bob"))))
    assert pair.result("alice") == ["b"]


def test_a_process_says_what_went_wrong_and_fails(tmp_path: Path) -> None:
    pair = Pair(tmp_path, ["a"], ["a"])
    alice, bob = pair.start("alice", receivers=["alice"]), pair.start("bob")
    code, _, errors = ends(bob)
    assert (code, errors.startswith("psi: alice can't be reached at ('127.0.0.1', ")) == (1, True), errors
    assert 'receivers: ["alice", "bob"] instead of ["alice"]; both parties must be told the same' in errors
    assert "Traceback" not in errors
    alice.kill()
    ends(alice)
    assert pair.result("alice") is None


def test_nobody_comes(tmp_path: Path) -> None:
    pair = Pair(tmp_path, ["a"], ["a"], waitSeconds=0.2)
    for party, says in (("alice", "bob did not call within 0.2 s"), ("bob", "alice can't be reached")):
        with pytest.raises(psi.Failure, match=says):
            asyncio.run(psi.take_part(psi.Task.read(pair.told(party))))


# -- what a task is told ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param({"TASK_CLUSTER_DEFINE": "x"}, "JSONDecodeError", id="no JSON"),
        pytest.param({"TASK_INPUT_CONFIG": "[]"}, "does not fit", id="no object"),
        pytest.param({"TASK_INPUT_CONFIG": "{}"}, "inputs", id="no inputs"),
        pytest.param({"TASK_INPUT_CONFIG": '{"inputs": {"bob": "x"}}'}, "an input for alice", id="none for this party"),
        pytest.param({"TASK_INPUT_CONFIG": '{"inputs": {"alice": "x"}, "receivers": ["eve"]}'}, "receivers", id="receiver"),
        pytest.param({"ALLOCATED_PORTS": '{"ports": []}'}, "StopIteration", id="no port"),
    ],
)
def test_a_description_that_does_not_fit(tmp_path: Path, change: dict[str, str], says: str) -> None:
    with pytest.raises(psi.Failure, match=says):
        psi.Task.read({**Pair(tmp_path, [], []).told("alice"), **change})


def test_an_endpoint_without_a_number_is_behind_the_gateway(tmp_path: Path) -> None:
    told = Pair(tmp_path, [], []).told("bob")
    cluster = json.loads(told["TASK_CLUSTER_DEFINE"])
    for name, party in zip(("alice", "bob"), cluster["parties"], strict=True):
        party["services"][0]["endpoints"] = [f"psi-0-exchange.{name}.svc"]
    task = psi.Task.read({**told, "TASK_CLUSTER_DEFINE": json.dumps(cluster)})
    assert task.peer_address == ("psi-0-exchange.alice.svc", 80)
    assert task.own_address[0] == "0.0.0.0"
    options = {**json.loads(told["TASK_INPUT_CONFIG"]), "hosts": {"alice": "127.0.0.2", "bob": "127.0.0.3"}}
    shared = psi.Task.read({**told, "TASK_CLUSTER_DEFINE": json.dumps(cluster), "TASK_INPUT_CONFIG": json.dumps(options)})
    assert (shared.peer_address[0], shared.own_address[0]) == ("127.0.0.2", "127.0.0.3")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(b"name\nx\n", "no column 'id'", id="no such column"),
        pytest.param(b"", "no column 'id'", id="empty"),
        pytest.param(b"id\n\xff\n", "can't be read", id="not UTF-8"),
        pytest.param(b"id\n" + b"x" * 5000 + b"\n", "line 2: at most", id="a huge item"),
    ],
)
def test_an_input_that_can_not_be_used(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    with pytest.raises(psi.Failure, match=says):
        psi.read_items(path, "id")
    with pytest.raises(psi.Failure, match="can't be read"):
        psi.read_items(tmp_path / "missing.csv", "id")


def test_items_are_read_in_order_once_and_in_one_way_of_writing(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "in.csv", [" b ", "a", "", "b", "e\u0301", "\u00e9"])
    assert psi.read_items(path, "id") == ["b", "a", "\u00e9"]
