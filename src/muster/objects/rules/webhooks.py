"""Rules for webhook configurations, as Kubernetes has them, and one of our own: no match conditions. Pure.

A match condition is an expression in CEL, which nothing here can evaluate. A webhook that is asked about more or less than it
says would be worse than one that is refused, so such a configuration is not taken.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from muster.objects.names import validate_dns1035_label, validate_subdomain
from muster.objects.rules.report import Report, check_selector, number, obj, objs, text, texts, unique
from muster.objects.status import Raw

_OPERATIONS: Final = ("*", "CREATE", "UPDATE", "DELETE", "CONNECT")
_REVIEW_VERSIONS: Final = ("v1", "v1beta1")
_FORM: Final = "; desired format: https://host[/path]"
_PORT_MAX: Final = 65535


def check_webhooks(report: Report, raw: Raw, old: Raw | None) -> None:
    webhooks = list(objs(raw, "webhooks", ""))
    unique(report, webhooks)
    for where, webhook in webhooks:
        _check_name(report, text(webhook, "name"), f"{where}.name")
        for path, rule in objs(webhook, "rules", where):
            _check_rule(report, rule, path)
        for word in ("namespaceSelector", "objectSelector"):
            check_selector(report, obj(webhook, word), f"{where}.{word}")
        _check_client(report, obj(webhook, "clientConfig"), f"{where}.clientConfig")
        _check_review_versions(report, texts(webhook, "admissionReviewVersions"), f"{where}.admissionReviewVersions")
        if webhook.get("matchConditions"):
            report.forbidden(
                f"{where}.matchConditions",
                "this server does not evaluate CEL; narrow the webhook down with rules, namespaceSelector and objectSelector, "
                "or let the webhook itself allow what it has no opinion on",
            )


def _check_name(report: Report, name: str, path: str) -> None:
    if not name:
        report.required(path)
        return
    report.names(path, name, validate_subdomain(name))
    if name.count(".") < 2:
        report.invalid(path, name, "should be a domain with at least three segments separated by dots")


def _check_rule(report: Report, rule: Raw, path: str) -> None:
    words = (("operations", "operations"), ("apiGroups", "API groups"), ("apiVersions", "API versions"))
    for word, shown in words:
        values = texts(rule, word)
        if not values:
            report.required(f"{path}.{word}")
        elif "*" in values and len(values) > 1:
            report.invalid(f"{path}.{word}", values, f"if '*' is present, must not specify other {shown}")
    for index, operation in enumerate(texts(rule, "operations")):
        if operation not in _OPERATIONS:
            report.unsupported(f"{path}.operations[{index}]", operation, _OPERATIONS)
    for index, version in enumerate(texts(rule, "apiVersions")):
        if not version:
            report.required(f"{path}.apiVersions[{index}]")
    _check_resources(report, texts(rule, "resources"), f"{path}.resources")


def _check_resources(report: Report, resources: list[str], path: str) -> None:
    if not resources:
        report.required(path)
    whole: set[str] = set()
    """Resources with `/*`, so far."""
    everywhere: set[str] = set()
    """Subresources with `*/`, so far."""
    for index, resource in enumerate(resources):
        if not resource:
            report.required(f"{path}[{index}]")
            continue
        plural, slash, sub = resource.partition("/")
        if not slash:
            continue
        if plural in whole:
            report.invalid(f"{path}[{index}]", resource, f"if '{plural}/*' is present, must not specify {resource}")
        if sub in everywhere:
            report.invalid(f"{path}[{index}]", resource, f"if '*/{sub}' is present, must not specify {resource}")
        if sub == "*":
            whole.add(plural)
        if plural == "*":
            everywhere.add(sub)
    if "*/*" in resources and len(resources) > 1:
        report.invalid(path, resources, "if '*/*' is present, must not specify other resources")
    if "*" in resources and any("/" not in resource for resource in resources if resource != "*"):
        report.invalid(path, resources, "if '*' is present, must not specify other resources without subresources")


def _check_review_versions(report: Report, versions: list[str], path: str) -> None:
    known = ", ".join(_REVIEW_VERSIONS)
    if not versions:
        report.required(path, f"must specify one of {known}")
        return
    for index, version in enumerate(versions):
        if version in versions[:index]:
            report.invalid(f"{path}[{index}]", version, "duplicate version")
        else:
            report.names(f"{path}[{index}]", version, validate_dns1035_label(version))
    if not set(_REVIEW_VERSIONS) & set(versions):
        report.invalid(path, versions, f"must include at least one of {known}")


def _check_client(report: Report, client: Raw, path: str) -> None:
    url, service = client.get("url"), client.get("service")
    if (url is None) == (service is None):
        report.required(path, "exactly one of url or service is required")
    elif isinstance(url, str):
        _check_url(report, url, f"{path}.url")
    elif isinstance(service, dict):
        _check_service(report, service, f"{path}.service")


def _check_url(report: Report, url: str, path: str) -> None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        report.required(path, f"url must be a valid URL: {error}{_FORM}")
        return
    if not url.isascii() or not url.isprintable() or " " in url or port == 0:
        report.invalid(path, url, f"url must be a valid URL{_FORM}")
    if parts.scheme != "https":
        report.invalid(path, parts.scheme, f"'https' is the only allowed URL scheme{_FORM}")
    if not host:
        report.invalid(path, parts.netloc, f"host must be specified{_FORM}")
    if "@" in parts.netloc:
        report.invalid(path, parts.username or "", "user information is not permitted in the URL")
    if "#" in url:
        report.invalid(path, parts.fragment, "fragments are not permitted in the URL")
    if "?" in url:
        report.invalid(path, parts.query, "query parameters are not permitted in the URL")


def _check_service(report: Report, service: Raw, path: str) -> None:
    for word in ("name", "namespace"):
        if not text(service, word):
            report.required(f"{path}.{word}", f"service {word} is required")
    port = number(service, "port", 443)
    if not 1 <= port <= _PORT_MAX:
        report.invalid(f"{path}.port", port, f"port is not valid: must be between 1 and {_PORT_MAX}, inclusive")
    where = text(service, "path")
    if where in ("", "/"):
        return
    if not where.startswith("/"):
        report.invalid(f"{path}.path", where, "must start with a '/'")
        return
    for index, step in enumerate(where[1:].removesuffix("/").split("/")):
        if not step:
            report.invalid(f"{path}.path", where, f"segment[{index}] may not be empty")
            continue
        for problem in validate_subdomain(step):
            report.invalid(f"{path}.path", where, f"segment[{index}]: {problem}")
