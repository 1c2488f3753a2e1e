"""Tokens of the service accounts that this node's pods run as, for their projected volumes.

Each is bound to its pod and asked for anew when four fifths of its life are over, at the latest after a day; the volume is then
written in one step, so that a reader has the old one or the new. Tokens are kept in memory only, and gone with the agent, which
asks again. While the control plane does not answer, a token stays until it expires.

Concurrency: one event loop. Two that want the same token at a time ask twice, which harms nobody. Bounded by number.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from muster.agent.contracts import AgentError
from muster.objects.kinds.pods import PodSpec
from muster.objects.meta import name_of, namespace_of, uid_of
from muster.objects.status import ApiError, BadRequest, Forbidden, Invalid, MethodNotAllowed, NotFound, Raw
from muster.objects.time import Clock, parse_time

API_ACCESS_PREFIX: Final = "kube-api-access-"
"""Volumes that a real cluster adds to every pod for calling its API. What of them can't be had is left out; a token is not even
asked for, since agents on such a cluster may not, and nobody who wrote the pod wanted it."""
KEPT_MAX: Final = 4096
RENEW_AFTER: Final = 0.8
"""Of its life."""
RENEW_S_MAX: Final = 24 * 3600.0
LIFETIME_S: Final = 3600
_REFUSALS: Final = (Forbidden, NotFound, Invalid, BadRequest, MethodNotAllowed)

TokenKey = tuple[str, int]
"""Audience ("" for the API server) and life in seconds."""
Tokens = Mapping[TokenKey, bytes | str]
"""The token, or the text that says why there is none."""


@runtime_checkable
class RequestsTokens(Protocol):
    """A store over a real API server."""

    async def request_token(self, account: str, namespace: str, spec: Mapping[str, Any]) -> Raw: ...


class _Kept(msgspec.Struct, frozen=True):
    token: bytes
    renew_s: float
    expires_s: float


def wanted(spec: PodSpec) -> Iterator[TokenKey]:
    """The tokens that its volumes name."""
    for volume in spec.volumes:
        if volume.projected is None or volume.name.startswith(API_ACCESS_PREFIX):
            continue
        for source in volume.projected.sources:
            if (told := source.service_account_token) is not None:
                yield told.audience, told.expiration_seconds or LIFETIME_S


class PodTokens:
    def __init__(self, store: object, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._kept: OrderedDict[tuple[str, TokenKey], _Kept] = OrderedDict()

    async def fetch(self, pod: Raw, spec: PodSpec, keys: Iterable[TokenKey]) -> Tokens:
        """AgentError `FailedMount` when the control plane can't say now."""
        return {key: await self._one(pod, spec, key) for key in dict.fromkeys(keys)}

    async def _one(self, pod: Raw, spec: PodSpec, key: TokenKey) -> bytes | str:
        where = (uid_of(pod), key)
        kept = self._kept.get(where)
        now = self._clock()
        if kept is not None and now < kept.renew_s:
            self._kept.move_to_end(where)
            return kept.token
        if not isinstance(self._store, RequestsTokens):
            return "the store of this agent has no API server that could make one"
        account = spec.service_account_name or "default"
        label = f"a token of service account {namespace_of(pod)}/{account}"
        bound = {"kind": "Pod", "apiVersion": "v1", "name": name_of(pod), "uid": uid_of(pod)}
        request = {"audiences": [key[0]] if key[0] else [], "expirationSeconds": key[1], "boundObjectRef": bound}
        try:
            made = _read(await self._store.request_token(account, namespace_of(pod), request), now)
        except _REFUSALS as e:
            return f"{label} is refused: {e.message}"
        except (ApiError, ValueError) as e:
            if kept is not None and now < kept.expires_s:
                return kept.token
            raise AgentError("FailedMount", f"{label} can't be had now: {e}") from e
        self._kept[where] = made
        self._kept.move_to_end(where)
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return made.token


def _read(answer: Raw, now: float) -> _Kept:
    """ValueError for what is no answer to a TokenRequest."""
    status = answer.get("status")
    token = status.get("token") if isinstance(status, dict) else None
    if not isinstance(status, dict) or not isinstance(token, str) or not token.isascii():
        raise ValueError("the answer to the TokenRequest holds no token")
    expires_s = parse_time(str(status.get("expirationTimestamp")))
    return _Kept(token.encode(), now + min(RENEW_AFTER * (expires_s - now), RENEW_S_MAX), expires_s)
