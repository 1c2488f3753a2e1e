"""Tokens: opaque, sealed, for one query only."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.status import BadRequest
from muster.store.embedded.paging import make_token, read_token

IDENTITY = b"0123456789abcdef"


@given(query=st.text(), rv=st.integers(0, 2**62), namespace=st.text(max_size=63), name=st.text(max_size=253))
def test_round_trip(query: str, rv: int, namespace: str, name: str) -> None:
    token = make_token(IDENTITY, query, rv, (namespace, name))
    position = read_token(IDENTITY, query, token)
    assert (position.rv, position.key) == (rv, (namespace, name))
    assert token.isascii()
    assert "=" not in token


@given(token=st.text(max_size=80))
def test_garbage_is_a_bad_request(token: str) -> None:
    with pytest.raises(BadRequest, match=r"continue key is not valid: .*; list again without it"):
        read_token(IDENTITY, "pods", token)


@pytest.mark.parametrize(
    ("identity", "query"),
    [pytest.param(IDENTITY, "pods\0other", id="another query"), pytest.param(b"somebody else's.", "pods", id="another store")],
)
def test_a_token_belongs_to_its_list(identity: bytes, query: str) -> None:
    token = make_token(IDENTITY, "pods", 5, ("default", "a"))
    with pytest.raises(BadRequest, match="does not belong to this list"):
        read_token(identity, query, token)


@given(position=st.integers(0, 40), bit=st.integers(0, 7))
def test_no_bit_can_be_changed(position: int, bit: int) -> None:
    sealed = bytearray(base64.urlsafe_b64decode(make_token(IDENTITY, "pods", 123456, ("default", "abcdefgh")) + "=="))
    sealed[position % len(sealed)] ^= 1 << bit
    with pytest.raises(BadRequest, match="continue key is not valid"):
        read_token(IDENTITY, "pods", base64.urlsafe_b64encode(sealed).decode().rstrip("="))


def test_a_token_without_end_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadRequest, match="too long"):
        read_token(IDENTITY, "pods", "A" * 10_000)
