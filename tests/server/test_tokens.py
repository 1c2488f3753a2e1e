"""Bearer tokens: hashes of random ones, signatures of service accounts'."""

from __future__ import annotations

import base64
import json
import os

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from muster.server.jws import VerifyKey, key_id_of
from muster.server.tokens import (
    AUDIENCE,
    Identity,
    TokenRefused,
    TokenTable,
    identity_of_secret,
    new_token,
    service_account_claims,
    sign,
    token_hash,
    token_secret,
    verify,
)

_KEY = ec.generate_private_key(ec.SECP256R1())
_KEYS = [VerifyKey(_KEY.public_key(), key_id_of(_KEY.public_key()))]
_NOW = 1_800_000_000.0


def test_random_tokens_are_found_by_their_hash() -> None:
    table = TokenTable()
    token = new_token(os.urandom(32))
    table.put("s", token_hash(token), Identity("alice", groups=("g",)))
    assert table.find(token, _NOW) == Identity("alice", groups=("g",))
    assert table.find(token + "x", _NOW) is None
    assert table.find("", _NOW) is None
    table.put("s", token_hash("another"), Identity("alice"))
    assert table.find(token, _NOW) is None, "a Secret that changed no longer stands for the old token"
    table.drop("s")
    assert table.find("another", _NOW) is None


def test_a_token_whose_secret_was_copied_is_good_while_one_is_left() -> None:
    table = TokenTable()
    table.put("original", token_hash("t"), Identity("alice"))
    table.put("copy", token_hash("t"), Identity("bob"))
    assert table.find("t", _NOW) == Identity("bob"), "the first by name, whichever came last"
    table.drop("copy")
    assert table.find("t", _NOW) == Identity("alice")
    table.put("copy", token_hash("t"), Identity("alice"))
    table.put("original", token_hash("another"), Identity("alice"))
    assert table.find("t", _NOW) == Identity("alice")
    table.drop("copy")
    assert table.find("t", _NOW) is None
    assert table.find("another", _NOW) == Identity("alice")


def test_random_tokens_expire() -> None:
    table = TokenTable()
    table.put("s", token_hash("t"), Identity("alice", expires_s=_NOW))
    assert table.find("t", _NOW - 1) is not None
    with pytest.raises(TokenRefused, match="of 'alice' and expired 5 s ago"):
        table.find("t", _NOW + 5)


def test_secrets_hold_the_hash_only() -> None:
    token = new_token(os.urandom(32))
    secret = token_secret("s", token_hash(token), "alice", ["a", "b"], "why")
    assert token not in json.dumps(secret)
    assert identity_of_secret(secret) == (token_hash(token), Identity("alice", groups=("a", "b")))


@pytest.mark.parametrize(
    "change",
    [
        {"type": "Opaque"},
        {"data": None},
        {"data": {"sha256": "!!"}},
        {"data": {"user": "YQ=="}},
        {"data": {"sha256": base64.b64encode(b"short").decode(), "user": "YQ=="}},
        {"data": {"sha256": 3, "user": 4}},
    ],
    ids=["type", "no data", "not base64", "no hash", "short hash", "numbers"],
)
def test_other_secrets_are_no_tokens(change: dict[str, object]) -> None:
    assert identity_of_secret({**token_secret("s", token_hash("t"), "alice", [], ""), **change}) is None


def _token(**changes: object) -> str:
    claims = service_account_claims(
        namespace="ns",
        name="bot",
        uid="u1",
        audiences=[AUDIENCE],
        now_s=_NOW,
        lifetime_s=600,
        token_id="1",
        bound=("Pod", "p", "u2"),
    )
    return sign(_KEY, {**claims, **changes})


_VALID = _token()


def test_service_account_token() -> None:
    claims = verify(_KEYS, _token(), _NOW)
    assert claims is not None
    assert (claims.namespace, claims.name, claims.uid, claims.audiences) == ("ns", "bot", "u1", (AUDIENCE,))
    assert (claims.bound_kind, claims.bound_name, claims.bound_uid) == ("Pod", "p", "u2")
    with pytest.raises(TokenRefused, match="of 'system:serviceaccount:ns:bot' and expired 1 s ago"):
        verify(_KEYS, _token(), _NOW + 601)
    with pytest.raises(TokenRefused, match="not good before 60 s from now"):
        verify(_KEYS, _token(), _NOW - 60)
    assert verify([VerifyKey(ec.generate_private_key(ec.SECP256R1()).public_key(), _KEYS[0].key_id)], _token(), _NOW) is None


def _forged(header: object, *, signature: str = "") -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part(header)}.{_token().split('.')[1]}.{signature}"


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(_forged({"alg": "none"}), id="no algorithm"),
        pytest.param(_forged({"alg": "HS256"}, signature="AAAA"), id="another algorithm"),
        pytest.param(_forged({"alg": "ES256"}, signature="A" * 86), id="wrong signature"),
        pytest.param(_forged([]), id="header is a list"),
        pytest.param(_token(iss="elsewhere"), id="another issuer"),
        pytest.param(_token(exp="soon"), id="claims of the wrong type"),
        pytest.param(_token(**{"kubernetes.io": None}), id="no account"),
        pytest.param("a.b.c", id="garbage"),
        pytest.param("..", id="empty parts"),
        pytest.param("x" * 10_000, id="long"),
    ],
)
def test_forgeries(token: str) -> None:
    assert verify(_KEYS, token, _NOW) is None


@given(st.integers(0, 400), st.integers(1, 255))
def test_no_changed_byte_passes(position: int, change: int) -> None:
    token = bytearray(_VALID.encode())
    position %= len(token)
    token[position] = (token[position] + change) % 128
    changed = token.decode("ascii")
    assert (verify(_KEYS, changed, _NOW) is not None) is (changed == _VALID)


def test_a_secret_says_for_whom_and_until_when() -> None:
    """What is written is what is read back; the moment of the end is exact."""
    raw = token_secret(
        "t", token_hash("x"), "ann@example.org", (), "login", labels={"muster.dev/user": "ann"}, expires_s=_NOW + 0.25
    )
    assert raw["metadata"]["labels"] == {"muster.dev/user": "ann"}
    found = identity_of_secret(raw)
    assert found == (token_hash("x"), Identity("ann@example.org", expires_s=_NOW + 0.25))
    table = TokenTable()
    table.put("t", *found)
    assert table.find("x", _NOW + 0.2) is not None
    with pytest.raises(TokenRefused):
        table.find("x", _NOW + 0.25)
