"""Where the tokens for nodes of no party are kept: the Secret `node-join-tokens` in `kube-system`.

A node that belongs to no party may be given the work of any, so only an administrator hands out its token. The tokens are
those of `domain_tokens` (made once, shown once, kept as hashes); the list that a Domain has in its status is here the text
`tokens` of one Secret, written under its resourceVersion. Who may write Secrets in `kube-system` may act as anybody anyway.

Pure.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from muster.controllers.domain_tokens import entries
from muster.objects.names import NAMESPACE_SYSTEM
from muster.objects.status import Raw

SECRET: Final = "node-join-tokens"  # noqa: S105 - the name of the object
NAMESPACE: Final = NAMESPACE_SYSTEM
TYPE: Final = "muster.dev/node-join-tokens"
_KEY: Final = "tokens"


def tokens_in(secret: Mapping[str, Any] | None) -> list[Raw]:
    """The list that `domain_tokens` works on; empty when there is none or it can't be read."""
    data = (secret or {}).get("data")
    text = data.get(_KEY) if isinstance(data, dict) else None
    try:
        return entries(msgspec.json.decode(base64.b64decode(text, validate=True))) if isinstance(text, str) else []
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        return []


def data_with(tokens: list[Raw]) -> Raw:
    """`data` of the Secret."""
    return {_KEY: base64.b64encode(msgspec.json.encode(tokens)).decode()}


def secret_with(tokens: list[Raw]) -> Raw:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": SECRET,
            "namespace": NAMESPACE,
            "annotations": {"muster.dev/description": "Hashes of the tokens with which nodes of no party join."},
        },
        "type": TYPE,
        "data": data_with(tokens),
    }
