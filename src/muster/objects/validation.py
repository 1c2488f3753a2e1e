"""What a schema can't say: names, things that must fit together, and what may not change once it is there.

`validate_object` is called after defaults and after the schema has passed, with the object as it would be stored and, for an
update, with what it replaces. It returns every cause, in Kubernetes' words. Pure.

Of custom kinds, those that ask for resources have rules for amounts and their units; the others get the rules for metadata
only. Where Kubernetes refuses what one machine needs, we don't: Endpoints may hold loopback addresses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Final

from muster.objects.crd_rules import validate_crd
from muster.objects.kinds.rbac import GROUP as RBAC_GROUP
from muster.objects.names import (
    validate_dns1035_label,
    validate_generate_name,
    validate_label_name,
    validate_path_segment,
    validate_subdomain,
)
from muster.objects.resources import Resource
from muster.objects.rules import (
    access,
    app_images,
    autoscalers,
    bandwidth,
    core,
    domains,
    events,
    kuscia_deployments,
    kuscia_jobs,
    muster_jobs,
    muster_queues,
    networking,
    pods,
    services,
    statuses,
    storage,
    webhooks,
    workloads,
)
from muster.objects.rules.metadata import check_labels_and_holds
from muster.objects.rules.report import Enough, Report, obj, text, texts
from muster.objects.status import Cause, Raw

CAUSES_MAX: Final = 64
_CRON_JOB_NAME_LEN_MAX: Final = 52

Rule = Callable[[Report, Raw, Raw | None], None]


def validate_object(resource: Resource, raw: Raw, old: Raw | None = None, subresource: str = "") -> list[Cause]:
    """Everything that stands against storing `raw` in place of `old` (None when it is new).

    A write to the status subresource is held against the rules for metadata and for the status (`rules.statuses`) alone: its
    spec is the old one's. Of an update that changes nothing but metadata and status, metadata alone count, because the rest has
    passed before. Metadata that it leaves alone are not looked at either.
    """
    report = Report(told_max=CAUSES_MAX)
    with contextlib.suppress(Enough):
        _check(report, resource, raw, old, subresource)
    return report.causes[:CAUSES_MAX]


def _check(report: Report, resource: Resource, raw: Raw, old: Raw | None, subresource: str) -> None:
    # Reviews and bindings are asked, not stored: they need no name. Metadata that stay as they were have passed before.
    if resource.verbs != ("create",) and not (old is not None and raw.get("metadata") == old.get("metadata")):
        check_metadata(report, resource, obj(raw, "metadata"), obj(old, "metadata") if old is not None else None)
    if subresource in ("", "token", "binding") and not (old is not None and _is_same_but_metadata(raw, old)):
        key = (resource.group, resource.kind)
        if key == ("", "Pod"):
            pods.check_pod(report, raw, old, subresource)
        elif key == ("", "PodTemplate"):
            pods.check_template(report, obj(raw, "template"), "template")
        elif key == ("apiextensions.k8s.io", "CustomResourceDefinition"):
            report.causes += validate_crd(raw, old)
        elif key in _RULES:
            _RULES[key](report, raw, old)
    if subresource == "status" and not resource.is_custom:
        statuses.check_status(report, (resource.group, resource.kind), raw, old)
    if resource.group == "" and resource.kind in ("Node", "Pod") and _may_say_other_bandwidth(raw, old, subresource):
        # Annotations are metadata, so these hold for every update; only what it makes wrong is reported.
        bandwidth.check_annotations(report, resource.kind, raw, old)


def _is_same_but_metadata(raw: Raw, old: Raw) -> bool:
    return all(raw.get(key) == old.get(key) for key in raw.keys() | old.keys() if key not in ("metadata", "status"))


def _may_say_other_bandwidth(raw: Raw, old: Raw | None, subresource: str) -> bool:
    if subresource != "status":
        return not subresource
    return old is None or obj(raw, "metadata").get("annotations") != obj(old, "metadata").get("annotations")


def check_metadata(report: Report, resource: Resource, metadata: Raw, old: Raw | None) -> None:
    """The rules that hold for every kind."""
    name, prefix, namespace = (text(metadata, word) for word in ("name", "generateName", "namespace"))
    validate = name_rule(resource)
    if name:
        report.names("metadata.name", name, validate(name))
    elif not prefix:
        report.required("metadata.name", "name or generateName is required")
    if prefix:
        report.names("metadata.generateName", prefix, validate_generate_name(prefix, validate))
    if resource.kind == "CronJob" and len(name) > _CRON_JOB_NAME_LEN_MAX:
        report.invalid("metadata.name", name, f"must be no more than {_CRON_JOB_NAME_LEN_MAX} characters")
    if not resource.namespaced and namespace:
        report.forbidden("metadata.namespace", "not allowed on this type")
    elif namespace:
        report.names("metadata.namespace", namespace, validate_label_name(namespace))
    is_native = not resource.is_custom and resource.group != "apiextensions.k8s.io"
    check_labels_and_holds(report, metadata, "metadata", is_native=is_native)
    _check_new_finalizers(report, metadata, old)
    if old is not None:
        for word in ("name", "namespace", "uid"):
            if text(metadata, word) and text(old, word) and text(metadata, word) != text(old, word):
                report.immutable(f"metadata.{word}", text(metadata, word))


def name_rule(resource: Resource) -> Callable[[str], list[str]]:
    """What the kind's names look like."""
    return _NAME_RULES.get((resource.group, resource.kind), validate_subdomain)


def _check_new_finalizers(report: Report, metadata: Raw, old: Raw | None) -> None:
    if old is not None and old.get("deletionTimestamp"):
        added = sorted({*texts(metadata, "finalizers")} - {*texts(old, "finalizers")})
        if added:
            listed = ", ".join(f'"{name}"' for name in added)
            report.forbidden(
                "metadata.finalizers",
                f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{listed}}}",
            )


_NAME_RULES: Final[Mapping[tuple[str, str], Callable[[str], list[str]]]] = {
    ("", "Namespace"): validate_label_name,
    ("", "Service"): validate_dns1035_label,
    **{(RBAC_GROUP, kind): validate_path_segment for kind in ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")},
}

_RULES: Final[Mapping[tuple[str, str], Rule]] = {
    ("", "ConfigMap"): core.check_config_map,
    ("", "Secret"): core.check_secret,
    ("", "Service"): services.check_service,
    ("", "Endpoints"): services.check_endpoints,
    ("", "Node"): core.check_node,
    ("", "ServiceAccount"): core.check_service_account,
    ("", "Event"): events.check_event,
    ("", "ResourceQuota"): core.check_resource_quota,
    ("", "LimitRange"): core.check_limit_range,
    ("", "Binding"): core.check_binding,
    ("", "PersistentVolume"): storage.check_volume,
    ("", "PersistentVolumeClaim"): storage.check_claim,
    ("", "ReplicationController"): workloads.check_replication_controller,
    ("events.k8s.io", "Event"): events.check_new_event,
    ("discovery.k8s.io", "EndpointSlice"): services.check_endpoint_slice,
    ("storage.k8s.io", "StorageClass"): storage.check_storage_class,
    ("node.k8s.io", "RuntimeClass"): storage.check_runtime_class,
    **{("apps", kind): workloads.check_workload for kind in ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet")},
    ("autoscaling", "HorizontalPodAutoscaler"): autoscalers.check_autoscaler,
    ("batch", "Job"): workloads.check_job,
    ("batch", "CronJob"): workloads.check_cron_job,
    ("policy", "PodDisruptionBudget"): workloads.check_disruption_budget,
    ("networking.k8s.io", "NetworkPolicy"): networking.check_network_policy,
    ("networking.k8s.io", "Ingress"): networking.check_ingress,
    ("networking.k8s.io", "IngressClass"): access.check_ingress_class,
    ("scheduling.k8s.io", "PriorityClass"): access.check_priority_class,
    ("coordination.k8s.io", "Lease"): access.check_lease,
    (RBAC_GROUP, "Role"): access.check_role,
    (RBAC_GROUP, "ClusterRole"): access.check_cluster_role,
    (RBAC_GROUP, "RoleBinding"): access.check_role_binding,
    (RBAC_GROUP, "ClusterRoleBinding"): access.check_cluster_role_binding,
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): webhooks.check_webhooks,
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): webhooks.check_webhooks,
    **{
        ("authorization.k8s.io", kind): access.check_access_review
        for kind in ("SelfSubjectAccessReview", "SubjectAccessReview", "LocalSubjectAccessReview")
    },
    ("authentication.k8s.io", "TokenRequest"): access.check_token_request,
    **bandwidth.RULES,
    **kuscia_jobs.RULES,
    ("kuscia.secretflow", "AppImage"): app_images.check_app_image,
    ("muster.dev", "Job"): muster_jobs.check_job,
    **muster_queues.RULES,
    ("kuscia.secretflow", "Domain"): domains.check_domain,
    ("kuscia.secretflow", "KusciaDeployment"): kuscia_deployments.check_deployment,
}
