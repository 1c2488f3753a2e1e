"""What an image reference says. Pure: text in, a value or an AgentError out.

Three kinds. A registry name (`[host[:port]/]path[:tag][@sha256:...]`), which is also how a loaded image is found; an image id
(`sha256:...`), found only here; and a path (`oci-archive:/p`, `oci:/p:tag`, `docker-archive:/p`, `dir:/p`), which only the
operator of the agent may use freely: what a manifest names must lie below a directory that the configuration allows.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Final, Literal

import msgspec

from muster.agent.contracts import AgentError

SourceKind = Literal["oci-archive", "oci", "docker-archive", "dir"]
SOURCES: Final[tuple[SourceKind, ...]] = ("oci-archive", "oci", "docker-archive", "dir")
REFERENCE_LEN_MAX: Final = 512
DEFAULT_TAG: Final = "latest"

_COMPONENT: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST: Final = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?"
_NAME: Final = re.compile(
    rf"(?P<path>(?:(?P<host>{_HOST})/)?{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_ID: Final = re.compile(r"sha256:[0-9a-f]{64}")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


class Name(msgspec.Struct, frozen=True, kw_only=True):
    """A registry name in its full form, so that `app` and `app:latest` are the same."""

    path: str
    host: str
    """Of the registry; empty: the usual one of the tool that pulls."""
    tag: str
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.path}@{self.digest}" if self.digest else f"{self.path}:{self.tag}"


class ImageId(msgspec.Struct, frozen=True):
    id: str


class LocalPath(msgspec.Struct, frozen=True, kw_only=True):
    kind: SourceKind
    path: str
    tag: str = ""


Reference = Name | ImageId | LocalPath


def parse(text: str) -> Reference:
    """AgentError `InvalidImageName` says what a reference may look like."""
    shown = text[:80]
    if not text or len(text) > REFERENCE_LEN_MAX:
        raise _invalid(shown, f"it has {len(text)} characters; between 1 and {REFERENCE_LEN_MAX} are allowed")
    if _ID.fullmatch(text):
        return ImageId(text)
    prefix, colon, rest = text.partition(":")
    for kind in SOURCES:
        if colon and prefix == kind and rest.startswith(("/", "./", "../")):
            return _local(kind, rest, shown)
    found = _NAME.fullmatch(text)
    if found is None:
        raise _invalid(shown, "a name is [registry/]path[:tag], its path in lower case")
    host = found["host"] or ""
    if host and not ("." in host or ":" in host or host == "localhost"):
        host = ""  # the first word of a path, such as library/app
    return Name(path=found["path"], host=host, tag=found["tag"] or DEFAULT_TAG, digest=found["digest"] or "")


def parse_name(text: str) -> Name:
    """A name to give to an image: no id, no path, no digest."""
    found = parse(text)
    if not isinstance(found, Name) or found.digest:
        raise _invalid(text[:80], "an image is given a name such as app:1.0, not an id, a digest or a path")
    return found


def _local(kind: SourceKind, rest: str, shown: str) -> LocalPath:
    path, tag = rest, ""
    if kind != "dir":
        head, colon, tail = rest.rpartition(":")
        if colon and _TAG.fullmatch(tail):
            path, tag = head, tail
    if "\0" in path:
        raise _invalid(shown, "a path has no NUL")
    return LocalPath(kind=kind, path=path, tag=tag)


def _invalid(shown: str, why: str) -> AgentError:
    return AgentError("InvalidImageName", f"image {shown!r}: {why}")


def is_registry_allowed(host: str, allowed: list[str]) -> bool:
    return any(fnmatchcase(host, pattern) for pattern in allowed)


def default_policy(reference: Reference, policy: str) -> str:
    """`policy`, or what Kubernetes means when there is none."""
    if policy:
        return policy
    return "Always" if isinstance(reference, Name) and reference.tag == DEFAULT_TAG and not reference.digest else "IfNotPresent"
