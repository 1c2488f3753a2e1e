from __future__ import annotations

from typing import get_args

from muster.objects.job_stages import ALLOWED, BEFORE_RUNNING, Command, refusal
from muster.objects.kinds.kuscia_jobs import FINAL_PHASES, JobPhase, JobStage, JobStagePhase


def test_the_schema_and_the_table_know_the_same_stages() -> None:
    assert set(ALLOWED) == set(get_args(JobStage))
    assert set(get_args(JobStagePhase)) == {f"Job{stage}Stage{end}" for stage in ALLOWED for end in ("Succeeded", "Failed")}


def test_every_phase_is_before_during_or_after() -> None:
    assert {*BEFORE_RUNNING, "Running", "Suspended", *FINAL_PHASES} == set(get_args(JobPhase))


def test_every_refusal_names_the_phase_and_the_way_out() -> None:
    for stage, allowed in ALLOWED.items():
        for phase in set(get_args(JobPhase)) - set(allowed):
            said = refusal(Command(stage), phase, reruns=False)
            assert (phase or "new") in said
            assert ": " in said
