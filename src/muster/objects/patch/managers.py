"""Who owns which fields: the entries of `metadata.managedFields`, read and written.

An applier is known by its name (and subresource) whatever version it applied; one who updates, by name, version and
subresource. Pure; entries are immutable values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from muster.objects.patch.fieldset import Fields, parse_fields, union_all
from muster.objects.status import Raw

UPDATE_MANAGERS_MAX: Final = 10
"""More entries of updates than this are joined, the oldest first, so that many short-lived clients do not fill an object."""
_JOINED: Final = "ancient-changes"
_UNNAMED: Final = "unknown"

Operation = Literal["Apply", "Update"]
Key = tuple[str, str, str, str]


class Entry(msgspec.Struct, frozen=True):
    """The fields that one manager owns by one operation. `raw` is the entry as it was read, as long as it is unchanged."""

    manager: str
    operation: Operation
    api_version: str
    subresource: str
    time: str
    fields: Fields
    raw: Raw | None = None

    @property
    def key(self) -> Key:
        return entry_key(self.manager, self.operation, self.api_version, self.subresource)

    def owning(self, fields: Fields) -> Entry:
        """The same manager with another set."""
        return self if fields is self.fields else msgspec.structs.replace(self, fields=fields, raw=None)

    def described(self) -> str:
        """How messages name the manager."""
        text = f'"{self.manager}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return text + (f" using {self.api_version}" if self.operation == "Update" else "")


Managers = dict[Key, Entry]


def entry_key(manager: str, operation: Operation, api_version: str, subresource: str) -> Key:
    return (manager or _UNNAMED, operation, "" if operation == "Apply" else api_version, subresource)


def read_managers(raw_entries: Any, *, strict: bool = False) -> Managers:
    """The entries of an object. Malformed ones are left out, or with `strict` a ValueError."""
    read: dict[Key, list[Entry]] = {}
    for raw in raw_entries if isinstance(raw_entries, list) else []:
        try:
            entry = _read(raw)
        except ValueError:
            if strict:
                raise
            continue
        read.setdefault(entry.key, []).append(entry)
    return {key: entries[-1].owning(union_all([e.fields for e in entries])) for key, entries in read.items()}


def _read(raw: Any) -> Entry:
    if not isinstance(raw, Mapping):
        raise ValueError("an entry of managedFields must be an object")
    texts = {name: raw.get(name, "") for name in ("manager", "apiVersion", "subresource", "time", "fieldsType")}
    for name, text in texts.items():
        if text is None:
            texts[name] = ""
        elif not isinstance(text, str):
            raise ValueError(f"managedFields: {name} must be a string")
    operation = raw.get("operation")
    if operation not in ("Apply", "Update"):
        raise ValueError(f"managedFields: operation must be Apply or Update, not {operation!r:.40}")
    if texts["fieldsType"] != "FieldsV1":
        raise ValueError(f"managedFields: fieldsType must be FieldsV1, not {texts['fieldsType'][:40]!r}")
    given = raw.get("fieldsV1") or {}
    fields = parse_fields(given)
    return Entry(
        manager=texts["manager"] or _UNNAMED,
        operation=operation,
        api_version=texts["apiVersion"],
        subresource=texts["subresource"],
        time=texts["time"],
        fields=fields,
        raw=dict(raw) if fields is given or fields == given else None,
    )


def write_managers(managers: Managers) -> list[Raw]:
    """The entries in Kubernetes' order: appliers first, then by time, name and version. Empty sets are left out."""
    entries = [entry for entry in managers.values() if entry.fields]
    entries.sort(key=lambda e: (e.operation, e.time, e.manager, e.api_version, e.subresource))
    return [_write(entry) for entry in entries]


def _write(entry: Entry) -> Raw:
    if entry.raw is not None:
        return entry.raw
    raw: Raw = {
        "manager": entry.manager,
        "operation": entry.operation,
        "apiVersion": entry.api_version,
        "time": entry.time,
        "fieldsType": "FieldsV1",
        "fieldsV1": entry.fields,
    }
    if not entry.time:
        del raw["time"]
    if entry.subresource:
        raw["subresource"] = entry.subresource
    return raw


def join_oldest(managers: Managers) -> Managers:
    """`managers` with at most `UPDATE_MANAGERS_MAX` entries of updates, as far as their versions allow joining them."""
    updates = sorted(
        (entry for entry in managers.values() if entry.operation == "Update"),
        key=lambda e: (e.time, e.manager != _JOINED, e.manager),
    )
    excess = len(updates) - UPDATE_MANAGERS_MAX
    if excess <= 0:
        return managers
    joined: dict[str, list[Entry]] = {}
    """By version, the oldest first; the joined entry takes the place of the first."""
    for entry in updates:
        if excess <= 0:
            break
        alike = joined.setdefault(entry.api_version, [])
        excess -= bool(alike)
        alike.append(entry)
    result = dict(managers)
    for api_version, entries in joined.items():
        if len(entries) == 1:
            continue
        for entry in entries:
            del result[entry.key]
        time, key = entries[-1].time, entry_key(_JOINED, "Update", api_version, "")
        if key in result:
            entries.append(result[key])
        fields = union_all([entry.fields for entry in entries])
        result[key] = Entry(_JOINED, "Update", api_version, "", time, fields)
    return result


def is_reset(raw_entries: Sequence[Any] | None) -> bool:
    """Whether a client asks to forget all ownership: an empty list, or a list of one empty entry."""
    return isinstance(raw_entries, list) and (not raw_entries or raw_entries == [{}])
