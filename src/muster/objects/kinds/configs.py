"""Configuration, secrets, namespaces and service accounts. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

from muster.objects.kinds.base import Native, NativeObject, Strings, Texts, keyed_merge, one_of
from muster.objects.kinds.references import LocalObjectReference, ObjectReference, StatusCondition
from muster.objects.view import ATOMIC, Bytes


class ConfigMap(NativeObject):
    """Settings for pods to read; at most 1 MiB."""

    data: Annotated[Texts, "Key to text."] = {}
    binary_data: Annotated[dict[str, Bytes], "Key to anything, in base64."] = {}
    immutable: Annotated[bool | None, "Once true, neither data nor this can be changed."] = None


class Secret(NativeObject):
    """Small things that are to be kept from others: tokens, keys, passwords; at most 1 MiB."""

    type: Annotated[str, "What is in it, such as Opaque or kubernetes.io/tls. Can't be changed."] = "Opaque"
    data: Annotated[dict[str, Bytes], "Key to value in base64."] = {}
    string_data: Annotated[Texts, "Key to value as plain text: goes into `data` when written, and is never read back."] = {}
    immutable: Annotated[bool | None, "Once true, neither data nor this can be changed."] = None


class NamespaceSpec(Native):
    """What keeps a namespace."""

    finalizers: Annotated[Strings, "Who must have cleaned up before it goes."] = []


class NamespaceStatus(Native):
    """How a namespace is."""

    phase: Annotated[str, one_of("", "Active", "Terminating"), "Terminating takes no new objects."] = ""
    conditions: Annotated[list[StatusCondition], keyed_merge("type"), "What its deletion waits for."] = []


class Namespace(NativeObject):
    """A part of the cluster with its own names, quotas and rights."""

    spec: Annotated[NamespaceSpec | None, "What keeps it."] = None
    status: Annotated[NamespaceStatus | None, "How it is."] = None


class ServiceAccount(NativeObject):
    """Who a pod is when it talks to the API."""

    secrets: Annotated[list[ObjectReference], keyed_merge("name"), "Secrets that its pods may mount."] = []
    image_pull_secrets: Annotated[list[LocalObjectReference], ATOMIC, "Secrets for fetching its pods' images."] = []
    automount_service_account_token: Annotated[bool | None, "Whether its pods get a token; a pod may say otherwise."] = None
