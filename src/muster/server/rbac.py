"""RBAC rules as values: what one rule allows, and whether some rules cover others.

Pure. Reads stored roles tolerantly: a member of the wrong type grants nothing, so a malformed role can only ever allow less.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from muster.objects.status import Raw

BREAKDOWN_MAX = 50_000
"""Single permissions that one comparison looks at; a role that grants more must use wildcards."""
COMPARED_MAX = 1_000_000
"""Pairs of rules that one comparison looks at: about a second. Whoever may write roles may have roles of any length."""


class Attributes(msgspec.Struct, frozen=True, kw_only=True):
    """One question to the authorizer. `path` alone for what is not a resource."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    field_selector: str = ""
    label_selector: str = ""
    """Of a list or watch; only what is decided about nodes, and about people's own work, looks at them."""

    @property
    def is_resource(self) -> bool:
        return bool(self.resource)

    @property
    def resource_path(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class Rule(msgspec.Struct, frozen=True):
    """One PolicyRule."""

    verbs: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    urls: frozenset[str] = frozenset()

    def allows(self, asked: Attributes) -> bool:
        if asked.verb not in self.verbs and "*" not in self.verbs:
            return False
        if not asked.is_resource:
            return any(_url_covers(url, asked.path) for url in self.urls)
        return (
            (asked.group in self.groups or "*" in self.groups)
            and _resource_matches(self.resources, asked.resource_path, asked.subresource)
            and (not self.names or asked.name in self.names)
        )

    def covers(self, other: Rule) -> bool:
        """Whether all that `other` allows is allowed by this rule alone."""
        return (
            ("*" in self.verbs or other.verbs <= self.verbs)
            and ("*" in self.groups or other.groups <= self.groups)
            and all(_resource_matches(self.resources, r, r.partition("/")[2]) for r in other.resources)
            and all(any(_url_covers(mine, url) for mine in self.urls) for url in other.urls)
            and (not self.names or (bool(other.names) and other.names <= self.names))
        )

    def singles(self) -> Iterator[Rule]:
        """This rule as single permissions: one verb, one group, one resource, one name each."""
        names: Iterable[frozenset[str]] = [frozenset((n,)) for n in sorted(self.names)] or [frozenset()]
        for group, resource, verb, name in itertools.product(
            sorted(self.groups), sorted(self.resources), sorted(self.verbs), names
        ):
            yield Rule(frozenset((verb,)), frozenset((group,)), frozenset((resource,)), name)
        for url, verb in itertools.product(sorted(self.urls), sorted(self.verbs)):
            yield Rule(verbs=frozenset((verb,)), urls=frozenset((url,)))

    def __str__(self) -> str:
        """As Kubernetes prints a rule in its messages."""
        parts = [
            f"{label}:[{', '.join(quoted(value) for value in sorted(values))}]"
            for label, values in (
                ("APIGroups", self.groups),
                ("Resources", self.resources),
                ("ResourceNames", self.names),
                ("NonResourceURLs", self.urls),
                ("Verbs", self.verbs),
            )
            if values
        ]
        return "{" + ", ".join(parts) + "}"


def quoted(text: str) -> str:
    return f'"{text}"'


def _resource_matches(mine: frozenset[str], path: str, subresource: str) -> bool:
    return "*" in mine or path in mine or (bool(subresource) and f"*/{subresource}" in mine)


def _url_covers(mine: str, path: str) -> bool:
    return mine in ("*", path) or (mine.endswith("*") and path.startswith(mine[:-1]))


def rules_of(raw: Mapping[str, Any]) -> tuple[Rule, ...]:
    """The rules of a Role or ClusterRole object."""
    rules = raw.get("rules")
    return tuple(rule_of(rule) for rule in rules if isinstance(rule, dict)) if isinstance(rules, list) else ()


def rule_of(raw: Mapping[str, Any]) -> Rule:
    return Rule(
        verbs=_texts(raw.get("verbs")),
        groups=_texts(raw.get("apiGroups")),
        resources=_texts(raw.get("resources")),
        names=_texts(raw.get("resourceNames")),
        urls=_texts(raw.get("nonResourceURLs")),
    )


def _texts(value: Any) -> frozenset[str]:
    if not value or not isinstance(value, list):
        return _NONE
    if len(value) == 1 and type(value[0]) is str:  # most are, and a role may have very many rules
        return frozenset(value)
    return frozenset(v for v in value if isinstance(v, str))


_NONE: Final[frozenset[str]] = frozenset()


def rule_raw(rule: Rule) -> Raw:
    """The rule as its object writes it; members that do not apply are left out."""
    raw: Raw = {"verbs": sorted(rule.verbs)}
    for key, values in (
        ("apiGroups", rule.groups),
        ("resources", rule.resources),
        ("resourceNames", rule.names),
        ("nonResourceURLs", rule.urls),
    ):
        if values:
            raw[key] = sorted(values)
    return raw


def uncovered(owned: Sequence[Rule], wanted: Sequence[Rule]) -> list[Rule]:
    """The single permissions in `wanted` that no rule in `owned` covers. ValueError beyond `BREAKDOWN_MAX` of them, and beyond
    `COMPARED_MAX` pairs."""
    missing = []
    seen = compared = 0

    def is_covered(rule: Rule) -> bool:
        nonlocal compared
        at = next((at for at, mine in enumerate(owned) if mine.covers(rule)), None)
        compared += len(owned) if at is None else at + 1
        if compared > COMPARED_MAX:
            raise ValueError(
                f"the rules and those that the user has are more than {COMPARED_MAX} pairs to compare; use wildcards, or fewer "
                "and shorter roles"
            )
        return at is not None

    for rule in wanted:
        if is_covered(rule):
            continue  # the common case: one rule covers the whole of it
        for single in rule.singles():
            seen += 1
            if seen > BREAKDOWN_MAX:
                raise ValueError(f"the rules spell out more than {BREAKDOWN_MAX} single permissions; use wildcards")
            if not is_covered(single):
                missing.append(single)
    return missing
