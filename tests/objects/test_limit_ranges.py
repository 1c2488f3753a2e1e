"""What LimitRanges fill in and refuse, in Kubernetes' words."""

from __future__ import annotations

from typing import Any

import pytest

from muster.objects.catalog import CATALOG
from muster.objects.kinds.defaults import apply_defaults
from muster.objects.limit_ranges import ANNOTATION, Range, claim_problems, fill, pod_problems, together
from muster.objects.status import Raw


def limits(*items: Raw, name: str = "lr") -> Range:
    """As it is stored: with its defaults."""
    raw = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": name}, "spec": {"limits": list(items)}}
    return Range.of(apply_defaults(CATALOG.by_kind("", "LimitRange"), raw, None))


def container(name: str = "c", requests: Raw | None = None, limits: Raw | None = None, **more: Any) -> Raw:
    resources = {word: amounts for word, amounts in (("requests", requests), ("limits", limits)) if amounts is not None}
    return {"name": name, **({"resources": resources} if resources else {}), **more}


def pod(*containers: Raw, first: tuple[Raw, ...] = ()) -> Raw:
    spec: Raw = {"containers": list(containers)}
    return {"metadata": {"name": "p"}, "spec": {**spec, "initContainers": list(first)} if first else spec}


EACH = {"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "500m", "memory": "1Gi"}}


def test_what_containers_leave_open_is_filled_in_and_told() -> None:
    given = pod(container("a"), container("b", limits={"cpu": "2"}), first=(container("i", requests={"memory": "2Gi"}),))
    filled = fill(given, [limits(EACH)])
    assert filled is not None
    assert [one["resources"] for one in (*filled["spec"]["containers"], *filled["spec"]["initContainers"])] == [
        {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1"}},
        {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "2"}},
        {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"cpu": "1"}},
    ]
    assert filled["metadata"]["annotations"] == {
        ANNOTATION: "LimitRanger plugin set: cpu, memory request for container a; cpu limit for container a; "
        "cpu, memory request for container b; cpu request for init container i; cpu limit for init container i"
    }
    assert given == pod(
        container("a"), container("b", limits={"cpu": "2"}), first=(container("i", requests={"memory": "2Gi"}),)
    )


def test_limits_default_to_the_most_and_requests_to_limits_or_the_least() -> None:
    filled = fill(pod(container()), [limits({"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Mi", "cpu": "1"}})])
    assert filled is not None
    assert filled["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "2", "memory": "1Mi"},
        "limits": {"cpu": "2"},
    }


def test_of_several_ranges_the_first_that_says_something_counts() -> None:
    second = {"type": "Container", "default": {"cpu": "4", "memory": "4Gi"}}
    filled = fill(pod(container()), [limits(EACH, name="a"), limits(second, name="b")])
    assert filled is not None
    assert filled["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "500m", "memory": "1Gi"},
        "limits": {"cpu": "1", "memory": "4Gi"},
    }
    assert filled["metadata"]["annotations"][ANNOTATION] == "LimitRanger plugin set: memory limit for container c"


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(pod(container(requests={"cpu": "1", "memory": "1"}, limits={"cpu": "1"})), id="everything is stated"),
        pytest.param({"metadata": {"name": "p"}, "spec": {"containers": "none"}}, id="not a list"),
        pytest.param(pod(container(requests="all")), id="not an object"),  # type: ignore[arg-type]
        pytest.param({"metadata": {"name": "p"}}, id="no spec"),
    ],
)
def test_nothing_to_fill_in(given: Raw) -> None:
    assert fill(given, [limits(EACH)]) is None


@pytest.mark.parametrize(
    ("item", "requests", "stated", "problems"),
    [
        pytest.param({"min": {"cpu": "1"}}, {"cpu": "1"}, {"cpu": "2"}, [], id="at the least"),
        pytest.param(
            {"min": {"cpu": "1"}}, {"cpu": "500m"}, {}, ["minimum cpu usage per Container is 1, but request is 500m"], id="less"
        ),
        pytest.param(
            {"min": {"cpu": "1"}}, {}, {}, ["minimum cpu usage per Container is 1.  No request is specified"], id="no request"
        ),
        pytest.param({"max": {"cpu": "2"}}, {}, {"cpu": "2"}, [], id="at the most"),
        pytest.param(
            {"max": {"cpu": "2"}}, {}, {"cpu": "2001m"}, ["maximum cpu usage per Container is 2, but limit is 2001m"], id="more"
        ),
        pytest.param(
            {"max": {"cpu": "2"}}, {}, {}, ["maximum cpu usage per Container is 2.  No limit is specified"], id="no limit"
        ),
        pytest.param(
            {"min": {"memory": "1Gi"}, "max": {"cpu": "2"}},
            {"memory": "1Mi"},
            {"cpu": "3"},
            [
                "minimum memory usage per Container is 1Gi, but request is 1Mi",
                "maximum cpu usage per Container is 2, but limit is 3",
            ],
            id="all are named",
        ),
        pytest.param({"maxLimitRequestRatio": {"cpu": "2"}}, {"cpu": "1"}, {"cpu": "2"}, [], id="ratio"),
        pytest.param({"maxLimitRequestRatio": {"cpu": "1500m"}}, {"cpu": "2"}, {"cpu": "3"}, [], id="broken ratio"),
        pytest.param(
            {"maxLimitRequestRatio": {"cpu": "2"}},
            {"cpu": "1"},
            {"cpu": "2500m"},
            ["cpu max limit to request ratio per Container is 2, but provided ratio is 2.500000"],
            id="too far apart",
        ),
        pytest.param(
            {"maxLimitRequestRatio": {"cpu": "2"}},
            {"cpu": "0"},
            {"cpu": "1"},
            ["cpu max limit to request ratio per Container is 2, but no request is specified or request is 0"],
            id="ratio to nothing",
        ),
        pytest.param(
            {"maxLimitRequestRatio": {"cpu": "2"}},
            {"cpu": "1"},
            {},
            ["cpu max limit to request ratio per Container is 2, but no limit is specified or limit is 0"],
            id="ratio of nothing",
        ),
    ],
)
def test_bounds_of_a_container(item: Raw, requests: Raw, stated: Raw, problems: list[str]) -> None:
    ranges = [limits({"type": "Container", **item})]
    given = container(requests=requests, limits=stated)
    assert pod_problems(pod(given), ranges) == problems
    assert pod_problems(pod(given, given), ranges) == problems
    fine = container(requests={"cpu": "1", "memory": "1Gi"}, limits={"cpu": "1", "memory": "1Gi"})
    assert pod_problems(pod(fine, first=(given,)), ranges) == problems


@pytest.mark.parametrize(
    ("given", "problems"),
    [
        pytest.param(pod(*[container(limits={"cpu": "1"})] * 2), [], id="together at the most"),
        pytest.param(
            pod(*[container(limits={"cpu": "1"})] * 3), ["maximum cpu usage per Pod is 2, but limit is 3"], id="together more"
        ),
        pytest.param(
            pod(container(limits={"cpu": "1"}), container()),
            ["maximum cpu usage per Pod is 2.  No limit is specified"],
            id="one states none",
        ),
        pytest.param(
            pod(container(limits={"cpu": "1"}), first=(container("i", limits={"cpu": "3"}),)),
            ["maximum cpu usage per Pod is 2, but limit is 3"],
            id="an init container is more",
        ),
        pytest.param(
            pod(container(limits={"cpu": "1"}), first=(container("i", limits={"cpu": "2"}),)), [], id="not beside the others"
        ),
        pytest.param(
            pod(container(limits={"cpu": "1"}), first=(container("i", limits={"cpu": "2"}, restartPolicy="Always"),)),
            ["maximum cpu usage per Pod is 2, but limit is 3"],
            id="one that goes on running is beside them",
        ),
    ],
)
def test_bounds_of_a_pod(given: Raw, problems: list[str]) -> None:
    assert pod_problems(given, [limits({"type": "Pod", "max": {"cpu": "2"}})]) == problems


def test_the_bounds_of_all_ranges_hold() -> None:
    ranges = [limits({"type": "Pod", "max": {"cpu": "2"}}, name="a"), limits({"type": "Pod", "max": {"cpu": "1"}}, name="b")]
    problems = pod_problems(pod(container(limits={"cpu": "3"})), ranges)
    assert together(problems) == (
        "[maximum cpu usage per Pod is 2, but limit is 3, maximum cpu usage per Pod is 1, but limit is 3]"
    )
    assert together(problems[:1]) == "maximum cpu usage per Pod is 2, but limit is 3"


@pytest.mark.parametrize(
    ("asked", "problems"),
    [
        pytest.param({"storage": "1Gi"}, [], id="least"),
        pytest.param({"storage": "2Gi"}, [], id="most"),
        pytest.param(
            {"storage": "1Mi"}, ["minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi"], id="less"
        ),
        pytest.param(
            {"storage": "3Gi"}, ["maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"], id="more"
        ),
        pytest.param(
            {},
            [
                "minimum storage usage per PersistentVolumeClaim is 1Gi.  No request is specified",
                "maximum storage usage per PersistentVolumeClaim is 2Gi.  No request is specified",
            ],
            id="none",
        ),
    ],
)
def test_bounds_of_a_claim(asked: Raw, problems: list[str]) -> None:
    ranges = [limits({"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}})]
    assert claim_problems({"spec": {"resources": {"requests": asked}}}, ranges) == problems
    assert claim_problems({"spec": {}}, [limits(EACH)]) == []
