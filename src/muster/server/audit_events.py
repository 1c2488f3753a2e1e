"""One request as the audit log tells it: an `audit.k8s.io/v1` Event, as much of it as the policy says.

Pure. Never in an event: the Authorization header and every other header but User-Agent. Bodies are in it at levels Request and
RequestResponse, of resources only, as they were sent and answered; the writer leaves them out where they are too large, and the
annotation `audit.k8s.io/truncated` says so.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final, Protocol

import msgspec

from muster.objects.status import ApiError, Raw
from muster.objects.time import format_micro_time
from muster.server.audit_policy import Level, Stage, Telling
from muster.server.decoding import decode_yaml
from muster.server.paths import RequestInfo
from muster.server.protobuf import MAGIC as PROTOBUF_MAGIC
from muster.server.protobuf import decode_protobuf
from muster.store.embedded.admission import Actor

URI_CHARS_MAX: Final = 2048
AGENT_CHARS_MAX: Final = 256
_DEPTH_MAX: Final = 128
_NODES_MAX: Final = 100_000
_OWN: Final = "muster.dev/"
_CUT: Final = "audit.k8s.io/truncated"


class Exchange(Protocol):
    """What is known about a request."""

    id: str
    received_s: float
    info: RequestInfo
    target: str
    headers: dict[str, str]
    address: str
    actor: Actor | None
    impersonator: Actor | None
    code: int
    reason: str
    notes: dict[str, str]
    annotations: dict[str, str]
    request_body: bytes
    response_body: bytes


class Bodies(msgspec.Struct, frozen=True):
    """What is still to be put into an event. To decode it takes a while, so that is done where the event is written."""

    parts: tuple[tuple[str, bytes], ...]
    omit_managed_fields: bool

    @property
    def size(self) -> int:
        return sum(len(body) for _, body in self.parts)


def event(exchange: Exchange, stage: Stage, telling: Telling, now_s: float) -> Raw:
    info = exchange.info
    user = exchange.impersonator or exchange.actor
    made: Raw = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": telling.level.word,
        "auditID": exchange.id,
        "stage": stage,
        "requestURI": exchange.target[:URI_CHARS_MAX],
        "verb": info.verb,
        "user": _user(user) if user is not None else {},
    }
    if exchange.impersonator is not None and exchange.actor is not None and exchange.actor is not exchange.impersonator:
        made["impersonatedUser"] = _user(exchange.actor)
    if exchange.address:
        made["sourceIPs"] = [exchange.address]
    if agent := exchange.headers.get("user-agent", ""):
        made["userAgent"] = agent[:AGENT_CHARS_MAX]
    if info.is_resource:
        made["objectRef"] = _reference(info, exchange.notes)
    if stage is not Stage.RECEIVED:
        status: Raw = {"metadata": {}, "code": exchange.code}
        if exchange.code >= 400:
            status |= {"status": "Failure", "reason": exchange.reason}
        made["responseStatus"] = status
    made["requestReceivedTimestamp"] = format_micro_time(exchange.received_s)
    made["stageTimestamp"] = format_micro_time(now_s)
    annotations = dict(exchange.annotations)
    # Notes of webhooks have whole names already.
    annotations |= {key if "/" in key else _OWN + key: value for key, value in exchange.notes.items() if key != "name"}
    if annotations:
        made["annotations"] = annotations
    return made


def entry(exchange: Exchange, stage: Stage, method: str, seconds: float, now_s: float) -> Raw:
    """The same for listeners inside the process, whatever the policy says: who asked for what, never a body."""
    info = exchange.info
    made: Raw = {
        "time": format_micro_time(now_s),
        "id": exchange.id,
        "stage": "started" if stage is Stage.STARTED else "complete",
        "user": exchange.actor.user if exchange.actor else "",
        "groups": exchange.actor.groups if exchange.actor else (),
        "method": method,
        "verb": info.verb,
        "uri": exchange.target[:URI_CHARS_MAX],
        "agent": exchange.headers.get("user-agent", "")[:AGENT_CHARS_MAX],
        "code": exchange.code,
        "ms": round(seconds * 1000, 3),
    }
    if exchange.impersonator is not None:
        made["impersonator"] = exchange.impersonator.user
    if exchange.reason:
        made["reason"] = exchange.reason
    if exchange.notes:
        made["notes"] = exchange.notes
    if info.is_resource:
        made["object"] = {
            "group": info.group,
            "version": info.version,
            "resource": info.resource,
            "subresource": info.subresource,
            "namespace": info.namespace,
            "name": info.name,
        }
    return made


def _user(actor: Actor) -> Raw:
    made: Raw = {"username": actor.user, "groups": actor.groups}
    if actor.uid:
        made["uid"] = actor.uid
    if actor.extra:
        made["extra"] = actor.extra
    return made


def _reference(info: RequestInfo, notes: dict[str, str]) -> Raw:
    told = {
        "resource": info.resource,
        "namespace": info.namespace,
        "name": info.name or notes.get("name", ""),
        "apiGroup": info.group,
        "apiVersion": info.version,
        "subresource": info.subresource,
    }
    return {key: value for key, value in told.items() if value}


def bodies(exchange: Exchange, telling: Telling) -> Bodies | None:
    """Those that the level asks for; None when there are none."""
    if telling.level < Level.REQUEST or not exchange.info.is_resource:
        return None
    found = [("requestObject", exchange.request_body)]
    if telling.level is Level.REQUEST_RESPONSE:
        found.append(("responseObject", exchange.response_body))
    parts = tuple((field, body) for field, body in found if body.strip())
    return Bodies(parts, telling.omit_managed_fields) if parts else None


def mark_truncated(made: Raw) -> None:
    made["annotations"] = {**made.get("annotations", {}), _CUT: "true"}


def add_bodies(made: Raw, told: Bodies) -> None:
    """What can't be decoded, as a request that was refused for that, is left out."""
    for field, body in told.parts:
        with contextlib.suppress(ValueError, ApiError):
            value = _decoded(body)
            made[field] = _without_managed_fields(value) if told.omit_managed_fields else value


def _decoded(body: bytes) -> Any:
    if body.startswith(PROTOBUF_MAGIC):
        return decode_protobuf(body, depth_max=_DEPTH_MAX, api_version="", kind="")
    return decode_yaml(body, depth_max=_DEPTH_MAX, nodes_max=_NODES_MAX)  # JSON is YAML, and decoded as such first


def _without_managed_fields(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    made = dict(value)
    if isinstance(made.get("metadata"), dict):
        made["metadata"] = {key: part for key, part in made["metadata"].items() if key != "managedFields"}
    if isinstance(made.get("items"), list):
        made["items"] = [_without_managed_fields(item) for item in made["items"]]
    return made
