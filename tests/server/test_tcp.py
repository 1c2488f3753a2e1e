"""What is known of the other side of a real connection, on the server's own loop and on asyncio's."""

from __future__ import annotations

import asyncio
import socket

import pytest
import uvloop

from muster.server.tcp import has_left, keep_alive
from tests.waiting import until


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_side_that_left_is_noticed_without_reading(loop: object) -> None:
    async def watched() -> None:
        ours, theirs = await _pair()
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        keep_alive(transport)
        assert transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
        transport.pause_reading()
        assert not has_left(transport)
        theirs.sendall(b"unread")
        theirs.close()

        async def is_noticed() -> bool:
            return has_left(transport)

        await until(is_noticed)
        transport.abort()
        keep_alive(transport)  # too late, and no harm

    with asyncio.Runner(loop_factory=loop) as runner:  # type: ignore[arg-type]
        runner.run(watched())


async def _pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        theirs = socket.create_connection(listening.getsockname())
        ours, _ = listening.accept()
    ours.setblocking(False)
    return ours, theirs
