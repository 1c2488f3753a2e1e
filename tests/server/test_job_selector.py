"""batch Jobs select their pods by their own uid."""

from __future__ import annotations

from muster.objects.status import Raw
from tests.server.running import RunningServer


def _job(name: str, **spec: object) -> Raw:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    return {"metadata": {"name": name}, "spec": {"template": template, **spec}}


def test_a_new_job_selects_its_pods_by_its_uid(server: RunningServer, namespace: str) -> None:
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    made = server.create(jobs, _job("j"))
    uid = made["metadata"]["uid"]
    assert made["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    labels = made["spec"]["template"]["metadata"]["labels"]
    assert labels == {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": "j",
        "controller-uid": uid,
        "job-name": "j",
    }
    assert made["metadata"]["labels"] == labels
    managed = made["metadata"]["managedFields"][0]["fieldsV1"]
    assert "f:selector" not in managed["f:spec"], "nobody asked for it"
    assert "f:metadata" not in managed, "nor for labels"


def test_a_job_without_labels_has_those_of_its_pods(server: RunningServer, namespace: str) -> None:
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    job = _job("j")
    job["spec"]["template"]["metadata"] = {"labels": {"app": "x"}}
    made = server.create(jobs, job)
    assert made["metadata"]["labels"] == made["spec"]["template"]["metadata"]["labels"]
    found = server.request("GET", f"{jobs}?labelSelector=app%3Dx,job-name%3Dj").json["items"]
    assert [one["metadata"]["name"] for one in found] == ["j"]
    own = server.create(jobs, {**job, "metadata": {"name": "k", "labels": {"own": "1"}}})
    assert own["metadata"]["labels"] == {"own": "1"}


def test_a_selector_of_ones_own_stays(server: RunningServer, namespace: str) -> None:
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    own = {"matchLabels": {"a": "b"}}
    job = _job("j", manualSelector=True, selector=own)
    job["spec"]["template"]["metadata"] = {"labels": {"a": "b"}}
    made = server.create(jobs, job)
    assert made["spec"]["selector"] == own
    assert made["spec"]["template"]["metadata"]["labels"] == made["metadata"]["labels"] == {"a": "b"}


def test_the_selector_cannot_be_taken_away(server: RunningServer, namespace: str) -> None:
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    server.create(jobs, _job("j"))
    refused = server.request("PUT", f"{jobs}/j", {**_job("j"), "apiVersion": "batch/v1", "kind": "Job"})
    assert refused.code == 422
    assert "spec.selector" in refused.message
