"""Every label, annotation, taint and resource name is one that Kubernetes accepts, and stands where its system puts it."""

from __future__ import annotations

import pytest

from muster.objects import labels
from muster.objects.labels import GROUPS, Koordinator, KoordinatorPod, KusciaAnnotation, KusciaLabel, Muster, names_in
from muster.objects.names import validate_qualified_name

NAMES = [(group.__name__, attribute, name) for group in GROUPS for attribute, name in names_in(group).items()]


@pytest.mark.parametrize(("group", "attribute", "name"), NAMES, ids=[f"{group}.{attribute}" for group, attribute, _ in NAMES])
def test_is_a_qualified_name(group: str, attribute: str, name: str) -> None:
    whole = f"{name}alice" if attribute.endswith("_PREFIX") else name
    assert validate_qualified_name(whole) == [], group


def test_groups_lists_every_group() -> None:
    found = {value for value in vars(labels).values() if isinstance(value, type) and value.__module__ == labels.__name__}
    assert set(GROUPS) == found


def test_no_name_is_listed_twice() -> None:
    names = [name for _, _, name in NAMES]
    assert sorted({name for name in names if names.count(name) > 1}) == []


@pytest.mark.parametrize(
    ("group", "prefixes"),
    [
        (KusciaLabel, ("kuscia.secretflow/", "kuscia.secertflow/", "kuscia.job.custom-fields/", "domain")),
        (KusciaAnnotation, ("kuscia.secretflow/",)),
        (
            KoordinatorPod,
            (
                "koordinator.sh/",
                "node.koordinator.sh/",
                "pod.koordinator.sh/",
                "gang.scheduling.koordinator.sh/",
                "scheduling.koordinator.sh/",
                "internal.scheduling.koordinator.sh/",
            ),
        ),
        (
            labels.KoordinatorNode,
            (
                "node.koordinator.sh/",
                "scheduling.koordinator.sh/",
                "kubelet.koordinator.sh/",
                "koordinator.sh/",
                "hami.io/",
            ),
        ),
        (labels.KoordinatorQuota, ("quota.scheduling.koordinator.sh/",)),
        (Muster, ("muster.dev/", "bandwidth")),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_names_are_of_their_system(group: type, prefixes: tuple[str, ...]) -> None:
    assert [name for name in names_in(group).values() if not name.startswith(prefixes)] == []


@pytest.mark.parametrize(
    ("constant", "name"),
    [
        (KusciaLabel.JOB_STAGE, "kuscia.secretflow/job-stage"),
        (KusciaLabel.TASK_RESOURCE_GROUP_UID, "kuscia.secretflow/task-resource-group-uid"),
        (KusciaAnnotation.TASK_RESOURCE, "kuscia.secretflow/task-resource"),
        (labels.Kuscia.RESOURCE_BANDWIDTH, "kuscia.io/bandwidth"),
        (labels.Sigs.POD_GROUP, "pod-group.scheduling.sigs.k8s.io"),
        (KoordinatorPod.GANG_MIN_AVAILABLE, "gang.scheduling.koordinator.sh/min-available"),
        (KoordinatorPod.QOS_CLASS, "koordinator.sh/qosClass"),
        (Koordinator.RESOURCE_BATCH_CPU, "kubernetes.io/batch-cpu"),
        (labels.KoordinatorQuota.PARENT, "quota.scheduling.koordinator.sh/parent"),
        (labels.Kubernetes.EGRESS_BANDWIDTH, "kubernetes.io/egress-bandwidth"),
    ],
)
def test_names_that_manifests_rely_on(constant: str, name: str) -> None:
    assert constant == name
