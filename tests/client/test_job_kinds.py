from __future__ import annotations

from typing import Any

import pytest

from muster.client.job_kinds import (
    KINDS,
    KUSCIA_JOB,
    OWN_JOB,
    Outcome,
    is_job,
    kind_of,
    outcome_of,
    parse_name,
    qualified_name_of,
    title_of,
)
from muster.objects.status import BadRequest, Raw
from tests.client.job_objects import kuscia_job, own_job


@pytest.mark.parametrize(
    ("text", "kinds", "name"),
    [
        pytest.param("train", KINDS, "train", id="either kind"),
        pytest.param("kusciajob/train", (KUSCIA_JOB,), "train", id="singular"),
        pytest.param("KusciaJob/train", (KUSCIA_JOB,), "train", id="as the kind is written"),
        pytest.param("kj/train", (KUSCIA_JOB,), "train", id="short"),
        pytest.param("kusciajobs.kuscia.secretflow/train", (KUSCIA_JOB,), "train", id="with its group"),
        pytest.param("job/train", (OWN_JOB,), "train", id="own"),
        pytest.param("job.muster.dev/train", (OWN_JOB,), "train", id="as -o name prints it"),
    ],
)
def test_names(text: str, kinds: Any, name: str) -> None:
    assert parse_name(text) == (kinds, name)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("", "names no job", id="empty"),
        pytest.param("job/", "names no job", id="no name"),
        pytest.param("pod/web", "no kind of job", id="another kind"),
        pytest.param("job.batch/x", "no kind of job", id="another group"),
    ],
)
def test_wrong_names(text: str, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        parse_name(text)


def test_what_is_a_job() -> None:
    assert is_job(kuscia_job())
    assert is_job(own_job())
    batch = {"apiVersion": "batch/v1", "kind": "Job"}
    assert not is_job(batch)
    with pytest.raises(BadRequest, match=r'"Job" of apiVersion "batch/v1" is no job'):
        kind_of(batch)


def test_titles() -> None:
    assert title_of(kuscia_job()) == "KusciaJob cross-domain/train"
    assert qualified_name_of(own_job()) == "job.muster.dev/fit"


def staged(stage: str) -> Raw:
    return {"labels": {"kuscia.secretflow/job-stage": stage}}


@pytest.mark.parametrize(
    ("job", "outcome"),
    [
        pytest.param(kuscia_job(), None, id="not seen yet"),
        pytest.param(kuscia_job(phase="Running"), None, id="running"),
        pytest.param(kuscia_job(phase="Suspended"), None, id="suspended goes on later"),
        pytest.param(kuscia_job(phase="Succeeded"), Outcome.SUCCEEDED, id="succeeded"),
        pytest.param(kuscia_job(phase="Failed"), Outcome.FAILED, id="failed"),
        pytest.param(kuscia_job(phase="Failed", metadata=staged("Stop")), Outcome.STOPPED, id="stopped by its stage"),
        pytest.param(kuscia_job(phase="Failed", status={"reason": "Stopped"}), Outcome.STOPPED, id="stopped by its reason"),
        pytest.param(kuscia_job(phase="Cancelled"), Outcome.CANCELLED, id="cancelled"),
        pytest.param(kuscia_job(phase="ApprovalReject"), Outcome.REJECTED, id="rejected"),
        pytest.param(kuscia_job(phase="Failed", metadata=staged("Restart")), None, id="about to be restarted"),
        pytest.param(
            kuscia_job(phase="Succeeded", metadata=staged("Restart"), status={"stage": "Restart", "stageVersion": 0}),
            Outcome.SUCCEEDED,
            id="a restart that was refused changes nothing",
        ),
        pytest.param(
            kuscia_job(phase="Failed", metadata=staged("Stop"), status={"reason": "OOMKilled"}),
            Outcome.FAILED,
            id="stopped late",
        ),
        pytest.param(own_job(phase="Failed"), Outcome.FAILED, id="own failed"),
        pytest.param(own_job(phase="Failed", status={"reason": "Stopped"}), Outcome.STOPPED, id="own stopped"),
        pytest.param(own_job(phase="Queued"), None, id="own queued"),
        pytest.param(
            own_job(phase="Failed", status={"observedGeneration": 1}, metadata={"generation": 2}), None, id="own commanded"
        ),
        pytest.param({**own_job(), "status": "nonsense"}, None, id="nonsense"),
    ],
)
def test_outcomes(job: Raw, outcome: Outcome | None) -> None:
    assert outcome_of(job) is outcome
