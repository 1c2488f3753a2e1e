"""The annotation `muster.dev/bandwidth-to`: reading, writing, and dividing a party's total over its pods."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.bandwidth_peers import PEERS_MAX, Peer, divide_peers, format_peers, parse_peers

BOB, EAST = Peer("domain", "bob"), Peer("pool", "east")


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        pytest.param("", {}, id="nothing"),
        pytest.param("bob=200Mbps", {BOB: 200_000_000}, id="a domain"),
        pytest.param(" bob = 200M , pool/east=1Gi,", {BOB: 200_000_000, EAST: 10**9}, id="a pool too, spaces, a last comma"),
        pytest.param("bob=0", {BOB: 0}, id="zero is an amount"),
    ],
)
def test_parse(text: str, sent: dict[Peer, int]) -> None:
    assert parse_peers(text) == sent


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("bob", "'bob' has no amount; write it like bob=200Mbps", id="no amount"),
        pytest.param("bob=fast", "peer 'bob': 'fast' is not a bandwidth", id="no bandwidth"),
        pytest.param("bob=1M,bob=2M", "peer 'bob' is named twice", id="twice"),
        pytest.param("Bob!=1M", "'Bob!' is no peer", id="no name"),
        pytest.param("node/x=1M", "'node/x' is no peer; write a domain such as", id="an end that is neither"),
        pytest.param("pool/=1M", "'pool/' is no peer", id="a pool without a name"),
        pytest.param(",".join(f"p{i}=1M" for i in range(PEERS_MAX + 1)), "65 peers are too many", id="too many"),
        pytest.param("a" * 20_000, "20,000 characters are too many", id="too long"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_peers(text)
    assert message in str(caught.value)


peers = st.builds(Peer, st.sampled_from(["domain", "pool"]), st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True))
totals = st.dictionaries(peers, st.integers(0, 10**13), max_size=8)


@given(totals)
def test_what_is_written_is_read(total: dict[Peer, int]) -> None:
    assert parse_peers(format_peers(total)) == total


@given(totals, st.integers(1, 20))
def test_shares_add_up(total: dict[Peer, int], pods: int) -> None:
    shares = [parse_peers(text) for text in divide_peers(total, pods)]
    assert len(shares) == pods
    assert {peer: sum(share[peer] for share in shares) for peer in total} == total
