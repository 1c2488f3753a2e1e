"""LimitRanges and ResourceQuotas as a real kube-apiserver enforces them: random ranges, quotas and objects, by seed, on both.

Every answer must be the same: whether it is taken, what is filled in, which bounds are named, and in the end what is used.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from muster.bench.kubernetes import ControlPlane
from muster.objects.quantity import Quantity
from muster.objects.status import Raw
from tests.objects.test_crd_on_kubernetes import call
from tests.server.running import RunningServer

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.soak]

SEEDS = 100 if os.environ.get("MUSTER_SOAK") else 8
WITHIN_S = 60.0
Answer = tuple[int, Any]
Ask = Callable[..., Answer]
"""Method, path, body."""
_PROBE = "example.com/probe"
"""Kubernetes hears of a range or a quota some time after it was made. Too much of this is refused as soon as it has."""

_CPU = ("0", "50m", "100m", "0.25", "1", "1500m", "2")
_MEMORY = ("64Mi", "100M", "512Mi", "1Gi", "1.5Gi")
_NAMES = ("pods", "count/pods", "cpu", "requests.cpu", "limits.cpu", "memory", "requests.memory", "limits.memory")
_OTHERS = (
    *("services", "services.nodeports", "services.loadbalancers", "count/services", "configmaps", "requests.storage"),
    *("persistentvolumeclaims", "gold.storageclass.storage.k8s.io/requests.storage", "requests.example.com/gpu"),
)
_SCOPES = ("Terminating", "NotTerminating", "NotBestEffort")


def amounts(chance: random.Random, likely: float = 0.5) -> Raw:
    found = {name: chance.choice(values) for name, values in (("cpu", _CPU), ("memory", _MEMORY))}
    return {name: value for name, value in found.items() if chance.random() < likely}


def container(chance: random.Random, name: str) -> Raw:
    resources = {word: amounts(chance) for word in ("requests", "limits")}
    if chance.random() < 0.2:
        for some in resources.values():
            some["example.com/gpu"] = str(chance.choice([1, 2]))
        resources["requests"]["example.com/gpu"] = resources["limits"]["example.com/gpu"]
    return {"name": name, "image": "i", "resources": {word: some for word, some in resources.items() if some}}


def a_pod(chance: random.Random, name: str) -> Raw:
    spec: Raw = {"containers": [container(chance, f"c{n}") for n in range(chance.choice([1, 1, 2]))]}
    if chance.random() < 0.3:
        spec["initContainers"] = [container(chance, "i")]
    if chance.random() < 0.4:
        spec["activeDeadlineSeconds"] = 600
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def a_probe(asked: Raw) -> Raw:
    resources = {"requests": asked, "limits": asked}
    spec = {"containers": [{"name": "c", "image": "i", "resources": resources}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": spec}


def a_service(chance: random.Random, name: str) -> Raw:
    ports = [{"name": f"p{n}", "port": 80 + n} for n in range(chance.choice([1, 2]))]
    spec = {"type": chance.choice(["ClusterIP", "NodePort", "LoadBalancer"]), "ports": ports, "selector": {"a": "b"}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def a_claim(chance: random.Random, name: str) -> Raw:
    spec: Raw = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": chance.choice(_MEMORY)}}}
    if chance.random() < 0.7:
        spec["storageClassName"] = chance.choice(["gold", "tin", ""])
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def a_map(chance: random.Random, name: str) -> Raw:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


_MADE = (("pods", a_pod, 8), ("services", a_service, 2), ("persistentvolumeclaims", a_claim, 2), ("configmaps", a_map, 1))


def a_range(chance: random.Random) -> Raw:
    items: list[Raw] = []
    words = ("default", "defaultRequest", "min", "max", "maxLimitRequestRatio")
    bounds: Raw = {word: amounts(chance, 0.4) for word in words[:4] if chance.random() < 0.4}
    if chance.random() < 0.3:
        bounds[words[4]] = {"cpu": chance.choice(["1500m", "4"])}
    bounds["max"] = {**bounds.get("max", {}), _PROBE: "1"}
    items.append({"type": "Container", **bounds})
    if chance.random() < 0.4:
        items.append({"type": "Pod", "max": {"cpu": chance.choice(["2", "3"])}})
    if chance.random() < 0.4:
        items.append({"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}, "min": {"storage": "100Mi"}})
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "range"}, "spec": {"limits": items}}


def a_quota(chance: random.Random) -> Raw:
    scopes = chance.sample(_SCOPES[1:], 1) if chance.random() < 0.4 else []
    names = {"requests.cpu", *chance.sample(_NAMES if scopes else (*_NAMES, *_OTHERS), 4)}
    hard = {name: _limit(chance, name) for name in sorted(names) if not (scopes and name.startswith("count/"))}
    spec = {"hard": hard, **({"scopes": scopes} if scopes else {})}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "quota"}, "spec": spec}


def _limit(chance: random.Random, name: str) -> str:
    if "memory" in name or "storage" in name:
        return chance.choice(["1Gi", "2500M", "4Gi"])
    return str(chance.choice([2, 4, 6]))


def told(answer: Answer) -> Any:
    """What must be the same on both: the resources of what was made, or the reasons why it was not, in no order."""
    code, body = answer
    if code == 403:
        # Sums by amount: in which family one is written depends on the order of its parts.
        message = re.sub(r"(?<==)[^,]+", lambda found: str(Quantity.parse(found[0]).nanos), body["message"])
        listed = re.fullmatch(r"(.* is forbidden: )\[(.*)\]", message)
        return code, (listed[1], set(re.split(r", (?=m(?:in|ax)imum |\w+ max )", listed[2]))) if listed else message
    if code != 201 or body["kind"] != "Pod":
        return code
    spec = body["spec"]
    every = [*spec["containers"], *spec.get("initContainers", ())]
    note = body["metadata"].get("annotations", {}).get("kubernetes.io/limit-ranger", "")
    return code, [one.get("resources") for one in every], note


@pytest.mark.parametrize("seed", range(SEEDS))
def test_both_say_the_same(kubernetes: ControlPlane, server: RunningServer, seed: int) -> None:
    def there(method: str, path: str, body: Raw | None = None) -> Answer:
        return call(kubernetes, method, path, body)

    def here(method: str, path: str, body: Raw | None = None) -> Answer:
        reply = server.request(method, path, body)
        return reply.code, reply.json

    namespace = f"limits-{seed}-{os.getpid()}"
    base = f"/api/v1/namespaces/{namespace}"
    asked: tuple[Ask, Ask] = (there, here)
    for ask in asked:
        assert ask("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})[0] == 201
        _until(lambda ask=ask: ask("GET", f"{base}/serviceaccounts/default")[0] == 200)  # type: ignore[misc]
        _until(lambda ask=ask: ask("GET", f"{base}/configmaps/kube-root-ca.crt")[0] == 200)  # type: ignore[misc]
    try:
        _compare(random.Random(seed), base, asked)
    finally:
        for ask in asked:
            ask("DELETE", f"/api/v1/namespaces/{namespace}")


def _compare(chance: random.Random, base: str, asked: tuple[Ask, Ask]) -> None:
    quota, limits = a_quota(chance), a_range(chance)
    assert [ask("POST", f"{base}/resourcequotas", quota)[0] for ask in asked] == [201, 201], quota

    def used() -> list[Any]:
        found = [ask("GET", f"{base}/resourcequotas/quota")[1].get("status", {}) for ask in asked]
        return [
            {word: {name: Quantity.parse(amount) for name, amount in some.items()} for word, some in status.items()}
            for status in found
        ]

    def agree() -> bool:
        both = used()
        return both[0] == both[1] and bool(both[0].get("hard"))

    def refuse(probe: Raw, why: str) -> bool:
        return all(why in ask("POST", f"{base}/pods?dryRun=All", probe)[1].get("message", "") for ask in asked)

    _until(agree, used)
    _until(lambda: refuse(a_probe({"cpu": "1000", "memory": "1Gi"}), "quota: quota"))
    codes = [ask("POST", f"{base}/limitranges", limits)[0] for ask in asked]
    assert codes[0] == codes[1], limits
    if codes[0] == 201:
        _until(lambda: refuse(a_probe({_PROBE: "5"}), f"maximum {_PROBE} usage per Container is 1, but limit is 5"))
    running: list[str] = []
    for number in range(30):
        kind, make, _ = chance.choices(_MADE, [weight for *_, weight in _MADE])[0]
        body = make(chance, f"o{number}")
        theirs, ours = (ask("POST", f"{base}/{kind}", body) for ask in asked)
        deadline = time.monotonic() + WITHIN_S
        while theirs[0] == 403 and told(theirs) != told(ours) and time.monotonic() < deadline:
            # Their admission may know of what was deleted last only in a while; what is refused can be asked again.
            theirs = asked[0]("POST", f"{base}/{kind}", body)
        assert told(ours) == told(theirs), body
        if kind == "pods" and ours[0] == 201:
            running.append(f"o{number}")
        if running and chance.random() < 0.25:
            gone = running.pop(chance.randrange(len(running)))
            for ask in asked:
                assert ask("DELETE", f"{base}/pods/{gone}?gracePeriodSeconds=0")[0] == 200
        _until(agree, used)


def _until(holds: Callable[[], bool], shown: Callable[[], Any] = lambda: "") -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, shown()
        time.sleep(0.05)
