"""Questions to Muster's own API (`/muster/v1/...`), which only servers of ours have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.client.api import ApiClient
    from muster.objects.status import Raw


async def is_own(client: ApiClient) -> bool:
    """Whether the server is Muster's own: `muster up`, not a cluster's API server."""
    version = await client.version()
    return "+muster" in str(version.get("gitVersion", ""))


async def ask(client: ApiClient, path: str, params: Sequence[tuple[str, str]] = ()) -> Raw:
    import msgspec

    answer = await client.request("GET", path, params=list(params))
    found: Raw = msgspec.json.decode(answer.body)
    return found
