"""What aiohttp raises, as the `ApiError` that says whether the request can have arrived. Pure."""

from __future__ import annotations

import aiohttp

from muster.client.errors import BadResponse, OutcomeUnknown, Unreachable, Untrusted
from muster.objects.status import ApiError

HTTP_FAILURES = (aiohttp.ClientError, TimeoutError, OSError)
"""All that can come out of aiohttp besides programming errors."""


class BrokenOff(aiohttp.ClientError):
    """The connection failed after it was established: the request may have arrived."""


async def without_silent_repetition(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """A middleware: aiohttp repeats PUT and DELETE by itself when a connection breaks.

    Whether that is right is decided in `retry`, so the error is turned into one that aiohttp lets pass.
    """
    try:
        return await send(request)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise BrokenOff(str(error) or type(error).__name__) from error


def named(error: BaseException, label: str, source: str) -> ApiError:
    """`label` names the request, `source` where its configuration came from."""
    text = str(error)
    reason = text if text and len(text) < 500 else type(error).__name__
    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            return Untrusted(f"{label}: TLS failed: {reason}; check certificate-authority ({source})")
        case aiohttp.ClientConnectorError():
            # aiohttp's own text shows the TLS context as an object; what the system said is what helps.
            why = error.os_error.strerror or error.os_error
            return Unreachable(f"{label}: cannot connect: {why}; is the server running? ({source})")
        case aiohttp.ClientHttpProxyError():
            # Not its own text, in which stands the proxy's address with the password.
            refusal = f"the proxy refused: HTTP {error.status} {error.message[:200]}"
            return Unreachable(f"{label}: cannot connect: {refusal}; check proxy-url or HTTPS_PROXY ({source})")
        case aiohttp.ConnectionTimeoutError():
            return Unreachable(f"{label}: no connection in time; is the address right? ({source})")
        case TimeoutError():
            return OutcomeUnknown(f"{label}: no answer in time; whether it was carried out is not known")
        case aiohttp.ClientConnectionError() | aiohttp.ClientPayloadError() | BrokenOff() | OSError():
            return OutcomeUnknown(f"{label}: the connection broke before the whole answer was there: {reason}")
        case _:
            return BadResponse(f"{label}: what answered does not speak HTTP as it should: {reason}")
