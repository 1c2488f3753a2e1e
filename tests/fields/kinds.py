"""The kinds whose every field is shown, and the labels and annotations of Kuscia and Koordinator that are read with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.fields import (
    deployment_cases,
    image_cases,
    job_spec_cases,
    job_status_cases,
    pod_group_cases,
    task_cases,
    task_status_cases,
)
from tests.fields.cases import Kind
from tests.fields.template_cases import nothing, overlay_cases
from tests.fields.walk import fields_of

from muster.objects.kinds.base import Object
from muster.objects.kinds.kuscia_deployments import KusciaDeployment
from muster.objects.kinds.kuscia_domains import AppImage
from muster.objects.kinds.kuscia_jobs import KusciaJob
from muster.objects.kinds.kuscia_tasks import KusciaTask
from muster.objects.kinds.sigs import PodGroup
from muster.objects.labels import KoordinatorPod, KusciaAnnotation, KusciaLabel, Sigs, names_in

_VIEWS: Final[Mapping[str, type[Object]]] = {
    "KusciaJob": KusciaJob,
    "KusciaTask": KusciaTask,
    "AppImage": AppImage,
    "KusciaDeployment": KusciaDeployment,
    "PodGroup": PodGroup,
}
_GANG = [name for word, name in names_in(KoordinatorPod).items() if word.startswith("GANG_")]
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "KusciaJob": (
        KusciaLabel.JOB_STAGE,
        KusciaLabel.JOB_STAGE_TRIGGER,
        KusciaLabel.JOB_STAGE_VERSION,
        KusciaLabel.JOB_AUTO_APPROVAL,
        f"{KusciaLabel.JOB_CUSTOM_FIELD_PREFIX}*",
    ),
    "KusciaTask": (KusciaLabel.TASK_UNSCHEDULABLE,),
    "AppImage": (),
    "KusciaDeployment": (KusciaAnnotation.AFFINITY_MODE,),
    "PodGroup": (*_GANG, *names_in(Sigs).values()),
}
"""Labels and annotations that their users write. Those that controllers write are shown with the fields that they come from."""

_TEMPLATE = "spec.parties.template.spec"
KINDS: Final = (
    Kind(
        name="KusciaJob",
        seconds=120,
        cases=(*job_spec_cases.CASES, *job_status_cases.CASES),
        nothing=job_status_cases.NOTHING,
    ),
    Kind(
        name="KusciaTask",
        seconds=90,
        cases=(*task_cases.CASES, *overlay_cases("KusciaTask", "t"), *task_status_cases.CASES),
        nothing={**nothing(_TEMPLATE), **task_status_cases.NOTHING},
    ),
    Kind(name="AppImage", seconds=40, cases=image_cases.CASES, nothing=image_cases.NOTHING),
    Kind(
        name="KusciaDeployment",
        seconds=60,
        cases=(*deployment_cases.CASES, *overlay_cases("KusciaDeployment", "d")),
        nothing=nothing(_TEMPLATE),
    ),
    Kind(name="PodGroup", seconds=60, cases=pod_group_cases.CASES, nothing=pod_group_cases.NOTHING),
)


def everything(kind: str) -> list[str]:
    """All fields of the kind that hold a value, and the names that are read with it."""
    return [*fields_of(_VIEWS[kind]), *_NAMES[kind]]
