"""Join tokens: kept as hashes, single use, expiry, revoking, limits; whatever is in the list, nothing breaks."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.controllers.domain_tokens import (
    ENTROPY_BYTES,
    LIFETIME_MAX_S,
    TOKENS_MAX,
    USES_MAX,
    TokenProblem,
    masked,
    mint,
    new_join_token,
    revoke,
    spend,
    state_of,
    token_id_of,
)
from muster.objects.status import Raw

NOW = 1_800_000_000.0


def token(number: int = 0) -> str:
    return new_join_token(number.to_bytes(5, "big") + bytes(range(ENTROPY_BYTES - 5)))


def test_looks_like_one_and_tells_two_apart() -> None:
    made = token()
    assert made.startswith("muster-join-aaaaaaaa-")
    assert len({new_join_token(os.urandom(ENTROPY_BYTES)) for _ in range(50)}) == 50
    assert token_id_of(made) == token_id_of(masked(made)) == token_id_of(token_id_of(made)) == "aaaaaaaa"
    with pytest.raises(ValueError, match="37 random bytes"):
        new_join_token(b"short")


def test_the_clear_text_is_kept_nowhere() -> None:
    [entry] = mint(None, token(), NOW)
    secret = token().removeprefix("muster-join-aaaaaaaa-")
    assert secret not in str(entry)
    assert entry["token"] == "muster-join-aaaaaaaa-********"
    assert entry["state"] == "unused"
    assert entry["hash"] != token()


def test_single_use_by_default() -> None:
    tokens = mint(None, token(), NOW)
    spent = spend(tokens, token(), NOW + 1)
    assert spent.token_id == "aaaaaaaa"
    assert [entry["state"] for entry in spent.tokens] == ["used"]
    assert tokens[0]["state"] == "unused", "the old list is left as it was"
    with pytest.raises(TokenProblem, match="as often as it may"):
        spend(spent.tokens, token(), NOW + 2)


def test_several_uses() -> None:
    tokens = mint(None, token(), NOW, max_uses=2)
    tokens = spend(tokens, token(), NOW).tokens
    assert tokens[0]["state"] == "unused"
    tokens = spend(tokens, token(), NOW).tokens
    assert (tokens[0]["state"], tokens[0]["uses"]) == ("used", 2)


@pytest.mark.parametrize(
    ("presented", "why"),
    [
        pytest.param(token(1), "no token of the party", id="another"),
        pytest.param(token()[:-1], "no token of the party", id="cut"),
        pytest.param(masked(token()), "no token of the party", id="the masked form"),
        pytest.param("aaaaaaaa", "no token of the party", id="the id"),
        pytest.param("", "no token of the party", id="nothing"),
        pytest.param("\udcff" * 10_000, "no token of the party", id="rubbish"),
    ],
)
def test_refused(presented: str, why: str) -> None:
    with pytest.raises(TokenProblem, match=why):
        spend(mint(None, token(), NOW), presented, NOW)


def test_the_hash_itself_is_no_token() -> None:
    tokens = mint(None, token(), NOW)
    with pytest.raises(TokenProblem):
        spend(tokens, tokens[0]["hash"], NOW)


def test_expires() -> None:
    tokens = mint(None, token(), NOW, lifetime_s=60)
    assert spend(tokens, token(), NOW + 59).token_id
    with pytest.raises(TokenProblem, match="has expired"):
        spend(tokens, token(), NOW + 60)


@pytest.mark.parametrize("named", [token(), masked(token()), "aaaaaaaa"], ids=["clear", "masked", "id"])
def test_revoked(named: str) -> None:
    tokens = revoke(mint(None, token(), NOW), named, NOW + 1)
    assert state_of(tokens[0], NOW) == "revoked"
    with pytest.raises(TokenProblem, match="was revoked"):
        spend(tokens, token(), NOW + 2)
    assert revoke(tokens, named, NOW + 9) == tokens, "twice is once"


def test_revoking_what_is_not_there_names_what_is() -> None:
    with pytest.raises(TokenProblem, match=r"no token 'zzzzzzzz'; there are: aaaaaaaa"):
        revoke(mint(None, token(), NOW), "zzzzzzzz", NOW)
    with pytest.raises(TokenProblem, match="there are: none"):
        revoke([], "", NOW)


def test_what_is_over_makes_way_and_what_may_be_used_does_not() -> None:
    tokens: list[Raw] = []
    for n in range(TOKENS_MAX):
        tokens = mint(tokens, token(n), NOW + n)
    with pytest.raises(TokenProblem, match="revoke some"):
        mint(tokens, token(99), NOW)
    tokens = revoke(revoke(tokens, token_id_of(token(3)), NOW), token_id_of(token(7)), NOW)
    more = mint(tokens, token(99), NOW + 99)
    assert len(more) == TOKENS_MAX
    ids = [token_id_of(entry["token"]) for entry in more]
    assert token_id_of(token(3)) not in ids, "the oldest of those that are over"
    assert token_id_of(token(7)) in ids


@pytest.mark.parametrize(
    ("options", "why"),
    [
        pytest.param({"lifetime_s": 0}, "1 second", id="no time"),
        pytest.param({"lifetime_s": LIFETIME_MAX_S + 1}, "365 days", id="for ever"),
        pytest.param({"max_uses": 0}, "1 to 10,000 nodes", id="no use"),
        pytest.param({"max_uses": USES_MAX + 1}, "1 to 10,000 nodes", id="too many"),
    ],
)
def test_figures_have_bounds(options: dict[str, int], why: str) -> None:
    with pytest.raises(TokenProblem, match=why):
        mint(None, token(), NOW, **options)


def test_an_id_is_there_once() -> None:
    with pytest.raises(TokenProblem, match="exists already"):
        mint(mint(None, token(), NOW), token(), NOW)


def test_kuscias_own_entries_are_never_accepted() -> None:
    """They hold the clear text and no hash."""
    kuscia = [{"token": "q0hAbTnrZbu3gIJmUqAVPwSKf8XGxDFj", "state": "unused"}]
    with pytest.raises(TokenProblem):
        spend(kuscia, "q0hAbTnrZbu3gIJmUqAVPwSKf8XGxDFj", NOW)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["token", "state", "hash", "uses", "maxUses", "expirationTime", "creationTime", "x"]), inner
        )
    ),
    max_leaves=20,
)


@given(JSON, st.text(max_size=80))
def test_nothing_in_the_list_breaks_it_or_lets_anyone_in(value: Any, presented: str) -> None:
    with pytest.raises(TokenProblem):
        spend(value, presented, NOW)
    mint(value, token(2), NOW)
    with pytest.raises(TokenProblem):
        revoke(value, "zzzzzzz1", NOW)
