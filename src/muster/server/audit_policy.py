"""Which requests the audit log tells how much about: a Kubernetes audit Policy, matched as kube-apiserver matches it.

The first rule that fits a request decides; when none does, nothing is written. Without a policy everything is written at level
Metadata, without the stage RequestReceived. The user of a rule is who authenticated, also when they impersonate somebody.

Stricter than Kubernetes in one point: bodies of Secrets and of token requests are told only by a rule that names them.

Values and pure functions, but for `load`, which reads the file. A policy is read once, at start.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from muster.server import settings_files
from muster.server.paths import RequestInfo
from muster.server.settings_files import Document, Step

API_VERSION: Final = "audit.k8s.io/v1"
RULES_MAX: Final = 1000


class Level(enum.IntEnum):
    """How much is told. Each holds what the ones before it hold."""

    NONE = 0
    METADATA = 1
    REQUEST = 2
    REQUEST_RESPONSE = 3

    @property
    def word(self) -> str:
        return _WORDS[self]


_WORDS: Final = {
    Level.NONE: "None",
    Level.METADATA: "Metadata",
    Level.REQUEST: "Request",
    Level.REQUEST_RESPONSE: "RequestResponse",
}
_LEVELS: Final = {word: level for level, word in _WORDS.items()}


class Stage(enum.StrEnum):
    """When an event is written."""

    RECEIVED = "RequestReceived"
    STARTED = "ResponseStarted"
    COMPLETE = "ResponseComplete"
    PANIC = "Panic"


class Telling(msgspec.Struct, frozen=True):
    """What is told about one request."""

    level: Level = Level.METADATA
    omit_stages: frozenset[str] = frozenset()
    omit_managed_fields: bool = False

    def tells(self, stage: Stage) -> bool:
        return self.level > Level.NONE and stage not in self.omit_stages


class Resources(msgspec.Struct, frozen=True):
    group: str = ""
    resources: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()

    def match(self, info: RequestInfo) -> bool:
        if self.group != info.group:
            return False
        if not self.resources:
            return True
        if self.names and info.name not in self.names:
            return False
        return (
            "*" in self.resources
            or info.resource_path in self.resources
            or f"{info.resource}/*" in self.resources
            or (bool(info.subresource) and f"*/{info.subresource}" in self.resources)
        )


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. What is empty fits everything."""

    telling: Telling
    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    verbs: frozenset[str] = frozenset()
    resources: tuple[Resources, ...] = ()
    namespaces: frozenset[str] = frozenset()
    urls: tuple[str, ...] = ()

    def match(self, user: str, groups: Sequence[str], info: RequestInfo) -> bool:
        if (self.users and user not in self.users) or (self.groups and self.groups.isdisjoint(groups)):
            return False
        if self.verbs and info.verb not in self.verbs:
            return False
        if self.namespaces or self.resources:
            if not info.is_resource or (self.namespaces and info.namespace not in self.namespaces):
                return False
            return not self.resources or any(resources.match(info) for resources in self.resources)
        return not self.urls or (not info.is_resource and any(_url_match(url, info.path) for url in self.urls))

    def telling_of(self, info: RequestInfo) -> Telling:
        """Bodies that hold credentials are told by rules that name their resource, never by one for everything."""
        if self.telling.level > Level.METADATA and (info.group, info.resource_path) in SECRET:
            named = {(resources.group, name) for resources in self.resources for name in resources.resources}
            if (info.group, info.resource_path) not in named:
                return msgspec.structs.replace(self.telling, level=Level.METADATA)
        return self.telling


def _url_match(mine: str, path: str) -> bool:
    return mine in ("*", path) or (mine.endswith("*") and path.startswith(mine.rstrip("*")))


SECRET: Final = frozenset({("", "secrets"), ("", "serviceaccounts/token"), ("authentication.k8s.io", "tokenreviews")})
"""Whose bodies hold credentials."""


class Policy(msgspec.Struct, frozen=True):
    rules: tuple[Rule, ...]
    otherwise: Telling = Telling(Level.NONE)

    def telling(self, user: str, groups: Sequence[str], info: RequestInfo) -> Telling:
        for rule in self.rules:
            if rule.match(user, groups, info):
                return rule.telling_of(info)
        return self.otherwise


DEFAULT: Final = Policy((), Telling(Level.METADATA, frozenset({Stage.RECEIVED})))
"""One line for each request, two for a watch; never a body."""


# --- the file


class _Resources(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    group: str = ""
    resources: list[str] = []
    resource_names: list[str] = []


class _Rule(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    level: str = ""
    users: list[str] = []
    user_groups: list[str] = msgspec.field(default_factory=list, name="userGroups")
    verbs: list[str] = []
    resources: list[_Resources] = []
    namespaces: list[str] = []
    urls: list[str] = msgspec.field(default_factory=list, name="nonResourceURLs")
    omit_stages: list[str] = msgspec.field(default_factory=list, name="omitStages")
    omit_managed_fields: bool | None = msgspec.field(default=None, name="omitManagedFields")


class _Policy(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    rules: list[_Rule] = []
    omit_stages: list[str] = []
    omit_managed_fields: bool = False


def load(path: Path) -> Policy:
    """Blocking. SettingsError names the file, the line and the field."""
    return from_text(settings_files.read(path, "--audit-policy-file"), str(path))


def from_text(text: str, source: str) -> Policy:
    told, document = settings_files.decode(text, source, _Policy, kind="Policy", api_versions=[API_VERSION])
    if not told.rules:
        document.refuse(["rules"], "at least one rule is needed; without a policy everything is told at level Metadata")
    if len(told.rules) > RULES_MAX:
        document.refuse(["rules"], f"{len(told.rules)} rules; at most {RULES_MAX} are possible")
    everywhere = _stages(told.omit_stages, document, ["omitStages"])
    rules = [_rule(rule, told, everywhere, document, ["rules", index]) for index, rule in enumerate(told.rules)]
    return Policy(tuple(rules), Telling(Level.NONE, everywhere))


def _rule(told: _Rule, policy: _Policy, everywhere: frozenset[str], document: Document, at: list[Step]) -> Rule:
    if told.level not in _LEVELS:
        document.refuse([*at, "level"], f"{told.level!r:.80} is not one of {', '.join(_LEVELS)}")
    if told.urls and (told.resources or told.namespaces):
        document.refuse([*at, "nonResourceURLs"], "a rule is about resources and namespaces, or about other paths, not both")
    for index, url in enumerate(told.urls):
        if url != "*" and (not url.startswith("/") or "*" in url[:-1]):
            document.refuse(
                [*at, "nonResourceURLs", index], f"{url!r:.200}: a path begins with /, and * stands at its end only"
            )
    for index, resources in enumerate(told.resources):
        here = [*at, "resources", index]
        if "/" in resources.group:
            document.refuse([*here, "group"], f"{resources.group!r:.80}: a group without a version, as in apps")
        if resources.resource_names and not resources.resources:
            document.refuse([*here, "resourceNames"], "names need the resources that they are of")
    keep = told.omit_managed_fields if told.omit_managed_fields is not None else policy.omit_managed_fields
    stages = everywhere | _stages(told.omit_stages, document, [*at, "omitStages"])
    return Rule(
        telling=Telling(_LEVELS[told.level], stages, keep),
        users=frozenset(told.users),
        groups=frozenset(told.user_groups),
        verbs=frozenset(told.verbs),
        resources=tuple(Resources(r.group, frozenset(r.resources), frozenset(r.resource_names)) for r in told.resources),
        namespaces=frozenset(told.namespaces),
        urls=tuple(told.urls),
    )


def _stages(told: Sequence[str], document: Document, at: list[Step]) -> frozenset[str]:
    for index, stage in enumerate(told):
        if stage not in list(Stage):
            document.refuse([*at, index], f"{stage!r:.80} is not one of {', '.join(Stage)}")
    return frozenset(told)
