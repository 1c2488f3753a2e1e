"""What the server itself has to say about writes, as admission hooks; later parts of Muster register theirs beside these.

`builtin_hooks` gives them in order. Each is one small class with `mutate` and `validate`; the base class does neither. What
keeps objects sound whoever writes them (schemas, namespaces, finalizers) is the store's work, not ours.

Concurrency: on the event loop; hooks read memory only. One may run more than once for a write: it must not act on the world.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Final

from muster.objects.meta import metadata_of, name_of
from muster.objects.resources import Resource
from muster.objects.status import Forbidden, Raw
from muster.server.authorization import MASTERS, Authorizer, forbidden
from muster.server.escalation import EscalationCheck, TokenCheck
from muster.server.rbac import Attributes
from muster.store.embedded.admission import Admission, AdmissionRequest

DEFAULT_ACCOUNT = "default"
SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}

HasAccount = Callable[[str, str], Awaitable[bool]]
"""Whether a service account (namespace, name) exists."""


class Hook:
    """A hook that lets everything pass; derive from it and override what is needed."""

    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        return None

    async def validate(self, request: AdmissionRequest) -> None:
        return None


def is_new_pod(request: AdmissionRequest) -> bool:
    resource = request.resource
    return (
        request.operation == "CREATE"
        and not request.subresource
        and (resource.group, resource.kind) == ("", "Pod")
        and request.object is not None
    )


_SET_BY_STORE: Final = frozenset({"resourceVersion", "managedFields", "generation"})


def writes_metadata(request: AdmissionRequest) -> bool:
    """Whether labels, annotations, owners or finalizers may be other than they were: of writes to the object itself always, of
    those to its status (or of a binding) when they are. A hook that judges metadata has to look at these too."""
    if not request.subresource:
        return True
    if request.old is None or request.object is None:
        return False
    old, new = metadata_of(request.old), metadata_of(request.object)
    return any(old.get(key) != new.get(key) for key in {*old, *new} - _SET_BY_STORE)


def refused(request: AdmissionRequest, why: str) -> Forbidden:
    """Forbidden, worded as Kubernetes' admission words it."""
    return refused_object(request.resource, request.name, why)


def refused_object(resource: Resource, name: str, why: str) -> Forbidden:
    """The same, for who sees no request."""
    return Forbidden(
        f'{resource.qualified} "{name}" is forbidden: {why}', kind=resource.plural, group=resource.group, name=name
    )


class PriorityClasses:
    """The PriorityClass objects, by name; fed as they change in the store."""

    def __init__(self) -> None:
        self._classes: dict[str, tuple[int, str, bool]] = {}

    def apply(self, raw: Mapping[str, Any], *, deleted: bool = False) -> None:
        name = name_of(raw)
        value = raw.get("value")
        if deleted or not isinstance(value, int):
            self._classes.pop(name, None)
            return
        policy = str(raw.get("preemptionPolicy") or "PreemptLowerPriority")
        self._classes[name] = (value, policy, raw.get("globalDefault") is True)

    def find(self, name: str) -> tuple[int, str] | None:
        found = self._classes.get(name)
        return None if found is None else found[:2]

    def default(self) -> str:
        """The class of pods that name none. Of several, the lowest, so that a mistake never raises anyone."""
        defaults = [(value, name) for name, (value, _, is_default) in self._classes.items() if is_default]
        return min(defaults)[1] if defaults else ""


class PodPriority(Hook):
    """priorityClassName becomes spec.priority and spec.preemptionPolicy; the numbers are not the user's to choose."""

    def __init__(self, classes: PriorityClasses) -> None:
        self._classes = classes

    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        if not is_new_pod(request) or request.object is None or not isinstance(request.object.get("spec"), dict):
            return None
        spec = dict(request.object["spec"])
        name = spec.get("priorityClassName") or self._classes.default()
        value, policy = 0, "PreemptLowerPriority"
        if name:
            found = self._classes.find(str(name))
            if found is None:
                raise refused(request, f"no PriorityClass with name {name} was found")
            value, policy = found
            spec["priorityClassName"] = name
        if spec.get("priority") not in (None, value):
            raise refused(
                request,
                f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; priority admission "
                f"controller computed {value} from the given PriorityClass name",
            )
        if spec.get("preemptionPolicy") not in (None, "", policy):
            raise refused(
                request,
                f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be provided in pod spec; priority "
                f"admission controller computed {policy} from the given PriorityClass name",
            )
        spec["priority"], spec["preemptionPolicy"] = value, policy
        return {**request.object, "spec": spec}


class PodServiceAccount(Hook):
    """A pod runs as a service account of its namespace: `default` when it names none."""

    def __init__(self, has_account: HasAccount) -> None:
        self._has_account = has_account

    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        if not is_new_pod(request) or request.object is None or not isinstance(request.object.get("spec"), dict):
            return None
        spec = dict(request.object["spec"])
        name = spec.get("serviceAccountName") or spec.get("serviceAccount") or DEFAULT_ACCOUNT
        if spec.get("serviceAccountName") == name and spec.get("serviceAccount") == name:
            return None
        spec["serviceAccountName"] = spec["serviceAccount"] = name
        return {**request.object, "spec": spec}

    async def validate(self, request: AdmissionRequest) -> None:
        if not is_new_pod(request) or request.object is None or not isinstance(request.object.get("spec"), dict):
            return
        name = str(request.object["spec"].get("serviceAccountName", ""))
        if name and name != DEFAULT_ACCOUNT and not await self._has_account(request.namespace, name):
            raise refused(
                request, f'error looking up service account {request.namespace}/{name}: serviceaccount "{name}" not found'
            )


class PodKeepsWhatWasFilledIn(Hook):
    """An update that leaves out what admission filled in at creation means to keep it: the user never wrote it."""

    FIELDS: ClassVar[tuple[str, ...]] = (
        "priorityClassName",
        "priority",
        "preemptionPolicy",
        "serviceAccountName",
        "serviceAccount",
    )

    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        resource, raw, old = request.resource, request.object, request.old
        if request.operation != "UPDATE" or (resource.group, resource.kind) != ("", "Pod") or raw is None or old is None:
            return None
        spec, before = raw.get("spec"), old.get("spec")
        if not isinstance(spec, dict) or not isinstance(before, dict):
            return None
        kept = {field: before[field] for field in self.FIELDS if field in before and field not in spec}
        return {**raw, "spec": {**spec, **kept}} if kept else None


class CreatePermission(Hook):
    """Whoever makes an object needs `create`, also when server-side apply does it, which asks for `patch` only."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    async def validate(self, request: AdmissionRequest) -> None:
        actor, resource = request.actor, request.resource
        if actor is None or MASTERS in actor.groups or request.operation != "CREATE" or request.subresource:
            return
        asked = Attributes(
            verb="create", group=resource.group, resource=resource.plural, namespace=request.namespace, name=request.name
        )
        if not self._authorizer.decide(actor.user, actor.groups, asked).allowed:
            raise forbidden(actor.user, asked)


def builtin_hooks(authorizer: Authorizer, priorities: PriorityClasses, has_account: HasAccount) -> list[Admission]:
    return [
        CreatePermission(authorizer),
        PodPriority(priorities),
        PodServiceAccount(has_account),
        PodKeepsWhatWasFilledIn(),
        EscalationCheck(authorizer),
        TokenCheck(authorizer),
    ]
