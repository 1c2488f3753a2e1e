"""The heads of an upgrade: what goes on to an agent, what comes back, and bytes that are no answer."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from yarl import URL

from muster.server.upgrade import Answer, BadAnswer, agreement, question, wanted

_AGREED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"


@pytest.mark.parametrize(
    ("connection", "upgrade", "protocol"),
    [
        pytest.param("Upgrade", "websocket", "websocket", id="as most write it"),
        pytest.param("keep-alive , UPGRADE", " WebSocket ", "websocket", id="as some write it"),
        pytest.param("upgrade", "SPDY/3.1", "spdy/3.1", id="another protocol"),
        pytest.param("keep-alive", "websocket", "", id="not connected with it"),
        pytest.param("upgraded", "websocket", "", id="a longer word"),
        pytest.param("upgrade", "", "", id="to nothing"),
        pytest.param("", "", "", id="neither"),
    ],
)
def test_what_is_wanted(connection: str, upgrade: str, protocol: str) -> None:
    assert wanted(connection, upgrade) == protocol


_NAME = st.sampled_from([b"authorization", b"cookie", b"sec-websocket-key", b"Sec-WebSocket-Protocol", b"upgrade", b"x"])
_VALUE = st.binary(max_size=30).map(lambda value: bytes(c for c in value if c not in b"\r\n\0"))
_BEARER = b"base64url.bearer.authorization.k8s.io."


@given(st.text(max_size=50), st.lists(st.tuples(_NAME, _VALUE), max_size=10))
@example("a b\r\nX: y", [(b"sec-websocket-protocol", b"v4, " + _BEARER + b"c2VjcmV0 ,v5")])
@example("", [(b"sec-websocket-protocol", _BEARER + b"c2VjcmV0")])
def test_the_question_is_one_head_without_credentials(word: str, headers: list[tuple[bytes, bytes]]) -> None:
    url = URL.build(scheme="https", host="10.0.0.1", port=10250, path="/exec/n/p/c", query=[("command", word)])
    head = question(url, headers)
    lines = head.split(b"\r\n")
    assert lines[-2:] == [b"", b""]
    assert re.fullmatch(rb"GET /exec/n/p/c\?command=[!-~]* HTTP/1\.1", lines[0])
    assert lines[1:4] == [b"Host: 10.0.0.1:10250", b"Connection: Upgrade", b"Upgrade: websocket"]
    for line in lines[4:-2]:
        assert line.lower().startswith(b"sec-websocket-")
        assert not line.lower().startswith(b"sec-websocket-protocol: ") or _BEARER not in line


def test_only_what_belongs_there_comes_back() -> None:
    headers = [(b"Set-Cookie", b"a"), (b"Sec-WebSocket-Accept", b"yes"), (b"sec-websocket-extensions", b"x"), (b"Server", b"s")]
    assert agreement(headers).split(b"\r\n")[1:-2] == [
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Accept: yes",
        b"sec-websocket-extensions: x",
    ]


_ANSWERS = st.sampled_from(
    [
        _AGREED,
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone",
        b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\n2\r\noh\r\n0\r\n\r\n",
        b"HTTP/1.0 400 Bad\r\n\r\nuntil it ends",
    ]
)


@given(st.data())
def test_bytes_that_are_no_answer_are_a_bad_answer_and_nothing_else(data: st.DataObject) -> None:
    """Right answers, cut, changed and put together, and anything at all, fed in pieces of any size."""
    said = data.draw(st.one_of(st.binary(max_size=200), _ANSWERS, st.tuples(_ANSWERS, st.binary(max_size=50)).map(b"".join)))
    if said and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(said) - 1))
        said = said[:at] + data.draw(st.binary(max_size=3)) + said[at + data.draw(st.integers(0, 3)) :]
    answer = Answer(8)
    try:
        while said and not answer.is_complete:
            size = data.draw(st.integers(1, len(said)))
            piece, said = said[:size], said[size:]
            answer.feed(piece)
    except BadAnswer:
        answer.is_complete = True
    assert len(answer.body) <= 8
    assert 0 <= answer.code <= 999


def test_an_answer_is_read_to_its_end_and_kept_as_far_as_is_allowed() -> None:
    answer = Answer(5)
    answer.feed(b"HTTP/1.1 404 Not Found\r\nContent-Length: 10\r\n\r\n")
    assert (answer.code, answer.agrees, answer.is_complete) == (404, False, False)
    answer.feed(b"123")
    assert not answer.is_complete
    answer.feed(b"4567")
    assert (answer.body, answer.is_complete) == (b"12345", True)
    agreed = Answer(5)
    agreed.feed(_AGREED)
    assert (agreed.agrees, agreed.is_complete) == (True, True)
