"""Webhook configurations: what Kubernetes takes and what it refuses."""

from __future__ import annotations

from typing import Any

from tests.objects.native.case import HOOK, Case

from muster.objects.status import Raw

GROUP = "admissionregistration.k8s.io"
RULE: Raw = HOOK["rules"][0]


def hook(id_: str, where: str = "", since: str = "1.16", **more: Any) -> Case:
    path = f"webhooks[0].{where}" if where else ""
    return Case(f"webhook: {id_}", GROUP, "ValidatingWebhookConfiguration", {"webhooks": [{**HOOK, **more}]}, path, since)


def rule(id_: str, where: str = "", **more: Any) -> Case:
    return hook(f"rule: {id_}", f"rules[0].{where}" if where else "", rules=[{**RULE, **more}])


def resources(id_: str, *names: str, where: str = "") -> Case:
    return rule(f"resources: {id_}", where, resources=list(names))


def url(id_: str, text: str, *, good: bool = False) -> Case:
    return hook(f"url: {id_}", "" if good else "clientConfig.url", clientConfig={"url": text})


def service(id_: str, where: str = "", **more: Any) -> Case:
    made = {"name": "s", "namespace": "n", **more}
    return hook(f"service: {id_}", f"clientConfig.service.{where}" if where else "", clientConfig={"service": made})


def without(word: str) -> Raw:
    return {key: value for key, value in HOOK.items() if key != word}


WEBHOOKS = [
    hook("three parts", name="a.b.c"),
    hook("capital letters", "name", name="A.b.c"),
    hook("no name", "name", name=""),
    Case(
        "webhook: no versions",
        GROUP,
        "MutatingWebhookConfiguration",
        {"webhooks": [without("admissionReviewVersions")]},
        "webhooks[0].admissionReviewVersions",
    ),
    Case(
        "webhook: no effects",
        GROUP,
        "MutatingWebhookConfiguration",
        {"webhooks": [without("sideEffects")]},
        "webhooks[0].sideEffects",
    ),
    Case("webhook: no rules", GROUP, "MutatingWebhookConfiguration", {"webhooks": [without("rules")]}),
    Case("webhook: none at all", GROUP, "MutatingWebhookConfiguration", {}),
    hook("no version", "admissionReviewVersions", admissionReviewVersions=[]),
    hook("version twice", "admissionReviewVersions[1]", admissionReviewVersions=["v1", "v1"]),
    hook("no name of a version", "admissionReviewVersions[1]", admissionReviewVersions=["v1", "V 1"]),
    hook("a known and an unknown version", admissionReviewVersions=["v9", "v1beta1"]),
    hook("effects on dry runs", sideEffects="NoneOnDryRun"),
    hook("unknown effects", "sideEffects", sideEffects="Unknown"),
    hook("no time", "timeoutSeconds", timeoutSeconds=0),
    hook("all the time", timeoutSeconds=30),
    hook("another failure policy", "failurePolicy", failurePolicy="Maybe"),
    hook("another match policy", "matchPolicy", matchPolicy="Nearly"),
    Case(
        "webhook: another reinvocation",
        GROUP,
        "MutatingWebhookConfiguration",
        {"webhooks": [{**HOOK, "reinvocationPolicy": "Often"}]},
        "webhooks[0].reinvocationPolicy",
    ),
    hook(
        "selectors",
        namespaceSelector={"matchLabels": {"a": "b"}},
        objectSelector={"matchExpressions": [{"key": "a", "operator": "Exists"}]},
    ),
    hook(
        "a selector's operator",
        "objectSelector.matchExpressions[0].values",
        objectSelector={"matchExpressions": [{"key": "a", "operator": "In"}]},
    ),
    hook("both url and service", "clientConfig", clientConfig={"url": "https://x", "service": {"name": "s", "namespace": "n"}}),
    url("host", "https://example.com", good=True),
    url("port and path", "https://10.0.0.1:8443/a/b", good=True),
    url("plain", "http://example.com"),
    url("no scheme", "example.com"),
    url("no host", "https:///a"),
    url("user", "https://me@example.com"),
    url("query", "https://example.com?a=b"),
    url("fragment", "https://example.com#a"),
    service("path", path="/a/b"),
    service("root", path="/"),
    service("no name", "name", name=""),
    service("no namespace", "namespace", namespace=""),
    service("port", "port", port=0),
    service("high port", "port", port=65536),
    service("path without a slash", "path", path="a"),
    service("empty segment", "path", path="/a//b"),
    service("strange segment", "path", path="/a/B"),
    rule("all", operations=["*"], apiGroups=["*"], apiVersions=["*"], resources=["*/*"]),
    rule("no operations", "operations", operations=[]),
    rule("another operation", "operations[0]", operations=["READ"]),
    rule("all operations and one", "operations", operations=["*", "CREATE"]),
    rule("no groups", "apiGroups", apiGroups=[]),
    rule("all groups and one", "apiGroups", apiGroups=["*", "apps"]),
    rule("no versions", "apiVersions", apiVersions=[]),
    rule("an empty version", "apiVersions[0]", apiVersions=[""]),
    rule("all versions and one", "apiVersions", apiVersions=["*", "v1"]),
    rule("scope", scope="Cluster"),
    rule("another scope", "scope", scope="Galaxy"),
    resources("none", where="resources"),
    resources("an empty one", "", where="resources[0]"),
    resources("all and a subresource", "*", "pods/status"),
    resources("all and one", "*", "pods", where="resources"),
    resources("everything and one", "*/*", "pods", where="resources"),
    resources("of one, and all its subresources", "pods", "pods/*"),
    resources("a subresource twice", "pods/*", "pods/status", where="resources[1]"),
    resources("a subresource of all twice", "*/scale", "deployments/scale", where="resources[1]"),
]
