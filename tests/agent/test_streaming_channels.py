"""What is asked of a stream, and its messages on channels. Pure: tables, and properties of what comes from outside."""

from __future__ import annotations

import contextlib
import json
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import MultiDict

from muster.agent.contracts import ExecWant, StreamTarget
from muster.agent.serving_query import COMMAND_BYTES_MAX, WORDS_MAX, BadQuery, ExecAsk, read_exec, read_ports
from muster.agent.streaming_channels import PORT_PROTOCOLS, PROTOCOLS, Codec, choose, ended_status, read_size
from tests.counts import examples

PATH = {"namespace": "ns", "pod": "p", "container": "c"}
TARGET = StreamTarget(namespace="ns", pod="p", container="c")


@pytest.mark.parametrize(
    ("query", "want", "stdout", "stderr"),
    [
        pytest.param("command=a&command=b c&output=1&error=1", {"argv": ("a", "b c")}, True, True, id="words in order"),
        pytest.param("command=a&command=&output=true", {"argv": ("a", "")}, True, False, id="an empty word"),
        pytest.param("command=a&input=1", {"argv": ("a",), "has_stdin": True}, False, False, id="input alone"),
        pytest.param("command=a&output=1&error=1&tty=1", {"argv": ("a",), "has_tty": True}, True, False, id="a terminal"),
        pytest.param("command=a&error=1&output=0&what=x", {"argv": ("a",)}, False, True, id="what nobody knows"),
    ],
)
def test_commands(query: str, want: dict[str, Any], stdout: bool, stderr: bool) -> None:
    asked = MultiDict(parse_qsl(query, keep_blank_values=True))
    assert read_exec(PATH, asked) == ExecAsk(target=TARGET, want=ExecWant(**want), has_stdout=stdout, has_stderr=stderr)


@pytest.mark.parametrize(
    ("words", "more"),
    [
        ([], {}),
        ([""], {}),
        (["a"] * (WORDS_MAX + 1), {}),
        (["a" * COMMAND_BYTES_MAX, "b"], {}),
        (["a\x00b"], {}),
        (["\udcff" * (COMMAND_BYTES_MAX + 1)], {}),
        (["a"], {"output": "0"}),
        (["a"], {"tty": "perhaps"}),
    ],
    ids=["none", "an empty one", "too many", "too long", "a null byte", "no text", "no stream", "no flag"],
)
def test_bad_commands(words: list[str], more: dict[str, str]) -> None:
    with pytest.raises(BadQuery):
        read_exec(PATH, MultiDict([*(("command", word) for word in words), *{"output": "1", **more}.items()]))


@given(st.lists(st.tuples(st.sampled_from(["command", "ports", "tty", "input", "output", "uid"]), st.text(max_size=20))))
@settings(max_examples=examples(200), deadline=None)
def test_whatever_is_asked_is_read_or_refused(query: list[tuple[str, str]]) -> None:
    with contextlib.suppress(BadQuery):
        assert read_exec(PATH, MultiDict(query)).want.argv
    with contextlib.suppress(BadQuery):
        assert all(0 < port < 65536 for port in read_ports(PATH, MultiDict(query))[1])


@pytest.mark.parametrize(
    ("given", "ports"),
    [([], ()), (["80"], (80,)), (["80,443"], (80, 443)), (["80", "443,1"], (80, 443, 1)), ([""], ())],
    ids=str,
)
def test_ports(given: list[str], ports: tuple[int, ...]) -> None:
    assert read_ports(PATH, MultiDict(("ports", text) for text in given)) == (TARGET, ports)


@pytest.mark.parametrize(
    ("offered", "known", "chosen"),
    [
        ("v5.channel.k8s.io", PROTOCOLS, "v5.channel.k8s.io"),
        ("v4.channel.k8s.io, v5.channel.k8s.io", PROTOCOLS, "v4.channel.k8s.io"),
        ("v5.channel.k8s.io,v4.channel.k8s.io", PORT_PROTOCOLS, "v4.channel.k8s.io"),
        ("v6.channel.k8s.io,,chat", PROTOCOLS, None),
    ],
)
def test_protocols(offered: str, known: tuple[str, ...], chosen: str | None) -> None:
    assert choose(offered, known) == chosen


@given(st.sampled_from(PROTOCOLS), st.integers(0, 9), st.binary(max_size=100))
def test_what_is_packed_is_unpacked(protocol: str, channel: int, data: bytes) -> None:
    codec = Codec(protocol)
    packed = codec.pack(channel, data)
    assert codec.unpack(packed) == (channel, data)
    if codec.is_text:
        packed.decode("ascii")


@given(st.sampled_from(PROTOCOLS), st.binary(max_size=100))
@settings(max_examples=examples(300), deadline=None)
def test_whatever_comes_is_unpacked_or_skipped(protocol: str, message: bytes) -> None:
    part = Codec(protocol).unpack(message)
    assert part is None or 0 <= part[0] <= 255


def test_ends() -> None:
    assert json.loads(ended_status(0)) == {"metadata": {}, "status": "Success"}
    assert json.loads(ended_status(9)) == {
        "metadata": {},
        "status": "Failure",
        "message": "command terminated with non-zero exit code: exit status 9",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": "9"}]},
    }
    failed = json.loads(Codec("v5.channel.k8s.io").pack_failure("it is lost")[1:])
    assert (failed["status"], failed["reason"], failed["message"]) == ("Failure", "InternalError", "it is lost")


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (b'{"Width":80,"Height":24}', (80, 24)),
        (b' {"Height":1,"Width":65535, "more": 1}\n', (65535, 1)),
        (b'{"Width":0,"Height":24}', None),
        (b'{"Width":80,"Height":65536}', None),
        (b'{"Width":-1,"Height":1}', None),
        (b'{"Width":"80","Height":24}', None),
        (b"{}", None),
        (b"", None),
        (b"\xff", None),
    ],
    ids=repr,
)
def test_sizes_of_terminals(data: bytes, size: tuple[int, int] | None) -> None:
    assert read_size(data) == size


@given(st.binary(max_size=60))
def test_whatever_comes_as_a_size(data: bytes) -> None:
    read_size(data)
