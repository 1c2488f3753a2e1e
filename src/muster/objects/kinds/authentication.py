"""Kubernetes' `authentication.k8s.io/v1`: who is somebody? Asked, never stored. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

from muster.objects.kinds.base import Native, NativeObject, Strings, asked_resource, between
from muster.objects.resources import Resource
from muster.objects.time import Timestamp

GROUP = "authentication.k8s.io"


class UserInfo(Native):
    """A user."""

    username: Annotated[str, "Name."] = ""
    uid: Annotated[str, "Id that is never given twice."] = ""
    groups: Annotated[Strings, "Groups."] = []
    extra: Annotated[dict[str, list[str]], "What else is known."] = {}


class TokenReviewSpec(Native):
    """The token."""

    token: Annotated[str, "The token itself."]
    audiences: Annotated[Strings, "Who the asker is; the API server when empty."] = []


class TokenReviewStatus(Native):
    """Whose token it is."""

    authenticated: Annotated[bool, "Whether it is good."] = False
    user: Annotated[UserInfo | None, "Whose it is."] = None
    audiences: Annotated[Strings, "For whom it is good, of those asked."] = []
    error: Annotated[str, "Why it could not be checked."] = ""


class TokenReview(NativeObject, kw_only=True):
    """Whose token is this?"""

    spec: Annotated[TokenReviewSpec, "The token."]
    status: Annotated[TokenReviewStatus | None, "Whose it is."] = None


class BoundObjectReference(Native):
    """The object that a token lives and dies with."""

    kind: Annotated[str, "Pod, Secret or Node."] = ""
    api_version: Annotated[str, "Its group and version."] = ""
    name: Annotated[str, "Its name."] = ""
    uid: Annotated[str, "Its UID."] = ""


class TokenRequestSpec(Native):
    """What token is wanted."""

    audiences: Annotated[Strings, "Who it is for; the API server when empty."] = []
    expiration_seconds: Annotated[int | None, between(600, 2**32, "int64"), "How long it shall be good."] = 3600
    bound_object_ref: Annotated[BoundObjectReference | None, "The object that it lives and dies with."] = None
    attestations: Annotated[dict[str, list[str]], "Claims to be put into it."] = {}


class TokenRequestStatus(Native):
    """The token."""

    token: Annotated[str, "The token itself."] = ""
    expiration_timestamp: Annotated[Timestamp, "Until when it is good."] = ""


class TokenRequest(NativeObject):
    """Asks for a token: what is posted to a service account's `token` subresource."""

    spec: Annotated[TokenRequestSpec | None, "What token is wanted."] = None
    status: Annotated[TokenRequestStatus | None, "The token."] = None


class SelfSubjectReviewStatus(Native):
    """Who is asking."""

    user_info: Annotated[UserInfo | None, "The user."] = None


class SelfSubjectReview(NativeObject):
    """Who am I?"""

    status: Annotated[SelfSubjectReviewStatus | None, "The answer."] = None


RESOURCES: tuple[Resource, ...] = (asked_resource(TokenReview, group=GROUP), asked_resource(SelfSubjectReview, group=GROUP))
