"""The policy of a simulation: a built-in one by its name, or objects from a file, checked as a server would.

A file holds one SchedulingPolicy, or several with the Queues that use them, and Users and UserGroups if it matters who they
are. Without a Queue there is one for everybody, with the policy.

Reads files, otherwise pure.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from muster.engine import events as ev
from muster.engine.facts import Meta, PolicyFacts, QueueFacts, QueueSpecFacts, UserFacts, UserGroupFacts
from muster.objects import yaml_text
from muster.objects.catalog import CATALOG
from muster.objects.resources import Resource
from muster.objects.schema import schema_of
from muster.objects.status import Raw
from muster.objects.structural import Structural
from muster.objects.validation import validate_object
from muster.objects.view import view_of
from muster.policy.builtin import NAMES as BUILTIN
from muster.policy.builtin import builtin_text

BASELINES: Final = ("skip-ahead", "easy", "sjf")
"""For comparisons only: they starve somebody, or need no bound because they can't."""
FILE_BYTES_MAX = 4 << 20
DEFAULT_QUEUE = "default"
_NAMES: Final = ("SchedulingPolicy", "Queue", "User", "UserGroup")
_KINDS: Final = {
    resource.kind: resource for resource in CATALOG.custom if resource.group == "muster.dev" and resource.kind in _NAMES
}


class PolicyError(ValueError):
    """Names the file, the document and the field, and what would be right."""


class PolicySet(msgspec.Struct, frozen=True):
    """What a simulation is to go by. `name` is for people."""

    name: str
    policies: tuple[PolicyFacts, ...]
    queues: tuple[QueueFacts, ...]
    users: tuple[UserFacts, ...] = ()
    groups: tuple[UserGroupFacts, ...] = ()
    has_queues: bool = True
    """Whether `queues` are its own; otherwise there is one that was made up, for everybody."""

    def events(self, queues: Sequence[str] = ()) -> list[ev.AnyEvent]:
        """As the engine learns of them; with a queue, of the first policy, for each of `queues` that is not among its own."""
        known = {queue.metadata.name for queue in self.queues}
        further = [
            QueueFacts(metadata=Meta(name=name), spec=QueueSpecFacts(policy=self.policies[0].metadata.name))
            for name in dict.fromkeys(queues)
            if name and name not in known
        ]
        return [
            *(ev.PolicySeen(policy) for policy in self.policies),
            *(ev.QueueSeen(queue) for queue in (*self.queues, *further)),
            *(ev.UserGroupSeen(group) for group in self.groups),
            *(ev.UserSeen(user) for user in self.users),
        ]


def load_policy(name: str) -> PolicySet:
    """`name` of a policy that there is, or a file. PolicyError, or OSError when a file can't be read."""
    if name in BUILTIN:
        return _read(name, builtin_text(name).encode())
    if name in BASELINES:
        return _read(name, importlib.resources.files("muster.sim").joinpath(f"policies/{name}.yaml").read_bytes())
    path = Path(name)
    if not path.suffix and not path.exists():
        raise PolicyError(f"policy {name!r}: there are {', '.join((*BUILTIN, *BASELINES))}; or give a file")
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise PolicyError(f"{name}: larger than {FILE_BYTES_MAX >> 20} MiB")
    return _read(name, data)


def _read(source: str, data: bytes) -> PolicySet:
    found: dict[str, list[Raw]] = {kind: [] for kind in _KINDS}
    number = 0
    try:
        for number, (line, raw) in enumerate(yaml_text.load_all(data), start=1):
            where = f"{source}, document {number} (line {line})"
            kind = raw.get("kind") if isinstance(raw, dict) else None
            if not isinstance(raw, dict) or kind not in _KINDS:
                raise PolicyError(f"{where}: kind: must be one of {', '.join(_KINDS)}, not {str(kind)[:80]!r}")
            _check(where, _KINDS[kind], raw)
            name = raw["metadata"]["name"]
            if any(other["metadata"]["name"] == name for other in found[kind]):
                raise PolicyError(f"{where}: metadata.name: there is another {kind} {name!r} in the file; give it another name")
            found[kind].append(raw)
    except yaml_text.YamlError as error:
        at = f", line {error.line}" if error.line else ""
        raise PolicyError(f"{source}, document {number + 1}{at}: {error}") from error
    if not found["SchedulingPolicy"]:
        raise PolicyError(f"{source}: holds no SchedulingPolicy; write one, or give the name of one that is built in")
    policies = tuple(view_of(PolicyFacts, raw) for raw in found["SchedulingPolicy"])
    queues = tuple(view_of(QueueFacts, raw) for raw in found["Queue"])
    has_queues = bool(queues)
    if not has_queues:
        spec = QueueSpecFacts(policy=policies[0].metadata.name, is_default=True)
        queues = (QueueFacts(metadata=Meta(name=DEFAULT_QUEUE), spec=spec),)
    names = {policy.metadata.name for policy in policies}
    for queue in queues:
        if queue.spec.policy not in names:
            text = f"Queue {queue.metadata.name}: spec.policy: {queue.spec.policy!r} is not in the file, which has "
            raise PolicyError(f"{source}: {text}{', '.join(sorted(names))}")
    name = policies[0].metadata.name if len(policies) == 1 else Path(source).stem
    users = tuple(view_of(UserFacts, raw) for raw in found["User"])
    groups = tuple(view_of(UserGroupFacts, raw) for raw in found["UserGroup"])
    return PolicySet(name, policies, queues, users, groups, has_queues)


def _check(where: str, resource: Resource, raw: Raw) -> None:
    if raw.get("apiVersion") != resource.api_version:
        raise PolicyError(f"{where}: apiVersion: must be {resource.api_version}, not {str(raw.get('apiVersion'))[:80]!r}")
    assert resource.view is not None
    schema = Structural(schema_of(resource.view))
    _, unknown = schema.prune(raw)
    if unknown:
        raise PolicyError(f"{where}: {unknown[0]}: there is no such field")
    causes = schema.validate(raw) or validate_object(resource, schema.default(raw))
    if causes:
        raise PolicyError(f"{where}: " + "; ".join(f"{cause.field}: {cause.message}" for cause in causes[:5]))
