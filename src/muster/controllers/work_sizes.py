"""Pieces of work as they are submitted: whose, in which queue, and how much they ask for in all. Pure.

| kind | counts until | asks for |
|---|---|---|
| Job (muster.dev) | it has ended | all replicas of all roles |
| KusciaJob (labels `muster.dev/user`, `muster.dev/queue`) | it has ended | its largest task, of all parties here |
| Pod with a user or queue, that no controller of Muster made for a job | it has ended | itself |

Amounts are whole numbers in the scheduler's units. Never raises for what an object holds: what can't be read asks for nothing
(the rules of its kind refuse it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from muster.engine.facts import PodFacts
from muster.engine.resources import requests_of
from muster.engine.work import estimated_seconds, work_of
from muster.objects.bandwidth_demands import deploy_template
from muster.objects.job_pods import JobPods
from muster.objects.job_stages import RESTART, is_new, read_command, refusal, rerun_aliases
from muster.objects.kinds.kuscia_jobs import FINAL_PHASES
from muster.objects.labels import Muster
from muster.objects.meta import annotations_of, controller_of, generation_of, labels_of, name_of, namespace_of, uid_of
from muster.objects.status import Raw
from muster.objects.view import view_of

FOLLOWED: Final = (("muster.dev", "Job"), ("kuscia.secretflow", "KusciaJob"), ("", "Pod"))
JOB_FINAL: Final = frozenset({"Succeeded", "Failed", "Cancelled"})
_JOB_STOPPED: Final = frozenset({"Stopped", "Cancelled"})
_JOB_RUNNING: Final = frozenset({"Starting", "Running"})
_JOB_GROUPS: Final = frozenset({"muster.dev", "kuscia.secretflow"})
_WHOSE: Final = (Muster.WORK, Muster.USER, Muster.GROUP, Muster.QUEUE)

FindImage = Callable[[str], Mapping[str, Any] | None]
IsPartner = Callable[[str], bool]


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A submission."""

    key: str
    """`Kind/namespace/name`."""
    user: str = ""
    group: str = ""
    queue: str = ""
    type: str = ""
    labels: Mapping[str, str] = {}
    request: Mapping[str, int] = {}
    estimate_s: float | None = None
    is_over: bool = False
    is_running: bool = False

    @property
    def is_accounted(self) -> bool:
        return bool(self.user or self.queue or self.group)


def work_key(kind: str, namespace: str, name: str) -> str:
    return f"{kind}/{namespace}/{name}"


class WorkReader:
    """`submitted_work`, for whoever follows objects: what a Job asks for changes only with its generation, and most changes are
    of its status. One caller at a time."""

    def __init__(self, find_image: FindImage = lambda name: None, is_partner: IsPartner = lambda domain: False) -> None:
        self._find_image = find_image
        self._is_partner = is_partner
        self._known: dict[str, tuple[tuple[str, int], Work]] = {}

    def read(self, kind: str, raw: Mapping[str, Any]) -> Work | None:
        if kind != "Job":
            return submitted_work(kind, raw, self._find_image, self._is_partner)
        key = work_key(kind, namespace_of(raw), name_of(raw))
        version = (uid_of(raw), generation_of(raw))
        known = self._known.get(key)
        if known is None or known[0] != version or not version[0]:
            work = submitted_work(kind, raw)
            if work is not None and version[0]:
                self._known[key] = (version, work)
            return work
        phase = _object(raw, "status").get("phase") or ""
        is_over = phase in JOB_FINAL or _object(raw, "spec").get("state") in _JOB_STOPPED
        labels = labels_of(raw)
        return msgspec.structs.replace(
            known[1],
            labels=labels,
            group=_noted(raw, Muster.GROUP),
            is_over=is_over,
            is_running=phase in _JOB_RUNNING,
        )

    def forget(self, key: str) -> None:
        """The object is gone."""
        self._known.pop(key, None)


def submitted_work(
    kind: str,
    raw: Mapping[str, Any],
    find_image: FindImage = lambda name: None,
    is_partner: IsPartner = lambda domain: False,
) -> Work | None:
    """What the object submits; None when it is no submission of its own."""
    try:
        if kind == "Job":
            return _job(dict(raw))
        if kind == "KusciaJob":
            return _kuscia_job(raw, find_image, is_partner)
        return _pod(raw) if kind == "Pod" else None
    except (msgspec.ValidationError, ValueError, TypeError, AttributeError, KeyError):
        return None


def _job(raw: Raw) -> Work:
    pods = JobPods(raw)
    spec, status = pods.view.spec, pods.view.status
    total: dict[str, int] = {}
    for role in spec.roles:
        for name, amount in requests_of(view_of(PodFacts, pods.shape(role))).amounts.items():
            total[name] = total.get(name, 0) + amount * role.replicas
    return Work(
        key=work_key("Job", namespace_of(raw), name_of(raw)),
        user=spec.user,
        group=_noted(raw, Muster.GROUP),
        queue=spec.queue,
        type=spec.type,
        labels=labels_of(raw),
        request=total,
        estimate_s=None if spec.estimate is None else spec.estimate.run_seconds,
        is_over=status.phase in JOB_FINAL or spec.state in _JOB_STOPPED,
        is_running=status.phase in _JOB_RUNNING,
    )


def _kuscia_job(raw: Mapping[str, Any], find_image: FindImage, is_partner: IsPartner) -> Work:
    spec, status = _object(raw, "spec"), _object(raw, "status")
    largest: dict[str, int] = {}
    for task in _items(spec, "tasks"):
        image = find_image(str(task.get("appImage") or "")) or {}
        total: dict[str, int] = {}
        for party in _items(task, "parties"):
            if not is_partner(str(party.get("domainID") or "")):
                for name, amount in _party_request(party, image).items():
                    total[name] = total.get(name, 0) + amount
        for name, amount in total.items():
            largest[name] = max(largest.get(name, 0), amount)
    return Work(
        key=work_key("KusciaJob", namespace_of(raw), name_of(raw)),
        user=_noted(raw, Muster.USER),
        group=_noted(raw, Muster.GROUP),
        queue=_noted(raw, Muster.QUEUE),
        type=_noted(raw, "muster.dev/type"),
        labels=labels_of(raw),
        request=largest,
        estimate_s=estimated_seconds(_noted(raw, Muster.ESTIMATE_SECONDS)),
        is_over=status.get("phase") in FINAL_PHASES and not _restarts(raw, status),
        is_running=status.get("phase") == "Running",
    )


def _restarts(raw: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether a job that has ended was told to run again and will: from then on it is submitted anew."""
    command = read_command(labels_of(raw))
    if command is None or command.problem or command.stage != RESTART:
        return False
    version = status.get("stageVersion")
    last = version if isinstance(version, int) else 0
    reruns = bool(rerun_aliases(annotations_of(raw).get(Muster.RERUN_FROM, "")))
    return is_new(command, str(status.get("stage") or ""), last) and not refusal(
        command, str(status.get("phase") or ""), reruns=reruns
    )


def _party_request(party: Mapping[str, Any], image: Mapping[str, Any]) -> Mapping[str, int]:
    """The party's total where the job gives one; otherwise what the AppImage asks for each of its pods."""
    template = deploy_template(image, str(party.get("role") or ""))
    replicas = template.get("replicas")
    pods = replicas if isinstance(replicas, int) and not isinstance(replicas, bool) and replicas > 0 else 1
    resources = _object(party, "resources")
    if resources:
        containers, times = [{"resources": {"requests": _object(resources, "requests") or _object(resources, "limits")}}], 1
    else:
        containers, times = (
            [{"resources": _object(one, "resources")} for one in _items(_object(template, "spec"), "containers")],
            pods,
        )
    facts = view_of(PodFacts, {"spec": {"containers": containers}})
    found = {name: amount * times for name, amount in requests_of(facts).amounts.items()}
    return {**found, "pods": pods}


def is_part_of_job(raw: Mapping[str, Any]) -> bool:
    """Whether a controller of Muster made the object for work that is counted itself. Who may say so: `server.whose_work`."""
    owner = controller_of(raw)
    return owner is not None and is_kind_of_job(str(owner.get("apiVersion") or ""))


def is_kind_of_job(api_version: str) -> bool:
    """Whether what owners of this version make counts with them."""
    return api_version.partition("/")[0] in _JOB_GROUPS


def _pod(raw: Mapping[str, Any]) -> Work | None:
    if is_part_of_job(raw) or not _says_whose(raw):
        return None
    facts = view_of(PodFacts, dict(raw))
    known = work_of(facts)
    if not (known.user or known.queue or known.group):
        return None
    return Work(
        key=work_key("Pod", namespace_of(raw), name_of(raw)),
        user=known.user,
        group=known.group,
        queue=known.queue,
        type=known.type,
        labels=labels_of(raw),
        request=requests_of(facts).amounts,
        estimate_s=known.estimate_s,
        is_over=facts.is_finished,
        is_running=bool(facts.spec.node_name) and not facts.is_finished,
    )


def _says_whose(raw: Mapping[str, Any]) -> bool:
    """Whether a pod names a user, group or queue anywhere: most do not, and need not be read for it."""
    metadata = _object(raw, "metadata")
    notes = (_object(metadata, "labels"), _object(metadata, "annotations"))
    return any(key in said for said in notes for key in _WHOSE)


def _noted(raw: Mapping[str, Any], key: str) -> str:
    return labels_of(raw).get(key) or annotations_of(raw).get(key) or ""


def _object(parent: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def _items(parent: Mapping[str, Any], key: str) -> Iterator[dict[str, Any]]:
    value = parent.get(key)
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())
