"""Which form an answer takes, and which form a body may have.

Pure. JSON and YAML are spoken; the transforms that `kubectl` asks for with `as=` are Table, PartialObjectMetadata and
PartialObjectMetadataList. Bodies of Kubernetes' own kinds may also come as protobuf, which typed clients prefer. CBOR, and
answers in protobuf, are refused with 415 or 406 and a text that says what is accepted; clients that list JSON behind them get
JSON.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import msgspec

from muster.objects import yaml_text
from muster.objects.status import BadRequest, NotAcceptable, UnsupportedMediaType
from muster.server import protobuf
from muster.store.contract import PatchType

ACCEPTED = "application/json, application/yaml"
META_GROUP = "meta.k8s.io"
_TRANSFORMS = frozenset({"Table", "PartialObjectMetadata", "PartialObjectMetadataList"})
_HEADER_CHARS_MAX = 4096
_YAML_TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml"})
_encoder = msgspec.json.Encoder()

Media = Literal["json", "yaml"]
BodyMedia = Literal["json", "yaml", "protobuf"]


class MediaRange(msgspec.Struct, frozen=True):
    """One entry of an Accept header."""

    type: str
    params: dict[str, str]
    quality: float = 1.0


class Form(msgspec.Struct, frozen=True):
    """The form of an answer. `transform` is empty for the object itself."""

    media: Media = "json"
    transform: str = ""
    version: str = "v1"

    @property
    def content_type(self) -> str:
        if not self.transform:
            return f"application/{self.media}"
        return f"application/{self.media};as={self.transform};v={self.version};g={META_GROUP}"


PLAIN = Form()


@functools.lru_cache(maxsize=512)
def accept_ranges(accept: str) -> tuple[MediaRange, ...]:
    """The entries of an Accept header, best first; entries that make no sense are left out."""
    if len(accept) > _HEADER_CHARS_MAX:
        raise BadRequest(f"the Accept header has {len(accept)} characters; at most {_HEADER_CHARS_MAX} are read")
    ranges = []
    for part in accept.split(","):
        pieces = [piece.strip() for piece in part.split(";")]
        if not pieces[0]:
            continue
        params = {}
        for piece in pieces[1:]:
            key, _, value = piece.partition("=")
            params[key.strip().lower()] = value.strip().strip('"')
        try:
            quality = float(params.pop("q", "1"))
        except ValueError:
            quality = 0.0
        if quality > 0:
            ranges.append(MediaRange(pieces[0].lower(), params, quality))
    return tuple(sorted(ranges, key=lambda r: -r.quality))


@functools.lru_cache(maxsize=512)
def negotiate(accept: str, transforms: bool = True, streaming: bool = False) -> Form:
    """The first form in `accept` that is spoken here. NotAcceptable when there is none. No header means JSON."""
    ranges = accept_ranges(accept)
    if not ranges and not accept.strip():
        return PLAIN
    for entry in ranges:
        media = _media(entry.type)
        if media is None or (streaming and media == "yaml"):
            continue
        wanted = entry.params.get("as", "")
        if not wanted:
            return Form(media)
        version = entry.params.get("v", "v1")
        if transforms and wanted in _TRANSFORMS and entry.params.get("g") == META_GROUP and version in ("v1", "v1beta1"):
            return Form(media, wanted, version)
    spoken = "application/json" if streaming else ACCEPTED
    raise NotAcceptable(f"only the following media types are accepted: {spoken}")


def _media(name: str) -> Media | None:
    if name in ("application/json", "*/*", "application/*"):
        return "json"
    return "yaml" if name in _YAML_TYPES else None


def body_media(content_type: str) -> BodyMedia:
    """How to read the body of a create or update; JSON when nothing is said. UnsupportedMediaType otherwise."""
    name = content_type.partition(";")[0].strip().lower()
    if name in ("application/json", ""):
        return "json"
    if name in _YAML_TYPES:
        return "yaml"
    if name == protobuf.MEDIA_TYPE:
        return "protobuf"
    raise UnsupportedMediaType(
        f"the body of the request was in an unknown format ({name[:80]}) - accepted media types include: {ACCEPTED}"
    )


def patch_type(content_type: str) -> PatchType:
    """The kind of patch that a PATCH request carries. UnsupportedMediaType names the four."""
    name = content_type.partition(";")[0].strip().lower()
    try:
        return PatchType(name)
    except ValueError:
        known = ", ".join(kind.value for kind in PatchType)
        raise UnsupportedMediaType(
            f"the body of the request was in an unknown format ({name[:80]}) - accepted media types include: {known}"
        ) from None


def encode(value: Any, form: Form = PLAIN) -> bytes:
    """`value` in the form's media type."""
    if form.media == "json":
        return _encoder.encode(value)
    return yaml_text.dump(value).encode()


def json_to_yaml(body: bytes) -> bytes:
    """For answers that exist only as encoded JSON."""
    return yaml_text.dump(msgspec.json.decode(body)).encode()
