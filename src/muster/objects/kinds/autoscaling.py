"""Kubernetes' `autoscaling/v1`: the `scale` subresource. Pure."""

from __future__ import annotations

from typing import Annotated

from muster.objects.kinds.base import Count, Native, NativeObject
from muster.objects.view import Int32


class ScaleSpec(Native):
    """How many are wanted."""

    replicas: Annotated[Count, "How many."] = 0


class ScaleStatus(Native):
    """How many there are."""

    replicas: Annotated[Int32, "How many."] = 0
    selector: Annotated[str, "Their labels, as text."] = ""


class Scale(NativeObject):
    """The size of something that can grow and shrink: what its `scale` subresource reads and writes."""

    spec: Annotated[ScaleSpec | None, "How many are wanted."] = None
    status: Annotated[ScaleStatus | None, "How many there are."] = None
