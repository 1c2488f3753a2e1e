"""Kubernetes' `authorization.k8s.io/v1`: may somebody do something? Asked, never stored. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

from muster.objects.kinds.base import Native, NativeObject, Strings, asked_resource
from muster.objects.resources import Resource
from muster.objects.selectors import LabelSelectorRequirement
from muster.objects.view import ATOMIC

GROUP = "authorization.k8s.io"


class FieldSelectorRequirement(Native):
    """One condition on a field."""

    key: Annotated[str, "The field."]
    operator: Annotated[str, "In, NotIn, Exists or DoesNotExist."]
    values: Annotated[Strings, "What to compare with."] = []


class FieldSelectorAttributes(Native):
    """The field selector of a list that is asked about."""

    raw_selector: Annotated[str, "As text."] = ""
    requirements: Annotated[list[FieldSelectorRequirement], ATOMIC, "Taken apart."] = []


class LabelSelectorAttributes(Native):
    """The label selector of a list that is asked about."""

    raw_selector: Annotated[str, "As text."] = ""
    requirements: Annotated[list[LabelSelectorRequirement], ATOMIC, "Taken apart."] = []


class ResourceAttributes(Native):
    """A request for a resource."""

    namespace: Annotated[str, "Its namespace; empty for cluster-wide, or for all of them."] = ""
    verb: Annotated[str, "get, list, create, ...; `*` for all."] = ""
    group: Annotated[str, "API group; `*` for all."] = ""
    version: Annotated[str, "API version; `*` for all."] = ""
    resource: Annotated[str, "Resource; `*` for all."] = ""
    subresource: Annotated[str, "Subresource."] = ""
    name: Annotated[str, "Name of one object; empty for all."] = ""
    field_selector: Annotated[FieldSelectorAttributes | None, "Only objects with these fields."] = None
    label_selector: Annotated[LabelSelectorAttributes | None, "Only objects with these labels."] = None


class NonResourceAttributes(Native):
    """A request for a URL that is no resource."""

    path: Annotated[str, "The URL's path."] = ""
    verb: Annotated[str, "get, post, ..."] = ""


class SelfSubjectAccessReviewSpec(Native):
    """The request; one of the two is set."""

    resource_attributes: Annotated[ResourceAttributes | None, "For a resource."] = None
    non_resource_attributes: Annotated[NonResourceAttributes | None, "For another URL."] = None


class SubjectAccessReviewSpec(Native):
    """Who asks for what."""

    resource_attributes: Annotated[ResourceAttributes | None, "For a resource."] = None
    non_resource_attributes: Annotated[NonResourceAttributes | None, "For another URL."] = None
    user: Annotated[str, "The user."] = ""
    groups: Annotated[Strings, "The user's groups."] = []
    uid: Annotated[str, "The user's id."] = ""
    extra: Annotated[dict[str, list[str]], "What else is known about the user."] = {}


class SubjectAccessReviewStatus(Native):
    """The answer."""

    allowed: Annotated[bool, "Yes."]
    denied: Annotated[bool, "No, whatever anybody else says."] = False
    reason: Annotated[str, "Why."] = ""
    evaluation_error: Annotated[str, "What could not be looked at; the answer may still be right."] = ""


class SelfSubjectAccessReview(NativeObject, kw_only=True):
    """May I?"""

    spec: Annotated[SelfSubjectAccessReviewSpec, "The request."]
    status: Annotated[SubjectAccessReviewStatus | None, "The answer."] = None


class SubjectAccessReview(NativeObject, kw_only=True):
    """May this user?"""

    spec: Annotated[SubjectAccessReviewSpec, "Who asks for what."]
    status: Annotated[SubjectAccessReviewStatus | None, "The answer."] = None


class LocalSubjectAccessReview(NativeObject, kw_only=True):
    """May this user, in this namespace?"""

    spec: Annotated[SubjectAccessReviewSpec, "Who asks for what; its namespace must be this one."]
    status: Annotated[SubjectAccessReviewStatus | None, "The answer."] = None


class SelfSubjectRulesReviewSpec(Native):
    """Where."""

    namespace: Annotated[str, "The namespace."] = ""


class ResourceRule(Native):
    """Verbs on resources."""

    verbs: Annotated[Strings, "What may be done."]
    api_groups: Annotated[Strings, "In these groups."] = []
    resources: Annotated[Strings, "To these resources."] = []
    resource_names: Annotated[Strings, "Only to objects with these names."] = []


class NonResourceRule(Native):
    """Verbs on URLs that are no resources."""

    verbs: Annotated[Strings, "What may be done."]
    non_resource_urls: Annotated[Strings, "To these URLs."] = []


class SubjectRulesReviewStatus(Native):
    """All that is allowed."""

    resource_rules: Annotated[list[ResourceRule], ATOMIC, "On resources."]
    non_resource_rules: Annotated[list[NonResourceRule], ATOMIC, "On other URLs."]
    incomplete: Annotated[bool, "There may be more."]
    evaluation_error: Annotated[str, "What could not be looked at."] = ""


class SelfSubjectRulesReview(NativeObject, kw_only=True):
    """What may I do in a namespace?"""

    spec: Annotated[SelfSubjectRulesReviewSpec, "Where."]
    status: Annotated[SubjectRulesReviewStatus | None, "The answer."] = None


RESOURCES: tuple[Resource, ...] = (
    asked_resource(SelfSubjectAccessReview, group=GROUP),
    asked_resource(SelfSubjectRulesReview, group=GROUP),
    asked_resource(SubjectAccessReview, group=GROUP),
    asked_resource(LocalSubjectAccessReview, group=GROUP, namespaced=True),
)
