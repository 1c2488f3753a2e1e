"""What each party of a task or deployment runs, worked out from its AppImage: template, pods, ports, names, cluster definition.

The first half of the kit; `task_kit_objects` makes the pods, services and config maps of it. Pure: the same task, AppImages and
port numbers give the same objects, so that a controller that crashed between two writes goes on where it was. Both halves
serve tasks and deployments; what differs between them is in `Work`.

How a party's template lies over the AppImage's, field by field: a container goes to the one of its name, or, if there is none,
to the one at its place, as in Kuscia, which looks at places only; one beyond the AppImage's is added. `command` and `args` come
together, `env` by name, `resources` by resource, everything else as a whole.

Invariant: what is wrong with the manifests is a `KitError` that names object, field and value, never another exception.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from muster.controllers.parties import Party
from muster.controllers.task_ports import PartyPorts, PortWish
from muster.objects.bandwidth import is_bandwidth_resource
from muster.objects.bandwidth_demands import deploy_template
from muster.objects.meta import name_of
from muster.objects.names import LABEL_LEN_MAX, SUBDOMAIN_LEN_MAX, validate_label_name, validate_port_name
from muster.objects.reason_codes import Reason
from muster.objects.rules.app_images import PORTS_MAX
from muster.objects.rules.report import number, obj, objs, text, texts
from muster.objects.status import Raw, shown
from muster.objects.view import copy_json

REPLICAS_MAX: Final = 1_000
PODS_MAX: Final = 1_000
PARTIES_MAX: Final = 128
CONTAINERS_MAX: Final = 16

Scope = Literal["Cluster", "Domain", "Local"]
_SCOPES: Final[tuple[Scope, ...]] = ("Cluster", "Domain", "Local")


class KitError(Exception):
    """The manifests do not make a task. `is_waiting`: something may still come or be corrected, such as an AppImage."""

    def __init__(self, reason: Reason, message: str, *, is_waiting: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.is_waiting = is_waiting


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What the kit is for."""

    kind: Literal["task", "deployment"]
    name: str
    uid: str
    initiator: str
    input_config: str
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    """On every object made for it."""
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)


class Port(msgspec.Struct, frozen=True):
    """A port of the merged template. `number` is the template's wish, 0 for none."""

    name: str
    number: int = 0
    protocol: str = "HTTP"
    scope: Scope = "Local"

    @property
    def has_service(self) -> bool:
        return self.scope in ("Cluster", "Domain")


class PartyKit(msgspec.Struct, frozen=True, kw_only=True):
    """One party's part. `index` is its place among the parties, which `selfPartyIdx` names."""

    index: int
    domain_id: str
    role: str
    is_own: bool
    app_image: str
    image: str
    image_id: str = ""
    replicas: int = 1
    min_pods: int = 1
    spec: Raw = msgspec.field(default_factory=dict)
    """The merged pod template."""
    ports: tuple[Port, ...] = ()
    access: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Port name to the parties that may reach it, with commas."""
    limits: tuple[tuple[str, int], ...] = ()
    """Ceilings towards peers: (party, KiB per second)."""
    config_templates: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def who(self) -> str:
        return f"party {self.domain_id}" + (f" as {self.role}" if self.role else "")

    def pod_names(self, work_name: str) -> list[str]:
        return [pod_name(work_name, self.role, index) for index in range(self.replicas)]

    def wishes(self, names: Sequence[str]) -> PartyPorts:
        """The ports that the pods (or whatever is called `names`) need."""
        wishes = (PortWish(name, port.name, port.number) for name in names for port in self.ports)
        return PartyPorts(self.domain_id, self.role, tuple(wishes))


def pod_name(work_name: str, role: str, index: int) -> str:
    return f"{work_name}-{role}-{index}" if role else f"{work_name}-{index}"


def service_name(owner_name: str, port_name: str) -> str:
    """`<pod>-<port>`: a DNS label that begins with a letter. A long one is cut, and a hash of the whole keeps it unique."""
    name = f"{owner_name}-{port_name}"
    if not name[0].isalpha():
        name = f"svc-{name}"
    return short(name.replace(".", "-"), name)


def short(name: str, whole: str = "") -> str:
    """`name` where it fits into a label, else its beginning and a hash of `whole`."""
    whole = whole or name
    if len(name) <= LABEL_LEN_MAX and name == whole:
        return name
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{name[: LABEL_LEN_MAX - len(digest) - 1].rstrip('-.')}-{digest}"


# -- parties ----------------------------------------------------------------------------------------------------------------


def party_kits(
    work: Work,
    parties: Sequence[Raw],
    find_image: Callable[[str], Raw | None],
    find_party: Callable[[str], Party | None],
) -> list[PartyKit]:
    """The parts of all parties, in the order of the spec. KitError says what is missing or wrong, and with what."""
    known = [_known_party(index, text(party, "domainID"), find_party) for index, party in enumerate(parties)]
    _check_parties(work, parties)
    kits = []
    for index, party in enumerate(parties):
        image_name = text(party, "appImageRef")
        image = find_image(image_name)
        if image is None:
            raise KitError(
                Reason.APP_IMAGE_NOT_FOUND,
                f"spec.parties[{index}].appImageRef: there is no AppImage {image_name!r}; create it, or correct the name",
                is_waiting=True,
            )
        kits.append(party_kit(index, party, parties, image, is_own=not known[index].is_partner))
        longest = pod_name(work.name, kits[-1].role, kits[-1].replicas)
        if len(longest) > SUBDOMAIN_LEN_MAX:
            raise _invalid(f"spec.parties[{index}].role", kits[-1].role, f"makes the pod name {longest!r}, which is too long")
    total = sum(kit.replicas for kit in kits)
    if total > PODS_MAX:
        raise _invalid("spec.parties", total, f"that many pods are too many for one {work.kind}; at most {PODS_MAX:,}")
    return kits


def _known_party(index: int, domain_id: str, find_party: Callable[[str], Party | None]) -> Party:
    known = find_party(domain_id)
    if known is None or not (known.has_namespace or known.is_partner):
        what = f"Domain {domain_id!r}" if known is None else f"namespace {domain_id!r} of that Domain"
        raise KitError(
            Reason.PARTY_UNKNOWN,
            f"spec.parties[{index}].domainID: there is no {what}; create the Domain, or correct its id",
            is_waiting=True,
        )
    return known


def _check_parties(work: Work, parties: Sequence[Raw]) -> None:
    if not parties or len(parties) > PARTIES_MAX:
        raise _invalid("spec.parties", len(parties), f"a {work.kind} has between 1 and {PARTIES_MAX} parties")
    seen: set[tuple[str, str]] = set()
    for index, party in enumerate(parties):
        domain_id, role = text(party, "domainID"), text(party, "role")
        for field, word in (("domainID", domain_id), ("role", role)):
            if problems := validate_label_name(word) if word or field == "domainID" else []:
                raise _invalid(f"spec.parties[{index}].{field}", word, problems[0])
        if (domain_id, role) in seen:
            raise KitError(
                Reason.DUPLICATE_NAME,
                f"spec.parties[{index}]: party {domain_id!r} is there twice in role {role!r}; give each part its own role",
            )
        seen.add((domain_id, role))


def party_kit(index: int, party: Raw, parties: Sequence[Raw], image: Raw, *, is_own: bool) -> PartyKit:
    """One party's part, from its entry in the spec and its AppImage."""
    role, domain_id, name = text(party, "role"), text(party, "domainID"), name_of(image)
    base = dict(deploy_template(image, role))
    if not base:
        raise KitError(
            Reason.DEPLOY_TEMPLATE_NOT_FOUND,
            f"spec.parties[{index}].role: AppImage {name} has no deploy template for role {role!r} and none for any role; "
            "add one to its spec.deployTemplates, or correct the role",
            is_waiting=True,
        )
    template = merge_template(base, obj(party, "template"))
    spec = obj(template, "spec")
    where = f"AppImage {name}, deployTemplates[{text(base, 'name')}]"
    replicas = template.get("replicas")
    replicas = 1 if replicas is None else replicas
    if not isinstance(replicas, int) or isinstance(replicas, bool) or not 1 <= replicas <= REPLICAS_MAX:
        raise _invalid(f"{where}.replicas, with spec.parties[{index}].template", replicas, f"must be 1 to {REPLICAS_MAX:,}")
    least = number(party, "minReservedPods") or replicas
    if not 1 <= least <= replicas:
        raise _invalid(f"spec.parties[{index}].minReservedPods", least, f"the party has {replicas} pods; write 1 to {replicas}")
    containers = [container for _, container in objs(spec, "containers", "")]
    if not 1 <= len(containers) <= CONTAINERS_MAX:
        raise _invalid(f"{where}.spec.containers", len(containers), f"must have 1 to {CONTAINERS_MAX} containers")
    names = [text(container, "name") for container in containers]
    if len(set(names)) != len(names):
        raise KitError(Reason.DUPLICATE_NAME, f"{where}.spec.containers: two containers have the same name; rename one")
    ports = _ports(containers, where)
    picture = obj(obj(image, "spec"), "image")
    tag = text(picture, "tag")
    templates = obj(obj(image, "spec"), "configTemplates")
    return PartyKit(
        index=index,
        domain_id=domain_id,
        role=role,
        is_own=is_own,
        app_image=name,
        image=f"{text(picture, 'name')}:{tag}" if tag else text(picture, "name"),
        image_id=text(picture, "id"),
        replicas=replicas,
        min_pods=least,
        spec=spec,
        ports=ports,
        access=_access(domain_id, parties, base, ports),
        limits=_limits(party),
        config_templates={key: value for key, value in templates.items() if isinstance(value, str)},
    )


def _ports(containers: Sequence[Raw], where: str) -> tuple[Port, ...]:
    ports: dict[str, Port] = {}
    for container in containers:
        for _, entry in objs(container, "ports", ""):
            name, scope, wished = text(entry, "name"), text(entry, "scope"), number(entry, "port")
            if problems := validate_port_name(name):
                raise _invalid(f"{where}.spec.containers[].ports[].name", name, problems[0])
            if name in ports:
                raise KitError(Reason.DUPLICATE_NAME, f"{where}: two ports of the pod are called {name!r}; rename one")
            if not 0 <= wished <= 65_535:
                raise _invalid(f"{where}.spec.containers[].ports[{name}].port", wished, "must be 1 to 65535, or left out")
            reach: Scope = next((known for known in _SCOPES if known == scope), _SCOPES[-1])
            ports[name] = Port(name, wished, text(entry, "protocol") or "HTTP", reach)
    if len(ports) > PORTS_MAX:
        raise _invalid(f"{where}.spec.containers[].ports", len(ports), f"a pod may have {PORTS_MAX} ports")
    return tuple(ports.values())


def _limits(party: Raw) -> tuple[tuple[str, int], ...]:
    found = {text(entry, "destinationID"): number(entry, "limitKBps") for _, entry in objs(party, "bandwidthLimits", "")}
    return tuple((peer, kbps) for peer, kbps in found.items() if peer and kbps > 0)


def _access(domain_id: str, parties: Sequence[Raw], template: Raw, ports: Sequence[Port]) -> dict[str, str]:
    """Who may reach each port. Nobody named means the party itself, where Kuscia would let everybody in."""
    policy = template.get("networkPolicy")
    everyone = list(dict.fromkeys(text(party, "domainID") for party in parties))
    allowed: dict[str, str] = {}
    for port in ports:
        if port.scope != "Cluster":
            callers = [domain_id]
        elif not isinstance(policy, dict):
            callers = everyone
        else:
            roles = {
                role
                for _, ingress in objs(policy, "ingresses", "")
                if any(text(entry, "port") == port.name for _, entry in objs(ingress, "ports", ""))
                for role in texts(obj(ingress, "from"), "roles")
            }
            callers = list(dict.fromkeys(text(party, "domainID") for party in parties if text(party, "role") in roles))
        allowed[port.name] = ",".join(callers or [domain_id])
    return allowed


# -- templates --------------------------------------------------------------------------------------------------------------


def merge_template(base: Raw, over: Raw) -> Raw:
    """A party's template laid over the AppImage's; neither is changed. See the module for how."""
    merged: Raw = copy_json(base)
    if over.get("replicas") is not None:
        merged["replicas"] = over["replicas"]
    spec, own = copy_json(obj(base, "spec")), obj(over, "spec")
    merged["spec"] = spec
    for field in ("restartPolicy", "affinity"):
        if own.get(field):
            spec[field] = own[field]
    containers = [container for _, container in objs(spec, "containers", "")]
    names = [text(container, "name") for container in containers]
    others = [container for _, container in objs(own, "containers", "")]
    named = {text(other, "name") for other in others}
    for index, other in enumerate(others):
        name = text(other, "name")
        if name in names:
            place = names.index(name)
        elif index < len(containers) and names[index] not in named:
            place = index
        else:
            containers.append(copy_json(other))
            names.append(name)
            continue
        containers[place] = _merge_container(containers[place], other)
    spec["containers"] = containers
    return merged


def _merge_container(base: Raw, over: Raw) -> Raw:
    merged = {**base, **{key: copy_json(value) for key, value in over.items() if value not in (None, "", [], {})}}
    if over.get("command") or over.get("args"):
        for field in ("command", "args"):
            merged[field] = list(texts(over, field))
    merged["env"] = merge_env(base.get("env"), over.get("env"))
    merged["resources"] = merge_resources(obj(base, "resources"), obj(over, "resources"))
    return {key: value for key, value in merged.items() if value not in (None, [], {})}


def merge_env(*lists: Any) -> list[Raw]:
    """One entry for each name, in the order in which names were first given; the last value wins."""
    found: dict[str, Raw] = {}
    for entries in lists:
        for _, entry in objs({"env": entries}, "env", ""):
            found[text(entry, "name")] = entry
    return list(found.values())


def merge_resources(base: Raw, over: Raw) -> Raw:
    """By resource. Bandwidth has several names: whoever speaks of it under one replaces all of them."""
    says_bandwidth = any(is_bandwidth_resource(name) for word in ("requests", "limits") for name in obj(over, word))
    merged: Raw = {**base, **over}
    for word in ("requests", "limits"):
        kept = {k: v for k, v in obj(base, word).items() if not (says_bandwidth and is_bandwidth_resource(k))}
        amounts = {**kept, **obj(over, word)}
        merged.pop(word, None)
        if amounts:
            merged[word] = amounts
    return merged


# -- what applications are told ---------------------------------------------------------------------------------------------


def cluster_define(parties: Sequence[Raw] | str, self_party: int, self_endpoint: int) -> str:
    """Kuscia's JSON of who is where, for one pod: `self_endpoint` is its own place in the lists of endpoints. Where it is made
    for many pods, `parties` is given as `define_parties` has encoded them."""
    listed = parties if isinstance(parties, str) else define_parties(parties)
    return f'{{"parties":{listed},"selfPartyIdx":{self_party},"selfEndpointIdx":{self_endpoint}}}'


def define_parties(parties: Sequence[Raw]) -> str:
    """The part of it that is the same for all pods."""
    return msgspec.json.encode(list(parties)).decode()


def define_party(kit: PartyKit, names: Sequence[str], numbers: Mapping[str, int]) -> Raw:
    """One party in the cluster definition. `names` own the services (pods, or the prefix of a deployment's services); `numbers`
    are by `name/port`. Endpoints inside the party have a number, those that go through the gateway have none; a gateway does
    not carry plain TCP, so its callers need the number as well. A partner's numbers are not known here."""
    services = []
    for port in kit.ports:
        if not port.has_service:
            continue
        endpoints = []
        for name in names:
            address = f"{service_name(name, port.name)}.{kit.domain_id}.svc"
            if port.scope == "Domain" or (port.protocol == "TCP" and kit.is_own):
                address = f"{address}:{numbers.get(f'{name}/{port.name}', port.number)}"
            endpoints.append(address)
        services.append({"portName": port.name, "endpoints": endpoints})
    return {"name": kit.domain_id, "role": kit.role, "services": services}


def allocated_ports(kit: PartyKit, ports: Mapping[str, int]) -> str:
    """Kuscia's JSON of the numbers of one pod, by port name."""
    listed = [
        {"name": port.name, "port": ports.get(port.name, port.number), "scope": port.scope, "protocol": port.protocol}
        for port in kit.ports
    ]
    return msgspec.json.encode({"ports": listed}).decode()


def _invalid(field: str, value: Any, message: str) -> KitError:
    return KitError(Reason.MANIFEST_INVALID, f"{field}: {shown(value)}: {message}")
