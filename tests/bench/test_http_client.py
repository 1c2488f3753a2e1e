"""The client that loads are made with."""

from __future__ import annotations

import asyncio

from muster.bench.http_client import Connection

_ANSWER = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nevent\r\n"


class _Transport(asyncio.Transport):
    """Takes what is written."""

    def write(self, data: object) -> None:
        pass

    def close(self) -> None:
        pass


async def _stream(told: list[bytes]) -> Connection:
    connection = Connection("server")
    connection.connection_made(_Transport())
    opened = asyncio.create_task(connection.stream("/events", told.append))
    await asyncio.sleep(0)
    connection.data_received(_ANSWER)
    await opened
    return connection


async def test_who_reads_a_stream_is_told_once_that_it_ended() -> None:
    """Whoever begins the next one when told so would otherwise end that, too, and again and again."""
    told: list[bytes] = []
    connection = await _stream(told)
    connection.data_received(b"0\r\n\r\n")
    assert told == [b"event", b""]
    connection.close()
    connection.connection_lost(None)
    assert told == [b"event", b""]


async def test_who_reads_a_stream_is_told_that_its_connection_was_lost() -> None:
    told: list[bytes] = []
    connection = await _stream(told)
    connection.connection_lost(None)
    assert told == [b"event", b""]
