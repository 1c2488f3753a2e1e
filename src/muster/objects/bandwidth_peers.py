"""What a pod sends to its peers, as the annotation `muster.dev/bandwidth-to` says it: `bob=200Mbps,pool/east=1Gbps`.

A peer is a party (its domain, by name alone) or a pool of nodes (`pool/NAME`). Links between the pod's own end and a peer are
counted on with the amounts written here; where there is no Link, nothing limits it.

Pure. `parse_peers(format_peers(x)) == x`; the shares of `divide_peers` add up to the whole for each peer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from muster.objects.bandwidth import divide, format_bandwidth, parse_bandwidth

PEERS_MAX: Final = 64
_TEXT_LEN_MAX: Final = 16_384
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
_POOL: Final = "pool/"


class Peer(NamedTuple):
    """One end of a link: `kind` is `domain` or `pool`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{_POOL}{self.name}" if self.kind == "pool" else self.name


Sent = dict[Peer, int]
"""Bits per second to each peer."""


def parse_peers(text: str) -> Sent:
    """ValueError names the part that is wrong and what to write."""
    if len(text) > _TEXT_LEN_MAX:
        raise ValueError(f"{len(text):,} characters are too many; write at most {_TEXT_LEN_MAX:,}")
    sent: Sent = {}
    for part in text.split(","):
        if not part.strip():
            continue
        word, equals, amount = part.partition("=")
        peer = _peer(word.strip())
        if not equals:
            raise ValueError(f"{part.strip()[:80]!r} has no amount; write it like {peer}=200Mbps")
        if peer in sent:
            raise ValueError(f"peer {str(peer)!r} is named twice; add the amounts up")
        try:
            sent[peer] = parse_bandwidth(amount.strip())
        except ValueError as error:
            raise ValueError(f"peer {str(peer)!r}: {error}") from None
    if len(sent) > PEERS_MAX:
        raise ValueError(f"{len(sent)} peers are too many; name at most {PEERS_MAX}")
    return sent


def _peer(word: str) -> Peer:
    kind, name = ("pool", word.removeprefix(_POOL)) if word.startswith(_POOL) else ("domain", word)
    if not _NAME.fullmatch(name):
        raise ValueError(f"{word[:80]!r} is no peer; write a domain such as bob=200Mbps, or a pool such as pool/east=1Gbps")
    return Peer(kind, name)


def format_peers(sent: Mapping[Peer, int]) -> str:
    """The annotation, peers in order of their names."""
    return ",".join(f"{peer}={format_bandwidth(sent[peer])}" for peer in sorted(sent))


def divide_peers(total: Mapping[Peer, int], pods: int) -> list[str]:
    """The annotation for each of a party's `pods`, when the party as a whole sends `total`: nothing is lost to rounding.

    For whoever makes pods of a unit with several parties: `{Peer("domain", "bob"): 10**9}` is 1 Gbps from this party to bob.
    """
    shares = {peer: divide(bps, pods) for peer, bps in total.items()}
    return [format_peers({peer: share[index] for peer, share in shares.items()}) for index in range(pods)]
