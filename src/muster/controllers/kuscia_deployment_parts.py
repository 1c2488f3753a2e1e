"""What a KusciaDeployment is made of: for each own party pods of one template, services, and files. Pure.

Nothing here has an owner reference: the objects live in the parties' namespaces and the deployment in `cross-domain`, and
there is no cluster-wide object between them. They are found by the label `kuscia.secretflow/kd-uid` instead, and the
deployment's finalizer stays until none of them is left.

All pods of a party are alike: the same ports, the same files, the same place in the cluster definition, whose endpoints are
the party's services. The hash of all that tells one version from the next. It covers the deployment's uid too, so that pods
and files of two deployments never meet, whatever they are called.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from muster.controllers.kuscia_deployment_rollout import DEFAULT_SHARE, Replica, Strategy, scaled
from muster.controllers.kuscia_task_parts import carried
from muster.controllers.kuscia_task_pods import TaskPod
from muster.controllers.parties import Party
from muster.controllers.task_kit import KitError, PartyKit, Work, cluster_define, define_party, party_kits, short
from muster.controllers.task_kit_objects import CONFIG_VOLUME, config_files, config_map, pod_template, service
from muster.controllers.task_ports import PartyPorts, PortWish
from muster.objects.kinds.kuscia_tasks import PartyAllocatedPorts
from muster.objects.labels import Kubernetes, KusciaAnnotation, KusciaLabel, Muster
from muster.objects.meta import annotations_of, name_of, uid_of
from muster.objects.reason_codes import Reason
from muster.objects.rules.kuscia_deployments import AFFINITY_MODES
from muster.objects.rules.report import obj, objs, text
from muster.objects.status import Raw, shown
from muster.objects.time import time_or
from muster.objects.words import whole_number

CONTROLLER_VALUE: Final = "kusciadeployment"
_HASH_LEN: Final = 10


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One party's part. `name` is what Kuscia calls its Deployment, `prefix` what its services' names begin with."""

    kit: PartyKit
    name: str
    prefix: str
    desired: int
    strategy: Strategy

    @property
    def wishes(self) -> PartyPorts:
        return self.kit.wishes([self.prefix])


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a part: what its pods look like, and the files that they mount."""

    hash: str
    pod: Raw
    files: Mapping[str, str]
    config_name: str


def work_of(deployment: Raw) -> Work:
    spec, uid = obj(deployment, "spec"), uid_of(deployment)
    return Work(
        kind="deployment",
        name=name_of(deployment),
        uid=uid,
        initiator=text(spec, "initiator"),
        input_config=text(spec, "inputConfig"),
        labels={
            KusciaLabel.CONTROLLER: CONTROLLER_VALUE,
            KusciaLabel.DEPLOYMENT_UID: uid,
            KusciaLabel.DEPLOYMENT_NAME: short(name_of(deployment)),
        },
        annotations={KusciaAnnotation.INITIATOR: text(spec, "initiator")},
    )


# -- parties ------------------------------------------------------------------------------------------------------------------


def parts_of(deployment: Raw, find_image: Callable[[str], Raw | None], find_party: Callable[[str], Party | None]) -> list[Part]:
    """The parts of all parties, in the order of the spec. KitError says what is missing or wrong."""
    work = work_of(deployment)
    parties = [party for _, party in objs(obj(deployment, "spec"), "parties", "")]
    # The kit knows no part without a pod; a deployment may be scaled to none.
    asked = [obj(party, "template").get("replicas") for party in parties]
    some = [_with_replicas(party, 1) if count == 0 else party for party, count in zip(parties, asked, strict=True)]
    kits = party_kits(work, some, find_image, find_party)
    return [
        _part(work, party, kit, 0 if count == 0 else kit.replicas) for party, kit, count in zip(some, kits, asked, strict=True)
    ]


def _with_replicas(party: Raw, count: int) -> Raw:
    return {**party, "template": {**obj(party, "template"), "replicas": count}}


def _part(work: Work, party: Raw, kit: PartyKit, desired: int) -> Part:
    name = f"{work.name}-{kit.role}" if kit.role else work.name
    return Part(
        kit=kit,
        name=name,
        prefix=text(party, "serviceNamePrefix") or name,
        desired=desired,
        strategy=strategy_of(obj(obj(party, "template"), "strategy"), f"spec.parties[{kit.index}].template.strategy"),
    )


def strategy_of(raw: Raw, where: str) -> Strategy:
    rolling = obj(raw, "rollingUpdate")
    shares: list[int | str] = []
    for word in ("maxSurge", "maxUnavailable"):
        value: Any = rolling.get(word)
        value = DEFAULT_SHARE if value is None else value
        try:
            scaled(value, 100, up=True)
        except ValueError as error:
            raise KitError(Reason.MANIFEST_INVALID, f"{where}.rollingUpdate.{word}: {error}") from None
        shares.append(value)
    return Strategy(text(raw, "type") == "Recreate", shares[0], shares[1])


# -- ports --------------------------------------------------------------------------------------------------------------------


def wishes_of(parts: Sequence[Part], allocated: Sequence[PartyAllocatedPorts]) -> list[PartyPorts]:
    """The ports of all own parties. What was given out before is wished for again, so that a new port moves no other one."""
    had = {(one.domain_id, one.role): one.named_port for one in allocated}
    found = []
    for part in parts:
        if not part.kit.is_own:
            continue
        known, wishes = had.get((part.kit.domain_id, part.kit.role), {}), part.wishes
        again = tuple(PortWish(wish.pod, wish.port, known.get(wish.key, wish.number)) for wish in wishes.wishes)
        found.append(PartyPorts(wishes.domain_id, wishes.role, again))
    return found


def numbers_of(part: Part, allocated: Sequence[PartyAllocatedPorts]) -> dict[str, int]:
    """Of one part, by `prefix/port`."""
    for one in allocated:
        if (one.domain_id, one.role) == (part.kit.domain_id, part.kit.role):
            return dict(one.named_port)
    return {}


# -- pods, services, files ----------------------------------------------------------------------------------------------------


def template_of(deployment: Raw, part: Part, parts: Sequence[Part], allocated: Sequence[PartyAllocatedPorts]) -> Template:
    """The present version of a part. KitError when a file can't be rendered or the affinity mode is unknown."""
    work, kit = work_of(deployment), part.kit
    define = cluster_define([define_party(one.kit, [one.prefix], numbers_of(one, allocated)) for one in parts], kit.index, 0)
    ports = pod_ports(part, allocated)
    files = config_files(kit, work, ports, define)
    labels, notes = carried(deployment)
    made = pod_template(
        kit,
        work,
        ports,
        define,
        config_name=CONFIG_VOLUME if files else "",
        priority_class=annotations_of(deployment).get(Muster.PRIORITY_CLASS, ""),
    )
    made["metadata"]["labels"] |= {**labels, **selector_of(deployment, part)}
    made["metadata"]["annotations"] |= notes
    _spread(made["spec"], deployment, part)
    digest = hashlib.sha256(msgspec.json.encode([made, files], order="sorted")).hexdigest()[:_HASH_LEN]
    made["metadata"]["labels"][Muster.TEMPLATE_HASH] = digest
    config_name = short(f"{part.name}-{digest}") if files else ""
    if config_name:
        made["spec"]["volumes"] = [{"name": CONFIG_VOLUME, "configMap": {"name": config_name}}]
    return Template(hash=digest, pod=made, files=files, config_name=config_name)


def pod_ports(part: Part, allocated: Sequence[PartyAllocatedPorts]) -> dict[str, int]:
    numbers = numbers_of(part, allocated)
    return {port.name: numbers.get(f"{part.prefix}/{port.name}", port.number) for port in part.kit.ports}


def selector_of(deployment: Raw, part: Part) -> dict[str, str]:
    """The labels by which a part's services find its pods."""
    return {KusciaLabel.KUBERNETES_DEPLOYMENT_NAME: short(part.name), KusciaLabel.DEPLOYMENT_UID: uid_of(deployment)}


def _spread(spec: Raw, deployment: Raw, part: Part) -> None:
    """Pods of a part stay away from each other unless the deployment says otherwise; the template's own affinity wins."""
    mode = annotations_of(deployment).get(KusciaAnnotation.AFFINITY_MODE, "") or "anti-affinity"
    if mode not in AFFINITY_MODES:
        raise KitError(
            Reason.MANIFEST_INVALID,
            f"metadata.annotations[{KusciaAnnotation.AFFINITY_MODE}]: {shown(mode)}: write {', '.join(AFFINITY_MODES)}",
        )
    if mode == "none" or spec.get("affinity"):
        return
    term = {"labelSelector": {"matchLabels": selector_of(deployment, part)}, "topologyKey": Kubernetes.HOSTNAME}
    word = "podAffinity" if mode == "affinity" else "podAntiAffinity"
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    spec["affinity"] = {word: {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def pod_of(part: Part, template: Template, index: int, attempt: int) -> Raw:
    name = f"{short(part.name)}-{template.hash}-{index}"
    metadata = template.pod["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": part.kit.domain_id,
            "labels": {**metadata["labels"], Muster.INDEX: str(index)},
            "annotations": {**metadata["annotations"], Muster.ATTEMPT: str(attempt)},
        },
        "spec": template.pod["spec"],
    }


def services_of(deployment: Raw, part: Part, allocated: Sequence[PartyAllocatedPorts]) -> list[Raw]:
    made = []
    for port in part.kit.ports:
        if port.has_service:
            number = pod_ports(part, allocated)[port.name]
            selector = selector_of(deployment, part)
            one = service(part.kit, work_of(deployment), part.prefix, port.name, number=number, selector=selector)
            # Several pods stand behind it: those that are not ready get nothing.
            one["spec"]["publishNotReadyAddresses"] = False
            made.append(one)
    return made


def files_of(deployment: Raw, part: Part, template: Template) -> Raw | None:
    if not template.config_name:
        return None
    made = config_map(part.kit, work_of(deployment), template.config_name, template.files)
    made["metadata"]["labels"] |= {**selector_of(deployment, part), Muster.TEMPLATE_HASH: template.hash}
    return made


# -- pods as they are ---------------------------------------------------------------------------------------------------------


def replica_of(pod: TaskPod, now: float) -> Replica:
    meta, status = pod.metadata, pod.status
    ready = status.condition("Ready")
    created_s = time_or(meta.creation_timestamp, now)
    ended_s = time_or(ready.last_transition_time if ready is not None else "", created_s)
    return Replica(
        name=meta.name,
        uid=meta.uid,
        index=whole_number(meta.labels.get(Muster.INDEX, ""), -1),
        template_hash=meta.labels.get(Muster.TEMPLATE_HASH, ""),
        is_ready=status.phase == "Running" and ready is not None and ready.status == "True",
        is_ended=pod.is_finished,
        is_deleting=bool(meta.deletion_timestamp),
        has_node=bool(pod.spec.node_name),
        created_s=created_s,
        ended_s=ended_s,
        ran_s=max(ended_s - time_or(status.start_time, ended_s), 0.0),
        attempt=max(whole_number(meta.annotations.get(Muster.ATTEMPT, ""), 1), 1),
    )
