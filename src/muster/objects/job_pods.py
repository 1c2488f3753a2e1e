"""What a Job (muster.dev) is made of: its pods, a PodGroup for each role, a headless Service, a PriorityClass.

Names follow from the job, so that a second try finds the first one's work: pod `<job>-<role>-<index>`, PodGroup `<job>-<role>`,
Service `<job>`, PriorityClass `muster-priority-<level>`. The fields of a role are laid over its `template`; where both speak of
one thing, the role wins.

Pure. `JobPods` prepares what all pods of a role share once, so that a role of thousands is cheap. It expects a job that has
passed its rules (`rules.muster_jobs`), which use it to check the pods themselves.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from muster.objects.bandwidth import is_bandwidth_resource, resource_bandwidth
from muster.objects.bandwidth_demands import pod_annotations
from muster.objects.kinds.muster_jobs import Job, Role
from muster.objects.labels import KoordinatorPod, Kubernetes, Muster, Sigs
from muster.objects.meta import metadata_of, name_of, namespace_of, owner_reference, uid_of
from muster.objects.names import validate_label_value
from muster.objects.status import Raw
from muster.objects.view import view_of

MAIN: Final = "main"
"""The container that a role's fields describe, unless the template names its first one otherwise."""
PROCESS_IMAGE: Final = "muster.dev/process"
"""Stands where Kubernetes wants an image: the command runs as a process of the node, and nothing is pulled."""
DEFAULT_SCHEDULER: Final = "muster-scheduler"
PORT_FIRST: Final = 20_000
PORT_COUNT: Final = 10_000
"""Ports that a role leaves to Muster come from here: below the node ports of Kubernetes and the ports that systems give out."""
ADDRESSES_MAX: Final = 256
"""The addresses of a role are listed in the environment up to this many replicas."""
PODS_MAX: Final = 100_000
_OVERCOMMITTED: Final = ("cpu", "memory", "ephemeral-storage")


def pod_name(job: str, role: str, index: int) -> str:
    return f"{job}-{role}-{index}"


def group_name(job: str, role: str) -> str:
    return f"{job}-{role}"


def env_word(name: str) -> str:
    """A role's or port's name as part of a variable: `parameter-server` is `PARAMETER_SERVER`."""
    return name.upper().replace("-", "_")


def priority_class_name(priority: int) -> str:
    return f"muster-priority-{priority}" if priority >= 0 else f"muster-priority-minus-{-priority}"


def priority_class(priority: int) -> Raw:
    """On both stores a pod's priority comes from a PriorityClass: servers refuse a bare number."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": priority_class_name(priority), "labels": {Kubernetes.MANAGED_BY: "muster"}},
        "value": priority,
        "globalDefault": False,
        "description": f"Jobs of muster.dev with spec.priority {priority}.",
    }


class RolePorts(msgspec.Struct, frozen=True):
    """The ports of a role by name: a number that all replicas share, or the first of as many as there are replicas."""

    fixed: Mapping[str, int]
    first: Mapping[str, int]

    def of(self, index: int) -> dict[str, int]:
        given = {name: PORT_FIRST + (slot + index) % PORT_COUNT for name, slot in self.first.items()}
        return {**self.fixed, **given}


def role_ports(view: Job, uid: str) -> dict[str, RolePorts]:
    """Ports by role. Those that are left out follow from the job's uid, one for each replica, and none twice in a job."""
    slot = zlib.crc32(uid.encode()) % PORT_COUNT
    taken = {port.port for role in view.spec.roles for port in role.ports if port.port is not None}
    found: dict[str, RolePorts] = {}
    for role in view.spec.roles:
        first: dict[str, int] = {}
        for port in role.ports:
            if port.port is None:
                slot = _free_slot(slot, role.replicas, taken)
                first[port.name] = slot
                slot += role.replicas
        fixed = {port.name: port.port for port in role.ports if port.port is not None}
        found[role.name] = RolePorts(fixed, first)
    return found


def _free_slot(slot: int, count: int, taken: set[int]) -> int:
    """The next run of `count` slots without a port that the job itself names."""
    for _ in range(len(taken) + 1):
        clash = [n for n in range(count) if PORT_FIRST + (slot + n) % PORT_COUNT in taken] if taken else []
        if not clash:
            break
        slot += clash[-1] + 1
    return slot % PORT_COUNT


class JobPods:
    """The objects of one job. Made anew for each version of it. `notes` are further annotations of its pods."""

    def __init__(self, raw: Raw, view: Job | None = None, notes: Mapping[str, str] | None = None) -> None:
        self.raw = raw
        self._notes = notes or {}
        self.view = view_of(Job, raw) if view is None else view
        self.name, self.namespace = name_of(raw), namespace_of(raw)
        roles = (raw.get("spec") or {}).get("roles") or ()
        self._raw_roles = {str(role.get("name")): role for role in roles}
        self._ports = role_ports(self.view, uid_of(raw))
        self._bases: dict[str, tuple[Raw, list[Raw]]] = {}
        self._owner = owner_reference(raw) if uid_of(raw) else None

    @property
    def total(self) -> int:
        return sum(role.replicas for role in self.view.spec.roles)

    @property
    def has_groups(self) -> bool:
        """One pod alone needs nobody to wait for."""
        return self.total > 1

    @property
    def has_service(self) -> bool:
        return self.total > 1 or any(role.ports for role in self.view.spec.roles)

    def names(self) -> Iterator[tuple[str, Role, int]]:
        """Every pod's name, role and index, in the order in which they are made."""
        for role in self.view.spec.roles:
            for index in range(role.replicas):
                yield pod_name(self.name, role.name, index), role, index

    def group_names(self) -> list[str]:
        return [group_name(self.name, role.name) for role in self.view.spec.roles] if self.has_groups else []

    # -- objects beside the pods ----------------------------------------------------------------------------------------------

    def groups(self) -> list[Raw]:
        """A PodGroup for each role; several are joined, so that all roles start together or none does."""
        names = self.group_names()
        joined = json.dumps([f"{self.namespace}/{name}" for name in names])
        made = []
        for role, name in zip(self.view.spec.roles, names, strict=False):
            notes = {**self._origin(), **({KoordinatorPod.GANG_GROUPS: joined} if len(names) > 1 else {})}
            notes[KoordinatorPod.GANG_TOTAL_NUMBER] = str(role.replicas)
            # Not Koordinator's default, by which a group that has started once never starts together again.
            notes[KoordinatorPod.GANG_MATCH_POLICY] = "waiting-and-running"
            made.append(
                {
                    "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
                    "kind": "PodGroup",
                    "metadata": self._meta(name, {Muster.JOB: self.name, Muster.ROLE: role.name}, notes),
                    "spec": {"minMember": role.min_replicas or role.replicas},
                }
            )
        return made

    def service(self) -> Raw:
        """Headless: it gives each pod the name `<pod>.<job>`, even before it is ready: peers find each other early."""
        ports: dict[tuple[str, int], Raw] = {}
        for role in self.view.spec.roles:
            protocols = {port.name: port.protocol for port in role.ports}
            for name, number in self._ports[role.name].fixed.items():
                entry = {"name": f"{protocols[name].lower()}-{number}", "port": number, "protocol": protocols[name]}
                ports[protocols[name], number] = entry
        spec: Raw = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {Muster.JOB: self.name}}
        if ports:
            spec["ports"] = list(ports.values())
        return {"apiVersion": "v1", "kind": "Service", "metadata": self._meta(self.name, {Muster.JOB: self.name}), "spec": spec}

    def _meta(self, name: str, labels: Mapping[str, str], annotations: Mapping[str, str] | None = None) -> Raw:
        meta: Raw = {"name": name, "namespace": self.namespace, "labels": dict(labels)}
        if annotations:
            meta["annotations"] = dict(annotations)
        if self._owner is not None:
            meta["ownerReferences"] = [self._owner]
        return meta

    def _origin(self) -> dict[str, str]:
        """Where the job stands by age, whenever its pods are made again."""
        created = str(metadata_of(self.raw).get("creationTimestamp") or "")
        return {key: value for key, value in ((Muster.ORIGIN_CREATED, created), (Muster.ORIGIN_UID, uid_of(self.raw))) if value}

    # -- pods -----------------------------------------------------------------------------------------------------------------

    def pod(self, role: Role, index: int, attempt: int = 1) -> Raw:
        """The pod of one replica."""
        base, shared_env = self._base(role)
        name = pod_name(self.name, role.name, index)
        meta = {**base["metadata"], "name": name}
        meta["labels"] = {**meta["labels"], Muster.INDEX: str(index)}
        meta["annotations"] = {**meta["annotations"], Muster.ATTEMPT: str(attempt)}
        spec = dict(base["spec"])
        if self.has_service:
            spec["hostname"], spec["subdomain"] = name, self.name
        main, *others = spec["containers"]
        ports = self._ports[role.name].of(index)
        own = {
            "MUSTER_INDEX": str(index),
            "MUSTER_ATTEMPT": str(attempt),
            "MUSTER_ADDRESS": f"{name}.{self.name}" if self.has_service else "localhost",
            **{f"MUSTER_PORT_{env_word(port)}": str(number) for port, number in ports.items()},
        }
        main = {**main, "env": _by_name([{"name": key, "value": value} for key, value in own.items()], shared_env)}
        if ports:
            main["ports"] = _by_name(main.get("ports") or [], self._port_entries(role, ports))
        spec["containers"] = [main, *others]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}

    def shape(self, role: Role) -> Raw:
        """What the pods of a role ask of the nodes, without what only running them needs: cheap, for whoever adds it up."""
        raw = self._raw_roles[role.name]
        template = raw.get("template") or {}
        notes = {**((template.get("metadata") or {}).get("annotations") or {})}
        notes.update(pod_annotations(resource_bandwidth(raw.get("resources"))))
        return {"metadata": {"annotations": notes}, "spec": self._spec(role, raw, template.get("spec") or {})}

    def _port_entries(self, role: Role, ports: Mapping[str, int]) -> list[Raw]:
        """A process has no address of its own: its ports are the node's, and the scheduler keeps them apart."""
        on_host = is_process(role)
        return [
            {
                "name": port.name,
                "containerPort": ports[port.name],
                "protocol": port.protocol,
                **({"hostPort": ports[port.name]} if on_host else {}),
            }
            for port in role.ports
        ]

    def _base(self, role: Role) -> tuple[Raw, list[Raw]]:
        """What all replicas share, and their common environment: ours, then the template's, then the role's, the last wins."""
        if role.name not in self._bases:
            raw = self._raw_roles[role.name]
            template = raw.get("template") or {}
            spec = self._spec(role, raw, template.get("spec") or {})
            ours = [{"name": key, "value": value} for key, value in self._common_env(role).items()]
            env = _by_name(ours, spec["containers"][0].pop("env", None) or [], raw.get("env") or [])
            self._bases[role.name] = {"metadata": self._pod_meta(role, raw, template), "spec": spec}, env
        return self._bases[role.name]

    def _pod_meta(self, role: Role, raw: Raw, template: Raw) -> Raw:
        wanted = self.view.spec
        given = template.get("metadata") or {}
        labels = {**(given.get("labels") or {}), Muster.JOB: self.name, Muster.ROLE: role.name}
        notes = {**(given.get("annotations") or {}), **self._origin()}
        notes.update(pod_annotations(resource_bandwidth(raw.get("resources"))))
        if self.has_groups:
            labels[Sigs.POD_GROUP] = group_name(self.name, role.name)
        for key, value in ((Muster.QUEUE, wanted.queue), (Muster.USER, wanted.user)):
            if value:
                # Users may have names that labels can't hold, such as ann@example.com.
                (notes if validate_label_value(value) else labels)[key] = value
        if len(wanted.pools) == 1:
            labels[Muster.POOL] = wanted.pools[0]
        elif wanted.pools:
            notes[Muster.POOLS] = ",".join(wanted.pools)
        labels[Muster.PREEMPTIBLE] = "true" if wanted.preemptible else "false"
        runtime = role.runtime or ("process" if is_process(role) else "")
        if runtime:
            notes[Muster.RUNTIME] = runtime
        meta = self._meta("", labels, {**notes, **self._notes})
        meta.setdefault("annotations", {})
        return meta

    def _spec(self, role: Role, raw: Raw, template: Raw) -> Raw:
        wanted = self.view.spec
        spec: Raw = msgspec.json.decode(msgspec.json.encode(template))
        spec["restartPolicy"] = role.restart_policy
        spec["schedulerName"] = wanted.scheduler_name or spec.get("schedulerName") or DEFAULT_SCHEDULER
        if wanted.priority:
            spec["priorityClassName"], spec["priority"] = priority_class_name(wanted.priority), wanted.priority
        if role.node_selector:
            spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **role.node_selector}
        if raw.get("tolerations"):
            spec["tolerations"] = [*(spec.get("tolerations") or []), *raw["tolerations"]]
        if raw.get("affinity"):
            spec["affinity"] = raw["affinity"]
        spec["containers"] = self._containers(role, raw, spec.get("containers") or [])
        return spec

    def _containers(self, role: Role, raw: Raw, given: list[Raw]) -> list[Raw]:
        """The main container first: what the role says, over what the template has under that name."""
        place = next((n for n, container in enumerate(given) if container.get("name") == MAIN), 0)
        main = dict(given[place]) if given else {}
        main["name"] = main.get("name") or MAIN
        main["image"] = role.image or main.get("image") or PROCESS_IMAGE
        for key, value in (("command", role.command), ("args", role.args), ("workingDir", role.working_dir)):
            if value:
                main[key] = value
        resources = _resources(raw.get("resources") or {}, main.get("resources") or {})
        if resources:
            main["resources"] = resources
        return [main, *given[:place], *given[place + 1 :]]

    def _common_env(self, role: Role) -> dict[str, str]:
        env = {
            "MUSTER_JOB": self.name,
            "MUSTER_NAMESPACE": self.namespace,
            "MUSTER_ROLE": role.name,
            "MUSTER_REPLICAS": str(role.replicas),
        }
        for other in self.view.spec.roles:
            word = env_word(other.name)
            env[f"MUSTER_REPLICAS_{word}"] = str(other.replicas)
            if self.has_service and other.replicas <= ADDRESSES_MAX:
                env[f"MUSTER_ADDRESSES_{word}"] = ",".join(self._addresses(other))
        return env

    def _addresses(self, role: Role) -> Iterator[str]:
        """`<pod>.<job>` of each replica, with its first port where it has one."""
        ports = self._ports[role.name]
        for index in range(role.replicas):
            host = f"{pod_name(self.name, role.name, index)}.{self.name}"
            yield f"{host}:{ports.of(index)[role.ports[0].name]}" if role.ports else host


def is_process(role: Role) -> bool:
    """Whether the role runs as a process of its node: it says so, or names no image at all."""
    if role.runtime:
        return role.runtime == "process"
    return not role.image and not any(c.get("image") for c in _template_containers(role))


def _template_containers(role: Role) -> list[Raw]:
    spec = (role.template or {}).get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    return [c for c in containers if isinstance(c, dict)] if isinstance(containers, list) else []


def _resources(wanted: Raw, given: Raw) -> Raw:
    """Requests and limits as a pod has them: bandwidth is in annotations, amounts are text, and what can't be overcommitted (a
    GPU) has a limit that equals its request."""
    merged = dict(given)
    for word in ("requests", "limits"):
        own = {key: str(value) for key, value in (wanted.get(word) or {}).items() if not is_bandwidth_resource(key)}
        amounts = {**(given.get(word) or {}), **own}
        if amounts:
            merged[word] = amounts
    whole = {key: value for key, value in (merged.get("requests") or {}).items() if key not in _OVERCOMMITTED}
    limits = {**whole, **(merged.get("limits") or {})}
    return {**merged, "limits": limits} if limits else merged


def _by_name(*lists: list[Any]) -> list[Raw]:
    """One list of named entries; where a name comes twice, the later entry stands, in the first one's place."""
    found: dict[str, Raw] = {}
    for entries in lists:
        for entry in entries:
            found[str(entry.get("name"))] = entry
    return list(found.values())
