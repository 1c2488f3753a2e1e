"""What a Job (muster.dev) may say, and what of it may change."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.objects.test_job_pods import job

from muster.objects.kinds.muster_jobs import JOB as RESOURCE
from muster.objects.status import Raw
from muster.objects.validation import validate_object


def causes(raw: Raw, old: Raw | None = None) -> dict[str, str]:
    return {cause.field: cause.message for cause in validate_object(RESOURCE, raw, old)}


def role(**fields: Any) -> Raw:
    return {"name": "w", "command": ["x"], **fields}


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(job(), id="a command"),
        pytest.param(job({"name": "w", "image": "x"}), id="an image"),
        pytest.param(job({"name": "w", "template": {"spec": {"containers": [{"name": "c", "image": "x"}]}}}), id="a template"),
        pytest.param(job(role(replicas=8, minReplicas=8)), id="all are the minimum"),
        pytest.param(job(role(ports=[{"name": "http"}, {"name": "rpc", "port": 80}])), id="ports"),
        pytest.param(job(deadline="2026-11-16T08:00:00+02:00", user="ann@example.com", pools=["p"]), id="owner and deadline"),
    ],
)
def test_taken(raw: Raw) -> None:
    assert causes(raw) == {}


@pytest.mark.parametrize(
    ("raw", "field", "words"),
    [
        pytest.param(job({"name": "w"}), "spec.roles[0].command", "neither a command nor an image", id="nothing to run"),
        pytest.param(job(role(), role()), "spec.roles[1].name", "DuplicateName", id="two roles of one name"),
        pytest.param(job(role(replicas=2, minReplicas=3)), "spec.roles[0].minReplicas", "less than or equal", id="minimum"),
        pytest.param(job(role(name="r" * 50), name="j" * 20), "spec.roles[0].name", "at most 63", id="pod name too long"),
        pytest.param(job(role(replicas=100_000), name="j" * 57), "spec.roles[0].name", "at most 63", id="index too long"),
        pytest.param(job(name="9lives"), "metadata.name", "beginning with a letter", id="no name of a service"),
        pytest.param(job(deadline="tomorrow"), "spec.deadline", "RFC 3339", id="deadline"),
        pytest.param(job(pools=[f"p{n}" for n in range(17)]), "spec.pools", "at most 16", id="too many pools"),
        pytest.param(job(queue="no queue"), "spec.queue", "must consist", id="queue"),
        pytest.param(job(role(completion="Service")), "spec.roles", "completion Required", id="only services"),
        pytest.param(job(role(runtime="runc")), "spec.roles[0].image", "runs images", id="runc without an image"),
        pytest.param(job(role(ports=[{"name": "a-very-long-port-name"}])), "spec.roles[0].ports[0].name", "15", id="port name"),
        pytest.param(
            job(role(ports=[{"name": "a", "port": 1}, {"name": "b", "port": 1}])),
            "spec.roles[0].ports[1].port",
            "Duplicate",
            id="port",
        ),
        pytest.param(
            job(role(replicas=6_000, ports=[{"name": "a"}])), "spec.roles", "may be at most 5000", id="too many ports"
        ),
        pytest.param(job(role(replicas=60_000), role(name="v", replicas=60_000)), "spec.roles", "100000", id="too many pods"),
        pytest.param(job(role(template={"kind": "Pod"})), "spec.roles[0].template.kind", "metadata and spec", id="no template"),
        pytest.param(
            job(role(template={"metadata": {"name": "x"}})),
            "spec.roles[0].template.metadata.name",
            "labels and annotations",
            id="named",
        ),
        pytest.param(
            job(role(template={"metadata": {"labels": {"muster.dev/job": "other"}}})),
            "spec.roles[0].template.metadata.labels[muster.dev/job]",
            "set by Muster",
            id="our label",
        ),
        pytest.param(
            job(role(template={"spec": {"nodeName": "n1"}})), "spec.roles[0].template.spec.nodeName", "set by", id="node"
        ),
        pytest.param(
            job(role(template={"spec": {"containers": "x"}})), "spec.roles[0].template.spec.containers", "list", id="containers"
        ),
        pytest.param(
            job(role(template={"spec": {"volumes": [{"name": "v"}]}})),
            "spec.roles[0].template.spec.volumes[0]",
            "volume type",
            id="what no pod may have",
        ),
        pytest.param(
            job(role(template={"spec": {"terminationGracePeriodSeconds": "soon"}})),
            "spec.roles[0].template",
            "can't be read",
            id="wrong type inside",
        ),
        pytest.param(
            job(role(resources={"requests": {"bandwidth": "5 pigeons"}})),
            "spec.roles[0].resources.requests[bandwidth]",
            "UnitInvalid",
            id="bandwidth",
        ),
    ],
)
def test_refused(raw: Raw, field: str, words: str) -> None:
    found = causes(raw)
    assert field in found, found
    assert words in found[field]


def changed(**spec: Any) -> Raw:
    raw = copy.deepcopy(BEFORE)
    raw["spec"] |= spec
    return raw


BEFORE = job(role(), queue="a", priority=1) | {"status": {"phase": "Running"}}


@pytest.mark.parametrize(
    ("new", "fields"),
    [
        pytest.param(changed(state="Stopped"), set(), id="stop"),
        pytest.param(
            changed(deadline="2027-01-01T00:00:00Z", retry={"limit": 3}, estimate={"runSeconds": 5}), set(), id="estimates"
        ),
        pytest.param(changed(priority=2), {"spec.priority"}, id="priority of what runs"),
        pytest.param(changed(queue="b", pools=["p"]), {"spec.queue", "spec.pools"}, id="queue of what runs"),
        pytest.param(changed(priority=2, state="Suspended"), set(), id="suspend and change"),
        pytest.param(changed(roles=[role(replicas=2)], state="Suspended"), {"spec.roles"}, id="roles never"),
        pytest.param(changed(deadline="never"), {"spec.deadline"}, id="a mistake that is new"),
    ],
)
def test_changes(new: Raw, fields: set[str]) -> None:
    assert set(causes(new, BEFORE)) == fields


def test_a_cancelled_job_stays_cancelled() -> None:
    assert set(causes(changed(state="Running"), changed(state="Cancelled"))) == {"spec.state"}


def test_a_held_job_may_be_moved_once_it_is_held() -> None:
    held = changed(state="Suspended") | {"status": {"phase": "Suspended"}}
    assert causes(changed(priority=9), held) == {}
    unseen = changed(state="Suspended") | {"status": {"phase": "Running"}}
    assert set(causes(changed(priority=9), unseen)) == {"spec.priority"}


def test_an_old_mistake_does_not_stand_in_the_way() -> None:
    old = job({"name": "w"})
    new = copy.deepcopy(old)
    new["spec"]["state"] = "Cancelled"
    assert causes(new, old) == {}


@pytest.mark.parametrize(
    ("phase", "fields"),
    [
        pytest.param("", set(), id="new"),
        pytest.param("Queued", set(), id="waits"),
        pytest.param("Starting", {"spec.queue"}, id="placed"),
        pytest.param("Running", {"spec.queue"}, id="runs"),
    ],
)
def test_a_job_can_be_moved_to_another_queue_until_it_starts(phase: str, fields: set[str]) -> None:
    found = validate_object(RESOURCE, changed(queue="b"), BEFORE | {"status": {"phase": phase}})
    assert {cause.field for cause in found} == fields
