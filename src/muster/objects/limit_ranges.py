"""What a namespace's LimitRanges make of a pod or a claim: what they fill in, and what they hold against it.

Pure. A LimitRange is read once, when it changes (`Range.of`); the objects are raw and already sound by their schema. The words
of the refusals are Kubernetes', which people look for; several ranges are taken in the order of their names, where Kubernetes
takes them in none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from muster.objects.meta import name_of
from muster.objects.quantity import Quantity
from muster.objects.rules.report import obj, objs
from muster.objects.status import Raw

ANNOTATION: Final = "kubernetes.io/limit-ranger"
Amounts = Mapping[str, Quantity]


class Bounds(msgspec.Struct, frozen=True):
    """One entry of a LimitRange: what one thing of a type may have."""

    type: str
    min: Amounts
    max: Amounts
    ratio: Amounts


class Range(msgspec.Struct, frozen=True):
    """A LimitRange, read."""

    name: str
    limits: Mapping[str, str]
    """For containers that state none, as text."""
    requests: Mapping[str, str]
    bounds: tuple[Bounds, ...]

    @staticmethod
    def of(raw: Raw) -> Range:
        items = [item for _, item in objs(obj(raw, "spec"), "limits", "")]
        containers = [item for item in items if item.get("type") == "Container"]
        return Range(
            name=name_of(raw),
            limits={name: str(value) for item in containers for name, value in obj(item, "default").items()},
            requests={name: str(value) for item in containers for name, value in obj(item, "defaultRequest").items()},
            bounds=tuple(
                Bounds(
                    type=str(item.get("type", "")),
                    min=_amounts(obj(item, "min")),
                    max=_amounts(obj(item, "max")),
                    ratio=_amounts(obj(item, "maxLimitRequestRatio")),
                )
                for item in items
            ),
        )


# -- filling in ----------------------------------------------------------------------------------------------------------------


def fill(pod: Raw, ranges: Sequence[Range]) -> Raw | None:
    """The pod with what its containers leave open, and an annotation that says so; None when nothing is left open."""
    spec, note = dict(obj(pod, "spec")), ""
    for one in ranges:
        said: list[str] = []
        for field, word in (("containers", "container"), ("initContainers", "init container")):
            if isinstance(spec.get(field), list):
                spec[field] = [_filled(container, one, word, said) for container in spec[field]]
        if said:
            note = f"LimitRanger plugin set: {'; '.join(said)}"
    if not note:
        return None
    metadata = obj(pod, "metadata")
    annotations = {**(metadata.get("annotations") or {}), ANNOTATION: note}
    return {**pod, "metadata": {**metadata, "annotations": annotations}, "spec": spec}


def _filled(container: Any, one: Range, word: str, said: list[str]) -> Any:
    """What is no container, or states its resources as something else, is left for the schema to refuse."""
    resources = (container.get("resources") or {}) if isinstance(container, dict) else None
    if not isinstance(resources, dict):
        return container
    resources = dict(resources)
    for field, defaults in (("requests", one.requests), ("limits", one.limits)):
        stated = resources.get(field) or {}
        if not isinstance(stated, dict):
            return container
        missing = {name: value for name, value in defaults.items() if name not in stated}
        if missing:
            resources[field] = {**stated, **missing}
            said.append(f"{', '.join(sorted(missing))} {field[:-1]} for {word} {container.get('name', '')}")
    return {**container, "resources": resources}


# -- judging -------------------------------------------------------------------------------------------------------------------


def pod_problems(pod: Raw, ranges: Iterable[Range]) -> list[str]:
    """Every bound that the pod, or one of its containers, breaks."""
    spec = obj(pod, "spec")
    containers, first = ([one for _, one in objs(spec, field, "")] for field in ("containers", "initContainers"))
    each = [_requested(container) for container in (*containers, *first)]
    problems: list[str] = []
    for bounds in (bounds for one in ranges for bounds in one.bounds):
        if bounds.type == "Container":
            for requests, limits in each:
                problems += _judged(bounds, requests, limits)
        elif bounds.type == "Pod":
            requests, limits = (_of_pod(containers, first, field) for field in ("requests", "limits"))
            problems += _judged(bounds, requests, limits)
    return list(dict.fromkeys(problems))


def claim_problems(claim: Raw, ranges: Iterable[Range]) -> list[str]:
    """Every bound that a PersistentVolumeClaim breaks. It has no limits, so the most bounds its request."""
    requests = _amounts(obj(obj(obj(claim, "spec"), "resources"), "requests"))
    problems: list[str] = []
    for bounds in (bounds for one in ranges for bounds in one.bounds if bounds.type == "PersistentVolumeClaim"):
        for name, least in sorted(bounds.min.items()):
            problems += _too_little(bounds.type, name, least, requests.get(name), None)
        for name, most in sorted(bounds.max.items()):
            problems += _too_much_asked(bounds.type, name, most, requests.get(name))
    return list(dict.fromkeys(problems))


def together(problems: Sequence[str]) -> str:
    """As Kubernetes writes one or several errors."""
    return problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"


def _judged(bounds: Bounds, requests: Amounts, limits: Amounts) -> Iterator[str]:
    kind = bounds.type
    for name, least in sorted(bounds.min.items()):
        yield from _too_little(kind, name, least, requests.get(name), limits.get(name))
    for name, most in sorted(bounds.max.items()):
        yield from _too_much(kind, name, most, requests.get(name), limits.get(name))
    for name, ratio in sorted(bounds.ratio.items()):
        yield from _too_far_apart(kind, name, ratio, requests.get(name), limits.get(name))


def _too_little(kind: str, name: str, least: Quantity, request: Quantity | None, limit: Quantity | None) -> Iterator[str]:
    bound = f"minimum {name} usage per {kind} is {least}"
    if request is None:
        yield f"{bound}.  No request is specified"
    elif request < least:
        yield f"{bound}, but request is {request}"
    elif limit is not None and limit < least:
        yield f"{bound}, but limit is {limit}"


def _too_much(kind: str, name: str, most: Quantity, request: Quantity | None, limit: Quantity | None) -> Iterator[str]:
    bound = f"maximum {name} usage per {kind} is {most}"
    if limit is None:
        yield f"{bound}.  No limit is specified"
    elif limit > most:
        yield f"{bound}, but limit is {limit}"
    elif request is not None and request > most:
        yield f"{bound}, but request is {request}"


def _too_much_asked(kind: str, name: str, most: Quantity, request: Quantity | None) -> Iterator[str]:
    bound = f"maximum {name} usage per {kind} is {most}"
    if request is None:
        yield f"{bound}.  No request is specified"
    elif request > most:
        yield f"{bound}, but request is {request}"


def _too_far_apart(kind: str, name: str, ratio: Quantity, request: Quantity | None, limit: Quantity | None) -> Iterator[str]:
    bound = f"{name} max limit to request ratio per {kind} is {ratio}"
    if not request:
        yield f"{bound}, but no request is specified or request is 0"
    elif not limit:
        yield f"{bound}, but no limit is specified or limit is 0"
    elif limit.fraction() > ratio.fraction() * request.fraction():
        yield f"{bound}, but provided ratio is {float(limit) / float(request):f}"


def _requested(container: Raw) -> tuple[Amounts, Amounts]:
    resources = obj(container, "resources")
    return _amounts(obj(resources, "requests")), _amounts(obj(resources, "limits"))


def _of_pod(containers: Sequence[Raw], first: Sequence[Raw], field: str) -> Amounts:
    """What the pod has of each resource: the sum where each container states it, or one init container's if that is more.

    Init containers that go on running, which 1.20 does not know, count with the containers.
    """
    stay = [*containers, *(one for one in first if one.get("restartPolicy") == "Always")]
    stated = [_amounts(obj(obj(one, "resources"), field)) for one in stay]
    total = {
        name: sum((each[name] for each in stated), Quantity())
        for name in (stated[0] if stated else ())
        if all(name in each for each in stated)
    }
    for one in first:
        for name, amount in _amounts(obj(obj(one, "resources"), field)).items():
            total[name] = max(total.get(name, amount), amount)
    return total


def _amounts(texts: Mapping[str, Any]) -> dict[str, Quantity]:
    return {name: Quantity.parse(value) for name, value in texts.items()}
