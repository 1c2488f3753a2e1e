"""What objects say about bandwidth, who wins, and that nothing they hold makes the readers fail."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.bandwidth import (
    NOTHING,
    Directions,
    Limit,
    both,
    format_bandwidth,
    node_bandwidth,
    node_capacity,
    pod_bandwidth,
    raw_pod_bandwidth,
    resource_bandwidth,
)
from muster.objects.bandwidth_demands import Demand, demands, deploy_template, pod_annotations, share
from muster.objects.labels import Kubernetes, Kuscia, Muster
from muster.objects.reasons import Reason

M, G = 10**6, 10**9
KUSCIA = Kuscia.RESOURCE_BANDWIDTH
OUT, IN = Kubernetes.EGRESS_BANDWIDTH, Kubernetes.INGRESS_BANDWIDTH


@pytest.mark.parametrize(
    ("annotations", "allocatable", "capacity", "usable"),
    [
        pytest.param(None, None, None, None, id="nobody has said"),
        pytest.param({"a": "b"}, {"cpu": "4"}, None, None, id="nobody has said, among other things"),
        pytest.param({}, {KUSCIA: "990"}, {KUSCIA: "1000"}, both(990 * M), id="the resource"),
        pytest.param({Muster.AGENT_BANDWIDTH: "2Gbps"}, {KUSCIA: "990"}, None, both(2 * G), id="the agent wins over that"),
        pytest.param(
            {Muster.AGENT_BANDWIDTH: "2Gbps", Muster.BANDWIDTH: "5G"}, {KUSCIA: "9"}, None, both(5 * G), id="the admin wins"
        ),
        pytest.param(
            {Muster.BANDWIDTH: "10G", Muster.BANDWIDTH_INGRESS: "2G"},
            None,
            None,
            Directions(10 * G, 2 * G),
            id="a direction wins",
        ),
        pytest.param(
            {Muster.AGENT_BANDWIDTH: "10G", Muster.BANDWIDTH_EGRESS: "1G"},
            None,
            None,
            Directions(G, 10 * G),
            id="each direction has its own source",
        ),
        pytest.param({Muster.BANDWIDTH: "1G", Muster.BANDWIDTH_RESERVED: "100M"}, None, None, both(900 * M), id="reserve"),
        pytest.param({Muster.BANDWIDTH: "1G", Muster.BANDWIDTH_RESERVED: "2G"}, None, None, both(0), id="never negative"),
        pytest.param(
            {Muster.AGENT_BANDWIDTH: "1G", Muster.AGENT_BANDWIDTH_RESERVED: "10M", Muster.BANDWIDTH_RESERVED: "0"},
            None,
            None,
            both(G),
            id="the admin's reserve wins, zero too",
        ),
        pytest.param(
            {Muster.BANDWIDTH_RESERVED: "50M"}, {KUSCIA: "990"}, {KUSCIA: "1000"}, both(950 * M), id="not held back twice"
        ),
        pytest.param(
            {Muster.BANDWIDTH_RESERVED: "5M"}, {KUSCIA: "990"}, {KUSCIA: "1000"}, both(990 * M), id="never above the resource"
        ),
        pytest.param({Muster.BANDWIDTH_RESERVED: "50M"}, {KUSCIA: "990"}, None, both(940 * M), id="reserve of the resource"),
        pytest.param({Muster.BANDWIDTH_EGRESS: "1G"}, None, None, Directions(G, 0), id="one direction alone"),
        pytest.param({Muster.BANDWIDTH: "0"}, {KUSCIA: "10"}, None, both(0), id="zero is a figure"),
    ],
)
def test_node(annotations: Any, allocatable: Any, capacity: Any, usable: Directions | None) -> None:
    assert node_capacity(annotations, allocatable, capacity) == usable
    assert node_bandwidth(annotations, allocatable, capacity).problems == ()


def test_a_figure_that_cannot_be_read_leaves_the_next_best() -> None:
    found = node_bandwidth({Muster.BANDWIDTH: "fast", Muster.AGENT_BANDWIDTH: "2Gbps"}, {KUSCIA: "0.5"})
    assert found.usable == both(2 * G)
    assert found.source == "agent"
    assert [(p.reason, p.field, p.value) for p in found.problems] == [
        (Reason.UNIT_INVALID, "metadata.annotations[muster.dev/bandwidth]", "fast"),
        (Reason.UNIT_INVALID, "status.allocatable[kuscia.io/bandwidth]", "0.5"),
    ]
    assert "'fast' is not a bandwidth" in str(found.problems[0])
    nothing = node_bandwidth({Muster.BANDWIDTH: "fast"}, None)
    assert nothing.usable is None
    assert len(nothing.problems) == 1


@pytest.mark.parametrize(
    ("annotations", "requests", "limits", "request_", "limit"),
    [
        pytest.param(None, None, None, NOTHING, None, id="nothing"),
        pytest.param({"a": "b"}, {"cpu": "1"}, {"cpu": "1"}, NOTHING, None, id="nothing about bandwidth"),
        pytest.param(None, {KUSCIA: "100"}, {KUSCIA: "100"}, both(100 * M), None, id="resource"),
        pytest.param(None, None, {KUSCIA: "100"}, both(100 * M), None, id="a limit alone is the request"),
        pytest.param({Muster.BANDWIDTH_INGRESS: "1M"}, {KUSCIA: "9"}, None, Directions(9 * M, M), None, id="a direction wins"),
        pytest.param({Muster.BANDWIDTH: "33333.334Kbps"}, {KUSCIA: "9"}, None, both(33_333_334), None, id="exact share"),
        pytest.param({OUT: "10M"}, None, None, NOTHING, Limit(10 * M, None), id="a limit is no request"),
        pytest.param(
            {OUT: "1G", IN: "1P"}, {KUSCIA: "9"}, None, both(9 * M), Limit(G, 10**15), id="limits as Kubernetes has them"
        ),
    ],
)
def test_pod(annotations: Any, requests: Any, limits: Any, request_: Directions, limit: Limit | None) -> None:
    found = pod_bandwidth(annotations, requests, limits)
    assert (found.request, found.limit, found.problems) == (request_, limit, ())


@pytest.mark.parametrize(
    ("annotations", "requests", "problems"),
    [
        pytest.param(
            {OUT: "10M"}, {KUSCIA: "20"}, [(Reason.REQUEST_EXCEEDS_LIMIT, f"metadata.annotations[{OUT}]")], id="above the limit"
        ),
        pytest.param({IN: "ten"}, None, [(Reason.UNIT_INVALID, f"metadata.annotations[{IN}]")], id="no bandwidth"),
        pytest.param({OUT: "999"}, None, [(Reason.UNIT_INVALID, f"metadata.annotations[{OUT}]")], id="limit too small"),
        pytest.param(
            {Muster.BANDWIDTH: 5.5}, None, [(Reason.UNIT_INVALID, f"metadata.annotations[{Muster.BANDWIDTH}]")], id="5.5"
        ),
    ],
)
def test_problems_of_a_pod(annotations: Any, requests: Any, problems: list[tuple[Reason, str]]) -> None:
    assert [(p.reason, p.field) for p in pod_bandwidth(annotations, requests).problems] == problems


def _container(mbps: int, **extra: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {KUSCIA: mbps}, "limits": {KUSCIA: mbps}}, **extra}


@pytest.mark.parametrize(
    ("spec", "mbps"),
    [
        pytest.param({"containers": [_container(10), _container(5), {"name": "x"}]}, 15, id="containers add up"),
        pytest.param({"containers": [_container(10)], "initContainers": [_container(30), _container(2)]}, 30, id="init"),
        pytest.param(
            {
                "containers": [_container(10)],
                "initContainers": [_container(3, restartPolicy="Always"), _container(9)],
            },
            13,
            id="a sidecar stays",
        ),
        pytest.param({"containers": [_container(10)], "overhead": {KUSCIA: "1"}}, 11, id="overhead"),
        pytest.param({"containers": [{"resources": {"limits": {KUSCIA: "4"}}}]}, 4, id="limit alone"),
    ],
)
def test_whole_pods(spec: Any, mbps: int) -> None:
    assert raw_pod_bandwidth({"metadata": {}, "spec": spec}).request == both(mbps * M)


@pytest.mark.parametrize(
    ("requests", "limits", "request_", "limit"),
    [
        pytest.param({"bandwidth": "500Mi"}, {"bandwidth": "1Gi"}, both(500 * M), Limit(G, G), id="as the document has it"),
        pytest.param({"bandwidth": "500Mbps"}, {}, both(500 * M), None, id="request alone"),
        pytest.param({}, {"bandwidth": "1Gbps"}, both(G), Limit(G, G), id="a limit alone is the request"),
        pytest.param({KUSCIA: "100"}, {KUSCIA: "100"}, both(100 * M), Limit(100 * M, 100 * M), id="Kuscia's name"),
        pytest.param({"bandwidth": "100M", KUSCIA: 100}, {}, both(100 * M), None, id="both, and they agree"),
        pytest.param(
            {"bandwidth": "1G", "bandwidth-egress": "2G"},
            {"bandwidth-egress": "3G"},
            Directions(2 * G, G),
            Limit(3 * G),
            id="each",
        ),
        pytest.param({"cpu": 1}, {"cpu": 1}, NOTHING, None, id="nothing"),
    ],
)
def test_resources(requests: Any, limits: Any, request_: Directions, limit: Limit | None) -> None:
    found = resource_bandwidth({"requests": requests, "limits": limits})
    assert (found.request, found.limit, found.problems) == (request_, limit, ())


@pytest.mark.parametrize(
    ("resources", "problems"),
    [
        pytest.param(
            {"requests": {"bandwidth": "2Gbps"}, "limits": {"bandwidth": "1Gbps"}},
            [(Reason.REQUEST_EXCEEDS_LIMIT, "limits[bandwidth]")],
            id="above the limit, said once",
        ),
        pytest.param({"requests": {"bandwidth": "500m"}}, [(Reason.UNIT_INVALID, "requests[bandwidth]")], id="milli"),
        pytest.param({"limits": {"bandwidth": "0"}}, [(Reason.UNIT_INVALID, "limits[bandwidth]")], id="a limit of nothing"),
        pytest.param(
            {"requests": {"bandwidth": "1G", KUSCIA: "1"}},
            [(Reason.MANIFEST_INVALID, f"requests[{KUSCIA}]")],
            id="two names that differ",
        ),
    ],
)
def test_problems_of_resources(resources: Any, problems: list[tuple[Reason, str]]) -> None:
    assert [(p.reason, p.field) for p in resource_bandwidth(resources).problems] == problems


VALUES = st.one_of(
    st.none(), st.integers(), st.floats(), st.booleans(), st.text(max_size=8), st.sampled_from(["10M", "1Gbps", "5", "1k"])
)
NAMES = (
    Muster.BANDWIDTH,
    Muster.BANDWIDTH_EGRESS,
    Muster.BANDWIDTH_RESERVED,
    Muster.AGENT_BANDWIDTH,
    OUT,
    IN,
    KUSCIA,
    "bandwidth",
    "bandwidth-egress",
    "bandwidth-ingress",
)
MAPS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5)


@given(MAPS, MAPS, MAPS)
def test_nothing_that_an_object_holds_raises(annotations: Any, first: Any, second: Any) -> None:
    node = node_bandwidth(annotations, first, second)
    if node.usable is not None and node.total is not None:
        assert node.total.holds(node.usable)
    pod = pod_bandwidth(annotations, first, second)
    own = resource_bandwidth({"requests": first, "limits": second})
    raw_pod_bandwidth({"metadata": {"annotations": annotations}, "spec": {"containers": [{"resources": {"requests": first}}]}})
    for found in (pod, own):
        if not any(p.reason is Reason.REQUEST_EXCEEDS_LIMIT for p in found.problems) and found.limit is not None:
            ceilings = (found.limit.egress_bps, found.limit.ingress_bps)
            asked = (found.request.egress_bps, found.request.ingress_bps)
            assert all(c is None or a <= c for a, c in zip(asked, ceilings, strict=True))


# -- what work asks for -----------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**14), st.integers(0, 10**14), st.integers(1, 40))
def test_shares_add_up_and_travel_on_the_pod(egress: int, ingress: int, parts: int) -> None:
    total = resource_bandwidth(
        {"requests": {"bandwidth-egress": format_bandwidth(egress), "bandwidth-ingress": format_bandwidth(ingress)}}
    )
    shares = [share(total, parts, index) for index in range(parts)]
    assert sum((s.request for s in shares), NOTHING) == Directions(egress, ingress)
    for one in shares:
        assert pod_bandwidth(pod_annotations(one), None) == one


def test_a_share_keeps_its_limit() -> None:
    total = resource_bandwidth({"requests": {"bandwidth": "100M"}, "limits": {"bandwidth": "200M"}})
    one = share(total, 3, 0)
    assert (one.request, one.limit) == (both(33_333_334), Limit(66_666_667, 66_666_667))
    assert pod_bandwidth(pod_annotations(one), None) == one
    with pytest.raises(ValueError, match="no share 3 of 3"):
        share(total, 3, 3)


IMAGE = {
    "spec": {
        "deployTemplates": [
            {"name": "s", "role": "server, client", "replicas": 3, "spec": {"containers": [{"name": "main"}]}},
            {"name": "any", "spec": {"containers": [{"name": "main", "resources": {"requests": {"bandwidth": "7M"}}}]}},
        ]
    }
}


@pytest.mark.parametrize(("role", "name"), [("client", "s"), ("server", "s"), ("other", "any"), ("", "any")])
def test_deploy_template(role: str, name: str) -> None:
    assert deploy_template(IMAGE, role)["name"] == name
    assert deploy_template({}, role) == {}


@pytest.mark.parametrize(
    ("group", "kind", "spec", "found"),
    [
        pytest.param("apps", "Deployment", {}, [], id="another kind"),
        pytest.param(
            "",
            "Pod",
            {"nodeSelector": {"domain": "bob"}, "containers": [_container(5)]},
            [Demand("spec", both(5 * M), "bob", both(5 * M))],
            id="pod",
        ),
        pytest.param(
            "muster.dev",
            "Job",
            {"roles": [{"name": "a"}, {"name": "b", "replicas": 9, "resources": {"requests": {"bandwidth": "1G"}}}]},
            [Demand("spec.roles[1].resources", both(G), "", both(G))],
            id="job: for each replica",
        ),
        pytest.param(
            "kuscia.secretflow",
            "KusciaJob",
            {
                "tasks": [
                    {
                        "appImage": "app",
                        "parties": [
                            {"domainID": "ann", "role": "client", "resources": {"requests": {KUSCIA: "100"}}},
                            {"domainID": "bob", "role": "x", "resources": {"requests": {KUSCIA: "100"}}},
                            {"domainID": "cat"},
                        ],
                    }
                ]
            },
            [
                Demand("spec.tasks[0].parties[0].resources", both(33_333_334), "ann", both(100 * M), 3),
                Demand("spec.tasks[0].parties[1].resources", both(100 * M), "bob", both(100 * M), 1),
            ],
            id="KusciaJob: the party's total over its pods",
        ),
        pytest.param(
            "kuscia.secretflow",
            "KusciaTask",
            {
                "parties": [
                    {"domainID": "ann", "appImageRef": "app"},
                    {
                        "domainID": "bob",
                        "appImageRef": "app",
                        "template": {
                            "spec": {
                                "containers": [
                                    {"name": "main", "resources": {"requests": {"bandwidth": "1G"}}},
                                    {"name": "side", "resources": {"requests": {"bandwidth": "1M"}}},
                                ]
                            }
                        },
                    },
                ]
            },
            [
                Demand("spec.parties[0].template.spec.containers", both(7 * M), "ann", both(7 * M)),
                Demand("spec.parties[1].template.spec.containers", both(1001 * M), "bob", both(1001 * M)),
            ],
            id="KusciaTask: containers, over the AppImage's",
        ),
    ],
)
def test_demands(group: str, kind: str, spec: Any, found: list[Demand]) -> None:
    assert demands(group, kind, {"metadata": {"name": "x"}, "spec": spec}, {"app": IMAGE}.get) == found


@pytest.mark.parametrize("spec", [None, [], {"tasks": [{"parties": "x"}, None]}, {"parties": [{"template": []}]}, {"roles": 5}])
@pytest.mark.parametrize("kind", ["KusciaJob", "KusciaTask"])
def test_demands_of_nonsense(kind: str, spec: Any) -> None:
    assert demands("kuscia.secretflow", kind, {"spec": spec}) == []
