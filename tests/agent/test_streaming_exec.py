"""Commands with their streams open, over real TLS and with real processes: what is said on which channel, and who goes when."""

from __future__ import annotations

import asyncio
import base64
import fcntl
import json
import os
import re
import struct
import termios
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
import uvloop
from aiohttp import WSMsgType

from muster.agent import streaming, streaming_pipes
from muster.agent.contracts import AgentError, ExecWant, StreamTarget
from muster.agent.streaming_line import MESSAGE_BYTES_MAX, Line, Pace
from muster.server.config import ServerLimits
from tests.agent.streaming_rig import EXEC, UPGRADE, StreamRig, running_rig
from tests.waiting import until

V4 = "v4.channel.k8s.io"
V5 = "v5.channel.k8s.io"
SUCCESS: dict[str, Any] = {"metadata": {}, "status": "Success"}


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[StreamRig]:
    async with running_rig(tmp_path) as made:
        yield made


def words(*argv: str, streams: str = "output error") -> list[tuple[str, str]]:
    return [*(("command", word) for word in argv), *((name, "1") for name in streams.split())]


def shell(script: str, streams: str = "output error") -> list[tuple[str, str]]:
    return words("sh", "-c", script, streams=streams)


def waits_for(gate: Path) -> str:
    return f"until [ -e {gate} ]; do sleep 0.05; done"


class Heard:
    """What a client gets until the end, by channel."""

    def __init__(self) -> None:
        self.channels: dict[int, bytes] = {}
        self.order: list[int] = []
        self.close_code: int | None = None

    @classmethod
    async def all_of(cls, client: aiohttp.ClientWebSocketResponse) -> Heard:
        heard, parts = cls(), dict[int, bytearray]()
        async for message in client:
            assert message.type is WSMsgType.BINARY
            heard.order.append(message.data[0])
            parts.setdefault(message.data[0], bytearray()).extend(message.data[1:])
        heard.channels = {channel: bytes(part) for channel, part in parts.items()}
        heard.close_code = client.close_code
        return heard

    @property
    def out(self) -> bytes:
        return self.channels.get(1, b"")

    @property
    def status(self) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(self.channels[3])
        return decoded


async def heard(rig: StreamRig, query: list[tuple[str, str]], protocol: str = V4) -> Heard:
    return await Heard.all_of(await rig.connect(EXEC, query, protocol))


async def reads_until(client: aiohttp.ClientWebSocketResponse, text: bytes) -> bytes:
    got = b""
    while text not in got:
        message = await client.receive_bytes()
        assert message[0] in (1, 2), message
        got += message[1:]
    return got


async def test_each_stream_has_its_channel(rig: StreamRig) -> None:
    got = await heard(rig, [*shell("echo out; echo err >&2"), ("uid", "u")])
    assert (got.channels[1], got.channels[2], got.status) == (b"out\n", b"err\n", SUCCESS)
    assert (got.order[0], got.order[-1], got.close_code) == (1, 3, 1000)
    target = StreamTarget(namespace="ns", pod="p", container="c", uid="u")
    assert rig.pods.asked == [(target, ExecWant(argv=("sh", "-c", "echo out; echo err >&2")))]


@pytest.mark.parametrize(
    ("script", "code"), [("exit 3", "3"), ("kill -9 $$", "137")], ids=["its own code", "a signal, as a shell says it"]
)
async def test_a_failure_says_its_code(rig: StreamRig, script: str, code: str) -> None:
    status = (await heard(rig, shell(script))).status
    assert (status["status"], status["reason"]) == ("Failure", "NonZeroExitCode")
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": code}]
    assert status["message"].startswith("command terminated with non-zero exit code")


@pytest.mark.parametrize(
    ("protocol", "script", "error"),
    [
        pytest.param("channel.k8s.io", "exit 0", None, id="success is not told"),
        pytest.param("channel.k8s.io", "exit 4", b"exit status 4", id="a failure is a sentence"),
        pytest.param("v2.channel.k8s.io", "exit 4", b"exit status 4", id="and of version 2"),
    ],
)
async def test_older_protocols(rig: StreamRig, protocol: str, script: str, error: bytes | None) -> None:
    got = await heard(rig, shell(f"echo out; {script}"), protocol)
    assert got.out == b"out\n"
    assert got.channels.get(3) is None if error is None else got.channels[3].endswith(error)


async def test_a_client_that_offers_no_protocol(rig: StreamRig) -> None:
    client = await rig.connect(EXEC, shell("echo out"))
    assert client.protocol is None
    assert (await Heard.all_of(client)).channels == {1: b"out\n"}


async def test_text_in_base64(rig: StreamRig) -> None:
    client = await rig.connect(EXEC, shell("cat; exit 2", "input output"), "v4.base64.channel.k8s.io")
    await client.send_str("0" + base64.b64encode(b"hello\n").decode())
    assert await client.receive_str() == "1"
    assert base64.b64decode((await client.receive_str())[1:]) == b"hello\n"
    await client.close()


async def test_stdin_is_half_closed_by_version_5(rig: StreamRig) -> None:
    client = await rig.connect(EXEC, shell("cat; echo end", "input output"), V4, V5)
    assert client.protocol == V4  # the first that both know
    await client.close()
    client = await rig.connect(EXEC, shell("cat; echo end", "input output"), V5, V4)
    await client.send_bytes(b"\x00some ")
    await client.send_bytes(b"\x00words ")
    await client.send_bytes(b"\xff\x00")
    got = await Heard.all_of(client)
    assert (got.out, got.status) == (b"some words end\n", SUCCESS)


async def test_text_messages_are_bytes_as_well(rig: StreamRig) -> None:
    client = await rig.connect(EXEC, shell("head -n1", "input output"), V4)
    await client.send_str("\x00as a Python client sends it\n")
    assert (await Heard.all_of(client)).out == b"as a Python client sends it\n"


async def test_a_command_as_long_as_the_api_server_takes_it(rig: StreamRig) -> None:
    word = "é" * (ServerLimits().query_bytes_max // 2)  # six bytes each, when it is written into a query
    assert (await heard(rig, words("printf", "%s", word))).out == word.encode()


async def test_megabytes_there_and_back(rig: StreamRig) -> None:
    data = os.urandom(2**20) * 4
    client = await rig.connect(EXEC, words("cat", streams="input output"), V5)
    hearing = asyncio.create_task(Heard.all_of(client))
    for at in range(0, len(data), 2**20):
        await client.send_bytes(b"\x00" + data[at : at + 2**20])
    await client.send_bytes(b"\xff\x00")
    got = await hearing
    assert got.out == data
    assert got.status == SUCCESS


async def test_output_waits_for_a_slow_reader_and_nothing_is_lost(rig: StreamRig, tmp_path: Path) -> None:
    size, done = 64 * 2**20, tmp_path / "done"
    client = await rig.connect(EXEC, shell(f"head -c {size} /dev/zero; touch {done}"), V4)
    assert await client.receive_bytes() == b"\x01"
    full = 0

    async def stays_full() -> bool:
        nonlocal full
        held = struct.unpack("i", fcntl.ioctl(rig.pods.sessions[0].stdout, termios.FIONREAD, bytes(4)))[0]
        full = full + 1 if held >= 2**16 else 0
        return full == 10

    await until(stays_full)
    assert not done.exists()
    got = await Heard.all_of(client)
    assert len(got.out) == size
    assert got.status == SUCCESS


async def test_what_is_in_the_pipes_at_the_end_is_sent(rig: StreamRig) -> None:
    for _ in range(5):
        got = await heard(rig, shell("head -c 60000 /dev/zero; head -c 60000 /dev/zero >&2; exit 1"))
        assert (len(got.channels[1]), len(got.channels[2])) == (60000, 60000)
        assert got.order[-1] == 3


@pytest.mark.parametrize("leaves", ["sleep 1000 &", "yes &"], ids=["silent", "that prints for ever"])
async def test_what_is_left_behind_does_not_hold_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: str
) -> None:
    monkeypatch.setattr(streaming_pipes, "LATE_BYTES_MAX", 2**17)
    async with running_rig(tmp_path, Pace(left_over_s=0.1)) as rig:
        got = await heard(rig, shell(f"{leaves} echo out; exit 5"))
        assert b"out\n" in got.out
        assert got.status["details"]["causes"][0]["message"] == "5"
        await rig.all_closed(1)


async def test_output_that_nobody_wants_does_not_block(rig: StreamRig) -> None:
    got = await heard(rig, shell("head -c 1000000 /dev/zero; echo err >&2", "error"))
    assert (got.channels[2], got.status) == (b"err\n", SUCCESS)
    assert 1 not in got.channels


async def test_input_that_nobody_reads_is_dropped(rig: StreamRig, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    client = await rig.connect(EXEC, shell(f"exec <&-; echo closed; {waits_for(gate)}", "input output"), V5)
    await reads_until(client, b"closed")
    for _ in range(8):
        await client.send_bytes(b"\x00" + bytes(2**20))
    gate.touch()
    assert (await Heard.all_of(client)).status == SUCCESS


async def test_a_terminal(rig: StreamRig) -> None:
    client = await rig.connect(EXEC, words("sh", streams="input output error tty"), V5)
    await client.send_bytes(b'\x04{"Width":101,"Height":37}\n')
    await client.send_bytes(b"\x04nonsense")
    await client.send_bytes(b"\x00stty size; sh -c 'tty; exec sleep 1000'\n")
    got = await reads_until(client, b"/dev/pts/")
    assert b"37 101" in got
    await client.send_bytes(b"\x00\x03")  # Ctrl-C
    while not re.search(rb"\^C.*ready> $", got, re.DOTALL):
        got += (await client.receive_bytes())[1:]
    await client.send_bytes(b"\x00echo to the $((40 + 2))\n")
    await reads_until(client, b"to the 42")
    await client.send_bytes(b"\x00exit 7\n")
    ended = await Heard.all_of(client)
    assert ended.status["details"]["causes"][0]["message"] == "7"
    assert 2 not in ended.channels
    assert rig.pods.sessions[0].sizes == [(101, 37)]


@pytest.mark.parametrize("how", ["in order", "at once"])
@pytest.mark.parametrize("script", ["sleep 1000", "yes", "cat"])
async def test_a_client_that_goes_away_takes_its_command_along(rig: StreamRig, how: str, script: str) -> None:
    client = await rig.connect(EXEC, shell(script, "input output"), V4)
    assert await client.receive_bytes() == b"\x01"
    if how == "in order":
        await client.close()
    else:
        transport = client.get_extra_info("socket")
        assert transport is not None
        client._response.connection.transport.abort()  # type: ignore[union-attr]
    await rig.all_closed(1)


async def test_a_client_that_goes_away_while_its_input_is_stuck(rig: StreamRig) -> None:
    client = await rig.connect(EXEC, shell("sleep 1000", "input output"), V4)
    assert await client.receive_bytes() == b"\x01"
    sending = asyncio.create_task(client.send_bytes(b"\x00" + bytes(2**20)))
    await sending
    client._response.connection.transport.abort()  # type: ignore[union-attr]
    await rig.all_closed(1)


async def test_stopping_closes_what_is_open(rig: StreamRig) -> None:
    clients = [await rig.connect(EXEC, shell("sleep 1000"), V4) for _ in range(3)]
    for client in clients:
        assert await client.receive_bytes() == b"\x01"
    await rig.endpoint.stop()
    assert [one.closed for one in rig.pods.sessions] == [1, 1, 1]


async def test_pings_are_answered_and_sent(tmp_path: Path) -> None:
    async with running_rig(tmp_path, Pace(heartbeat_s=0.05)) as rig:
        client = await rig.connect(EXEC, words("sleep", "1000"), V4, autoping=False)
        assert await client.receive_bytes() == b"\x01"
        await client.ping(b"are you there")
        seen: set[tuple[WSMsgType, bytes]] = set()
        while len(seen) < 2:
            message = await client.receive()
            seen.add((message.type, bytes(message.data)))
        assert seen == {(WSMsgType.PONG, b"are you there"), (WSMsgType.PING, b"")}


async def test_a_client_that_answers_no_heartbeat_is_gone(tmp_path: Path) -> None:
    async with running_rig(tmp_path, Pace(heartbeat_s=0.05, silence_s=0.3)) as rig:
        client = await rig.connect(EXEC, words("sleep", "1000"), V4, autoping=False)
        assert await client.receive_bytes() == b"\x01"
        await rig.all_closed(1)


async def test_a_client_that_only_answers_heartbeats_has_forgotten_its_command(tmp_path: Path) -> None:
    async with running_rig(tmp_path, Pace(heartbeat_s=0.05, idle_s=0.4)) as rig:
        client = await rig.connect(EXEC, words("cat", streams="input output"), V4)
        assert await client.receive_bytes() == b"\x01"
        for _ in range(10):
            await asyncio.sleep(0.1)
            await client.send_bytes(b"\x00word")
            assert await client.receive_bytes() == b"\x01word", "who uses it keeps it"
        assert (await client.receive()).type in (WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.ERROR)
        await rig.all_closed(1)


async def test_a_client_whose_input_is_stuck_is_not_gone(tmp_path: Path) -> None:
    """It can't be heard while nobody reads what it sends, and is told that somebody is there: kubectl leaves after a minute in
    which nothing answers its own heartbeats."""
    async with running_rig(tmp_path, Pace(heartbeat_s=0.02, silence_s=0.5)) as rig:
        gate = tmp_path / "gate"
        client = await rig.connect(EXEC, shell(f"{waits_for(gate)}; wc -c", "input output"), V5, autoping=False)
        for _ in range(4):
            await client.send_bytes(b"\x00" + bytes(2**20))
        await client.send_bytes(b"\xff\x00")
        assert await client.receive_bytes() == b"\x01"
        types = [(await client.receive()).type for _ in range(40)]
        assert set(types[-2:]) == set(types) == {WSMsgType.PING, WSMsgType.PONG}
        gate.touch()
        while (message := await client.receive()).type is not WSMsgType.BINARY:
            assert message.type in (WSMsgType.PING, WSMsgType.PONG)
        assert message.data == b"\x01%d\n" % (4 * 2**20)


async def test_a_client_that_reads_late_gets_everything_and_keeps_nothing_of_the_command(rig: StreamRig) -> None:
    client = await rig.connect(EXEC, shell("head -c 1000000 /dev/zero; exit 3"), V4)
    await rig.all_closed(1)
    got = await Heard.all_of(client)
    assert (got.out, got.status["reason"], got.close_code) == (bytes(1_000_000), "NonZeroExitCode", 1000)


async def test_a_slow_client_is_waited_for_as_long_as_it_takes_what_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    line, left = Line(Pace(silence_s=0.01), V5), [9, 7, 3, 1, 1]
    seen: list[int] = []

    def unsent_bytes() -> int:
        seen.append(left[len(seen)])
        return seen[-1]

    monkeypatch.setattr(line, "_unsent_bytes", unsent_bytes)
    monkeypatch.setattr(line, "abort", lambda: seen.append(0))
    await line._lose_patience()
    assert seen == [*left, 0], "it is cut when it has taken nothing for once"


async def test_others_have_their_turn_between_messages_that_are_there_already() -> None:
    """Tens of thousands of small ones come in one read, and receiving them waits for nothing."""

    class Full:
        async def receive(self) -> aiohttp.WSMessage:
            return aiohttp.WSMessage(WSMsgType.BINARY, b"\x09", "")

    others, line = 0, Line(Pace(), V5)
    line.socket = cast(Any, Full())

    async def turns() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(turns())
    for _ in range(100):
        assert await line.receive() == b"\x09"
    assert others >= 100
    task.cancel()


async def test_a_message_that_is_too_big(rig: StreamRig) -> None:
    client = await rig.connect(EXEC, words("cat", streams="input output"), V4)
    await client.send_bytes(bytes(MESSAGE_BYTES_MAX + 1))
    # Seldom 1006: what of it is still on its way then makes the kernel break off.
    assert (await Heard.all_of(client)).close_code in (1009, 1006)
    await rig.all_closed(1)


@pytest.mark.parametrize("message", [b"", b"\x09x", b"\xff", b"\xff\x01", b"\x04{}", b"\x03x"], ids=repr)
async def test_messages_that_mean_nothing_are_skipped(rig: StreamRig, message: bytes) -> None:
    client = await rig.connect(EXEC, words("head", "-n1", streams="input output"), V5)
    await client.send_bytes(message)
    await client.send_bytes(b"\x00line\n")
    assert (await Heard.all_of(client)).out == b"line\n"


# -- before the upgrade --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "code"),
    [("NotFound", 404), ("BadRequest", 400), ("NotSupported", 501), ("Unavailable", 503), ("ExecFailed", 500)],
)
async def test_what_can_not_be_begun_is_a_plain_answer(rig: StreamRig, reason: str, code: int) -> None:
    rig.pods.error = AgentError(reason, "why not")
    assert await rig.ask(EXEC, words("true"), UPGRADE) == (code, "why not\n")


@pytest.mark.parametrize(
    ("query", "headers", "sentence"),
    [
        pytest.param(words("true"), {}, "WebSocket", id="no upgrade"),
        pytest.param(words("true"), {**UPGRADE, "Upgrade": "SPDY/3.1"}, "WebSocket", id="to something else"),
        pytest.param(words("true"), {**UPGRADE, "Sec-WebSocket-Key": "x"}, "WebSocket", id="a bad key"),
        pytest.param(words("true"), {**UPGRADE, "Sec-WebSocket-Protocol": "chat, v9"}, V4, id="other protocols"),
        pytest.param(words(), UPGRADE, "command", id="no command"),
        pytest.param(words("true", streams=""), UPGRADE, "input, output, error", id="no stream"),
        pytest.param([*words("true"), ("tty", "x")], UPGRADE, "tty", id="no flag"),
    ],
)
async def test_bad_requests(rig: StreamRig, query: list[tuple[str, str]], headers: dict[str, str], sentence: str) -> None:
    code, text = await rig.ask(EXEC, query, headers)
    assert (code, sentence in text, text.count("\n")) == (400, True, 1)
    assert rig.pods.asked == []


async def test_it_is_asked_for_with_get(rig: StreamRig) -> None:
    assert (await rig.ask(EXEC, words("true"), UPGRADE, method="POST"))[0] == 400


async def test_too_many(rig: StreamRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "EXECS_MAX", 1)
    client = await rig.connect(EXEC, words("sleep", "1000"), V4)
    assert (await rig.ask(EXEC, words("true"), UPGRADE))[0] == 429
    await client.close()

    async def is_free() -> bool:
        rig.pods.error = AgentError("NotFound", "")
        return (await rig.ask(EXEC, words("true"), UPGRADE))[0] == 404

    await until(is_free)


def test_it_runs_on_the_loop_that_agents_run_on(tmp_path: Path) -> None:
    async def run() -> None:
        first = StreamRig(tmp_path, Pace())  # the loop opens a descriptor of its own at the first connection, for good
        await first.endpoint.start("127.0.0.1", 0)
        await (await first.connect(EXEC, words("yes"), V4)).close()
        await first.close()
        async with running_rig(tmp_path) as rig:
            client = await rig.connect(EXEC, words("cat", streams="input output"), V5)
            await client.send_bytes(b"\x00" + bytes(10**6))
            await client.send_bytes(b"\xff\x00")
            assert (await Heard.all_of(client)).out == bytes(10**6)
            client = await rig.connect(EXEC, words("sh", streams="input output tty"), V5)
            await client.send_bytes(b"\x00exit 3\n")
            assert (await Heard.all_of(client)).status["status"] == "Failure"
            client = await rig.connect(EXEC, words("yes"), V5)
            await client.receive_bytes()
            await client.close()
            await rig.all_closed(3)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
