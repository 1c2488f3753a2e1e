"""The pods that the corpus tries: one function per filter, each adding to a pod what exercises it.

Chance is handed in. Values are drawn from small sets, so that a selector meets labels about as often as it misses them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from muster.objects.status import Raw

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
RUNTIME_CLASS = "sandboxed"
OVERHEAD = {"cpu": "700m", "memory": "800Mi"}
_NAMESPACES = ("red", "blue")
_KEYS = ("kubernetes.io/hostname", "topology.kubernetes.io/zone", "rack")
_APPS = ("web", "db", "cache")
_LABEL_VALUES = {
    "topology.kubernetes.io/zone": ("east", "west", "north", "south"),
    "rack": ("r1", "r2", "r3"),
    "disk": ("ssd", "hdd", ""),
}


def claim_name(number: int) -> str:
    return f"claim-{number}"


def labels(chance: random.Random) -> dict[str, str]:
    found = {"app": chance.choice(_APPS)}
    if chance.random() < 0.5:
        found["tier"] = chance.choice(("front", "back"))
    return found


def container(chance: random.Random, *, small: bool = False, name: str = "main") -> Raw:
    cpu = ("50m", "100m", "250m", "0") if small else ("100m", "500m", "900m", "1", "1500m", "2", "3500m")
    memory = ("32Mi", "128Mi", "256M") if small else ("128Mi", "900Mi", "1Gi", "2Gi", "3500M")
    requests = {"cpu": chance.choice(cpu), "memory": chance.choice(memory)}
    requests = {key: value for key, value in requests.items() if chance.random() < 0.9}
    return {"name": name, "image": f"example/image-{chance.randint(1, 4)}:1", "resources": {"requests": requests}}


def host_port(chance: random.Random) -> Raw:
    port: Raw = {"containerPort": 80, "hostPort": chance.choice((8080, 8081)), "protocol": chance.choice(("TCP", "UDP"))}
    if address := chance.choice(("", "", "0.0.0.0", "10.0.0.1", "10.0.0.2")):
        port["hostIP"] = address
    return port


def pod_term(chance: random.Random) -> Raw:
    term: Raw = {"topologyKey": chance.choice(_KEYS), "labelSelector": label_selector(chance)}
    if chance.random() < 0.4:
        term["namespaces"] = chance.sample(_NAMESPACES, chance.randint(1, 2))
    return term


def label_selector(chance: random.Random) -> Raw:
    kind = chance.random()
    if kind < 0.45:
        return {"matchLabels": {"app": chance.choice(_APPS)}}
    if kind < 0.5:
        return {}
    expression: Raw = {
        "key": chance.choice(("app", "tier")),
        "operator": chance.choice(("In", "NotIn", "Exists", "DoesNotExist")),
    }
    if expression["operator"] in ("In", "NotIn"):
        pool = _APPS if expression["key"] == "app" else ("front", "back")
        expression["values"] = chance.sample(pool, chance.randint(1, 2))
    return {"matchExpressions": [expression]}


def _resources(chance: random.Random, pod: Raw) -> None:
    spec = pod["spec"]
    spec["containers"] = [container(chance, name=f"c{index}") for index in range(chance.randint(1, 3))]


def _init_containers(chance: random.Random, pod: Raw) -> None:
    spec = pod["spec"]
    spec["containers"] = [container(chance, small=True, name=f"c{index}") for index in range(chance.randint(1, 2))]
    spec["initContainers"] = [container(chance, name=f"i{index}") for index in range(chance.randint(1, 2))]


def _overhead(chance: random.Random, pod: Raw) -> None:
    """The server insists that a pod's overhead is its runtime class's."""
    pod["spec"] |= {"containers": [container(chance)], "runtimeClassName": RUNTIME_CLASS, "overhead": dict(OVERHEAD)}


def runtime_class() -> Raw:
    kind = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": RUNTIME_CLASS}}
    return {**kind, "handler": RUNTIME_CLASS, "overhead": {"podFixed": dict(OVERHEAD)}}


def _extended(chance: random.Random, pod: Raw) -> None:
    name = chance.choice(("example.com/gpu", "example.com/gpu", "hugepages-2Mi", "ephemeral-storage", "example.com/none"))
    amounts = {"hugepages-2Mi": ("32Mi", "128Mi"), "ephemeral-storage": ("5Gi", "50Gi", "500Gi")}
    amount = chance.choice(amounts.get(name, ("1", "2", "4", "0")))
    resources = pod["spec"]["containers"][0]["resources"]
    resources["requests"] = {"cpu": "100m", "memory": "64Mi", name: amount}
    resources["limits"] = {name: amount}


def _node_selector(chance: random.Random, pod: Raw) -> None:
    keys = chance.sample(list(_LABEL_VALUES), chance.randint(1, 2))
    pod["spec"]["nodeSelector"] = {key: chance.choice(_LABEL_VALUES[key]) for key in keys}


def _node_expression(chance: random.Random) -> Raw:
    operator = chance.choice(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
    if operator in ("Gt", "Lt"):
        return {
            "key": chance.choice(("generation", "generation", "disk")),
            "operator": operator,
            "values": [chance.choice("0125")],
        }
    key = chance.choice([*_LABEL_VALUES, "generation", "no-such-label"])
    expression: Raw = {"key": key, "operator": operator}
    if operator in ("In", "NotIn"):
        pool = _LABEL_VALUES.get(key, ("1", "2", "10", "old"))
        expression["values"] = chance.sample(pool, chance.randint(1, min(3, len(pool))))
    return expression


def _node_affinity(chance: random.Random, pod: Raw, names: list[str] | None = None) -> None:
    terms = [
        {"matchExpressions": [_node_expression(chance) for _ in range(chance.randint(1, 2))]}
        for _ in range(chance.randint(1, 2))
    ]
    if names and chance.random() < 0.4:
        field: Raw = {"key": "metadata.name", "operator": chance.choice(("In", "NotIn")), "values": [chance.choice(names)]}
        if chance.random() < 0.5:
            terms = [{"matchFields": [field]}]
        else:
            terms[0]["matchFields"] = [field]
    affinity: Raw = {REQUIRED: {"nodeSelectorTerms": terms}}
    if chance.random() < 0.3:
        preference = {"weight": 5, "preference": {"matchExpressions": [_node_expression(chance)]}}
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [preference]
    pod["spec"].setdefault("affinity", {})["nodeAffinity"] = affinity


def _tolerations(chance: random.Random, pod: Raw) -> None:
    found: list[Raw] = []
    for _ in range(chance.randint(1, 3)):
        toleration: Raw = {}
        if chance.random() < 0.85:
            toleration["key"] = chance.choice(("dedicated", "gpu", "spot", "node.kubernetes.io/unschedulable"))
        toleration["operator"] = chance.choice(("Exists", "Equal")) if "key" in toleration else "Exists"
        if toleration["operator"] == "Equal" and chance.random() < 0.8:
            toleration["value"] = chance.choice(("a", "b"))
        if chance.random() < 0.6:
            toleration["effect"] = chance.choice(("NoSchedule", "NoSchedule", "NoExecute", "PreferNoSchedule"))
        if toleration.get("effect") == "NoExecute" and chance.random() < 0.3:
            toleration["tolerationSeconds"] = 60
        found.append(toleration)
    pod["spec"]["tolerations"] = found


def _ports(chance: random.Random, pod: Raw) -> None:
    pod["spec"]["containers"][0]["ports"] = [host_port(chance)]


def _pod_affinity(chance: random.Random, pod: Raw) -> None:
    terms = [pod_term(chance) for _ in range(chance.choice((1, 1, 2)))]
    pod["spec"].setdefault("affinity", {})["podAffinity"] = {REQUIRED: terms}


def _first_of_its_kind(chance: random.Random, pod: Raw) -> None:
    """Wants to be near its own kind, of which there is none yet: any node with the key will do, if the pod matches itself."""
    own = pod["metadata"]["name"]
    pod["metadata"]["labels"]["kind"] = own
    wanted = own if chance.random() < 0.7 else f"{own}-other"
    term: Raw = {"topologyKey": chance.choice(_KEYS), "labelSelector": {"matchLabels": {"kind": wanted}}}
    if chance.random() < 0.3:
        term["namespaces"] = ["red"]
    terms = [term]
    if chance.random() < 0.3:
        terms.append({"topologyKey": chance.choice(_KEYS), "labelSelector": {"matchLabels": {"kind": own}}})
    pod["spec"].setdefault("affinity", {})["podAffinity"] = {REQUIRED: terms}


def _pod_anti_affinity(chance: random.Random, pod: Raw) -> None:
    terms = [pod_term(chance) for _ in range(chance.choice((1, 1, 2)))]
    pod["spec"].setdefault("affinity", {})["podAntiAffinity"] = {REQUIRED: terms}


def _spread(chance: random.Random, pod: Raw) -> None:
    keys = chance.sample(_KEYS, chance.choice((1, 1, 2)))
    pod["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": chance.choice((1, 1, 2, 3)),
            "topologyKey": key,
            "whenUnsatisfiable": chance.choice(("DoNotSchedule", "DoNotSchedule", "DoNotSchedule", "ScheduleAnyway")),
            "labelSelector": label_selector(chance),
        }
        for key in keys
    ]


def _volumes(chance: random.Random, pod: Raw) -> None:
    numbers = chance.sample(range(5), chance.choice((1, 1, 2)))
    pod["spec"]["volumes"] = [
        {"name": f"v{number}", "persistentVolumeClaim": {"claimName": claim_name(number)}} for number in numbers
    ]


EXERCISES: Mapping[str, Callable[[random.Random, Raw], None]] = {
    "resources": _resources,
    "init-containers": _init_containers,
    "overhead": _overhead,
    "extended": _extended,
    "node-selector": _node_selector,
    "node-affinity": _node_affinity,
    "tolerations": _tolerations,
    "ports": _ports,
    "pod-affinity": _pod_affinity,
    "first-of-its-kind": _first_of_its_kind,
    "pod-anti-affinity": _pod_anti_affinity,
    "spread": _spread,
    "volumes": _volumes,
}


def pod_to_try(chance: random.Random, index: int, names: list[str], scheduler_name: str) -> Raw:
    """Each exercise in its turn, and every second time another one with it."""
    chosen = [list(EXERCISES)[index % len(EXERCISES)]]
    if chance.random() < 0.5:
        chosen.append(chance.choice([name for name in EXERCISES if name not in chosen]))
    pod: Raw = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"try-{index:03d}", "namespace": chance.choice(_NAMESPACES), "labels": labels(chance)},
        "spec": {
            "schedulerName": scheduler_name,
            "terminationGracePeriodSeconds": 0,
            "containers": [container(chance, small=True)],
            # Most pods get past the taints, or they would all end there.
            **({"tolerations": [{"operator": "Exists"}]} if chance.random() < 0.75 else {}),
        },
    }
    # Resources first: they replace the containers to which ports and the like are added.
    for name in sorted(chosen, key=list(EXERCISES).index):
        arguments: dict[str, Any] = {"names": names} if name == "node-affinity" else {}
        EXERCISES[name](chance, pod, **arguments)
    pod["metadata"]["labels"]["exercise"] = ".".join(sorted(chosen))
    return pod
