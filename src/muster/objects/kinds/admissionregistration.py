"""Kubernetes' `admissionregistration.k8s.io/v1`: who is asked before something is written. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

from muster.objects.kinds.base import AGE, Native, NativeObject, Port, Selector, Strings, between, default, keyed_merge, one_of
from muster.objects.resources import Column, Resource
from muster.objects.view import ATOMIC, Bytes


class ServiceReference(Native):
    """A service to call."""

    namespace: Annotated[str, "Its namespace."]
    name: Annotated[str, "Its name."]
    path: Annotated[str | None, "Path of the URL."] = None
    port: Annotated[Port | None, "Its port."] = 443


class WebhookClientConfig(Native):
    """How to reach the webhook; one of `url` and `service` is set."""

    url: Annotated[str | None, "Its URL, with https."] = None
    service: Annotated[ServiceReference | None, "Its service in the cluster."] = None
    ca_bundle: Annotated[Bytes, "Certificates that vouch for it, PEM in base64; the system's when empty."] = ""


class RuleWithOperations(Native):
    """Writes that the webhook is asked about."""

    operations: Annotated[Strings, "CREATE, UPDATE, DELETE, CONNECT, or `*`."] = []
    api_groups: Annotated[Strings, "Groups; `*` for all."] = []
    api_versions: Annotated[Strings, "Versions; `*` for all."] = []
    resources: Annotated[Strings, "Resources, also `pods/status`, `pods/*`, `*/scale`; `*` for all."] = []
    scope: Annotated[str | None, one_of("Cluster", "Namespaced", "*"), "Only cluster-wide or only namespaced ones."] = "*"


class MatchCondition(Native):
    """A CEL expression that narrows down what the webhook is asked about."""

    name: Annotated[str, "Its name."]
    expression: Annotated[str, "The expression."]


class Webhook(Native):
    """Someone to ask before something is written."""

    name: Annotated[str, "Its name, a domain with at least three parts."]
    client_config: Annotated[WebhookClientConfig, "How to reach it."]
    side_effects: Annotated[str, one_of("None", "NoneOnDryRun"), "Whether asking has effects; with some, dry runs are refused."]
    admission_review_versions: Annotated[Strings, "Versions of AdmissionReview that it understands."]
    rules: Annotated[list[RuleWithOperations], ATOMIC, "What it is asked about; any rule will do."] = []
    failure_policy: Annotated[str | None, one_of("Ignore", "Fail"), "What to do when it does not answer."] = "Fail"
    match_policy: Annotated[str | None, one_of("Exact", "Equivalent"), "Whether other versions of the same resource count."] = (
        "Equivalent"
    )
    namespace_selector: Annotated[Selector | None, default({}), "Only objects in such namespaces."] = None
    object_selector: Annotated[Selector | None, default({}), "Only such objects."] = None
    timeout_seconds: Annotated[int | None, between(1, 30), "How long to wait for it."] = 10
    match_conditions: Annotated[list[MatchCondition], keyed_merge("name"), "Only when all of these hold."] = []


class MutatingWebhook(Webhook):
    """Someone who may change what is written."""

    reinvocation_policy: Annotated[
        str | None, one_of("Never", "IfNeeded"), "Whether it is asked again when others changed the object after it."
    ] = "Never"


class MutatingWebhookConfiguration(NativeObject):
    """Webhooks that may change what is written."""

    webhooks: Annotated[list[MutatingWebhook], keyed_merge("name"), "The webhooks."] = []


class ValidatingWebhookConfiguration(NativeObject):
    """Webhooks that may refuse what is written."""

    webhooks: Annotated[list[Webhook], keyed_merge("name"), "The webhooks."] = []


_COLUMNS = (Column(name="Webhooks", path=".webhooks[*].name"), AGE)

RESOURCES: tuple[Resource, ...] = (
    Resource(
        group="admissionregistration.k8s.io",
        version="v1",
        kind="MutatingWebhookConfiguration",
        plural="mutatingwebhookconfigurations",
        namespaced=False,
        categories=("api-extensions",),
        view=MutatingWebhookConfiguration,
        columns=_COLUMNS,
    ),
    Resource(
        group="admissionregistration.k8s.io",
        version="v1",
        kind="ValidatingWebhookConfiguration",
        plural="validatingwebhookconfigurations",
        namespaced=False,
        categories=("api-extensions",),
        view=ValidatingWebhookConfiguration,
        columns=_COLUMNS,
    ),
)
