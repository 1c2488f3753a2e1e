"""Forwarded ports over real TLS, on channels and on SPDY, into real sockets: bytes both ways, ends, failures, slow readers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
import uvloop

from muster.agent import streaming, streaming_forward, streaming_spdy
from muster.agent.contracts import AgentError, StreamTarget
from muster.agent.streaming_line import Pace
from muster.agent.streaming_spdy import PROTOCOL as SPDY
from muster.agent.streaming_spdy_frames import CANCEL, PROTOCOL_ERROR, REFUSED_STREAM, UNIDIRECTIONAL
from tests.agent.spdy_client import SpdyClient, control, data, leave, ping, reset
from tests.agent.streaming_rig import FORWARD, UPGRADE, StreamRig, running_rig
from tests.waiting import until

V4 = "v4.channel.k8s.io"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[StreamRig]:
    async with running_rig(tmp_path) as made:
        yield made


@contextlib.asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[int]:
    """The port of a pod's program."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            if server.is_serving():  # or it was taken while that ended, and nobody would cancel it any more
                with contextlib.suppress(OSError, asyncio.CancelledError):
                    await serve(reader, writer)
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def echoes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while got := await reader.read(2**16):
        writer.write(got)
        await writer.drain()


async def counts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hears everything, and then says how much it was."""
    size = 0
    while got := await reader.read(2**16):
        size += len(got)
    writer.write(b"%d" % size)


async def never_reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.get_running_loop().create_future()


# -- on channels ---------------------------------------------------------------------------------------------------------------


async def channels(rig: StreamRig, *ports: int) -> aiohttp.ClientWebSocketResponse:
    client = await rig.connect(FORWARD, [("ports", str(port)) for port in ports], V4)
    for number, port in enumerate(ports):
        for channel in (2 * number, 2 * number + 1):
            assert await client.receive_bytes() == bytes((channel,)) + struct.pack("<H", port)
    return client


async def test_bytes_both_ways(rig: StreamRig) -> None:
    async with serving(echoes) as first, serving(echoes) as second:
        client = await channels(rig, first, second)
        await client.send_bytes(b"\x00one")
        assert await client.receive_bytes() == b"\x00one"
        await client.send_bytes(b"\x02two")
        assert await client.receive_bytes() == b"\x02two"
        for nonsense in (b"", b"\x01to an error channel", b"\x07nowhere", b"\xff\x00"):
            await client.send_bytes(nonsense)
        await client.send_bytes(b"\x00still there")
        assert await client.receive_bytes() == b"\x00still there"
        await client.close()
    target = StreamTarget(namespace="ns", pod="p")
    assert sorted(rig.pods.dialled, key=lambda one: one[1]) == sorted(
        [(target, first), (target, second)], key=lambda one: one[1]
    )


async def test_a_program_that_ends_the_connection(rig: StreamRig) -> None:
    async def greets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello" * 50_000)

    async with serving(greets) as port:
        client = await channels(rig, port)
        got = b"".join([message.data[1:] async for message in client])
        assert (got, client.close_code) == (b"hello" * 50_000, 1000)


async def test_what_was_sent_before_the_goodbye_arrives(rig: StreamRig) -> None:
    heard: asyncio.Queue[int] = asyncio.Queue()

    async def hears(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard.put(len(await reader.read()))

    async with serving(hears) as port:
        client = await channels(rig, port)
        await client.send_bytes(b"\x00" + bytes(2**20))
        await client.close()
        assert await heard.get() == 2**20


@pytest.mark.parametrize("error", ["ConnectionRefused", "NotFound", "NotSupported"])
async def test_why_there_is_no_connection(rig: StreamRig, error: str) -> None:
    rig.pods.error = AgentError(error, "nobody is there")
    client = await channels(rig, 80)
    assert await client.receive_bytes() == b"\x01error forwarding port 80 to pod ns/p: nobody is there"
    assert (await client.receive()).type is aiohttp.WSMsgType.CLOSE


async def test_a_fault_is_told_as_well(rig: StreamRig, caplog: pytest.LogCaptureFixture) -> None:
    rig.pods.error = RuntimeError("not meant to be")  # type: ignore[assignment]
    client = await channels(rig, 80)
    assert await client.receive_bytes() == (
        b"\x01error forwarding port 80 to pod ns/p: a fault of the agent; its log says more"
    )
    assert (await client.receive()).type is aiohttp.WSMsgType.CLOSE
    assert "not meant to be" in caplog.text


async def test_one_port_of_several_is_refused(rig: StreamRig, unused_tcp_port: int) -> None:
    async with serving(echoes) as port:
        client = await channels(rig, unused_tcp_port, port)
        assert (await client.receive_bytes()).startswith(b"\x01error forwarding port")
        await client.send_bytes(b"\x02and this one?")
        assert await client.receive_bytes() == b"\x02and this one?"
        await client.close()


async def test_a_client_without_a_protocol(rig: StreamRig) -> None:
    async with serving(echoes) as port:
        client = await rig.connect(FORWARD, [("ports", str(port))])
        assert (await client.receive_bytes(), await client.receive_bytes()) == (
            b"\x00" + struct.pack("<H", port),
            b"\x01" + struct.pack("<H", port),
        )
        await client.close()


@pytest.mark.parametrize("protocol", [V4, SPDY])
async def test_a_client_that_is_gone(rig: StreamRig, protocol: str) -> None:
    async with serving(never_reads) as port:
        client = await rig.connect(FORWARD, [("ports", str(port))], protocol)
        if protocol == SPDY:
            await client.send_bytes(SpdyClient().pair(1, port))
            await client.send_bytes(data(3, bytes(2**19)))
        else:
            await client.send_bytes(b"\x00" + bytes(2**19))

        async def is_dialled() -> bool:
            return bool(rig.pods.dialled)

        await until(is_dialled)
        client._response.connection.transport.abort()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ([], "ports"),
        ([("ports", "0")], "ports"),
        ([("ports", "80,x")], "ports"),
        ([("ports", "65536")], "ports"),
        ([("ports", ",".join(["80"] * 33))], "33"),
        ([("ports", "8" * 1000)], "ports"),
    ],
    ids=lambda one: str(one)[:20],
)
async def test_bad_requests(rig: StreamRig, query: list[tuple[str, str]], sentence: str) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await rig.connect(FORWARD, query, V4)
    assert caught.value.status == 400
    code, text = await rig.ask(FORWARD, query, {**UPGRADE, "Sec-WebSocket-Protocol": V4})
    assert (code, sentence in text, text.count("\n")) == (400, True, 1), text
    assert rig.pods.dialled == []


async def test_too_many(rig: StreamRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "FORWARDS_MAX", 1)
    client = await rig.connect(FORWARD, [], SPDY)
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await rig.connect(FORWARD, [], SPDY)
    assert caught.value.status == 429
    await client.close()


async def test_too_many_connections(rig: StreamRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming_forward, "CONNECTIONS_MAX", 1)
    async with serving(echoes) as port:
        client = await channels(rig, port, port)
        assert b"1 connections into pods" in await client.receive_bytes()
        await client.close()


# -- on SPDY -------------------------------------------------------------------------------------------------------------------


class Spoken:
    """A WebSocket and what is spoken in it."""

    def __init__(self, client: aiohttp.ClientWebSocketResponse) -> None:
        self.client = client
        self.spdy = SpdyClient()

    @classmethod
    async def to(cls, rig: StreamRig) -> Spoken:
        client = await rig.connect(FORWARD, [], SPDY)
        assert client.protocol == SPDY
        return cls(client)

    async def say(self, *frames: bytes) -> None:
        await self.client.send_bytes(b"".join(frames))

    async def hear_until(self, check: Callable[[SpdyClient], object]) -> None:
        while not check(self.spdy):
            self.spdy.hear(await self.client.receive_bytes())


async def test_connections_side_by_side(rig: StreamRig) -> None:
    async with serving(echoes) as port:
        talk = await Spoken.to(rig)
        await talk.say(talk.spdy.pair(1, port), talk.spdy.pair(5, port), data(3, b"one"), data(7, b"two"))
        await talk.hear_until(lambda spdy: spdy.data == {3: b"one", 7: b"two"})
        await talk.say(data(3, b" more", is_last=True))
        await talk.hear_until(lambda spdy: {3, 1} <= set(spdy.ended))
        assert talk.spdy.data[3] == b"one more"
        await talk.say(data(7, b" and on"))
        await talk.hear_until(lambda spdy: spdy.data[7] == b"two and on")
        assert talk.spdy.replied == [1, 3, 5, 7]
        await talk.client.close()


async def test_a_half_that_is_closed_leaves_the_other(rig: StreamRig) -> None:
    async with serving(counts) as port:
        talk = await Spoken.to(rig)
        await talk.say(talk.spdy.pair(1, port), *(data(3, bytes(50_000)) for _ in range(10)), data(3, is_last=True))
        await talk.hear_until(lambda spdy: 1 in spdy.ended)
        assert (talk.spdy.data[3], 3 in talk.spdy.ended) == (b"500000", True)
        await talk.client.close()


async def test_a_large_frame_in_many_messages(rig: StreamRig) -> None:
    sent = os.urandom(3 * 2**20)
    async with serving(echoes) as port:
        talk = await Spoken.to(rig)
        await talk.say(talk.spdy.pair(1, port))
        frame = data(3, sent, is_last=True)

        async def say_it() -> None:
            for at in range(0, len(frame), 100_000):
                await talk.say(frame[at : at + 100_000])

        saying = asyncio.create_task(say_it())
        await talk.hear_until(lambda spdy: 3 in spdy.ended)
        await saying
        assert talk.spdy.data[3] == sent
        await talk.client.close()


async def test_a_refused_connection_is_told_and_the_others_go_on(rig: StreamRig, unused_tcp_port: int) -> None:
    async with serving(echoes) as port:
        talk = await Spoken.to(rig)
        await talk.say(talk.spdy.pair(1, unused_tcp_port), talk.spdy.pair(5, port))
        await talk.hear_until(lambda spdy: {1, 3} <= set(spdy.ended))
        assert talk.spdy.data[1] == (
            f"error forwarding port {unused_tcp_port} to pod ns/p: nothing listens on port {unused_tcp_port}".encode()
        )
        await talk.say(data(7, b"still"))
        await talk.hear_until(lambda spdy: spdy.data.get(7) == b"still")
        await talk.client.close()


async def test_a_program_that_breaks_off(rig: StreamRig) -> None:
    async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with serving(breaks) as port:
        talk = await Spoken.to(rig)
        await talk.say(talk.spdy.pair(1, port), data(3, b"x"))
        await talk.hear_until(lambda spdy: 1 in spdy.ended)
        assert (list(talk.spdy.resets), talk.spdy.data.get(1, b"")) == ([3], b"")
        await talk.client.close()


async def test_a_program_that_ends_while_the_client_has_not(tmp_path: Path) -> None:
    async def greets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")

    async with running_rig(tmp_path, Pace(linger_s=0.05)) as rig, serving(greets) as port:
        talk = await Spoken.to(rig)
        await talk.say(talk.spdy.pair(1, port))
        await talk.hear_until(lambda spdy: 1 in spdy.ended)
        assert (talk.spdy.data[3], talk.spdy.ended) == (b"hello", [3, 1])
        await talk.client.close()


async def test_a_reset_ends_the_connection_and_its_error_stream(rig: StreamRig) -> None:
    gone = asyncio.Event()

    async def waits(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"up")
        await reader.read()
        gone.set()

    async with serving(waits) as port:
        talk = await Spoken.to(rig)
        await talk.say(talk.spdy.pair(1, port))
        await talk.hear_until(lambda spdy: 3 in spdy.data)
        await talk.say(reset(3))
        await talk.hear_until(lambda spdy: 1 in spdy.ended)
        await gone.wait()
        await talk.say(data(3, b"to nobody"), reset(3), reset(99))
        await talk.say(ping(9))
        await talk.hear_until(lambda spdy: spdy.pings == [9])
        await talk.client.close()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"streamtype": "data"},
        {"streamtype": "data", "port": "0"},
        {"streamtype": "data", "port": "70000"},
        {"streamtype": "other", "port": "80"},
    ],
    ids=str,
)
async def test_streams_that_say_not_what_for(rig: StreamRig, headers: dict[str, str]) -> None:
    talk = await Spoken.to(rig)
    await talk.say(talk.spdy.open(1, headers))
    await talk.hear_until(lambda spdy: spdy.resets == {1: PROTOCOL_ERROR})
    await talk.client.close()


async def test_streams_whose_place_is_taken(rig: StreamRig) -> None:
    talk = await Spoken.to(rig)
    headers = {"streamtype": "error", "port": "80", "requestid": "a"}
    await talk.say(*(talk.spdy.open(stream, headers) for stream in (1, 3)))
    await talk.say(talk.spdy.open(5, {**headers, "streamtype": "data", "port": "81"}))
    await talk.say(talk.spdy.open(7, {**headers, "requestid": "b"}, flags=UNIDIRECTIONAL))
    await talk.hear_until(lambda spdy: set(spdy.resets) == {3, 5, 7})
    await talk.client.close()


async def test_clients_that_name_no_request(rig: StreamRig) -> None:
    async with serving(echoes) as port:
        talk = await Spoken.to(rig)
        for kind, stream in (("error", 1), ("data", 3)):
            await talk.say(talk.spdy.open(stream, {"streamtype": kind, "port": str(port)}))
        await talk.say(data(3, b"hello"))
        await talk.hear_until(lambda spdy: spdy.data.get(3) == b"hello")
        await talk.client.close()


async def test_bytes_before_the_other_stream(rig: StreamRig) -> None:
    async with serving(echoes) as port:
        talk = await Spoken.to(rig)
        headers = {"port": str(port), "requestid": "1"}
        await talk.say(talk.spdy.open(1, {**headers, "streamtype": "data"}), data(1, b"early"))
        await talk.say(talk.spdy.open(3, {**headers, "streamtype": "error"}))
        await talk.hear_until(lambda spdy: spdy.data.get(1) == b"early")
        await talk.client.close()


async def test_too_many_streams(rig: StreamRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming_spdy, "STREAMS_MAX", 2)
    async with serving(echoes) as port:
        talk = await Spoken.to(rig)
        await talk.say(talk.spdy.pair(1, port), talk.spdy.pair(5, port))
        await talk.hear_until(lambda spdy: spdy.resets == {5: REFUSED_STREAM, 7: REFUSED_STREAM})
        await talk.say(data(3, b"x", is_last=True))
        await talk.hear_until(lambda spdy: 1 in spdy.ended)
        await talk.say(talk.spdy.pair(9, port), data(11, b"room again"))
        await talk.hear_until(lambda spdy: spdy.data.get(11) == b"room again")
        await talk.client.close()


@pytest.mark.parametrize("kind", ["data", "error"])
async def test_a_half_that_stays_alone_is_forgotten(tmp_path: Path, kind: str) -> None:
    async with running_rig(tmp_path, Pace(pair_s=0.0)) as rig:
        talk = await Spoken.to(rig)
        for stream in (1, 3):
            await talk.say(talk.spdy.open(stream, {"streamtype": kind, "port": "80", "requestid": str(stream)}))
        await talk.say(ping(1))
        await talk.hear_until(lambda spdy: spdy.pings)
        assert (talk.spdy.resets, talk.spdy.ended) == ({1: CANCEL}, []), "not as if all had gone well"
        await talk.client.close()


async def test_a_client_that_only_pings_has_forgotten_its_ports(tmp_path: Path) -> None:
    """kubectl does so every few seconds, for as long as it runs."""
    async with running_rig(tmp_path, Pace(heartbeat_s=0.05, idle_s=0.3)) as rig:
        talk = await Spoken.to(rig)

        async def pings() -> None:
            while not talk.client.closed:
                await talk.say(ping(1))
                await asyncio.sleep(0.05)

        pinging = asyncio.create_task(pings())
        while (await talk.client.receive()).type is aiohttp.WSMsgType.BINARY:
            pass
        pinging.cancel()
        await asyncio.gather(pinging, return_exceptions=True)


async def test_no_streams_after_a_goodbye(rig: StreamRig) -> None:
    talk = await Spoken.to(rig)
    await talk.say(leave(), talk.spdy.pair(1, 80))
    await talk.hear_until(lambda spdy: spdy.resets == {1: REFUSED_STREAM, 3: REFUSED_STREAM})
    await talk.client.close()


@pytest.mark.parametrize(
    "said", [control(6, b"\0\0\0\1", version=2), control(1, bytes(10))], ids=["another version", "no headers"]
)
async def test_a_client_that_speaks_something_else(rig: StreamRig, said: bytes) -> None:
    talk = await Spoken.to(rig)
    await talk.say(said, control(1, bytes(9)))
    await talk.hear_until(lambda spdy: spdy.left == [(0, PROTOCOL_ERROR)])
    assert (await talk.client.receive()).type is aiohttp.WSMsgType.CLOSE


async def test_a_program_that_does_not_read_holds_up_its_client_only(rig: StreamRig) -> None:
    async with serving(never_reads) as deaf, serving(echoes) as port:
        stuck, other = await Spoken.to(rig), await Spoken.to(rig)
        await stuck.say(stuck.spdy.pair(1, deaf))

        async def floods() -> None:
            while True:
                await stuck.say(data(3, bytes(2**20)))

        flooding = asyncio.create_task(floods())
        await other.say(other.spdy.pair(1, port), data(3, b"not held up"))
        await other.hear_until(lambda spdy: spdy.data.get(3) == b"not held up")
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        stuck.client._response.connection.transport.abort()  # type: ignore[union-attr]
        await other.client.close()


def test_it_runs_on_the_loop_that_agents_run_on(tmp_path: Path) -> None:
    sent = os.urandom(2**20)

    async def run() -> None:
        async with (
            running_rig(tmp_path, counts_descriptors=False) as rig,
            serving(echoes) as port,
            serving(never_reads) as deaf,
        ):
            talk = await Spoken.to(rig)
            await talk.say(talk.spdy.pair(1, port), data(3, sent, is_last=True))
            await talk.hear_until(lambda spdy: 1 in spdy.ended)
            assert talk.spdy.data[3] == sent
            await talk.say(talk.spdy.pair(5, deaf), data(7, sent), reset(7))
            await talk.hear_until(lambda spdy: 5 in spdy.ended)
            client = await channels(rig, port)
            await client.send_bytes(b"\x00hello")
            assert await client.receive_bytes() == b"\x00hello"
            await client.close()
            talk.client._response.connection.transport.abort()  # type: ignore[union-attr]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
