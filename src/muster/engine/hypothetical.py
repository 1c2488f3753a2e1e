"""Work that does not exist yet: the pods that a manifest would lead to, for asking whether and where they would fit.

Pods and whatever has a pod template (PodTemplate, Deployment, ReplicaSet, StatefulSet, batch Job), Muster's Job, and Kuscia's
KusciaJob and KusciaTask. What a manifest does not say (the AppImage of a party, the value of a priority class) is assumed, and
said in `notes`.

Pure. Raises ManifestError, which names the field, for what can't be read. Bounded by PODS_MAX pods for each question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from muster.engine.facts import PodFacts
from muster.engine.gangs import gang_key_of
from muster.objects.bandwidth import PodBandwidth, is_bandwidth_resource, resource_bandwidth
from muster.objects.bandwidth_demands import FindImage, deploy_template, pod_annotations, share
from muster.objects.bandwidth_units import NOTHING
from muster.objects.labels import Kuscia
from muster.objects.quantity import Quantity

PODS_MAX: Final = 10_000
PODS_BYTES_MAX: Final = 12 * 1024 * 1024
"""Pods times the size of their template: terms and tolerations are gone through for each pod."""
Raw = Mapping[str, Any]
SelectorOf = Callable[[str], Mapping[str, str]]
"""The node selector that keeps a party to its own nodes; empty when it has none."""


class ManifestError(ValueError):
    """The manifest holds no work that could be tried, or a field can't be read."""


class Part(msgspec.Struct, frozen=True):
    """Pods that are alike in role; at least `min` of them must start."""

    party: str
    role: str
    min: int
    pods: tuple[PodFacts, ...]


class Work(msgspec.Struct, frozen=True):
    """What starts together."""

    name: str
    namespace: str
    parts: tuple[Part, ...]
    scheduler_name: str = ""
    notes: tuple[str, ...] = ()


class _Reader:
    def __init__(self, raw: Raw, namespace: str, find_image: FindImage, selector_of: SelectorOf) -> None:
        meta = _object(raw, "metadata")
        self.raw, self.spec = raw, _object(raw, "spec")
        self.namespace = str(meta.get("namespace") or namespace)
        self.name = str(meta.get("name") or meta.get("generateName") or "hypothetical").rstrip("-")
        self.find_image, self.selector_of = find_image, selector_of
        self.notes: list[str] = []
        self._pods = self._bytes = 0

    def pods(self, template: Raw, count: object, where: str, stem: str = "", party: str = "") -> tuple[PodFacts, ...]:
        """The pods of a party are in its own namespace."""
        number = count if isinstance(count, int) and not isinstance(count, bool) else 1
        if number < 1:
            raise ManifestError(f"{where}: asks for {number} pods; there is nothing to try")
        self._pods += number
        if self._pods > PODS_MAX:
            raise ManifestError(f"{where}: more than {PODS_MAX} pods in all; ask about fewer")
        self._bytes += number * len(msgspec.json.encode(template))
        if self._bytes > PODS_BYTES_MAX:
            raise ManifestError(f"{where}: its pods have more than {PODS_BYTES_MAX >> 20} MiB in all; ask about fewer")
        spec = _object(template, "spec")
        if not isinstance(spec.get("containers"), list) or not spec["containers"]:
            raise ManifestError(f"{where}.spec.containers: is missing or empty; a pod has at least one container")
        if spec.get("priorityClassName") and spec.get("priority") is None:
            named = spec["priorityClassName"]
            self.note(f"priority class {named} is not looked up: priority 0 counts; write spec.priority to try another")
        meta = _object(template, "metadata")
        stem, namespace = stem or self.name, party or self.namespace
        about = {
            "namespace": namespace,
            "labels": meta.get("labels") or {},
            "annotations": meta.get("annotations") or {},
        }
        try:
            alike = msgspec.convert({"metadata": about, "spec": spec}, PodFacts)
        except msgspec.ValidationError as error:
            raise ManifestError(f"{where}: {error}") from None
        made = []
        for index in range(number):
            name = stem if number == 1 else f"{stem}-{index}"
            # Roles of the same name make pods of the same name.
            uid = f"hypothetical/{namespace}/{name}/{self._pods - number + index}"
            named = msgspec.structs.replace(alike.metadata, name=name, uid=uid)
            made.append(msgspec.structs.replace(alike, metadata=named))
        return tuple(made)

    def note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < 20:
            self.notes.append(text)

    def work(self, parts: tuple[Part, ...], name: str = "", scheduler_name: str = "") -> Work:
        named = scheduler_name or parts[0].pods[0].spec.scheduler_name
        return Work(name or self.name, self.namespace, parts, named, tuple(self.notes))


def works_of(
    raw: Raw,
    namespace: str = "default",
    *,
    find_image: FindImage = lambda name: None,
    selector_of: SelectorOf = lambda party: {},
) -> list[Work]:
    """What the manifest would start; a job of several tasks gives one for each."""
    kind, group = str(raw.get("kind") or ""), str(raw.get("apiVersion") or "").rpartition("/")[0]
    reader = _Reader(raw, namespace, find_image, selector_of)
    if kind == "Pod" or (not kind and isinstance(reader.spec.get("containers"), list)):
        pods = reader.pods(raw, 1, "Pod")
        metadata = pods[0].metadata
        if gang_key_of(metadata):
            reader.note("tried alone: the group that it starts with is not looked at; create it and ask about the PodGroup")
        return [reader.work((Part(reader.namespace, "", 1, pods),))]
    if (group, kind) == ("muster.dev", "Job"):
        return [_job(reader)]
    if (group, kind) == ("kuscia.secretflow", "KusciaJob"):
        return list(_kuscia_job(reader))
    if (group, kind) == ("kuscia.secretflow", "KusciaTask"):
        return [_kuscia_task(reader)]
    template = raw.get("template") if isinstance(raw.get("template"), dict) else reader.spec.get("template")
    if isinstance(template, dict):
        count = reader.spec.get("parallelism", reader.spec.get("replicas", 1))
        pods = reader.pods(template, 1 if count is None else count, "template" if "template" in raw else "spec.template")
        if len(pods) > 1:
            reader.note("its pods start one by one; asked is whether all of them fit at once")
        return [reader.work((Part(reader.namespace, "", len(pods), pods),))]
    known = "Pod, PodTemplate, Deployment, ReplicaSet, StatefulSet, Job, KusciaJob and KusciaTask"
    raise ManifestError(f"kind {kind or 'missing'!r}: no pods can be derived from it; known are {known}")


def _job(reader: _Reader) -> Work:
    parts: list[Part] = []
    for where, role in _items(reader.spec, "roles", "spec"):
        base = _object(role, "template")
        spec = dict(_object(base, "spec"))
        containers = [dict(c) for c in spec.get("containers") or [{}] if isinstance(c, dict)] or [{}]
        resources = _plain(_object(role, "resources"))
        annotations = pod_annotations(_bandwidth(_object(role, "resources"), where))
        if resources:
            containers[0]["resources"] = resources
        if role.get("image"):
            containers[0]["image"] = role["image"]
        spec["containers"] = containers
        for key in ("nodeSelector", "tolerations", "affinity"):
            if role.get(key):
                spec[key] = role[key]
        meta = _object(base, "metadata")
        metadata = {"labels": meta.get("labels") or {}, "annotations": {**(meta.get("annotations") or {}), **annotations}}
        name = str(role.get("name") or len(parts))
        pods = reader.pods({"metadata": metadata, "spec": spec}, role.get("replicas", 1), where, f"{reader.name}-{name}")
        least = role.get("minReplicas")
        parts.append(Part("", name, min(least, len(pods)) if isinstance(least, int) else len(pods), pods))
    if not parts:
        raise ManifestError("spec.roles: is missing or empty; a Job has at least one role")
    if reader.spec.get("pools"):
        reader.note("spec.pools is not looked at: the pods are tried on all nodes")
    return reader.work(tuple(parts), scheduler_name=str(reader.spec.get("schedulerName") or ""))


def _kuscia_job(reader: _Reader) -> Iterator[Work]:
    tasks = list(_items(reader.spec, "tasks", "spec"))
    if not tasks:
        raise ManifestError("spec.tasks: is missing or empty; a KusciaJob has at least one task")
    for where, task in tasks:
        image = str(task.get("appImage") or "")
        parties = [(path, party, image, _object(party, "resources")) for path, party in _items(task, "parties", where)]
        yield _parties(reader, parties, f"{reader.name}/{task.get('alias') or where}", where)


def _kuscia_task(reader: _Reader) -> Work:
    nothing: dict[str, Any] = {}
    parties = [(p, party, str(party.get("appImageRef") or ""), nothing) for p, party in _items(reader.spec, "parties", "spec")]
    return _parties(reader, parties, reader.name, "spec")


def _parties(reader: _Reader, parties: list[tuple[str, dict[str, Any], str, dict[str, Any]]], name: str, where: str) -> Work:
    """`parties`: where it stands, the party, its AppImage, and its total (KusciaJob only)."""
    if not parties:
        raise ManifestError(f"{where}.parties: is missing or empty; a task has at least one party")
    parts = []
    for path, party, image_name, total in parties:
        domain, role = str(party.get("domainID") or ""), str(party.get("role") or "")
        image = reader.find_image(image_name)
        if image is None:
            reader.note(f"AppImage {image_name or '(none)'} is not known: one pod for each party, as its manifest says")
        template = deploy_template(image or {}, role)
        own = _object(party, "template")
        count = own.get("replicas") or template.get("replicas") or 1
        containers = {str(c.get("name")): dict(c) for _, c in _items(_object(template, "spec"), "containers", "")}
        for _, container in _items(_object(own, "spec"), "containers", ""):
            key = str(container.get("name"))
            containers[key] = {**containers.get(key, {}), **{k: v for k, v in container.items() if v}}
        made = list(containers.values()) or [{"name": "main"}]
        request = NOTHING
        for container in made:
            request += _bandwidth(_object(container, "resources"), path).request
            container["resources"] = _plain(_object(container, "resources"))
        annotations = pod_annotations(PodBandwidth(request))
        if total:
            number = max(count, 1) if isinstance(count, int) else 1
            made[0]["resources"] = _shared(total, number, path)
            annotations = pod_annotations(share(_bandwidth(total, path), number, 0))
        toleration = {"key": Kuscia.TAINT_AGENT, "operator": "Exists", "effect": "NoSchedule"}
        spec = {"containers": made, "nodeSelector": dict(reader.selector_of(domain)), "tolerations": [toleration]}
        stem = "-".join(word for word in (reader.name, domain, role) if word)
        pods = reader.pods({"metadata": {"annotations": annotations}, "spec": spec}, count, path, stem, domain)
        least = party.get("minReservedPods")
        parts.append(Part(domain, role, min(least, len(pods)) if isinstance(least, int) and least > 0 else len(pods), pods))
    reader.note("partners' parties are tried on the nodes known here")
    return reader.work(tuple(parts), name)


def _shared(total: Raw, count: int, where: str) -> dict[str, dict[str, Any]]:
    """The largest share of a party's total that one of its pods gets; bandwidth aside."""
    shares: dict[str, dict[str, Any]] = {}
    for side, amounts in _plain(total).items():
        for resource, amount in amounts.items():
            try:
                milli = Quantity.parse(amount).milli()
            except ValueError as error:
                raise ManifestError(f"{where}.resources.{side}.{resource}: {error}") from None
            part = -(-milli // count)
            shares.setdefault(side, {})[resource] = f"{part}m" if resource == "cpu" else str(-(-part // 1000))
    return shares


def _plain(resources: Raw) -> dict[str, dict[str, Any]]:
    """`resources` of our own kinds as a pod has them: without bandwidth, which goes into annotations."""
    plain: dict[str, dict[str, Any]] = {}
    for side in ("requests", "limits"):
        kept = {name: amount for name, amount in _object(resources, side).items() if not is_bandwidth_resource(str(name))}
        if kept:
            plain[side] = kept
    if "limits" in plain:
        plain["requests"] = {**plain["limits"], **plain.get("requests", {})}
    return plain


def _bandwidth(resources: Raw, where: str) -> PodBandwidth:
    found = resource_bandwidth(resources)
    if found.problems:
        raise ManifestError(f"{where}.resources.{found.problems[0]}")
    return found


def _object(parent: Raw, key: str) -> dict[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def _items(parent: Raw, key: str, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    value = parent.get(key)
    for index, item in enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, dict):
            yield f"{path}.{key}[{index}]", item
