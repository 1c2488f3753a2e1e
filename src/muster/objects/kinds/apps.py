"""Kubernetes' `apps/v1`: kept so that manifests apply and operators can read them. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated, Any

from muster.objects.kinds.base import AGE, RETAIN_KEYS, Count, Native, NativeObject, Selector, default, keyed_merge, one_of
from muster.objects.kinds.claims import PersistentVolumeClaim
from muster.objects.kinds.pods import PodTemplateSpec
from muster.objects.kinds.references import StatusCondition
from muster.objects.resources import Column, Resource
from muster.objects.time import Timestamp
from muster.objects.view import ATOMIC, Int32, IntOrString


class RollingUpdateDeployment(Native):
    """How far the number of pods may stray during an update."""

    max_unavailable: Annotated[IntOrString | None, "Pods that may be missing, as a number or a percentage."] = None
    max_surge: Annotated[IntOrString | None, "Pods that there may be too many, as a number or a percentage."] = None


class DeploymentStrategy(Native):
    """How old pods are replaced by new ones."""

    type: Annotated[str, one_of("Recreate", "RollingUpdate"), "All at once, or a few at a time."] = ""
    rolling_update: Annotated[RollingUpdateDeployment | None, "Settings for RollingUpdate."] = None


class DeploymentSpec(Native):
    """How many pods of which kind, and how they are replaced."""

    selector: Annotated[Selector, "Its pods. Can't be changed."]
    template: Annotated[PodTemplateSpec, "The pods to make."]
    replicas: Annotated[Count | None, "How many."] = 1
    strategy: Annotated[DeploymentStrategy | None, RETAIN_KEYS, "How old pods are replaced."] = None
    min_ready_seconds: Annotated[Count, "How long a pod must be ready to count as available."] = 0
    revision_history_limit: Annotated[Count | None, "Old ReplicaSets that are kept for going back."] = 10
    paused: Annotated[bool, "Changes of the template wait."] = False
    progress_deadline_seconds: Annotated[Count | None, "An update that stands still this long has failed."] = 600


class DeploymentCondition(StatusCondition):
    """A named fact about a deployment: Available, Progressing, ReplicaFailure."""

    last_update_time: Annotated[Timestamp, "When it was last looked at."] = ""


class DeploymentStatus(Native):
    """How many pods there are."""

    observed_generation: Annotated[int, "The generation that this speaks of."] = 0
    replicas: Annotated[Int32, "All of them."] = 0
    updated_replicas: Annotated[Int32, "Those made from the present template."] = 0
    ready_replicas: Annotated[Int32, "Those that are ready."] = 0
    available_replicas: Annotated[Int32, "Those that have been ready for long enough."] = 0
    unavailable_replicas: Annotated[Int32, "Those that are missing."] = 0
    terminating_replicas: Annotated[Int32 | None, "Those that are on their way out."] = None
    conditions: Annotated[list[DeploymentCondition], keyed_merge("type"), "Facts about it."] = []
    collision_count: Annotated[Int32 | None, "Counts clashes of ReplicaSet names."] = None


class Deployment(NativeObject, kw_only=True):
    """Keeps a number of equal pods running and replaces them step by step when their template changes."""

    spec: Annotated[DeploymentSpec, "What is wanted."]
    status: Annotated[DeploymentStatus | None, "What there is."] = None


class ReplicaSetSpec(Native):
    """How many pods of which kind."""

    selector: Annotated[Selector, "Its pods. Can't be changed."]
    replicas: Annotated[Count | None, "How many."] = 1
    min_ready_seconds: Annotated[Count, "How long a pod must be ready to count as available."] = 0
    template: Annotated[PodTemplateSpec | None, "The pods to make."] = None


class ReplicaSetStatus(Native):
    """How many pods there are."""

    replicas: Annotated[Int32, "All of them."] = 0
    fully_labeled_replicas: Annotated[Int32, "Those with all labels of the template."] = 0
    ready_replicas: Annotated[Int32, "Those that are ready."] = 0
    available_replicas: Annotated[Int32, "Those that have been ready for long enough."] = 0
    terminating_replicas: Annotated[Int32 | None, "Those that are on their way out."] = None
    observed_generation: Annotated[int, "The generation that this speaks of."] = 0
    conditions: Annotated[list[StatusCondition], keyed_merge("type"), "Facts about it."] = []


class ReplicaSet(NativeObject, kw_only=True):
    """Keeps a number of equal pods running."""

    spec: Annotated[ReplicaSetSpec, "What is wanted."]
    status: Annotated[ReplicaSetStatus | None, "What there is."] = None


class RollingUpdateStatefulSetStrategy(Native):
    """Which pods are updated, and how many at a time."""

    partition: Annotated[Count | None, "Only pods with this number or a higher one."] = None
    max_unavailable: Annotated[IntOrString | None, "Pods that may be missing."] = None


class StatefulSetUpdateStrategy(Native):
    """How pods are updated."""

    type: Annotated[str, one_of("RollingUpdate", "OnDelete"), "By itself, or when somebody deletes them."] = ""
    rolling_update: Annotated[RollingUpdateStatefulSetStrategy | None, "Settings for RollingUpdate."] = None


class StatefulSetOrdinals(Native):
    """How the pods are numbered."""

    start: Annotated[Count, "The first number."] = 0


class StatefulSetPersistentVolumeClaimRetentionPolicy(Native):
    """What becomes of the pods' claims."""

    when_deleted: Annotated[str, one_of("Retain", "Delete"), "When the set is deleted."] = "Retain"
    when_scaled: Annotated[str, one_of("Retain", "Delete"), "When the set shrinks."] = "Retain"


class StatefulSetSpec(Native):
    """How many pods of which kind, with which storage."""

    selector: Annotated[Selector, "Its pods. Can't be changed."]
    template: Annotated[PodTemplateSpec, "The pods to make."]
    service_name: Annotated[str, "Headless service that gives them names."] = ""
    replicas: Annotated[Count | None, "How many."] = 1
    volume_claim_templates: Annotated[list[PersistentVolumeClaim], ATOMIC, "Claims that every pod gets."] = []
    pod_management_policy: Annotated[str, one_of("OrderedReady", "Parallel"), "One after the other, or all at once."] = (
        "OrderedReady"
    )
    update_strategy: Annotated[StatefulSetUpdateStrategy | None, "How pods are updated."] = None
    revision_history_limit: Annotated[Count | None, "Old revisions that are kept."] = 10
    min_ready_seconds: Annotated[Count, "How long a pod must be ready to count as available."] = 0
    persistent_volume_claim_retention_policy: Annotated[
        StatefulSetPersistentVolumeClaimRetentionPolicy | None, default({}), "What becomes of the claims."
    ] = None
    ordinals: Annotated[StatefulSetOrdinals | None, "How the pods are numbered."] = None


class StatefulSetStatus(Native):
    """How many pods there are."""

    replicas: Annotated[Int32, "All of them."] = 0
    observed_generation: Annotated[int, "The generation that this speaks of."] = 0
    ready_replicas: Annotated[Int32, "Those that are ready."] = 0
    current_replicas: Annotated[Int32, "Those of the current revision."] = 0
    updated_replicas: Annotated[Int32, "Those of the new revision."] = 0
    available_replicas: Annotated[Int32, "Those that have been ready for long enough."] = 0
    current_revision: Annotated[str, "The current revision."] = ""
    update_revision: Annotated[str, "The new revision."] = ""
    collision_count: Annotated[Int32 | None, "Counts clashes of revision names."] = None
    conditions: Annotated[list[StatusCondition], keyed_merge("type"), "Facts about it."] = []


class StatefulSet(NativeObject, kw_only=True):
    """Keeps numbered pods running, each with a name and storage of its own."""

    spec: Annotated[StatefulSetSpec, "What is wanted."]
    status: Annotated[StatefulSetStatus | None, "What there is."] = None


class RollingUpdateDaemonSet(Native):
    """How many pods are replaced at a time."""

    max_unavailable: Annotated[IntOrString | None, "Nodes that may be without, as a number or a percentage."] = None
    max_surge: Annotated[IntOrString | None, "Nodes that may have two, as a number or a percentage."] = None


class DaemonSetUpdateStrategy(Native):
    """How pods are updated."""

    type: Annotated[str, one_of("RollingUpdate", "OnDelete"), "By itself, or when somebody deletes them."] = ""
    rolling_update: Annotated[RollingUpdateDaemonSet | None, "Settings for RollingUpdate."] = None


class DaemonSetSpec(Native):
    """Which pods, on which nodes."""

    selector: Annotated[Selector, "Its pods. Can't be changed."]
    template: Annotated[PodTemplateSpec, "The pod for every node that it fits."]
    update_strategy: Annotated[DaemonSetUpdateStrategy | None, "How pods are updated."] = None
    min_ready_seconds: Annotated[Count, "How long a pod must be ready to count as available."] = 0
    revision_history_limit: Annotated[Count | None, "Old revisions that are kept."] = 10


class DaemonSetStatus(Native):
    """How many nodes have their pod."""

    current_number_scheduled: Annotated[Int32, "Nodes that should have one and do."] = 0
    number_misscheduled: Annotated[Int32, "Nodes that should have none and do."] = 0
    desired_number_scheduled: Annotated[Int32, "Nodes that should have one."] = 0
    number_ready: Annotated[Int32, "Nodes whose pod is ready."] = 0
    observed_generation: Annotated[int, "The generation that this speaks of."] = 0
    updated_number_scheduled: Annotated[Int32, "Nodes with a pod of the new revision."] = 0
    number_available: Annotated[Int32, "Nodes whose pod has been ready for long enough."] = 0
    number_unavailable: Annotated[Int32, "Nodes that lack one."] = 0
    collision_count: Annotated[Int32 | None, "Counts clashes of revision names."] = None
    conditions: Annotated[list[StatusCondition], keyed_merge("type"), "Facts about it."] = []


class DaemonSet(NativeObject, kw_only=True):
    """Keeps one pod on every node that it fits."""

    spec: Annotated[DaemonSetSpec, "What is wanted."]
    status: Annotated[DaemonSetStatus | None, "What there is."] = None


class ControllerRevision(NativeObject):
    """An old state of a StatefulSet or DaemonSet."""

    data: Annotated[dict[str, Any] | None, "The state."] = None
    revision: Annotated[int, "Its number."] = 0


def _selector_columns(prefix: str) -> tuple[Column, ...]:
    return (
        Column(name="Containers", path=f"{prefix}.spec.containers[*].name", priority=1),
        Column(name="Images", path=f"{prefix}.spec.containers[*].image", priority=1),
        Column(name="Selector", path=".spec.selector.matchLabels", priority=1),
    )


_SCALE = (".spec.replicas", ".status.replicas", ".spec.selector")

RESOURCES: tuple[Resource, ...] = (
    Resource(
        group="apps",
        version="v1",
        kind="Deployment",
        plural="deployments",
        short_names=("deploy",),
        categories=("all",),
        subresources=frozenset({"status", "scale"}),
        status_keeps=frozenset({"labels"}),
        generation_counts_annotations=True,
        scale_paths=_SCALE,
        view=Deployment,
        columns=(
            Column(name="Ready", path=".status.readyReplicas", type="integer"),
            Column(name="Up-to-date", path=".status.updatedReplicas", type="integer"),
            Column(name="Available", path=".status.availableReplicas", type="integer"),
            AGE,
            *_selector_columns(".spec.template"),
        ),
    ),
    Resource(
        group="apps",
        version="v1",
        kind="ReplicaSet",
        plural="replicasets",
        short_names=("rs",),
        categories=("all",),
        subresources=frozenset({"status", "scale"}),
        scale_paths=_SCALE,
        view=ReplicaSet,
        columns=(
            Column(name="Desired", path=".spec.replicas", type="integer"),
            Column(name="Current", path=".status.replicas", type="integer"),
            Column(name="Ready", path=".status.readyReplicas", type="integer"),
            AGE,
            *_selector_columns(".spec.template"),
        ),
        selectable_fields=("status.replicas",),
    ),
    Resource(
        group="apps",
        version="v1",
        kind="StatefulSet",
        plural="statefulsets",
        short_names=("sts",),
        categories=("all",),
        subresources=frozenset({"status", "scale"}),
        scale_paths=_SCALE,
        view=StatefulSet,
        columns=(
            Column(name="Ready", path=".status.readyReplicas", type="integer"),
            AGE,
            *_selector_columns(".spec.template")[:2],
        ),
    ),
    Resource(
        group="apps",
        version="v1",
        kind="DaemonSet",
        plural="daemonsets",
        short_names=("ds",),
        categories=("all",),
        subresources=frozenset({"status"}),
        view=DaemonSet,
        columns=(
            Column(name="Desired", path=".status.desiredNumberScheduled", type="integer"),
            Column(name="Current", path=".status.currentNumberScheduled", type="integer"),
            Column(name="Ready", path=".status.numberReady", type="integer"),
            Column(name="Up-to-date", path=".status.updatedNumberScheduled", type="integer"),
            Column(name="Available", path=".status.numberAvailable", type="integer"),
            Column(name="Node Selector", path=".spec.template.spec.nodeSelector"),
            AGE,
            *_selector_columns(".spec.template"),
        ),
    ),
    Resource(
        group="apps",
        version="v1",
        kind="ControllerRevision",
        plural="controllerrevisions",
        generation_tracked=False,
        view=ControllerRevision,
        columns=(
            Column(name="Controller", path=".metadata.ownerReferences[0].name"),
            Column(name="Revision", path=".revision", type="integer"),
            AGE,
        ),
    ),
)
