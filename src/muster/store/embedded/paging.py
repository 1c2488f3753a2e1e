"""Continue tokens: where a list goes on, and at which version.

A token says all there is to know, so the server keeps nothing between pages and a token outlives a restart. It is sealed
with the store's identity together with the query it belongs to: one that was made up, altered, or taken to another query
is refused, rather than answered with a list that is subtly wrong.

Pure.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

import msgspec

from muster.objects.status import BadRequest
from muster.store.embedded.records import Key

_SEAL_LEN = 12
_TOKEN_LEN_MAX = 4096


class Position(msgspec.Struct, frozen=True, array_like=True):
    """The snapshot's version and the first key of the next page."""

    rv: int
    namespace: str
    name: str

    @property
    def key(self) -> Key:
        return (self.namespace, self.name)


def make_token(identity: bytes, query: str, rv: int, key: Key) -> str:
    body = msgspec.json.encode(Position(rv, *key))
    return base64.urlsafe_b64encode(_seal(identity, query, body) + body).decode().rstrip("=")


def read_token(identity: bytes, query: str, token: str) -> Position:
    """Raises BadRequest for anything that `make_token` did not make for this query."""
    try:
        if len(token) > _TOKEN_LEN_MAX:
            raise ValueError("it is too long")
        sealed = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        seal, body = sealed[:_SEAL_LEN], sealed[_SEAL_LEN:]
        if not hmac.compare_digest(seal, _seal(identity, query, body)):
            raise ValueError("it does not belong to this list, its namespace and its selectors")
        return msgspec.json.decode(body, type=Position)
    except (ValueError, binascii.Error, msgspec.DecodeError) as error:
        why = str(error) if str(error).startswith("it ") else "it is not one that this server gave out"
        raise BadRequest(f"continue key is not valid: {why}; list again without it") from None


def _seal(identity: bytes, query: str, body: bytes) -> bytes:
    # The length keeps a query's end from being read as a body's beginning.
    text = query.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(b"%d:%b%b" % (len(text), text, body), key=identity[:64], digest_size=_SEAL_LEN).digest()
