"""Structural schemas at work: fill in defaults, drop what is unknown, and say everything that is wrong with an object.

`Structural(schema)` compiles a `$ref`-free OpenAPI v3 schema once into closures. An object that fits costs one call for each
of its containers and constrained values, without building a path; paths are put together only on the way out of an error.
A Pod of 4.5 KB takes about three times as long to validate as to decode from JSON (50 against 16 microseconds where measured).

Pure. Inputs are never changed; results share unchanged parts with them, so treat both as read-only.

Semantics are Kubernetes': at the root, and where `x-kubernetes-embedded-resource` stands, apiVersion, kind and metadata are
known whatever the schema says of them; of what is embedded they are checked too (`rules.metadata`). Whether a schema is fit to
be used at all is for `validate_definition` to say; here a keyword that makes no sense is taken as absent.
"""

from __future__ import annotations

import functools
from typing import Any

from muster.objects.meta import ObjectMeta
from muster.objects.schema import EMBEDDED, NATIVE, NULL_IS_ABSENT, PRESERVE, schema_of
from muster.objects.status import Cause, Raw
from muster.objects.structural_check import Check, Rules, check_of
from muster.objects.structural_definition import CAUSES_MAX, definition_causes, definition_warnings
from muster.objects.structural_shape import Budget, Fill, Trim, fill_of, trim_of, with_items

_OF_THE_WHOLE = frozenset({"required", "minProperties", "maxProperties", "enum", "allOf", "anyOf", "oneOf", "not"})

DUPLICATES_ALLOWED = "x-muster-duplicates-allowed"
"""On a root schema: Kubernetes' own kinds tolerate equal keys in most of their keyed lists; `validation` knows where not."""


class Structural:
    """One schema; each of its three uses is compiled when it is first needed."""

    def __init__(self, schema: Raw) -> None:
        self.given = schema
        self.schema = _spelt_out(schema, is_object=True)
        self._rules = Rules(
            null_is_absent=schema.get(NULL_IS_ABSENT) is True,
            unique_lists=schema.get(DUPLICATES_ALLOWED) is not True,
            is_native=schema.get(NATIVE) is True,
        )

    @functools.cached_property
    def _check(self) -> Check:
        return check_of(self.schema, self._rules)

    @functools.cached_property
    def _is_by_member(self) -> bool:
        """Whether an object fits as soon as each of its members does."""
        return self.schema.keys().isdisjoint(_OF_THE_WHOLE)

    @functools.cached_property
    def _fill(self) -> Fill | None:
        return fill_of(self.schema, self._rules)

    @functools.cached_property
    def _trim(self) -> Trim | None:
        return trim_of(self.schema)

    def default(self, raw: Raw, settled: Raw | None = None) -> Raw:
        """`raw` with the schema's defaults where it is silent; nulls that stand for "absent" are gone.

        `settled` has its defaults already: what `raw` took over from it, the very same parts, is not looked at again.
        RequestEntityTooLarge when the defaults are many times what an object may be.
        """
        filled = self._fill(raw, Budget(), settled) if self._fill else raw
        return filled if isinstance(filled, dict) else raw

    def with_items(self, raw: Raw) -> Raw:
        """`raw` with an empty item for each null in a list, which is what one means in a kind of Kubernetes' own."""
        filled = with_items(self.schema, raw) if self._rules.is_native else raw
        return filled if isinstance(filled, dict) else raw

    def prune(self, raw: Raw) -> tuple[Raw, list[str]]:
        """`raw` without the fields that the schema does not know, and their paths, at most `UNKNOWN_MAX` of them."""
        unknown: list[str] = []
        trimmed = self._trim(raw, unknown) if self._trim else raw
        return trimmed, [path.removeprefix(".") for path in unknown]

    def validate(self, raw: Raw, known: Raw | None = None) -> list[Cause]:
        """Everything that is wrong with `raw`, up to `CAUSES_MAX` causes; empty when it fits.

        `known` is an object that fits: members of `raw` that are the very members of it are not looked at again.
        """
        if known is not None and self._is_by_member:
            raw = {name: member for name, member in raw.items() if member is not known.get(name)}
        problems = self._check(raw)
        if not problems:
            return []
        return [
            Cause(field=path.removeprefix("."), message=message, reason=reason)
            for path, reason, message in problems[:CAUSES_MAX]
        ]

    @staticmethod
    def validate_definition(schema: Any, field: str = "openAPIV3Schema") -> list[Cause]:
        """Why `schema` can't be the schema of a CRD; empty when it can. `field` is where it stands in the user's object."""
        return definition_causes(schema, field)[:CAUSES_MAX]

    @staticmethod
    def definition_warnings(schema: Any, field: str = "openAPIV3Schema") -> list[str]:
        """What of a valid schema is accepted and stored but not enforced here, one sentence each."""
        return definition_warnings(schema, field)


def _spelt_out(schema: Raw, *, is_object: bool) -> Raw:
    """`schema` with apiVersion, kind and metadata described at the root and in every embedded resource.

    What needs no change is not copied: Kubernetes' own kinds share the schemas of their parts.
    """
    result = schema
    properties = schema.get("properties")
    if isinstance(properties, dict):
        changed = {
            name: new
            for name, inner in properties.items()
            if isinstance(inner, dict) and (new := _spelt_out(inner, is_object=False)) is not inner
        }
        if changed:
            result = {**result, "properties": {**properties, **changed}}
    for word in ("items", "additionalProperties"):
        inner = schema.get(word)
        if isinstance(inner, dict) and (new := _spelt_out(inner, is_object=False)) is not inner:
            result = {**result, word: new}
    if is_object or schema.get(EMBEDDED) is True:
        known = dict(result.get("properties") or {})
        metadata = known.get("metadata")
        if not (isinstance(metadata, dict) and "ownerReferences" in metadata.get("properties", {})):
            known["metadata"] = _metadata(metadata if isinstance(metadata, dict) else {})
        result = {**result, "properties": {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, **known}}
    return result


def _metadata(restriction: Raw) -> Raw:
    """ObjectMeta's schema; a CRD may restrict the name in it and nothing else."""
    schema = schema_of(ObjectMeta)
    names = {
        name: {**schema["properties"][name], **rule}
        for name, rule in (restriction.get("properties") or {}).items()
        if name in {"name", "generateName"} and isinstance(rule, dict)
    }
    return {**schema, "properties": {**schema["properties"], **names}, DUPLICATES_ALLOWED: True}


__all__ = ["CAUSES_MAX", "DUPLICATES_ALLOWED", "NULL_IS_ABSENT", "PRESERVE", "Structural"]
