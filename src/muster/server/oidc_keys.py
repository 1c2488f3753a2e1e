"""The keys of one issuer, found by OpenID Connect discovery over HTTPS and kept.

Asked for when a token comes that names a key we do not have, and again when what we have is `KEYS_AGE_MAX_S` old, whether or
not tokens come, so that a key that the issuer withdrew ends here too. Never more often than every `ATTEMPT_SPACING_S`, however
many tokens with invented key names arrive, and once for all that wait. When the issuer does not answer, or with what is no key
set, the keys that we have stay; an empty key set is an answer: none of them is good any more.

Concurrency: one event loop. The fetch is a task of its own, so a client that goes away does not end it for the others; `close`
does. Bounds: one fetch at a time, `FETCH_TIMEOUT_S` for all of it, `DOCUMENT_BYTES_MAX` for each document, `KEYS_MAX` keys.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from muster import __version__
from muster.client.urls import proxy_from_environment
from muster.objects.json_numbers import EXTREME_MAX, has_many_extremes
from muster.objects.time import Clock
from muster.server import late
from muster.server.jws import Token, VerifyKey, key_of_jwk
from muster.server.logs import logger
from muster.server.oidc_settings import Issuer

if TYPE_CHECKING:
    import aiohttp

log = logger(__name__)
ATTEMPT_SPACING_S: Final = 10.0
AGED_SPACING_S: Final = 60.0
"""As the former, of attempts that nobody waits for."""
FETCH_TIMEOUT_S: Final = 10.0
KEYS_AGE_MAX_S: Final = 3600.0
DOCUMENT_BYTES_MAX: Final = 512 * 1024
KEYS_MAX: Final = 100


class _Unusable(Exception):
    """What the issuer answered is no discovery document or key set; the message says why."""


class IssuerKeys:
    """See the module. `on_change` is called when the set of keys is another than before."""

    def __init__(
        self,
        issuer: Issuer,
        clock: Clock,
        *,
        on_change: Callable[[], None] = lambda: None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._issuer = issuer
        self._clock = clock
        self._on_change = on_change
        self._environ = environ
        self._tls: ssl.SSLContext | None = None
        self._keys: tuple[VerifyKey, ...] = ()
        self._documents: tuple[Any, ...] = ()
        self._fetched_at = float("-inf")
        self._tried_at = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self.problem = "its keys were not fetched yet"
        """Why the last attempt gave no keys; "" when it did."""
        self.fetches = 0

    async def candidates(self, token: Token) -> list[VerifyKey]:
        """The keys that may have signed `token`; at most one fetch is waited for."""
        found = self._fitting(token)
        if found:
            self.refresh_aged()  # for the next one; these are good enough for now
            return found
        self.refresh()
        if self._task is not None:
            await asyncio.shield(self._task)
            found = self._fitting(token)
        return found

    def refresh_aged(self) -> None:
        """Look again if it is time to: every now and then, and whenever a token is used. Of one that is remembered, too, the
        key may have been withdrawn. An issuer that does not answer is left alone for a while."""
        if self._is_past(self._fetched_at, KEYS_AGE_MAX_S) and self._is_past(self._tried_at, AGED_SPACING_S):
            self.refresh()

    def refresh(self) -> None:
        """Start to fetch, unless that is under way or was tried a moment ago."""
        if self._task is None and self._is_past(self._tried_at, ATTEMPT_SPACING_S):
            self._tried_at = self._clock()
            self._task = asyncio.get_running_loop().create_task(self._refresh())

    @property
    def is_fetching(self) -> bool:
        return self._task is not None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _fitting(self, token: Token) -> list[VerifyKey]:
        return [key for key in self._keys if key.fits(token)]

    def _is_past(self, instant: float, seconds: float) -> bool:
        """A clock that was set back counts as past: better one fetch too many than none for a year."""
        return not 0 <= self._clock() - instant < seconds

    async def _refresh(self) -> None:
        self.fetches += 1
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                documents = await self._fetch()
            keys = _keys_of(documents[1])
        except Exception as error:  # noqa: BLE001 - the root of a task; whatever the issuer answers, nobody here fails by it
            what = f"no answer within {FETCH_TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else str(error)
            self.problem = f"{self._issuer.discovery}: {what or type(error).__name__}"
            log.warning("keys of an issuer can't be fetched", issuer=self._issuer.url, problem=what, keys_kept=len(self._keys))
        else:
            self.problem = "" if keys else f"{self._issuer.discovery}: the issuer has withdrawn all of its keys"
            self._fetched_at = self._clock()
            if documents != self._documents:
                self._documents, self._keys = documents, keys
                log.info("keys of an issuer fetched", issuer=self._issuer.url, keys=[key.key_id for key in keys])
                self._on_change()
        finally:
            self._task = None

    async def _fetch(self) -> tuple[Any, Any]:
        """The discovery document and the key set."""
        if self._tls is None:
            cadata = self._issuer.ca_pem or None
            self._tls = await asyncio.to_thread(ssl.create_default_context, cadata=cadata)
        client = await late.load("aiohttp")
        headers = {"User-Agent": f"muster/{__version__}", "Accept": "application/json", "Accept-Encoding": "identity"}
        # Not compressed: a few bytes could become more than may be read.
        options: dict[str, Any] = {"cookie_jar": client.DummyCookieJar(), "auto_decompress": False}
        async with client.ClientSession(headers=headers, **options) as session:
            discovery = await self._document(session, self._issuer.discovery)
            told, place = discovery.get("issuer"), discovery.get("jwks_uri")
            if told != self._issuer.url:
                raise _Unusable(f"the discovery document is of issuer {told!r:.200}, not of {self._issuer.url!r}")
            if not isinstance(place, str) or urlsplit(place).scheme != "https":
                raise _Unusable(f"jwks_uri {place!r:.200} is not an https:// URL")
            return told, await self._document(session, place)

    async def _document(self, session: aiohttp.ClientSession, url: str) -> Mapping[str, Any]:
        """A JSON object. Redirects are not followed: they could lead out of TLS, or to another's keys."""
        proxy = proxy_from_environment(url, self._environ) or None
        assert self._tls is not None
        async with session.get(url, ssl=self._tls, proxy=proxy, allow_redirects=False) as answer:
            if answer.status != 200:
                raise _Unusable(f"{url} answered {answer.status}")
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > DOCUMENT_BYTES_MAX:
                    raise _Unusable(f"{url} answered with more than {DOCUMENT_BYTES_MAX} bytes")
        if has_many_extremes(body):
            raise _Unusable(f"{url} answered with numbers like 1e308, more than {EXTREME_MAX} of them")
        try:
            found = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _Unusable(f"{url} answered with something that is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise _Unusable(f"{url} answered with JSON that is no object")
        return found


def _keys_of(document: Mapping[str, Any]) -> tuple[VerifyKey, ...]:
    raws = document.get("keys")
    if not isinstance(raws, list):
        raise _Unusable("the key set has no list of keys")
    keys = tuple(key for key in map(key_of_jwk, raws[:KEYS_MAX]) if key is not None)
    if not keys and raws:
        raise _Unusable(f"none of the {len(raws)} keys of the key set is an RSA or EC key for signatures")
    return keys
