"""What a manifest shows: the fields that it is about, what they do, and the check of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from tests.fields.record import Act, Record, key_of

from muster.objects.status import Raw

CROSS = "cross-domain"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """`file` is in the kind's folder; without `.yaml` it is the field, unless `fields` are named."""

    file: str
    does: str
    """For docs/compatibility.md: what the field does here."""
    check: Callable[[Record], None]
    fields: tuple[str, ...] = ()
    act: Act | None = None
    refused: tuple[str, ...] = ()
    """`Kind/name` of the documents that the server refuses, and of changes that it refuses."""

    @property
    def covered(self) -> tuple[str, ...]:
        return self.fields or (self.file,)

    @property
    def path(self) -> str:
        return f"{self.file}.yaml"


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """All cases of a kind, and the fields that do nothing here, with the reason."""

    name: str
    seconds: float
    """How long its world runs."""
    cases: tuple[Case, ...]
    nothing: dict[str, str]


# -- readers for checks --------------------------------------------------------------------------------------------------------


def pods(record: Record, task: str) -> list[Raw]:
    """The pods of a task or deployment as they were made, in the order of their names."""
    found = [record.first("Pod", key) for key in record.keys("Pod") if key.partition("/")[2].startswith(f"{task}-")]
    return sorted(found, key=key_of)


def pod(record: Record, task: str) -> Raw:
    found = pods(record, task)
    assert len(found) == 1, f"{task} has the pods {[key_of(one) for one in found]}"
    return found[0]


def container(record: Record, task: str, name: str = "main") -> Raw:
    return container_of(pod(record, task), name)


def container_of(raw: Raw, name: str = "main") -> Raw:
    found: Raw = next(one for one in raw["spec"]["containers"] if one["name"] == name)
    return found


def env(raw: Raw) -> dict[str, Any]:
    """The variables of a container that have a plain value."""
    return {one["name"]: one.get("value", "") for one in raw.get("env") or ()}


def service(record: Record, key: str) -> Raw:
    return record.first("Service", key)


def has(**wanted: Any) -> Callable[[Raw], bool]:
    """Whether fields of an object's status have these values."""
    return lambda raw: all((raw.get("status") or {}).get(name) == value for name, value in wanted.items())


def phase(record: Record, kind: str, name: str) -> str:
    return str(record.status(kind, f"{CROSS}/{name}").get("phase"))
