"""Questions to the engine: what became of work, why it waits, where work that does not exist would go.

An answer is worked out now, from the state as it is, with an evaluator of its own: nothing of the engine changes, not even what
it keeps for speed. Pods that are placed are asked about as if they were looking for a node now; units of several pods are
placed on trial and given back.

Pure; called on the engine's thread, between two steps. Bounded: at most UNITS_MAX units for a question, NODES_MAX nodes shown
for each, PODS_SHOWN_MAX pods, SHAPES_MAX kinds of pods looked at closely.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from muster.engine.answer_values import Answer, PodPlace, PossibleVictims, Question
from muster.engine.asking import PluginFault, guarded
from muster.engine.evaluate import Evaluator
from muster.engine.explain import explain_pod, explain_shortage
from muster.engine.facts import PodFacts
from muster.engine.gangs import gang_key_of
from muster.engine.holding import HoldKind
from muster.engine.hypothetical import Work, works_of
from muster.engine.machine import Engine
from muster.engine.node_answers import evaluate_nodes
from muster.engine.placing import Placed, Shortage, place_unit
from muster.engine.plugin import Nomination
from muster.engine.pods import Phase, PodRecord
from muster.engine.resources import requests_of
from muster.engine.shapes import Shape
from muster.engine.state import State
from muster.engine.units import Group, Unit, task_id
from muster.objects.bandwidth_demands import FindImage
from muster.objects.labels import KusciaLabel
from muster.objects.names import NAMESPACE_CROSS_DOMAIN
from muster.objects.reasons import Reason, Shortfall, Verdict
from muster.objects.sight import HIDDEN, Sees, everything, told

UNITS_MAX: Final = 20
PODS_SHOWN_MAX: Final = 1_000
SHAPES_MAX: Final = 8


class UnknownWork(LookupError):
    """Nothing here has that name."""


def answers(
    engine: Engine, question: Question, find_image: FindImage = lambda name: None, sees: Sees = everything
) -> list[Answer]:
    """One answer for each unit that the question is about. UnknownWork when there is none, ManifestError when the manifest
    can't be read. `find_image` finds the AppImages that manifests of Kuscia's kinds name; other work is named if `sees` says
    so."""
    asking = _Asking(engine, question, sees)
    if question.manifest is not None:
        found = [asking.hypothetical(work) for work in _works(engine, question, find_image)]
    else:
        found = [asking.about(unit, pods) for unit, pods in _found(engine, question.key)[:UNITS_MAX]]
    return [_told(answer, sees) for answer in found]


def _told(answer: Answer, sees: Sees) -> Answer:
    """With no names but those that may be seen. Texts are made so."""

    def shown(key: str) -> str:
        return key if sees(f"Pod/{key}") else HIDDEN

    def place(one: PodPlace) -> PodPlace:
        return one if sees(f"Pod/{one.pod}") else PodPlace(HIDDEN, one.node)

    return msgspec.structs.replace(
        answer,
        verdict=None if answer.verdict is None else told(answer.verdict, sees),
        said=None if answer.said is None else told(answer.said, sees),
        evaluations=tuple(
            msgspec.structs.replace(
                one,
                nodes=tuple(
                    msgspec.structs.replace(node, refusals=tuple(told(refusal, sees) for refusal in node.refusals))
                    for node in one.nodes
                ),
            )
            for one in answer.evaluations
        ),
        victims=tuple(
            PossibleVictims(one.node, tuple(map(place, one.pods)), tuple(map(shown, one.violating))) for one in answer.victims
        ),
    )


def _works(engine: Engine, question: Question, find_image: FindImage) -> list[Work]:
    assert question.manifest is not None
    columns = engine.state.nodes

    def selector_of(party: str) -> Mapping[str, str]:
        for label in (KusciaLabel.NODE_NAMESPACE, KusciaLabel.NODE_DOMAIN):
            value = columns.label_values(label).get(party)
            if value is not None and (columns.label_ids(label) == value).any():
                return {label: party}
        return {}

    found = works_of(question.manifest, question.namespace, find_image=find_image, selector_of=selector_of)
    return found[:UNITS_MAX]


def _found(engine: Engine, key: str) -> list[tuple[str, list[PodRecord]]]:
    """Units by `Kind/namespace/name`, or by `namespace/name` for a pod or a gang."""
    words = key.split("/")
    if len(words) not in (2, 3) or not all(words):
        raise UnknownWork(f"{key!r} is not of the form KIND/NAMESPACE/NAME, or NAMESPACE/NAME for a pod or a PodGroup")
    kind, namespace, name = words if len(words) == 3 else ("", *words)
    found: dict[str, list[PodRecord]] = {}
    is_for_all = namespace == NAMESPACE_CROSS_DOMAIN
    for pod in engine.state.pods.values():
        # The pods of a task or a service are in the namespaces of its parties, not in its own, which is the one for all.
        is_task = is_for_all and kind in _TASK_KINDS and pod.unit == task_id(name)
        is_service = kind == "KusciaDeployment" and pod.facts.metadata.labels.get(KusciaLabel.DEPLOYMENT_NAME) == name
        if is_task or (is_for_all and is_service) or (pod.namespace == namespace and _is_about(pod, kind, name)):
            found.setdefault(pod.unit or f"Pod/{pod.key}", []).append(pod)
    if not found:
        what = f"{kind or 'Pod or PodGroup'} {namespace}/{name}"
        raise UnknownWork(f"{what}: the scheduler knows no pod of it; check the name, or whether its pods were created yet")
    return sorted(found.items(), key=lambda unit: (all(pod.node for pod in unit[1]), unit[0]))  # what waits first


_TASK_KINDS = frozenset({"KusciaTask", "TaskResourceGroup"})


def _is_about(pod: PodRecord, kind: str, name: str) -> bool:
    if kind in ("", "Pod") and pod.name == name:
        return True
    if kind in ("", "PodGroup") and gang_key_of(pod.facts.metadata) == f"{pod.namespace}/{name}":
        return True
    return bool(kind) and any(o.kind == kind and o.name == name for o in pod.facts.metadata.owner_references)


def no_profile(name: str, served: Iterable[str], *, is_sole: bool = False) -> Verdict:
    """What to say on a pod that names another scheduler than ours. `is_sole`: there is no other."""
    after = "; there is no other scheduler here: name one of these, or add a profile" if is_sole else ": others place this"
    message = f"spec.schedulerName is {name!r}, which no profile here serves ({', '.join(sorted(served))}){after}"
    return Verdict(reason=Reason.NO_PROFILE, message=message)


class _Asking:
    """One question about one unit, under way."""

    def __init__(self, engine: Engine, question: Question, sees: Sees) -> None:
        self._engine, self._state, self._question, self._sees = engine, engine.state, question, sees
        self._shapes: dict[bytes, Shape] = {}

    # -- what exists -----------------------------------------------------------------------------------------------------

    def about(self, unit_id: str, pods: list[PodRecord]) -> Answer:
        engine = self._engine
        first = pods[0]
        profile = first.facts.spec.scheduler_name
        base = Answer(subject=unit_id, profile=profile)
        if profile not in engine.profiles:
            verdict = no_profile(profile, engine.profiles)
            return msgspec.structs.replace(base, state="foreign", verdict=verdict, pods=_places(pods))
        if engine.profiles[profile].is_shadow:
            note = f"profile {profile} is in shadow mode: it decides, and binds nothing"
            base = msgspec.structs.replace(base, notes=(note,))
        held = engine.holds.get(unit_id)
        if held is not None and held.kind is not HoldKind.PART:
            verdict = Verdict(reason=Reason.RESERVED, message="reserved; waits for a permit or for other parties")
            return self._settled(base, "reserved", pods, verdict)
        unit = engine.waiting.units.get(unit_id)
        if unit is not None:
            return self._waiting(msgspec.structs.replace(base, state="waiting"), unit, engine.verdicts.get(unit_id))
        if all(pod.node for pod in pods):
            return self._settled(base, "placed", pods, Verdict(reason=Reason.SCHEDULED, message=""))
        return msgspec.structs.replace(base, state="not tried", verdict=_not_tried(pods), pods=_places(pods))

    def _settled(self, base: Answer, state: str, pods: list[PodRecord], verdict: Verdict) -> Answer:
        """Work that has its nodes: each kind of pod as if it were looking for one now."""
        evaluations = []
        kinds = {pod.shape.number: pod for pod in reversed(pods) if pod.node}
        for pod in list(kinds.values())[:SHAPES_MAX]:
            with self._trial(base.profile) as evaluator, self._state.without([pod]):
                evaluations.append(evaluate_nodes(pod, evaluator, self._question.nodes_max))
        return msgspec.structs.replace(
            base, state=state, schedulable=True, verdict=verdict, pods=_places(pods), evaluations=tuple(evaluations)
        )

    def _waiting(self, base: Answer, unit: Unit, said: Verdict | None) -> Answer:
        if unit.blocked is not None:
            said = said or unit.blocked
            return msgspec.structs.replace(base, verdict=said, said=said)
        return self._tried(msgspec.structs.replace(base, said=said), unit)

    # -- what does not -----------------------------------------------------------------------------------------------------

    def hypothetical(self, work: Work) -> Answer:
        profiles = self._engine.profiles
        named = self._question.profile or work.scheduler_name
        notes = list(work.notes)
        if not profiles:
            raise UnknownWork("the scheduler has no profile; see its configuration")
        profile = named if named in profiles else next(iter(profiles))
        if named and named not in profiles:
            notes.append(f"schedulerName {named} is no profile of this scheduler: tried as {profile}")
        subject = f"{work.namespace}/{work.name}"
        base = Answer(subject=subject, state="hypothetical", profile=profile, notes=tuple(notes))
        unknown = self._unknown_resource(work)
        if unknown is not None:
            return msgspec.structs.replace(base, verdict=unknown)
        records = [[self._record(pod, f"Hypothetical/{subject}") for pod in part.pods] for part in work.parts]
        groups = tuple(
            Group(part.party, part.role, part.min, tuple(pod.uid for pod in pods))
            for part, pods in zip(work.parts, records, strict=True)
        )
        priority = max(pod.priority for pods in records for pod in pods)
        unit = Unit(f"Hypothetical/{subject}", (-priority, "", subject), groups, len(groups), profile, priority)
        everybody = {pod.uid: pod for pods in records for pod in pods}
        with _introduced(self._state, everybody):
            return self._tried(base, unit)

    def _record(self, facts: PodFacts, unit: str) -> PodRecord:
        """A record with a shape that the engine's own table never sees; its number is the same for the same shape, and never
        that of a shape in use."""
        key = self._state.shapes.key_of(facts)
        shape = self._shapes.get(key)
        if shape is None:
            number = -1 - int.from_bytes(_digest(key), "big")
            shape = self._shapes[key] = Shape(number, key, facts, self._state.table, self._state.shapes.names)
        pod = PodRecord(facts, shape)
        pod.unit = unit
        return pod

    def _unknown_resource(self, work: Work) -> Verdict | None:
        """Resources that nobody has are refused here: the engine's table is for those of real objects."""
        rows = self._state.table.rows
        for part in work.parts:
            for facts in part.pods[:1]:
                requests = requests_of(facts)
                if requests.problems:
                    return Verdict(reason=Reason.UNIT_INVALID, message=f"Pod {facts.key}: {requests.problems[0]}")
                unknown = sorted(name for name, amount in requests.amounts.items() if amount > 0 and name not in rows)
                if unknown:
                    short = tuple(
                        Shortfall(reason=Reason.EXTENDED_RESOURCE_INSUFFICIENT, resource=name, want=requests.amounts[name])
                        for name in unknown
                    )
                    message = f"no node could ever hold this: no node has {', '.join(unknown)}"
                    counts = {Reason.EXTENDED_RESOURCE_INSUFFICIENT: len(self._state.nodes)} if len(self._state.nodes) else {}
                    return Verdict(
                        reason=Reason.IMPOSSIBLE,
                        message=message,
                        shortfalls=short,
                        nodes_by_reason=counts,
                        helps=(f"drop {unknown[0]}, or correct its spelling", Reason.IMPOSSIBLE.remedy),
                    )
        return None

    # -- trying --------------------------------------------------------------------------------------------------------------

    def _tried(self, base: Answer, unit: Unit) -> Answer:
        """Place the unit on trial, and give everything back."""
        state, now = self._state, self._state.now
        with self._trial(unit.schedule_as) as evaluator:
            try:
                with _transformed(unit, evaluator, state, now):
                    refusal = _prefiltered(unit, evaluator, state, now)
                    if refusal is not None:
                        return msgspec.structs.replace(base, verdict=refusal)
                    stuck, evaluations = None, self._evaluated(unit, evaluator)
                    result = place_unit(unit, evaluator, state, lambda pod: explain_pod(pod, evaluator, state))
                    if isinstance(result, list):
                        places = tuple(_place(one, state) for one in result[:PODS_SHOWN_MAX])
                        _give_back(result, state)
                    else:
                        stuck, places = result, ()
                    victims, verdict = self._made_room(unit, stuck, evaluator) if stuck is not None else ((), None)
            except PluginFault as fault:
                return msgspec.structs.replace(base, verdict=fault.verdict())
            except Exception as error:  # noqa: BLE001 - whatever was asked about is on trial only, and is given back
                message = f"could not be tried: {type(error).__name__}: {error}"[:500]
                return msgspec.structs.replace(base, verdict=Verdict(reason=Reason.PLUGIN_ERROR, message=message))
        if stuck is not None:
            found = verdict or (stuck.verdict if unit.is_single else explain_shortage(stuck))
            return msgspec.structs.replace(base, verdict=found, evaluations=evaluations, victims=victims)
        queued = Verdict(reason=Reason.QUEUED, message="it fits now, and is tried when its turn comes")
        return msgspec.structs.replace(
            base,
            schedulable=True,
            verdict=queued if base.state == "waiting" else Verdict(reason=Reason.SCHEDULED, message="it would fit now"),
            pods=places,
            evaluations=evaluations,
        )

    def _evaluated(self, unit: Unit, evaluator: Evaluator) -> tuple[Any, ...]:
        kinds = {(pod := self._state.pods[uid]).shape.number: pod for uid in reversed(unit.pods)}
        chosen = list(kinds.values())[::-1][:SHAPES_MAX]
        return tuple(evaluate_nodes(pod, evaluator, self._question.nodes_max) for pod in chosen)

    def _made_room(
        self, unit: Unit, short: Shortage, evaluator: Evaluator
    ) -> tuple[tuple[PossibleVictims, ...], Verdict | None]:
        """Who would be evicted for it; or the verdict that room was made already."""
        block = evaluator.block(short.stuck)
        for plugin in evaluator.profile.at["post_filter"]:
            found = guarded(plugin, "post_filter", unit, block, self._state.now)
            if isinstance(found, Verdict):
                return (), found
            if isinstance(found, Nomination):
                by_node: dict[str, list[PodRecord]] = {}
                for uid in found.victims:
                    by_node.setdefault(self._state.pods[uid].node, []).append(self._state.pods[uid])
                if not by_node:
                    by_node = {found.node: []}
                return tuple(
                    PossibleVictims(
                        node,
                        tuple(PodPlace(p.key, node, uid=p.uid) for p in pods),
                        tuple(p.key for p in pods if p.uid in found.violating),
                    )
                    for node, pods in sorted(by_node.items())
                ), None
        return (), None

    @contextmanager
    def _trial(self, profile: str) -> Iterator[Evaluator]:
        """An evaluator of its own; whatever is noted about the state meanwhile is forgotten."""
        state = self._state
        touched, freed, woken = dict(state.touched), dict(state.freed), set(state.woken)
        own = self._engine.evaluator(profile)
        evaluator = Evaluator(own.profile, state)
        evaluator.sees = self._sees
        try:
            yield evaluator
        finally:
            evaluator.close()
            state.touched, state.freed, state.woken = touched, freed, woken


@contextmanager
def _introduced(state: State, pods: Mapping[str, PodRecord]) -> Iterator[None]:
    """With pods that do not exist."""
    state.pods.update(pods)
    try:
        yield
    finally:
        for uid in pods:
            del state.pods[uid]


@contextmanager
def _transformed(unit: Unit, evaluator: Evaluator, state: State, now: float) -> Iterator[None]:
    """With the pods as the transformers of the profile want them."""
    plugins = evaluator.profile.at["before_prefilter"]
    before = [(pod := state.pods[uid], pod.facts, pod.shape, pod.request) for uid in unit.pods] if plugins else []
    try:
        for pod, *_ in before:
            facts = pod.seen
            for plugin in plugins:
                facts = guarded(plugin, "before_prefilter", facts, now) or facts
            if facts is not pod.facts:
                state.replace_waiting(pod, facts)
        yield
    finally:
        for pod, facts, shape, request in before:
            if pod.facts is not facts:
                pod.facts, pod.shape, pod.request = facts, shape, request
                pod.priority = facts.spec.priority or 0
                pod.scoring_cpu, pod.scoring_memory = shape.requests.scoring_cpu, shape.requests.scoring_memory


def _prefiltered(unit: Unit, evaluator: Evaluator, state: State, now: float) -> Verdict | None:
    for uid in unit.pods:
        pod = state.pods[uid]
        block = evaluator.block(pod)
        for plugin in evaluator.prefilters(pod):
            if guarded(plugin, "concerns", block):
                verdict: Verdict | None = guarded(plugin, "prefilter", unit, block, now)
                if verdict is not None:
                    return verdict
    return None


def _give_back(placed: list[Placed], state: State) -> None:
    for one in reversed(placed):
        state.forget(one.pod)


def _place(one: Placed, state: State) -> PodPlace:
    return PodPlace(one.pod.key, state.nodes.names[one.slot], one.score)


def _places(pods: list[PodRecord]) -> tuple[PodPlace, ...]:
    return tuple(PodPlace(pod.key, pod.node) for pod in pods[:PODS_SHOWN_MAX])


def _not_tried(pods: list[PodRecord]) -> Verdict:
    for pod in pods:
        gates = [gate.name for gate in pod.facts.spec.scheduling_gates]
        if gates:
            return Verdict(reason=Reason.SUSPENDED, message=f"pod {pod.key} has scheduling gates: {', '.join(gates[:5])}")
        if pod.is_ending or pod.facts.is_finished:
            return Verdict(reason=Reason.SUCCEEDED, message=f"pod {pod.key} is ending or has ended: it needs no node")
    waiting = sum(1 for pod in pods if pod.phase is Phase.WAITING)
    return Verdict(reason=Reason.QUEUED, message=f"{waiting} of its pods wait to be looked at")


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=7).digest()
