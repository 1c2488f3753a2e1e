"""Our rules, defaults and field lists for Kubernetes' own kinds, held against a real kube-apiserver."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.objects.native.case import Case, Change, whole
from tests.objects.native.tables import CASES, CHANGES, DEFAULTED, EMPTY, POINTERS, WRITTEN_OTHERWISE
from tests.objects.test_crd_on_kubernetes import call
from tests.objects.test_validation import admitted

from muster.bench.kubernetes import ControlPlane
from muster.objects.catalog import CATALOG
from muster.objects.resources import Resource
from muster.objects.schema import schema_of
from muster.objects.status import Raw

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

GONE_WITHIN_S = 30.0


@pytest.fixture(scope="module")
def version(kubernetes: ControlPlane) -> tuple[int, int]:
    _, answer = call(kubernetes, "GET", "/version")
    return int(answer["major"]), int(re.sub(r"\D", "", answer["minor"]))


def known(case: Case | Change, version: tuple[int, int]) -> None:
    major, minor = case.since.split(".")
    if (int(major), int(minor)) > version:
        pytest.skip(f"this kube-apiserver is older than {case.since}, which brought the rule")


def collection(resource: Resource) -> str:
    return resource.path("default" if resource.namespaced else None)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.kind}: {c.id}")
def test_the_verdict_on_a_new_object_is_the_same(kubernetes: ControlPlane, version: tuple[int, int], case: Case) -> None:
    known(case, version)
    resource = CATALOG.by_kind(case.group, case.kind)
    code, answer = call(kubernetes, "POST", f"{collection(resource)}?dryRun=All", whole(case.group, case.kind, case.body))
    assert (400 <= code < 500 and code not in {404, 409}) if case.refused else code == 201, answer.get("message")


@pytest.mark.parametrize("case", CHANGES, ids=lambda c: f"{c.kind}: {c.id}")
def test_the_verdict_on_a_change_is_the_same(kubernetes: ControlPlane, version: tuple[int, int], case: Change) -> None:
    known(case, version)
    resource = CATALOG.by_kind(case.group, case.kind)
    path = f"{collection(resource)}/case"
    code, made = call(kubernetes, "POST", collection(resource), whole(case.group, case.kind, case.before))
    assert code == 201, made.get("message")
    try:
        code = 409
        answer: Any = {}
        while code == 409:  # a controller wrote in between
            _, made = call(kubernetes, "GET", path)
            after = with_admission(whole(case.group, case.kind, case.after), made)
            code, answer = call(kubernetes, "PUT", f"{path}?dryRun=All", after)
        assert (code in {400, 403, 422}) if case.refused else code == 200, answer.get("message")
    finally:
        remove(kubernetes, path)


def with_admission(after: Raw, made: Raw) -> Raw:
    """`after` with what admission has added to `made`, as somebody who edits an object has it in front of them."""
    after["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"]
    if after["kind"] == "Pod":
        for field in ("priority", "preemptionPolicy"):
            after["spec"].setdefault(field, made["spec"].get(field))
        added = [t for t in made["spec"].get("tolerations", []) if t.get("key", "").startswith("node.kubernetes.io/")]
        after["spec"]["tolerations"] = [*after["spec"].get("tolerations", []), *added]
    return after


def remove(plane: ControlPlane, path: str) -> None:
    call(plane, "DELETE", f"{path}?gracePeriodSeconds=0&propagationPolicy=Background")
    deadline = time.monotonic() + GONE_WITHIN_S
    while time.monotonic() < deadline:
        code, found = call(plane, "GET", path)
        if code == 404:
            return
        if found["metadata"].get("finalizers"):
            call(plane, "PUT", path, {**found, "metadata": {**found["metadata"], "finalizers": []}})
        time.sleep(0.05)
    raise AssertionError(f"{path} does not go away")


SET_BY_OTHERS = re.compile(
    # What admission, allocation and bookkeeping add on a real server.
    r"^(metadata\.(uid|creationTimestamp|managedFields|generation|selfLink|resourceVersion|finalizers|annotations)"
    r"|spec\.(priority|preemptionPolicy|tolerations)|spec\.ports\[\d+\]\.nodePort|spec\.clusterIPs?"
    r"|status(\..*)?|spec\.volumeClaimTemplates\[\d+\]\.(metadata\.)?creationTimestamp"
    r"|metadata\.labels|spec\.selector|spec\.template\.metadata)$"
)


def differences(ours: Any, theirs: Any, path: str) -> Iterator[str]:
    """Where the real server has something that we do not have, or have otherwise."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in theirs.items():
            where = f"{path}.{key}" if path else key
            if value is None or SET_BY_OTHERS.match(where):
                continue
            yield from differences(ours[key], value, where) if key in ours else [f"{where}: missing, theirs is {value!r}"]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(mine, other, f"{path}[{index}]")
    elif ours != theirs:
        yield f"{path}: ours is {ours!r}, theirs is {theirs!r}"


FILLED = [*DEFAULTED, *EMPTY, *WRITTEN_OTHERWISE]


@pytest.mark.parametrize(("group", "kind", "body"), FILLED, ids=[f"{kind}-{i}" for i, (_, kind, _) in enumerate(FILLED)])
def test_what_the_real_server_fills_in_we_fill_in(kubernetes: ControlPlane, group: str, kind: str, body: Raw) -> None:
    resource = CATALOG.by_kind(group, kind)
    raw = whole(group, kind, body)
    code, answer = call(kubernetes, "POST", f"{collection(resource)}?dryRun=All", raw)
    assert code == 201, answer.get("message")
    ours, causes = admitted(group, kind, raw)
    assert causes == []
    assert list(differences(ours, answer, "")) == []


@pytest.mark.parametrize(("group", "kind", "body"), POINTERS, ids=[kind for _, kind, _ in POINTERS])
def test_an_empty_text_behind_a_pointer_is_refused(kubernetes: ControlPlane, group: str, kind: str, body: Raw) -> None:
    raw = whole(group, kind, body)
    code, answer = call(kubernetes, "POST", f"{collection(CATALOG.by_kind(group, kind))}?dryRun=All", raw)
    assert code == 422, answer
    assert admitted(group, kind, raw)[1]


REMOVED_FIELDS = ("metadata.clusterName", "spec.topologyKeys", "spec.ipFamily", "ephemeral.readOnly")
"""Of 1.20, gone since: no current client writes them."""


def test_every_field_of_the_real_server_is_known(kubernetes: ControlPlane) -> None:
    definitions = json.loads(kubernetes.fetch("/openapi/v2"))["definitions"]
    by_kind = {
        (gvk["group"], gvk["version"], gvk["kind"]): name
        for name, definition in definitions.items()
        for gvk in definition.get("x-kubernetes-group-version-kind", ())
    }
    missing: set[str] = set()
    seen_count = 0
    for resource in CATALOG:
        name = by_kind.get((resource.group, resource.version, resource.kind))
        if resource.is_custom or resource.view is None or name is None:
            continue
        seen_count += 1
        missing |= set(unknown_fields(definitions, name, schema_of(resource.view), resource.kind, ()))
    assert missing == set()
    assert seen_count >= 35


def unknown_fields(definitions: Raw, name: str, ours: Raw, path: str, stack: tuple[str, ...]) -> Iterator[str]:
    if name in stack:
        return
    known_fields = ours.get("properties", {})
    for field, schema in definitions[name].get("properties", {}).items():
        if field not in known_fields:
            if not f"{path}.{field}".endswith(REMOVED_FIELDS):
                yield f"{path}.{field}"
            continue
        inner, theirs = known_fields[field], schema
        while "items" in theirs or isinstance(theirs.get("additionalProperties"), dict):
            word = "items" if "items" in theirs else "additionalProperties"
            inner, theirs = inner.get(word, {}), theirs[word]
        reference = theirs.get("$ref", "").rpartition("/")[2]
        if "properties" in definitions.get(reference, {}) and "properties" in inner:
            yield from unknown_fields(definitions, reference, inner, f"{path}.{field}", (*stack, name))
