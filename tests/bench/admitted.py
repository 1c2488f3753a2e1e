"""What Muster's own server would say about a manifest."""

from __future__ import annotations

import functools

from muster.bench.filling import resource_of
from muster.objects.kinds.defaults import apply_defaults
from muster.objects.resources import Resource
from muster.objects.schema import schema_of
from muster.objects.status import Raw
from muster.objects.structural import Structural
from muster.objects.validation import validate_object


@functools.cache
def _structural(resource: Resource) -> Structural:
    assert resource.view is not None
    return Structural(schema_of(resource.view))


def objections(raw: Raw) -> list[str]:
    """Unknown fields, breaches of the schema and of the rules: the way a server takes a new object, defaults first."""
    resource = resource_of(raw)
    schema = _structural(resource)
    _, unknown = schema.prune(raw)
    full = apply_defaults(resource, schema.default(raw), None)
    causes = schema.validate(full) or validate_object(resource, full, None)
    return [f"unknown field {path}" for path in unknown] + [f"{cause.field}: {cause.message}" for cause in causes]
