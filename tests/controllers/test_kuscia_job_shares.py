"""A party's total divided over its pods: nothing lost, nothing that Kubernetes refuses."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.controllers.kuscia_jobs import JobStore, image, job, task

from muster.controllers.kuscia_job_shares import PartyTotal, pod_shares, total_of, totals_text
from muster.controllers.kuscia_job_tasks import Facts
from muster.objects.bandwidth import resource_bandwidth
from muster.objects.labels import Muster
from muster.objects.quantity import Quantity
from muster.objects.status import Raw


def amounts(total: Raw, replicas: int, containers: int, word: str = "requests") -> list[list[Raw]]:
    pods = (pod_shares({word: total}, replicas=replicas, containers=containers, pod=pod) for pod in range(replicas))
    return [[share[word] for share in pod] for pod in pods]


@pytest.mark.parametrize(
    ("total", "replicas", "containers", "expected"),
    [
        pytest.param({"cpu": "1"}, 1, 1, [[{"cpu": "1"}]], id="one of one"),
        pytest.param({"cpu": 1}, 3, 1, [[{"cpu": "334m"}], [{"cpu": "333m"}], [{"cpu": "333m"}]], id="cpu in thousandths"),
        pytest.param({"memory": "1Gi"}, 2, 2, [[{"memory": "256Mi"}] * 2] * 2, id="memory keeps its suffix"),
        pytest.param({"memory": "5"}, 2, 1, [[{"memory": "3"}], [{"memory": "2"}]], id="memory in bytes"),
        pytest.param({"nvidia.com/gpu": "3"}, 2, 1, [[{"nvidia.com/gpu": "2"}], [{"nvidia.com/gpu": "1"}]], id="whole devices"),
        pytest.param(
            {"kuscia.io/bandwidth": "10"}, 5, 1, [[{"kuscia.io/bandwidth": "2"}]] * 5, id="whole Mbps where they divide"
        ),
        pytest.param(
            {"kuscia.io/bandwidth": "10"},
            1,
            3,
            [[{"bandwidth": "3333.334Kbps"}, {"bandwidth": "3333.333Kbps"}, {"bandwidth": "3333.333Kbps"}]],
            id="bits per second where they do not",
        ),
        pytest.param(
            {"bandwidth-egress": "1Gbps"}, 2, 1, [[{"bandwidth-egress": "500Mbps"}]] * 2, id="one direction of bandwidth"
        ),
        pytest.param({"cpu": "lots"}, 1, 1, [[{"cpu": "0"}]], id="what can't be read is nothing"),
    ],
)
def test_shares(total: Raw, replicas: int, containers: int, expected: list[list[Raw]]) -> None:
    assert amounts(total, replicas, containers) == expected
    assert amounts(total, replicas, containers, "limits") == expected


def test_a_request_and_a_limit_of_the_same_bandwidth_stay_the_same() -> None:
    resources = {"requests": {"bandwidth": "10Mbps"}, "limits": {"kuscia.io/bandwidth": "10"}}
    for pod in range(2):
        (share,) = pod_shares(resources, replicas=2, containers=1, pod=pod)
        assert not resource_bandwidth(share).problems


@pytest.mark.parametrize(("replicas", "containers", "pod"), [(0, 1, 0), (1, 0, 0), (2, 1, 2), (2, 1, -1)])
def test_a_pod_that_is_not_there(replicas: int, containers: int, pod: int) -> None:
    with pytest.raises(ValueError, match="there is no pod"):
        pod_shares({}, replicas=replicas, containers=containers, pod=pod)


NAMES = st.sampled_from(["cpu", "memory", "ephemeral-storage", "nvidia.com/gpu", "kuscia.io/bandwidth", "bandwidth"])


@given(
    requests=st.dictionaries(NAMES, st.integers(0, 10_000), max_size=6),
    extra=st.integers(0, 1_000),
    replicas=st.integers(1, 9),
    containers=st.integers(1, 5),
)
def test_the_shares_add_up_to_the_total(requests: dict[str, int], extra: int, replicas: int, containers: int) -> None:
    limits = {name: amount + extra for name, amount in requests.items()}
    resources = {"requests": requests, "limits": limits}
    pods = [pod_shares(resources, replicas=replicas, containers=containers, pod=pod) for pod in range(replicas)]
    for word, total in (("requests", requests), ("limits", limits)):
        sums: dict[str, Fraction] = {}
        for share in (share for pod in pods for share in pod):
            for name, amount in share.get(word, {}).items():
                if "bandwidth" in name:
                    bps = resource_bandwidth({"requests": {name: amount}}).request.egress_bps
                    sums[name] = sums.get(name, Fraction(0)) + bps
                    continue
                quantity = Quantity.parse(amount)
                assert name == "cpu" or quantity.fraction().denominator == 1, "Kubernetes refuses a fraction of it"
                sums[name] = sums.get(name, Fraction(0)) + quantity.fraction()
        for name in ("cpu", "memory", "ephemeral-storage", "nvidia.com/gpu"):
            assert sums.get(name) == total.get(name)
        if "kuscia.io/bandwidth" in total and "bandwidth" not in total:
            assert sum(sums[name] for name in sums if "bandwidth" in name) == total["kuscia.io/bandwidth"] * 10**6
    for pod in pods:
        for share in pod:
            for name, amount in share.get("requests", {}).items():
                if "bandwidth" not in name:
                    assert Quantity.parse(amount) <= Quantity.parse(share["limits"][name])


def test_the_task_has_the_first_pods_share_and_the_totals() -> None:
    total = {"requests": {"cpu": "1"}, "limits": {"kuscia.io/bandwidth": "4"}}
    facts = Facts(parties={"alice": False}, images={"app": image(containers=["x", "y"], replicas=3)})
    made = task("a")
    made["parties"][0]["resources"] = total
    store = JobStore(job(made), facts)
    store.settle()
    (raw,) = store.tasks.values()
    template = raw["spec"]["parties"][0]["template"]
    assert template["replicas"] == 3, "the shares hold for this number"
    assert [c["name"] for c in template["spec"]["containers"]] == ["x", "y"]
    assert template["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "167m"}
    assert total_of(raw["metadata"]["annotations"], "alice", "") == total


@pytest.mark.parametrize("replicas", [None, 1], ids=["not said", "one"])
def test_a_template_that_does_not_say_how_many_has_one_pod(replicas: int | None) -> None:
    made = task("a")
    made["parties"][0]["resources"] = {"requests": {"cpu": "2"}}
    store = JobStore(job(made), Facts(parties={"alice": False}, images={"app": image(replicas=replicas)}))
    store.settle()
    (raw,) = store.tasks.values()
    container = {"name": "main", "resources": {"requests": {"cpu": "2"}}}
    assert raw["spec"]["parties"][0]["template"] == {"replicas": 1, "spec": {"containers": [container]}}


@pytest.mark.parametrize("text", ["", "{", '{"a": 1}', '[{"role": 3}]'])
def test_an_annotation_that_can_not_be_read_is_none(text: str) -> None:
    assert total_of({Muster.PARTY_RESOURCES: text}, "alice", "") is None


def test_totals_are_found_by_party_and_role() -> None:
    totals = [PartyTotal(domain_id="alice", role=role, resources={"requests": {"cpu": role}}) for role in ("host", "guest")]
    annotations = {Muster.PARTY_RESOURCES: totals_text(totals)}
    assert total_of(annotations, "alice", "guest") == {"requests": {"cpu": "guest"}}
    assert total_of(annotations, "alice", "") is None
    assert total_of({}, "alice", "guest") is None
