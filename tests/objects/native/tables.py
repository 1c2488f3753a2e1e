"""All tables of objects in one place."""

from __future__ import annotations

from tests.objects.native.amounts import WRITTEN_OTHERWISE
from tests.objects.native.changes import CHANGES
from tests.objects.native.core import CORE
from tests.objects.native.defaulted import DEFAULTED
from tests.objects.native.groups import GROUPS
from tests.objects.native.metadata import METADATA
from tests.objects.native.networks import NETWORKS
from tests.objects.native.pods import PODS
from tests.objects.native.unset import EMPTY, POINTERS
from tests.objects.native.webhooks import WEBHOOKS

CASES = [*METADATA, *PODS, *CORE, *GROUPS, *NETWORKS, *WEBHOOKS]

__all__ = ["CASES", "CHANGES", "DEFAULTED", "EMPTY", "POINTERS", "WRITTEN_OTHERWISE"]
