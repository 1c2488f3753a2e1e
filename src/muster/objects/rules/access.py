"""Rules for roles and bindings, access reviews, priority classes. Pure."""

from __future__ import annotations

from typing import Final

from muster.objects.kinds.rbac import GROUP as RBAC_GROUP
from muster.objects.names import validate_path_segment, validate_subdomain
from muster.objects.rules.report import Report, check_immutable, check_selector, number, obj, objs, text, texts
from muster.objects.status import Raw

PRIORITY_MAX: Final = 1_000_000_000
"""The highest priority for classes other than the system's own."""
_SYSTEM_CLASSES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def check_role(report: Report, raw: Raw, old: Raw | None) -> None:
    _check_rules(report, raw, allows_urls=False)


def check_cluster_role(report: Report, raw: Raw, old: Raw | None) -> None:
    _check_rules(report, raw, allows_urls=True)
    for where, selector in objs(obj(raw, "aggregationRule"), "clusterRoleSelectors", "aggregationRule"):
        check_selector(report, selector, where)
    if isinstance(raw.get("aggregationRule"), dict) and not raw["aggregationRule"].get("clusterRoleSelectors"):
        report.required(
            "aggregationRule.clusterRoleSelectors", "at least one clusterRoleSelector required if aggregationRule is non-nil"
        )


def _check_rules(report: Report, raw: Raw, *, allows_urls: bool) -> None:
    for where, rule in objs(raw, "rules", ""):
        if not texts(rule, "verbs"):
            report.required(f"{where}.verbs", "verbs must contain at least one value")
        if texts(rule, "nonResourceURLs"):
            if not allows_urls:
                report.invalid(
                    f"{where}.nonResourceURLs", rule["nonResourceURLs"], "namespaced rules cannot apply to non-resource URLs"
                )
            if any(rule.get(word) for word in ("apiGroups", "resources", "resourceNames")):
                report.invalid(
                    f"{where}.nonResourceURLs",
                    rule["nonResourceURLs"],
                    "rules cannot apply to both regular resources and non-resource URLs",
                )
            continue
        if not texts(rule, "apiGroups"):
            report.required(f"{where}.apiGroups", "resource rules must supply at least one api group")
        if not texts(rule, "resources"):
            report.required(f"{where}.resources", "resource rules must supply at least one resource")


def check_role_binding(report: Report, raw: Raw, old: Raw | None) -> None:
    _check_binding(report, raw, old, ("Role", "ClusterRole"), has_namespace=True)


def check_cluster_role_binding(report: Report, raw: Raw, old: Raw | None) -> None:
    _check_binding(report, raw, old, ("ClusterRole",), has_namespace=False)


def _check_binding(report: Report, raw: Raw, old: Raw | None, kinds: tuple[str, ...], *, has_namespace: bool) -> None:
    role = obj(raw, "roleRef")
    if text(role, "apiGroup") != RBAC_GROUP:
        report.unsupported("roleRef.apiGroup", text(role, "apiGroup"), [RBAC_GROUP])
    if text(role, "kind") not in kinds:
        report.unsupported("roleRef.kind", text(role, "kind"), kinds)
    report.names("roleRef.name", text(role, "name"), validate_path_segment(text(role, "name")))
    for where, subject in objs(raw, "subjects", ""):
        _check_subject(report, subject, where, has_namespace=has_namespace)
    if old is not None and role != obj(old, "roleRef"):
        report.invalid("roleRef", role, "cannot change roleRef; delete the binding and create it anew")


def _check_subject(report: Report, subject: Raw, path: str, *, has_namespace: bool) -> None:
    kind, name, group = text(subject, "kind"), text(subject, "name"), text(subject, "apiGroup")
    if not name:
        report.required(f"{path}.name")
    if kind == "ServiceAccount":
        if name:
            report.names(f"{path}.name", name, validate_subdomain(name))
        if group:
            report.unsupported(f"{path}.apiGroup", group, [""])
        if not text(subject, "namespace") and not has_namespace:
            report.required(f"{path}.namespace")
    elif kind in ("User", "Group"):
        if group != RBAC_GROUP:
            report.unsupported(f"{path}.apiGroup", group, [RBAC_GROUP])
    else:
        report.unsupported(f"{path}.kind", kind, ["ServiceAccount", "User", "Group"])


def check_priority_class(report: Report, raw: Raw, old: Raw | None) -> None:
    name, value = text(obj(raw, "metadata"), "name"), number(raw, "value")
    if name.startswith("system-"):
        if _SYSTEM_CLASSES.get(name) != value:
            report.forbidden("metadata.name", "priority class names with 'system-' prefix are reserved for system use only")
    elif value > PRIORITY_MAX:
        report.forbidden("value", f"maximum allowed value of a user defined priority is {PRIORITY_MAX}")
    if old is not None:
        for word in ("value", "preemptionPolicy"):
            if raw.get(word, 0) != old.get(word, 0):
                report.forbidden(word, "may not be changed in an update; delete the class and create it anew")


def check_access_review(report: Report, raw: Raw, old: Raw | None) -> None:
    spec = obj(raw, "spec")
    if (spec.get("resourceAttributes") is None) == (spec.get("nonResourceAttributes") is None):
        report.invalid(
            "spec.resourceAttributes",
            spec.get("resourceAttributes"),
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )
    if raw.get("kind") != "SelfSubjectAccessReview" and not text(spec, "user") and not texts(spec, "groups"):
        report.invalid("spec.user", text(spec, "user"), "at least one of user or group must be specified")
    namespace = text(obj(raw, "metadata"), "namespace")
    if raw.get("kind") == "LocalSubjectAccessReview" and text(obj(spec, "resourceAttributes"), "namespace") != namespace:
        report.invalid(
            "spec.resourceAttributes.namespace",
            text(obj(spec, "resourceAttributes"), "namespace"),
            f"must match metadata.namespace ({namespace})",
        )


def check_lease(report: Report, raw: Raw, old: Raw | None) -> None:
    spec = obj(raw, "spec")
    if spec.get("preferredHolder") and not spec.get("strategy"):
        report.forbidden("spec.preferredHolder", "only allowed when a strategy is set")


def check_ingress_class(report: Report, raw: Raw, old: Raw | None) -> None:
    controller = text(obj(raw, "spec"), "controller")
    domain, slash, name = controller.partition("/")
    if not slash or not name or validate_subdomain(domain):
        report.invalid("spec.controller", controller, "must be a domain-prefixed path, such as example.com/ingress")
    if old is not None:
        check_immutable(report, controller, text(obj(old, "spec"), "controller"), "spec.controller")


def check_token_request(report: Report, raw: Raw, old: Raw | None) -> None:
    bound = obj(obj(raw, "spec"), "boundObjectRef")
    if bound and text(bound, "kind") not in ("Pod", "Secret", "Node"):
        report.unsupported("spec.boundObjectRef.kind", text(bound, "kind"), ["Node", "Pod", "Secret"])
    if bound and text(bound, "name"):
        report.names("spec.boundObjectRef.name", text(bound, "name"), validate_subdomain(text(bound, "name")))
