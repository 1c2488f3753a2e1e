"""Bandwidth and amounts of the kinds that ask for them: each wrong field is named, with its value and what to do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.catalog import CATALOG
from muster.objects.labels import Kubernetes, Muster
from muster.objects.schema import schema_of
from muster.objects.status import Raw
from muster.objects.structural import Structural
from muster.objects.validation import validate_object

KUSCIA_GROUP = "kuscia.secretflow"


@functools.cache
def structural(group: str, kind: str) -> Structural:
    view = CATALOG.by_kind(group, kind).view
    assert view is not None
    return Structural(schema_of(view))


def obj(group: str, kind: str, spec: Any, **metadata: Any) -> Raw:
    resource = CATALOG.by_kind(group, kind)
    return {"apiVersion": resource.api_version, "kind": kind, "metadata": {"name": "x", **metadata}, "spec": spec}


def causes(group: str, kind: str, raw: Raw, old: Raw | None = None) -> dict[str, str]:
    """Schema first, as a server has it; then the rules."""
    found = structural(group, kind).validate(raw) or validate_object(CATALOG.by_kind(group, kind), raw, old)
    return {cause.field: cause.message for cause in found}


def kuscia_job(resources: Any, limits: Any = ()) -> Raw:
    party = {"domainID": "alice", "resources": resources, "bandwidthLimits": list(limits)}
    task = {"alias": "t", "appImage": "a", "taskInputConfig": "", "parties": [party]}
    return obj(KUSCIA_GROUP, "KusciaJob", {"initiator": "alice", "tasks": [task]})


def kuscia_task(resources: Any, kind: str = "KusciaTask") -> Raw:
    template = {"spec": {"containers": [{"name": "c", "resources": resources}]}}
    party = {"domainID": "alice", "appImageRef": "a", "template": template}
    spec = {"initiator": "alice", "parties": [party]}
    return obj(KUSCIA_GROUP, kind, spec | ({"taskInputConfig": ""} if kind == "KusciaTask" else {"inputConfig": ""}))


def app_image(resources: Any) -> Raw:
    template = {"name": "t", "spec": {"containers": [{"name": "c", "resources": resources}]}}
    return obj(KUSCIA_GROUP, "AppImage", {"image": {"name": "i", "tag": "1"}, "deployTemplates": [template]})


def job(resources: Any) -> Raw:
    return obj("muster.dev", "Job", {"roles": [{"name": "r", "image": "i", "resources": resources}]})


WORK: dict[str, tuple[Callable[[Any], Raw], str]] = {
    "KusciaJob": (kuscia_job, "spec.tasks[0].parties[0].resources"),
    "KusciaTask": (kuscia_task, "spec.parties[0].template.spec.containers[0].resources"),
    "KusciaDeployment": (
        functools.partial(kuscia_task, kind="KusciaDeployment"),
        "spec.parties[0].template.spec.containers[0].resources",
    ),
    "AppImage": (app_image, "spec.deployTemplates[0].spec.containers[0].resources"),
    "Job": (job, "spec.roles[0].resources"),
}


@pytest.mark.parametrize("kind", WORK)
@pytest.mark.parametrize("amount", ["500Mbps", "500mbps", "500Mi", "1Gi", "10Gbps", "500M", "64Kbps", 1000, "1e9"], ids=str)
def test_units_that_are_taken(kind: str, amount: Any) -> None:
    make, _ = WORK[kind]
    raw = make({"requests": {"bandwidth": amount}, "limits": {"bandwidth": "20Gbps"}})
    group = KUSCIA_GROUP if kind != "Job" else "muster.dev"
    assert causes(group, kind, raw) == {}


@pytest.mark.parametrize("kind", WORK)
@pytest.mark.parametrize(
    ("resources", "field", "message"),
    [
        pytest.param(
            {"requests": {"bandwidth": "500m"}}, "requests[bandwidth]", "UnitInvalid: '500m' is not a bandwidth", id="milli"
        ),
        pytest.param({"requests": {"bandwidth": "-1G"}}, "requests[bandwidth]", "UnitInvalid", id="negative"),
        pytest.param({"requests": {"bandwidth-egress": "200T"}}, "requests[bandwidth-egress]", "more than 100Tbps", id="range"),
        pytest.param({"limits": {"bandwidth": "999bps"}}, "limits[bandwidth]", "less than 1Kbps", id="limit too small"),
        pytest.param(
            {"requests": {"bandwidth": "2Gi"}, "limits": {"bandwidth": "1Gbps"}},
            "limits[bandwidth]",
            "RequestExceedsLimit: the request 2Gbps is more than the limit 1Gbps",
            id="request above limit",
        ),
        pytest.param(
            {"requests": {"kuscia.io/bandwidth": "200Mbps"}},
            "requests[kuscia.io/bandwidth]",
            "whole number of Mbps",
            id="Kuscia's",
        ),
        pytest.param({"requests": {"cpu": "500Mbps"}}, "requests[cpu]", "UnitInvalid", id="a bandwidth of CPU"),
        pytest.param({"requests": {"gpu": "1"}}, "requests[gpu]", "no such resource", id="no such resource"),
        pytest.param({"requests": {"cpu": "-1"}}, "requests[cpu]", "greater than or equal to 0", id="negative CPU"),
        pytest.param(
            {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}},
            "requests[memory]",
            "RequestExceedsLimit",
            id="memory above its limit",
        ),
    ],
)
def test_wrong_amounts(kind: str, resources: Any, field: str, message: str) -> None:
    make, path = WORK[kind]
    found = causes(KUSCIA_GROUP if kind != "Job" else "muster.dev", kind, make(resources))
    assert list(found) == [f"{path}.{field}"]
    assert message in found[f"{path}.{field}"]


@pytest.mark.parametrize(
    ("limit", "field"),
    [
        pytest.param({"destinationID": "bob", "limitKBps": 100}, "", id="good"),
        pytest.param({"destinationID": "bob", "limitKBps": 0}, "limitKBps", id="zero"),
        pytest.param({"destinationID": "bob", "limitKBps": 10**12}, "limitKBps", id="too large"),
        pytest.param({"destinationID": "", "limitKBps": 1}, "destinationID", id="to nobody"),
    ],
)
def test_limits_towards_a_peer(limit: Any, field: str) -> None:
    found = causes(KUSCIA_GROUP, "KusciaJob", kuscia_job({}, [limit]))
    assert list(found) == ([f"spec.tasks[0].parties[0].bandwidthLimits[0].{field}"] if field else [])


ENDS: Raw = {"from": {"domain": "alice"}, "to": {"domain": "bob"}}


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        pytest.param(ENDS | {"capacity": "10Gbps", "reverse": "1G", "reserved": "100Mi"}, [], id="good"),
        pytest.param({"from": {"pool": "a"}, "to": {"domain": "a"}, "capacity": "1G"}, [], id="a pool and a party of one name"),
        pytest.param({"from": {}, "to": {"domain": "b"}, "capacity": "1G"}, ["spec.from"], id="an end is missing"),
        pytest.param(ENDS | {"to": {"domain": "b", "pool": "p"}, "capacity": "1G"}, ["spec.to"], id="an end too many"),
        pytest.param(ENDS | {"to": {"domain": "alice"}, "capacity": "1G"}, ["spec.to"], id="to itself"),
        pytest.param(ENDS | {"capacity": "500m"}, ["spec.capacity"], id="milli"),
        pytest.param(ENDS | {"capacity": "1G", "reverse": "200T"}, ["spec.reverse"], id="range"),
        pytest.param(ENDS | {"capacity": "1G", "reserved": "2G"}, ["spec.reserved"], id="all held back"),
    ],
)
def test_links(spec: Any, fields: list[str]) -> None:
    assert list(causes("muster.dev", "Link", obj("muster.dev", "Link", spec))) == fields


def test_quota_of_a_party() -> None:
    raw = obj(KUSCIA_GROUP, "Domain", {"resourceQuota": {"hard": {"bandwidth": "10Gbps", "cpu": "4"}}})
    assert causes(KUSCIA_GROUP, "Domain", raw) == {}
    raw["spec"]["resourceQuota"]["hard"]["bandwidth"] = "5m"
    assert list(causes(KUSCIA_GROUP, "Domain", raw)) == ["spec.resourceQuota.hard[bandwidth]"]


@pytest.mark.parametrize("kind", ["User", "UserGroup", "Queue"])
def test_limits_of_tenants(kind: str) -> None:
    spec: Raw = {"limits": {"concurrent": {"bandwidth": "10Gbps", "cpu": "4"}, "perJob": {"bandwidth": "1Gi"}}}
    spec |= {"group": "g"} if kind == "User" else {}
    raw = obj("muster.dev", kind, spec)
    assert causes("muster.dev", kind, raw) == {}
    spec["limits"]["submitted"] = {"bandwidth": "5m", "cpu": "10Gbps"}
    assert list(causes("muster.dev", kind, raw)) == ["spec.limits.submitted[cpu]", "spec.limits.submitted[bandwidth]"]


def node(**annotations: str) -> Raw:
    return obj("", "Node", {}, annotations={f"muster.dev/{key}": value for key, value in annotations.items()})


def pod(mbps: int = 0, **annotations: str) -> Raw:
    amounts = {"kuscia.io/bandwidth": str(mbps)} if mbps else {}
    container = {"name": "c", "image": "i", "resources": {"requests": amounts, "limits": dict(amounts)}}
    names = {"egress": Kubernetes.EGRESS_BANDWIDTH, "request": Muster.BANDWIDTH, "to": Muster.BANDWIDTH_TO}
    return obj("", "Pod", {"containers": [container]}, annotations={names[key]: value for key, value in annotations.items()})


@pytest.mark.parametrize(
    ("kind", "raw", "fields"),
    [
        pytest.param("Node", node(bandwidth="10Gbps"), [], id="node"),
        pytest.param("Node", node(bandwidth="fast"), ["metadata.annotations[muster.dev/bandwidth]"], id="node, no bandwidth"),
        pytest.param("Pod", pod(100, egress="1G"), [], id="pod"),
        pytest.param(
            "Pod", pod(100, egress="10M"), ["metadata.annotations[kubernetes.io/egress-bandwidth]"], id="pod, above its limit"
        ),
        pytest.param("Pod", pod(to="bob=200Mbps,pool/east=1G"), [], id="pod, peers"),
        pytest.param("Pod", pod(to="bob=fast"), ["metadata.annotations[muster.dev/bandwidth-to]"], id="pod, a peer is wrong"),
        pytest.param("Pod", pod(request="1.5"), ["metadata.annotations[muster.dev/bandwidth]"], id="pod, half a bit"),
        pytest.param(
            "Pod",
            pod(10**12),
            [f"spec.containers[0].resources.{word}[kuscia.io/bandwidth]" for word in ("requests", "limits")],
            id="pod, range",
        ),
    ],
)
def test_annotations(kind: str, raw: Raw, fields: list[str]) -> None:
    assert list(causes("", kind, raw)) == fields


def test_an_update_answers_for_what_it_makes_wrong_only() -> None:
    old = node(bandwidth="fast")
    relabelled = {**old, "metadata": {**old["metadata"], "labels": {"a": "b"}}}
    assert causes("", "Node", relabelled, old) == {}
    worse = node(**{"bandwidth": "fast", "bandwidth-egress": "faster"})
    assert list(causes("", "Node", worse, old)) == ["metadata.annotations[muster.dev/bandwidth-egress]"]
    before = kuscia_job({"requests": {"bandwidth": "5m"}})
    after = kuscia_job({"requests": {"bandwidth": "5m", "cpu": "-2"}})
    assert list(causes(KUSCIA_GROUP, "KusciaJob", after, before)) == ["spec.tasks[0].parties[0].resources.requests[cpu]"]


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=6)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["requests", "limits", "bandwidth", "kuscia.io/bandwidth", "parties", "tasks", "from", "to", "domain"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_rules_never_fail_whatever_they_are_given(spec: Any) -> None:
    for group, kind in (
        (KUSCIA_GROUP, "KusciaJob"),
        (KUSCIA_GROUP, "KusciaTask"),
        ("muster.dev", "Job"),
        ("muster.dev", "Link"),
    ):
        validate_object(CATALOG.by_kind(group, kind), obj(group, kind, spec))
