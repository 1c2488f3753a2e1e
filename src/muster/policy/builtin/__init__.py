"""The policies that Muster brings along: ordinary SchedulingPolicy objects, in the YAML files beside this one.

Pure but for reading the package's own files, once. What is handed out is a copy: change it as you like.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.resources
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from muster.objects import yaml_text
from muster.objects.kinds.muster_queues import SchedulingPolicySpec
from muster.objects.status import Raw
from muster.objects.view import view_of

NAMES: Final = (
    "balanced",
    "deadline",
    "fair-share",
    "fifo",
    "least-attained-service",
    "multifactor",
    "priority",
    "shortest-first",
)
DEFAULT: Final = "balanced"
_encoder = msgspec.json.Encoder(order="deterministic")


@functools.cache
def _read(name: str) -> Raw:
    loaded: Raw = yaml_text.load(builtin_text(name))
    return loaded


def builtin_text(name: str) -> str:
    """The file as it is, comments included. KeyError when there is no such policy."""
    if name not in NAMES:
        raise KeyError(f"no policy {name!r} is built in; there are {', '.join(NAMES)}")
    return importlib.resources.files(__name__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")


def builtin_policies() -> Mapping[str, Raw]:
    """All of them by name, as raw objects."""
    return {name: copy.deepcopy(_read(name)) for name in NAMES}


def builtin_spec(name: str) -> SchedulingPolicySpec:
    """The spec of one. KeyError when there is no such policy."""
    return view_of(SchedulingPolicySpec, _read(name)["spec"])


def digest(spec: SchedulingPolicySpec) -> str:
    """The same for all ways to write the same policy, defaults given or left out."""
    return hashlib.sha256(_encoder.encode(_said(spec))).hexdigest()[:16]


@functools.cache
def _fields(cls: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Reading them off the annotations takes a hundred times as long as what is done with them."""
    return msgspec.structs.fields(cls)


def _said(value: Any) -> Any:
    """What differs from the defaults; a field that later versions add, at its default, changes nothing."""
    if isinstance(value, list):
        return [_said(one) for one in value]
    if not isinstance(value, msgspec.Struct):
        return value
    said = {}
    for field in _fields(type(value)):
        one = getattr(value, field.name)
        made = field.default_factory is not msgspec.NODEFAULT
        if field.required or one != (field.default_factory() if made else field.default):
            said[field.encode_name] = _said(one)
    return said
