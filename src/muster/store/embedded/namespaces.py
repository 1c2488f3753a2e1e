"""What a namespace has of its own: a phase, the finalizer that its content stands for, and conditions that say what keeps it.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from muster.objects.conditions import set_condition
from muster.objects.status import Raw
from muster.store.embedded.context import WriteContext
from muster.store.embedded.records import Record

NAMESPACES_ID = "namespaces"
FINALIZER_CONTENT = "kubernetes"
LABEL_NAME = "kubernetes.io/metadata.name"


def prepare_namespace(raw: Raw, old: Raw | None, _: WriteContext) -> Raw:
    """A new namespace is active and holds content; a replaced one keeps both, which no client writes here."""
    result = {**raw, "metadata": dict(raw["metadata"])}
    if old is None:
        finalizers = [f for f in (raw.get("spec") or {}).get("finalizers") or [] if f != FINALIZER_CONTENT]
        result["spec"] = {**(raw.get("spec") or {}), "finalizers": [*finalizers, FINALIZER_CONTENT]}
        result["status"] = {"phase": "Active"}
    else:
        result["spec"] = old.get("spec") or {}
    labels = {**(result["metadata"].get("labels") or {}), LABEL_NAME: result["metadata"]["name"]}
    result["metadata"]["labels"] = labels
    return result


def without_content_finalizer(raw: Raw) -> Raw | None:
    """The namespace is empty: it may go, unless somebody else's finalizer keeps it."""
    spec = raw.get("spec") or {}
    finalizers = spec.get("finalizers") or []
    if FINALIZER_CONTENT not in finalizers:
        return None
    raw["spec"] = {**spec, "finalizers": [f for f in finalizers if f != FINALIZER_CONTENT]}
    return raw


def with_content_conditions(raw: Raw, remaining: Mapping[str, Sequence[Record]], now: float) -> Raw | None:
    """Say what is still there, so that whoever waits for the namespace sees why."""
    counts = ", ".join(f"{kind} has {len(left)} resource instances" for kind, left in sorted(remaining.items()))
    holders = Counter(finalizer for left in remaining.values() for record in left for finalizer in record.finalizers)
    held = ", ".join(f"{finalizer} in {count} resource instances" for finalizer, count in sorted(holders.items()))
    status = raw.get("status") or {}
    conditions = set_condition(
        status.get("conditions"),
        type_="NamespaceContentRemaining",
        status="True",
        reason="SomeResourcesRemain",
        message=f"Some resources are remaining: {counts}",
        now=now,
    )
    conditions = set_condition(
        conditions,
        type_="NamespaceFinalizersRemaining",
        status="True" if held else "False",
        reason="SomeFinalizersRemain" if held else "ContentHasNoFinalizers",
        message=f"Some content in the namespace has finalizers remaining: {held}" if held else "No content has finalizers",
        now=now,
    )
    if conditions == status.get("conditions"):
        return None
    raw["status"] = {**status, "conditions": conditions}
    return raw
