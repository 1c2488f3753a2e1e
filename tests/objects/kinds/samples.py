"""The manifests in `manifests/`: one of each kind that is not Kubernetes' own, together using every field."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import yaml

from muster.objects.kinds import (
    koordinator_scheduling,
    koordinator_slo,
    kuscia_data,
    kuscia_domains,
    kuscia_jobs,
    kuscia_routes,
    muster,
    sigs,
)
from muster.objects.resources import Resource
from muster.objects.status import Raw

KUSCIA = (*kuscia_jobs.RESOURCES, *kuscia_domains.RESOURCES, *kuscia_routes.RESOURCES, *kuscia_data.RESOURCES)
KOORDINATOR = (*koordinator_scheduling.RESOURCES, *koordinator_slo.RESOURCES)
FOREIGN = (*KUSCIA, *sigs.RESOURCES, *KOORDINATOR)
MUSTER = muster.RESOURCES
ALL: tuple[Resource, ...] = (*FOREIGN, *MUSTER)
BY_KIND = {resource.kind: resource for resource in ALL}

_FOLDER = Path(__file__).parent / "manifests"


@functools.cache
def _read(kind: str) -> Raw:
    raw = yaml.safe_load((_FOLDER / f"{kind.lower()}.yaml").read_text(encoding="utf-8"))
    assert isinstance(raw, dict)
    return raw


def manifest(kind: str) -> Raw:
    """A fresh copy of the kind's manifest."""
    return copy.deepcopy(_read(kind))


def manifest_kinds() -> set[str]:
    return {str(yaml.safe_load(path.read_text(encoding="utf-8"))["kind"]) for path in _FOLDER.glob("*.yaml")}


def changed(raw: Raw, path: str, value: Any) -> Raw:
    """`raw` with the value at `path` (`spec.tasks.0.alias`) replaced, or removed when `value` is `...`."""
    *way, last = path.split(".")
    place: Any = raw
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
    key = int(last) if isinstance(place, list) else last
    if value is ...:
        del place[key]
    else:
        place[key] = value
    return raw
