"""Whom a container runs as, and how its ids are shown on the host. Pure: the image's own files are handed in.

A pod's container ids 0..65535 are ids of its own on the host: root is the pod's own user, so that its volumes belong to the
container's root; the others are a range that no other pod has.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from muster.agent.contracts import AgentError, Sandbox, Security

IDS: Final = 65536
RANGES_FIRST: Final = 2_200_000_000
RANGES: Final = 30_000
"""Of `IDS` each; they end below 2**32."""
FILE_BYTES_MAX: Final = 1024 * 1024
_NUMBER: Final = re.compile(r"[0-9]{1,10}")


class User(msgspec.Struct, frozen=True, kw_only=True):
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


class IdRange(msgspec.Struct, frozen=True, kw_only=True):
    inside: int
    outside: int
    count: int


def resolve(image_user: str, security: Security, passwd: bytes, group: bytes) -> User:
    """From the security context, else the image's `USER`, else root. AgentError for a name that the image does not have."""
    users = [row for row in _rows(passwd, 7) if _NUMBER.fullmatch(row[2]) and _NUMBER.fullmatch(row[3])]
    groups = [row for row in _rows(group, 4) if _NUMBER.fullmatch(row[2])]
    wanted, _, wanted_group = image_user.partition(":") if security.user is None else (str(security.user), "", "")
    row = next((r for r in users if wanted and wanted in (r[0], r[2])), None)
    if row is None and wanted and not _NUMBER.fullmatch(wanted):
        raise _unknown("user", wanted, "/etc/passwd")
    uid = int(row[2]) if row is not None else int(wanted or 0)
    gid = int(row[3]) if row is not None else 0
    if wanted_group:
        found = next((r for r in groups if wanted_group in (r[0], r[2])), None)
        if found is None and not _NUMBER.fullmatch(wanted_group):
            raise _unknown("group", wanted_group, "/etc/group")
        gid = int(found[2]) if found is not None else int(wanted_group)
    if security.group is not None:
        gid = security.group
    # Its own group among them: what a group is denied must not be open to it because its list is empty.
    more = [int(r[2]) for r in groups if row is not None and row[0] in r[3].split(",")]
    user = User(uid=uid, gid=gid, groups=tuple(dict.fromkeys([gid, *security.groups, *more]))[:64])
    if max(uid, gid, *user.groups) >= 2**32 - 1:
        raise AgentError("CreateContainerConfigError", f"user {uid}, group {gid}: an id is below {2**32 - 1}")
    return user


def _rows(data: bytes, columns: int) -> list[list[str]]:
    lines = data.decode("utf-8", "replace").splitlines()
    return [row for line in lines if len(row := line.split(":")) >= columns and row[0]]


def _unknown(what: str, name: str, path: str) -> AgentError:
    return AgentError(
        "CreateContainerConfigError",
        f"the image's {what} {name[:80]!r} is not in its {path}; set securityContext.runAsUser or runAsGroup to a number",
    )


def mappings(sandbox: Sandbox, ids: tuple[int, ...]) -> tuple[IdRange, ...]:
    """How ids inside are shown outside. `ids`: those that the container runs as; one beyond the usual range has a place too."""
    first = RANGES_FIRST + sandbox.user % RANGES * IDS
    ranges = [IdRange(inside=0, outside=sandbox.user, count=1), IdRange(inside=1, outside=first + 1, count=IDS - 1)]
    beyond = sorted({i for i in ids if i >= IDS})
    if len(beyond) > 1:
        raise AgentError(
            "CreateContainerConfigError",
            f"ids {beyond[0]} and {beyond[1]}: at most one user or group id of a container may be {IDS} or more",
        )
    return (*ranges, *(IdRange(inside=i, outside=first, count=1) for i in beyond))


def outside(ranges: tuple[IdRange, ...], inside: int) -> int:
    for r in ranges:
        if r.inside <= inside < r.inside + r.count:
            return r.outside + inside - r.inside
    return inside
