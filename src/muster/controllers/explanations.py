"""ScheduleExplanation: a question written as an object, answered in its status. Works with kubectl alone, on any cluster.

`spec.questionObjectKey` names work by `namespace/name` (a pod or PodGroup) or `Kind/namespace/name` (also whatever owns pods);
without a namespace it is the explanation's own. `spec.questionObjectTemplate` is a manifest of work that does not exist. An
answer is given once for each state of the spec, and again when the controller starts anew; it is deleted `spec.ttl` after it
was given.

Work that waits in a queue is told its place there too (`place`, and `ahead`: who is just before it). With the annotation
`muster.dev/eta` the answer says when it will start (`eta`), and when with each of the numbers of GPUs that the annotation has.

Who may write an explanation into a namespace may ask about work of that namespace; from the system namespace, about any.

Concurrency: answers are worked out on the event loop that the scheduler also uses, between two of its steps (`answers`).
Invariant: nothing but the explanation itself is ever written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from muster.controllers.actions import Delete, PatchStatus, Target
from muster.controllers.runtime import Caches, Context, Controller, Plan, Watch
from muster.engine.answer_values import Answer, Evaluation, PodPlace, Question
from muster.engine.answers import UnknownWork, answers
from muster.engine.hypothetical import ManifestError
from muster.engine.machine import Engine
from muster.objects.labels import Muster
from muster.objects.names import NAMESPACE_SYSTEM
from muster.objects.sight import Sees, told
from muster.objects.status import ApiError, Raw
from muster.objects.time import format_time, parse_time
from muster.objects.view import View
from muster.policy.holders import with_holders
from muster.policy.places import hidden_to_raw, place_to_raw, places_of
from muster.store.cache import ObjectKey

GROUP: Final = "scheduling.koordinator.sh"
KIND: Final = "ScheduleExplanation"
TTL_S: Final = 24 * 3600.0
NOT_YET_S: Final = 2.0
"""How long to wait for a scheduler that is not running yet, or not here."""
NODES_NAMED_MAX: Final = 100
MESSAGE_LEN_MAX: Final = 2_000

Forecast = Callable[[Engine, Question, Sequence[str]], Raw]
"""When work will start: as it is, and with each of these numbers of GPUs. ApiError for what can't be asked."""
LiveEngine = Callable[[], Engine | None]
"""The engine of the scheduler that runs here; None while none does."""


# -- pure --------------------------------------------------------------------------------------------------------------------


class ExplanationMeta(View):
    generation: int = 0
    creation_timestamp: str = ""
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class ExplanationSpec(View):
    question_object_key: str = ""
    question_object_template: dict[str, Any] | None = None
    ttl: str = "24h"


class ExplanationStatus(View):
    last_update_time: str = ""
    failed_message: str = ""


class ExplanationView(View):
    metadata: ExplanationMeta = msgspec.field(default_factory=ExplanationMeta)
    spec: ExplanationSpec = msgspec.field(default_factory=ExplanationSpec)
    status: ExplanationStatus = msgspec.field(default_factory=ExplanationStatus)


class BadQuestion(ValueError):
    """The question can't be asked; the message names the field and the way out."""


def question_of(spec: ExplanationSpec, namespace: str) -> Question:
    """Raises BadQuestion."""
    key, template = spec.question_object_key.strip("/"), spec.question_object_template
    if bool(key) == (template is not None):
        raise BadQuestion("spec: set exactly one of questionObjectKey and questionObjectTemplate")
    if template is not None:
        named = (template.get("metadata") or {}).get("namespace") if isinstance(template.get("metadata"), dict) else None
        if named and not _may_ask(namespace, str(named)):
            raise BadQuestion(_elsewhere("spec.questionObjectTemplate.metadata.namespace", str(named), namespace))
        return Question(manifest=template, namespace=namespace)
    words = key.split("/")
    if len(words) > 3:
        raise BadQuestion(f"spec.questionObjectKey: {key!r} is not NAMESPACE/NAME or KIND/NAMESPACE/NAME")
    if len(words) == 1:
        words = [namespace, *words]
    if not _may_ask(namespace, words[-2]):
        raise BadQuestion(_elsewhere("spec.questionObjectKey", words[-2], namespace))
    return Question(key="/".join(words), namespace=namespace)


def _may_ask(asking: str, about: str) -> bool:
    return asking in (about, NAMESPACE_SYSTEM)


def _elsewhere(field: str, about: str, asking: str) -> str:
    return (
        f"{field}: namespace {about!r} can't be asked about from namespace {asking!r}; create the ScheduleExplanation in "
        f"{about!r}, or in {NAMESPACE_SYSTEM!r}"
    )


def status_of(
    engine: Engine, spec: ExplanationSpec, namespace: str, now: float, forecast: Callable[[Question], Raw] | None = None
) -> Raw:
    """The answer as a status. Never raises for what the question holds."""
    found: Sequence[Answer] = ()
    problem = ""
    when: Raw = {}
    try:
        question = question_of(spec, namespace)
        found = answers(engine, question, sees=_sees(namespace))
        when = {"eta": forecast(question)} if forecast is not None and found else {}
    except (BadQuestion, UnknownWork, ManifestError) as error:
        problem = str(error)
    except ApiError as error:
        problem = f"annotation {Muster.ETA}: {error.message}"
    details = [{**_detail(answer), **_standing(engine, answer.subject, namespace), **when} for answer in found]
    failed = [detail["failedMessage"] for detail in details if detail["failedMessage"]]
    return {
        "schedulable": bool(details) and all(detail["schedulable"] for detail in details),
        "schedulableAfterPreemption": bool(details) and all(detail["schedulableAfterPreemption"] for detail in details),
        "failedMessage": (problem or "; ".join(failed))[:MESSAGE_LEN_MAX],
        "lastUpdateTime": format_time(now),
        "detailedExplanation": details,
    }


def _detail(answer: Answer) -> Raw:
    """One unit. Muster has no topology domains of its own here, so the unit's name stands there."""
    message = "" if answer.schedulable or answer.verdict is None else str(answer.verdict)[:MESSAGE_LEN_MAX]
    notes = "; ".join(answer.notes)
    explained = {
        "schedulable": answer.schedulable,
        "failedMessage": "; ".join(text for text in (message, notes) if text)[:MESSAGE_LEN_MAX],
        "feasibleSchedulingResult": [_placed(place) for place in answer.pods if place.node],
        "nodeFailedDetails": [one for evaluation in answer.evaluations for one in _failed(evaluation)],
    }
    helps = answer.verdict.helps if answer.verdict is not None and not answer.schedulable else ()
    after = "; ".join(helps)[:MESSAGE_LEN_MAX]
    return {
        "topologyDomain": answer.subject,
        "schedulable": answer.schedulable,
        "schedulableAfterPreemption": answer.schedulable or bool(answer.victims),
        "failedMessage": message,
        "scheduleExplanation": explained,
        "nodePossibleVictims": [
            {"nodeName": one.node, "possibleVictims": [{**_named(p), "isNominatedPod": False} for p in one.pods]}
            for one in answer.victims
        ],
        "preemptExplanation": {
            "schedulable": bool(answer.victims),
            "failedMessage": "" if answer.schedulable or answer.victims else after,
            "feasibleSchedulingResult": [],
            "nodeFailedDetails": [],
        },
    }


def _standing(engine: Engine, unit: str, namespace: str) -> Raw:
    """Where work that waits in a queue stands, and who is just before it: as `/muster/v1/jobs/.../place` tells it. Beyond
    Koordinator. Work of other namespaces has a place and no name."""
    places = places_of(engine)
    place = places.place_of(unit, engine.state.now) if places is not None else None
    if places is None or place is None or not place.position:
        return {}
    sees = _sees(namespace)
    if place.refused is not None:
        place = msgspec.structs.replace(place, refused=told(with_holders(engine.state, place.refused), sees))
    ahead = places.ahead_of(unit, engine.state.now)
    standing: Raw = {"place": place_to_raw(place)}
    if ahead is not None:
        standing["ahead"] = place_to_raw(ahead) if sees(ahead.job or ahead.unit) else hidden_to_raw(ahead)
    return standing


def _sees(namespace: str) -> Sees:
    """Work of other namespaces is counted, and not named: who asks here may not be allowed to see it."""
    return lambda work: _may_ask(namespace, work.split("/")[1] if work.count("/") > 1 else "")


def _without_empty(value: Any) -> Any:
    """The same without texts that say nothing: some API servers take an empty text in a status for a null, and refuse it."""
    if isinstance(value, dict):
        return {key: _without_empty(one) for key, one in value.items() if one != ""}
    return [_without_empty(one) for one in value] if isinstance(value, list) else value


def _failed(evaluation: Evaluation) -> list[Raw]:
    found = []
    for one in evaluation.refused:
        shown = list(one.nodes[:NODES_NAMED_MAX])
        more = f" ({one.count} nodes, {len(shown)} shown)" if one.count > len(shown) else ""
        found.append(
            {
                "failedPlugin": one.plugin,
                "reason": one.reason.value + more,
                "preemptMightHelp": one.preemption_might_help,
                "failedNodes": shown,
            }
        )
    return found


def _named(place: PodPlace) -> Raw:
    namespace, _, name = place.pod.partition("/")
    return {"namespace": namespace, "name": name, **({"uid": place.uid} if place.uid else {})}


def _placed(place: PodPlace) -> Raw:
    return {**_named(place), "nodeName": place.node}


_UNITS_S: Final[Mapping[str, float]] = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")


def ttl_s(text: str) -> float | None:
    """Seconds of a duration as `24h` or `1h30m`; None for 0, which is for ever. What can't be read counts as the default."""
    stripped = text.strip()
    if stripped in ("0", "+0", "-0"):
        return None
    parts = _PART.findall(stripped)
    if not parts or "".join(number + unit for number, unit in parts) != stripped.lstrip("+"):
        return TTL_S
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts) or None


# -- the shell ---------------------------------------------------------------------------------------------------------------


class Explanations(Controller):
    """Keys are ScheduleExplanations."""

    name = "explanations"

    def __init__(self, engine: LiveEngine, forecast: Forecast | None = None) -> None:
        self._engine = engine
        self._forecast = forecast
        self._watch = Watch(group=GROUP, kind=KIND, view=ExplanationView, keep="nothing")
        self.watches = (self._watch,)
        self._answered: dict[ObjectKey, tuple[str, int]] = {}
        """By explanation: uid and generation that were answered in this life of the process."""

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        cached = caches[self._watch].get(key)
        if cached is None or cached.deleting:
            self._answered.pop(key, None)
            return Plan()
        view = cached.view(ExplanationView)
        target = Target(GROUP, KIND, key.name, key.namespace, cached.uid)
        state = (cached.uid, view.metadata.generation)
        left = _left_s(view, now)
        if left is not None and left <= 0:
            self._answered.pop(key, None)
            return Plan([Delete(target)])
        if self._answered.get(key) == state and view.status.last_update_time:
            return Plan((), left)
        engine = self._engine()
        if engine is None:
            return Plan((), NOT_YET_S)
        self._answered[key] = state
        forecast = self._asked_when(engine, view.metadata.annotations.get(Muster.ETA))
        answer = _without_empty(status_of(engine, view.spec, key.namespace, now, forecast))
        if view.status.failed_message:
            answer.setdefault("failedMessage", None)  # of the answer before
        return Plan([PatchStatus(target, answer)], ttl_s(view.spec.ttl))

    def _asked_when(self, engine: Engine, sizes: str | None) -> Callable[[Question], Raw] | None:
        forecast = self._forecast
        if forecast is None or sizes is None:
            return None
        wanted = [size.strip() for size in sizes.split(",") if size.strip()]
        return lambda question: forecast(engine, question, wanted)

    async def handle(self, key: ObjectKey, context: Context) -> float | None:
        try:
            return await super().handle(key, context)
        except BaseException:
            self._answered.pop(key, None)  # the answer was not written
            raise


def _left_s(view: ExplanationView, now: float) -> float | None:
    """Until it is to be deleted; None for never, or while it has no answer."""
    ttl = ttl_s(view.spec.ttl)
    if ttl is None or not view.status.last_update_time:
        return None
    try:
        return parse_time(view.status.last_update_time) + ttl - now
    except ValueError:
        return None
