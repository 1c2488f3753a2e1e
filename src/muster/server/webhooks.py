"""Admission webhooks: whoever a Mutating- or ValidatingWebhookConfiguration names is asked before a write is stored.

An admission hook like those of `admission.py`, and the last but one of them: webhooks see what all hooks have made of an
object, and are done before the last counts what was let pass.

    mutate    in order, each sees what the one before it made of the object; when one changed it, the hooks in this process go
              over it again, and so do, once, the webhooks that asked for it (reinvocationPolicy)
    validate  all at once; of several refusals the first in order is told. Deletions are all asked about here, since nothing
              can be changed about them: mutating webhooks first

The store asks again when the object has changed while webhooks were thinking, so that what they judged is what is replaced.

Never asked about: webhook configurations themselves, reviews, and the Leases and Events of Muster's own parts, without which no
node and no controller is alive. Other writes of Muster's controllers are asked about like everybody's, as on Kubernetes; they
are told to be by `system:muster`.

Concurrency: on the event loop, in the task of the write. Invariants: nothing waits where no rule matches; a webhook that fails
is let pass or refused by its failurePolicy, and never anything else; no phase takes longer than `webhook_phase_timeout_s`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
from prometheus_client import Counter

from muster.objects.names import random_uid
from muster.objects.patch.json_patch import apply_json_patch
from muster.objects.resources import Resource
from muster.objects.status import ApiError, BadRequest, Cause, InternalError, Raw, Timeout, TooManyRequests
from muster.server.admission_review import (
    Answer,
    BadAnswer,
    KindName,
    Question,
    ResourceName,
    denial,
    read_answer,
    review,
    user_info,
)
from muster.server.audit import add_note
from muster.server.config import ServerLimits
from muster.server.decoding import decode_json
from muster.server.late import Late
from muster.server.logs import logger
from muster.server.node_index import NODES_GROUP
from muster.server.webhook_matching import (
    CallFailed,
    Configurations,
    Hook,
    Match,
    NamespaceLabels,
    is_selected,
    namespace_of_request,
)
from muster.server.webhook_metrics import WebhookMetrics
from muster.store.embedded.admission import Admission, AdmissionOperation, AdmissionRequest
from muster.store.embedded.rules import same

if TYPE_CHECKING:
    from muster.server.webhook_calling import Caller

log = logger(__name__)

PATCH_DEPTH_MAX: Final = 128
ASKED_AT_ONCE_MAX: Final = 16
"""Validating webhooks of one write; further ones are asked after these."""
_NEVER_HELD_UP: Final = frozenset({("coordination.k8s.io", "leases"), ("", "events"), ("events.k8s.io", "events")})
_OPTIONS: Final = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}
_OWN_KIND: Final = frozenset({"binding", "eviction", "scale"})
"""Subresources whose object is of another kind than the resource's."""


class _Places:
    """How many writes are being asked about."""

    def __init__(self, bound: int, refused: Counter) -> None:
        self.taken = 0
        self.bound = bound
        self.refused = refused


class _Place:
    """One of them, taken when the first webhook is about to be asked: what selectors leave out is not counted."""

    def __init__(self, places: _Places) -> None:
        self._places = places
        self._is_taken = False

    def __enter__(self) -> Self:
        return self

    def take(self) -> None:
        places = self._places
        if self._is_taken:
            return
        if places.taken >= places.bound:
            places.refused.labels("webhook_writes_max").inc()
            raise TooManyRequests(
                f"{places.taken} writes wait for admission webhooks, the most this server takes (webhook_writes_max); try "
                "again in a while",
                retry_after_s=1,
            )
        places.taken += 1
        self._is_taken = True

    def __exit__(self, *_: object) -> None:
        self._places.taken -= self._is_taken


class _Course:
    """The mutating webhooks of one write: what was made of the object so far, and who has to look at it again."""

    def __init__(self, request: AdmissionRequest, place: _Place, deadline: float) -> None:
        self.request = request
        self.place = place
        self.deadline = deadline
        self.is_changed = False
        self._seen: set[tuple[bool, str, int]] = set()
        self._again: set[tuple[bool, str, int]] = set()

    @property
    def is_to_be_repeated(self) -> bool:
        return bool(self._again)

    def is_due(self, hook: Hook, round_: int) -> bool:
        return round_ == 0 or hook.key in self._again

    def changed(self) -> None:
        """All that want to be asked again, and were asked before this."""
        self._again |= self._seen
        self._seen.clear()

    def asked(self, hook: Hook, round_: int) -> None:
        if round_:
            self._again.discard(hook.key)
        elif hook.is_reinvoked:
            self._seen.add(hook.key)


class Webhooks:
    """An `Admission`, and for Bindings, Evictions and Scales a `BodyAdmission`. `again` are the hooks of this process that go
    over what webhooks have changed."""

    def __init__(
        self,
        configurations: Configurations,
        caller: Late[Caller],
        *,
        again: Admission,
        namespace_labels: NamespaceLabels,
        metrics: WebhookMetrics,
        refused: Counter,
        limits: ServerLimits,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._configurations = configurations
        self._caller = caller
        self._again = again
        self._namespace_labels = namespace_labels
        self._metrics = metrics
        self._limits = limits
        self._entropy = entropy
        self._places = _Places(limits.webhook_writes_max, refused)

    # --- what the store asks

    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        matches = self._matches(True, request)
        if not matches:
            return None
        with _Place(self._places) as place:
            return await self._mutate(matches, request, place, again=self._again)

    async def validate(self, request: AdmissionRequest) -> None:
        mutating = self._matches(True, request) if request.operation == "DELETE" else ()
        matches = self._matches(False, request)
        if not mutating and not matches:
            return
        with _Place(self._places) as place:
            if mutating:
                await self._mutate(mutating, request, place, again=None)
            await self._validate(matches, request, place)

    def concerns(self, operation: AdmissionOperation, resource: Resource, subresource: str) -> bool:
        find = self._configurations.matching
        return bool(find(True, operation, resource, subresource) or find(False, operation, resource, subresource))

    async def admit(self, request: AdmissionRequest) -> Raw:
        # Whatever the store has noted of the write: this is the body itself, which was not judged yet.
        request = msgspec.structs.replace(request, is_judged=False)
        changed = await self.mutate(request)
        if changed is not None:
            request = msgspec.structs.replace(request, object=changed)
        await self.validate(request)
        assert request.object is not None
        return request.object

    def _matches(self, is_mutating: bool, request: AdmissionRequest) -> Sequence[Match]:
        if request.is_judged:
            return ()
        asked = request.asked or request.resource
        matches = self._configurations.matching(is_mutating, request.operation, asked, request.subresource)
        return () if matches and _is_never_held_up(request) else matches

    # --- mutating

    async def _mutate(
        self, matches: Sequence[Match], request: AdmissionRequest, place: _Place, *, again: Admission | None
    ) -> Raw | None:
        course = _Course(request, place, self._deadline())
        await self._round(0, matches, course)
        if not course.is_changed:
            return None
        if again is not None:
            redone = await again.mutate(course.request)
            if redone is not None:
                redone = request.refill(redone)
                if not same(redone, course.request.object):
                    course.request = msgspec.structs.replace(course.request, object=redone)
                    course.changed()
        if course.is_to_be_repeated:
            await self._round(1, matches, course)
        return course.request.object

    async def _round(self, round_: int, matches: Sequence[Match], course: _Course) -> None:
        for index, match in enumerate(matches):
            if not course.is_due(match.hook, round_) or not is_selected(match.hook, course.request, self._namespace_labels):
                continue
            course.place.take()
            answer = await self._ask(match, course.request, course.deadline, round_, index)
            is_changed = False
            if answer is not None and answer.patch:
                patched = self._patched(match, course.request, answer.patch)
                is_changed = patched is not None and not same(patched, course.request.object)
                if is_changed:
                    course.request = msgspec.structs.replace(course.request, object=patched)
                    course.is_changed = True
                    course.changed()
            course.asked(match.hook, round_)
            if answer is not None:
                _note("mutation", match.hook, round_, index, {"mutated": is_changed})

    def _patched(self, match: Match, request: AdmissionRequest, patch: bytes) -> Raw | None:
        """The object after a webhook's patch, None when that is empty. What can't be applied is an error, whatever the
        webhook's failurePolicy says, as in Kubernetes."""
        hook = match.hook
        try:
            operations = decode_json(patch, depth_max=PATCH_DEPTH_MAX)
            if operations == []:
                return None
            if request.object is None:
                raise BadRequest("it attempted to modify the object, which is not supported for this operation")
            before = _in_version(request, match.resource, request.object)
            after = apply_json_patch(before, operations)
            for field in ("apiVersion", "kind"):
                if after.get(field) != before.get(field):
                    raise BadRequest(f"the patch changes {field}, which no webhook may")
            if match.resource.api_version != request.resource.api_version and request.subresource not in _OWN_KIND:
                after = match.resource.converted(after, request.resource)
            return request.refill(after)
        except ApiError as error:
            self._metrics.rejected(hook.name, "admit", request.operation, "apiserver_internal_error")
            raise _internal(
                f'admission webhook "{hook.name}": the patch it answered with can\'t be used: {error.message}'
            ) from error

    # --- validating

    async def _validate(self, matches: Sequence[Match], request: AdmissionRequest, place: _Place) -> None:
        asked = [
            (index, match) for index, match in enumerate(matches) if is_selected(match.hook, request, self._namespace_labels)
        ]
        if not asked:
            return
        place.take()
        deadline = self._deadline()
        if len(asked) == 1:
            ((index, match),) = asked
            await self._ask(match, request, deadline, 0, index)
            return
        for start in range(0, len(asked), ASKED_AT_ONCE_MAX):
            some = asked[start : start + ASKED_AT_ONCE_MAX]
            calls = (self._ask(match, request, deadline, 0, index) for index, match in some)
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome

    # --- one webhook

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._limits.webhook_phase_timeout_s

    async def _ask(self, match: Match, request: AdmissionRequest, deadline: float, round_: int, index: int) -> Answer | None:
        """What the webhook says; None when it does not and need not. Raises the refusal that the client is to hear."""
        hook = match.hook
        type_ = "admit" if hook.is_mutating else "validating"
        started_s = asyncio.get_running_loop().time()
        if request.dry_run and hook.side_effects not in ("None", "NoneOnDryRun"):
            raise BadRequest(f'admission webhook "{hook.name}" does not support dry run')
        if started_s >= deadline:
            raise self._out_of_time(hook)
        code = 0
        is_rejected = False
        try:
            answer = await self._exchange(match, request, deadline)
            self._tell(hook, request, answer)
            if answer.allowed:
                code = 200
                return answer
            refusal = denial(hook.name, answer.status)
            code, is_rejected = refusal.code, True
            self._metrics.rejected(hook.name, type_, request.operation, "no_error")
            raise refusal
        except TimeoutError:
            is_rejected = True  # it had no time to fail, so it is not passed over either
            raise self._out_of_time(hook) from None
        except CallFailed as failure:
            is_rejected = hook.is_fail_closed
            said = f'failed calling webhook "{hook.name}": {failure}'
            where = {"configuration": hook.configuration, "webhook": hook.name, "resource": request.resource.qualified}
            if hook.is_fail_closed:
                log.warning("an admission webhook failed, the write is refused", **where, error=str(failure))
                self._metrics.rejected(hook.name, type_, request.operation, "calling_webhook_error")
                raise _internal(said) from failure
            log.warning("an admission webhook failed, the write passes without it", **where, error=str(failure))
            self._metrics.failed_open(hook.name, type_)
            _note("failed-open.mutation" if hook.is_mutating else "failed-open.validation", hook, round_, index, {})
            return None
        finally:
            seconds = asyncio.get_running_loop().time() - started_s
            self._metrics.called(hook.name, type_, request.operation, code=code, is_rejected=is_rejected, seconds=seconds)

    def _out_of_time(self, hook: Hook) -> Timeout:
        return Timeout(
            f'request did not complete within requested timeout: webhooks up to "{hook.name}" took '
            f"{self._limits.webhook_phase_timeout_s:g} s; a webhook that answers sooner helps"
        )

    async def _exchange(self, match: Match, request: AdmissionRequest, deadline: float) -> Answer:
        hook = match.hook
        if hook.problem:
            raise CallFailed(hook.problem)
        uid = random_uid(self._entropy)
        body = review(question_of(request, match.resource, uid), hook.review_version)
        document: Any = await (await self._caller.get()).call(hook, body, deadline)
        try:
            return read_answer(document, uid=uid, version=hook.review_version, is_mutating=hook.is_mutating)
        except BadAnswer as error:
            raise CallFailed(f"received invalid webhook response: {error}") from error

    def _tell(self, hook: Hook, request: AdmissionRequest, answer: Answer) -> None:
        for key, value in answer.audit.items():
            add_note(f"{hook.name}/{key}", value)
        for warning in answer.warnings:
            request.warn(warning)


def question_of(request: AdmissionRequest, resource: Resource, uid: str) -> Question:
    """`request` as a webhook is asked about it, in the version of `resource`."""
    asked = request.asked or request.resource
    raw = request.object or request.old or {}
    if request.subresource in _OWN_KIND:
        group, _, version = str(raw.get("apiVersion") or "").rpartition("/")
        kind = request_kind = KindName(group, version, str(raw.get("kind") or ""))
    else:
        kind = KindName(resource.group, resource.version, resource.kind)
        request_kind = KindName(asked.group, asked.version, asked.kind)
    options: Raw = {"kind": _OPTIONS.get(request.operation, "UpdateOptions"), "apiVersion": "meta.k8s.io/v1"}
    if request.dry_run:
        options["dryRun"] = ["All"]
    return Question(
        uid=uid,
        kind=kind,
        resource=ResourceName(resource.group, resource.version, resource.plural),
        sub_resource=request.subresource,
        request_kind=request_kind,
        request_resource=ResourceName(asked.group, asked.version, asked.plural),
        request_sub_resource=request.subresource,
        name=request.name,
        namespace=namespace_of_request(request),
        operation=request.operation,
        user_info=user_info(request.actor),
        object=_in_version(request, resource, request.object),
        old_object=_in_version(request, resource, request.old),
        dry_run=request.dry_run,
        options=options,
    )


def _in_version(request: AdmissionRequest, resource: Resource, raw: Raw | None) -> Any:
    if raw is None or request.subresource in _OWN_KIND or resource.api_version == request.resource.api_version:
        return raw
    return request.resource.converted(raw, resource)


def _is_never_held_up(request: AdmissionRequest) -> bool:
    is_ours = request.actor is None or NODES_GROUP in request.actor.groups
    return is_ours and (request.resource.group, request.resource.plural) in _NEVER_HELD_UP


def _note(what: str, hook: Hook, round_: int, index: int, more: Raw) -> None:
    value = {"configuration": hook.configuration, "webhook": hook.name, **more}
    add_note(f"{what}.webhook.admission.k8s.io/round_{round_}_index_{index}", msgspec.json.encode(value).decode())


def _internal(said: str) -> InternalError:
    return InternalError(f"Internal error occurred: {said}", causes=[Cause("", said, "")])
