"""Which webhooks are asked about which writes: the webhook configurations, read once and looked up many times.

`Configurations` is fed every Mutating- and ValidatingWebhookConfiguration as it changes (`memory.py`). What follows from the
rules alone (operation, group, version, resource, subresource, scope) is worked out once for each kind of write and remembered,
so a write that no rule names costs one look into a dict. Selectors depend on the object and are asked each time.

Pure, but for that memory; on the event loop. The order is Kubernetes': by the configuration's name, then as they are listed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from muster.objects.meta import labels_of, name_of
from muster.objects.resources import Resource
from muster.objects.rules.report import number, obj, objs, text, texts
from muster.objects.selectors import EVERYTHING, LabelQuery, LabelSelector, from_label_selector
from muster.objects.status import NotFound, Raw
from muster.objects.view import view_of
from muster.store.embedded.admission import AdmissionOperation, AdmissionRequest

GROUP: Final = "admissionregistration.k8s.io"
MUTATING: Final = "MutatingWebhookConfiguration"
VALIDATING: Final = "ValidatingWebhookConfiguration"
KINDS: Final = (MUTATING, VALIDATING)
TIMEOUT_DEFAULT_S: Final = 10
TIMEOUT_MAX_S: Final = 30
REVIEW_VERSIONS: Final = ("v1", "v1beta1")
_REMEMBERED_MAX: Final = 8192
"""Kinds of write whose webhooks are remembered: operations times served resources times subresources, and far from it."""

NamespaceLabels = Callable[[str], Mapping[str, str] | None]
"""Labels of a namespace; None when there is none of that name."""


class Service(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    path: str
    port: int


class Rule(msgspec.Struct, frozen=True):
    """A row of `rules`; "*" stands for all."""

    operations: tuple[str, ...]
    groups: tuple[str, ...]
    versions: tuple[str, ...]
    resources: tuple[tuple[str, str], ...]
    """(resource, subresource)"""
    scope: str = "*"

    def matches(self, operation: str, resource: Resource, subresource: str) -> bool:
        is_namespaced = "Namespaced" if resource.namespaced else "Cluster"
        return (
            self.scope in ("*", is_namespaced)
            and _names(self.operations, operation)
            and _names(self.groups, resource.group)
            and _names(self.versions, resource.version)
            and any(plural in ("*", resource.plural) and sub in ("*", subresource) for plural, sub in self.resources)
        )


class CallFailed(Exception):
    """A webhook gave no answer. The text says why; what follows is up to its failurePolicy."""


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """One webhook of one configuration."""

    name: str
    configuration: str
    index: int
    is_mutating: bool
    url: str = ""
    service: Service | None = None
    ca_bundle: str = ""
    """PEM in base64; "" for the system's roots."""
    rules: tuple[Rule, ...] = ()
    is_equivalent: bool = True
    namespace_query: LabelQuery = EVERYTHING
    object_query: LabelQuery = EVERYTHING
    is_fail_closed: bool = True
    timeout_s: float = TIMEOUT_DEFAULT_S
    side_effects: str = ""
    review_version: str = "v1"
    is_reinvoked: bool = False
    problem: str = ""
    """Why it can't be asked at all. Only in what was stored before such things were refused."""

    @property
    def key(self) -> tuple[bool, str, int]:
        return (self.is_mutating, self.configuration, self.index)


class Match(NamedTuple):
    """`resource` is the version that the webhook has asked for: that of the request, or an equivalent one."""

    hook: Hook
    resource: Resource


def read_configuration(kind: str, raw: Raw) -> list[Hook]:
    """The webhooks of a configuration. Takes anything: what makes no sense becomes a hook with a problem."""
    return [
        _hook(kind == MUTATING, name_of(raw), index, webhook) for index, (_, webhook) in enumerate(objs(raw, "webhooks", ""))
    ]


def _hook(is_mutating: bool, configuration: str, index: int, raw: Raw) -> Hook:
    client, problem = obj(raw, "clientConfig"), ""
    queries = []
    for word in ("namespaceSelector", "objectSelector"):
        try:
            queries.append(from_label_selector(view_of(LabelSelector, obj(raw, word))))
        except (ValueError, msgspec.ValidationError) as error:
            queries.append(EVERYTHING)
            problem = f"{word}: {error}"
    if raw.get("matchConditions"):
        problem = "matchConditions can't be evaluated by this server"
    versions = [version for version in texts(raw, "admissionReviewVersions") if version in REVIEW_VERSIONS]
    if not versions:
        problem = "webhook does not accept known AdmissionReview versions (v1, v1beta1)"
    service = obj(client, "service")
    return Hook(
        name=text(raw, "name"),
        configuration=configuration,
        index=index,
        is_mutating=is_mutating,
        url=text(client, "url"),
        service=_service(service) if service else None,
        ca_bundle=text(client, "caBundle"),
        rules=tuple(_rule(rule) for _, rule in objs(raw, "rules", "")),
        is_equivalent=raw.get("matchPolicy") != "Exact",
        namespace_query=queries[0],
        object_query=queries[1],
        is_fail_closed=raw.get("failurePolicy") != "Ignore",
        timeout_s=min(max(number(raw, "timeoutSeconds", TIMEOUT_DEFAULT_S), 1), TIMEOUT_MAX_S),
        side_effects=text(raw, "sideEffects"),
        review_version=versions[0] if versions else "v1",
        is_reinvoked=raw.get("reinvocationPolicy") == "IfNeeded",
        problem=problem,
    )


def _service(raw: Raw) -> Service:
    return Service(text(raw, "namespace"), text(raw, "name"), text(raw, "path"), number(raw, "port", 443))


def _rule(raw: Raw) -> Rule:
    resources = tuple((plural, sub) for plural, _, sub in (one.partition("/") for one in texts(raw, "resources")))
    operations, groups, versions = (tuple(texts(raw, word)) for word in ("operations", "apiGroups", "apiVersions"))
    return Rule(operations, groups, versions, resources, text(raw, "scope") or "*")


def _names(names: Sequence[str], one: str) -> bool:
    return "*" in names or one in names


Equivalents = Callable[[Resource], Sequence[Resource]]
"""The versions in which a kind is served, those of another group included."""


def match_rules(hook: Hook, operation: str, resource: Resource, subresource: str, equivalents: Equivalents) -> Match | None:
    """Whether any rule names this kind of write; one for the version of the request goes before one for another."""
    if any(rule.matches(operation, resource, subresource) for rule in hook.rules):
        return Match(hook, resource)
    if hook.is_equivalent:
        for rule, other in itertools.product(hook.rules, equivalents(resource)):
            if other.api_version != resource.api_version and rule.matches(operation, other, subresource):
                return Match(hook, other)
    return None


class Configurations:
    """Every webhook there is, by what it is asked about."""

    def __init__(self, equivalents: Equivalents) -> None:
        self._equivalents = equivalents
        self._hooks: dict[tuple[str, str], list[Hook]] = {}
        self._ordered: dict[bool, list[Hook]] = {True: [], False: []}
        self._matching: dict[tuple[bool, str, str, str, str, str], tuple[Match, ...]] = {}

    def apply(self, kind: str, raw: Raw, *, deleted: bool = False) -> None:
        key = (kind, name_of(raw))
        self._hooks.pop(key, None)
        if not deleted:
            self._hooks[key] = read_configuration(kind, raw)
        is_mutating = kind == MUTATING
        names = sorted(name for of, name in self._hooks if of == kind)
        self._ordered[is_mutating] = [hook for name in names for hook in self._hooks[kind, name]]
        self.forget()

    def forget(self) -> None:
        """What is served has changed."""
        self._matching.clear()

    def matching(
        self, is_mutating: bool, operation: AdmissionOperation, resource: Resource, subresource: str
    ) -> tuple[Match, ...]:
        """The webhooks that have a rule for such a write, in order. What says who is asked is never asked about itself."""
        hooks = self._ordered[is_mutating]
        if not hooks or resource.group == GROUP:
            return ()
        key = (is_mutating, operation, resource.group, resource.version, resource.plural, subresource)
        found = self._matching.get(key)
        if found is None:
            if len(self._matching) >= _REMEMBERED_MAX:
                self._matching.clear()
            matches = (match_rules(hook, operation, resource, subresource, self._equivalents) for hook in hooks)
            found = self._matching[key] = tuple(match for match in matches if match is not None)
        return found


def namespace_of_request(request: AdmissionRequest) -> str:
    """The namespace that a webhook is told: a Namespace is in itself."""
    return request.name if _is_namespace(request.resource) else request.namespace


def is_selected(hook: Hook, request: AdmissionRequest, namespace_labels: NamespaceLabels) -> bool:
    """Whether both selectors let the webhook be asked. NotFound when the namespace is gone that would tell."""
    if not hook.object_query.is_everything and not any(
        raw is not None and hook.object_query.matches(labels_of(raw)) for raw in (request.object, request.old)
    ):
        return False
    if hook.namespace_query.is_everything:
        return True
    namespace = namespace_of_request(request)
    if not namespace:
        return True  # what is in no namespace is exempt from nothing
    labels: Mapping[str, str] | None
    if _is_namespace(request.resource) and not request.subresource and request.object is not None:
        labels = labels_of(request.object)
    else:
        labels = namespace_labels(namespace)
    if labels is None:
        raise NotFound(f'namespaces "{namespace}" not found', kind="namespaces", name=namespace)
    return hook.namespace_query.matches(labels)


def _is_namespace(resource: Resource) -> bool:
    return resource.group == "" and resource.plural == "namespaces"
