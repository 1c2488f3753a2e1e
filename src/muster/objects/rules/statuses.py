"""Rules for the status of Kubernetes' own kinds: counters are counts, addresses are addresses, what has ended stays so. Pure.

Only what a write changes is looked at, so a status that was stored before a rule existed stands in nobody's way. The status of
pods is written more often than anything else: it costs three comparisons unless addresses or containers change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from muster.objects.names import validate_subdomain
from muster.objects.rules.pods import is_ip, is_ipv4
from muster.objects.rules.report import Report, number, obj, objs, text
from muster.objects.status import Raw

_REPLICAS: Final = ("replicas", "readyReplicas", "availableReplicas", "observedGeneration")
_COUNTERS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("", "ReplicationController"): (*_REPLICAS, "fullyLabeledReplicas"),
    ("apps", "Deployment"): (*_REPLICAS, "updatedReplicas", "unavailableReplicas", "collisionCount"),
    ("apps", "ReplicaSet"): (*_REPLICAS, "fullyLabeledReplicas"),
    ("apps", "StatefulSet"): (*_REPLICAS, "currentReplicas", "updatedReplicas", "collisionCount"),
    ("apps", "DaemonSet"): (
        *("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady", "observedGeneration"),
        *("updatedNumberScheduled", "numberAvailable", "numberUnavailable", "collisionCount"),
    ),
    ("batch", "Job"): ("active", "ready", "terminating", "succeeded", "failed"),
    ("policy", "PodDisruptionBudget"): ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"),
    ("autoscaling", "HorizontalPodAutoscaler"): ("currentReplicas", "desiredReplicas"),
}
"""What can't be below 0."""
_BALANCED: Final = frozenset({("", "Service"), ("networking.k8s.io", "Ingress")})
_PARTS: Final = ("fullyLabeledReplicas", "updatedReplicas", "currentReplicas", "readyReplicas", "availableReplicas")
"""Of `replicas`, where a kind counts them."""
_CONTAINERS: Final = (("containerStatuses", "containers"), ("initContainerStatuses", "initContainers"))
"""Where a pod's status and its spec tell of the same ones."""


def check_status(report: Report, key: tuple[str, str], raw: Raw, old: Raw | None) -> None:
    """The status that a write to it would leave. `key` is group and kind."""
    status, before = obj(raw, "status"), obj(old, "status")
    if key == ("", "Pod"):
        if status.get("podIPs") != before.get("podIPs"):
            _check_pod_addresses(report, status)
        for field, containers in _CONTAINERS:
            if status.get(field) != before.get(field):
                _check_ended(report, field, status, before, _restarting(obj(raw, "spec"), containers))
    elif status != before:
        if key in _COUNTERS:
            _check_counters(report, status, before, _COUNTERS[key])
        elif key in _BALANCED:
            _check_balancer(report, status)


def _check_counters(report: Report, status: Raw, before: Raw, counters: tuple[str, ...]) -> None:
    for word in counters:
        if (count := number(status, word)) < 0:
            report.invalid(f"status.{word}", count, "must be greater than or equal to 0")
    if "collisionCount" in counters and number(status, "collisionCount") < number(before, "collisionCount"):
        report.invalid("status.collisionCount", number(status, "collisionCount"), "cannot be decremented")
    if "replicas" not in counters:
        return
    whole, ready = number(status, "replicas"), number(status, "readyReplicas")
    for word in _PARTS:
        if word in counters and number(status, word) > whole:
            report.invalid(f"status.{word}", number(status, word), "cannot be greater than status.replicas")
    if number(status, "availableReplicas") > ready:
        report.invalid("status.availableReplicas", number(status, "availableReplicas"), "cannot be greater than readyReplicas")


def _check_pod_addresses(report: Report, status: Raw) -> None:
    """At most one of each family."""
    found = [text(one, "ip") for _, one in objs(status, "podIPs", "status")]
    for index, address in enumerate(found):
        if not is_ip(address):
            report.invalid(f"status.podIPs[{index}]", address, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
    if len(found) > 1 and (len(found) > 2 or is_ipv4(found[0]) == is_ipv4(found[1])):
        report.invalid("status.podIPs", found, "may specify no more than one IP for each IP family")


def _restarting(spec: Raw, containers: str) -> Mapping[str, str]:
    """By which policy each of these containers is started again."""
    whole = text(spec, "restartPolicy") or "Always"
    own = "restartPolicy" if containers == "initContainers" else ""
    return {text(one, "name"): text(one, own) or whole for _, one in objs(spec, containers, "spec")}


def _check_ended(report: Report, field: str, status: Raw, before: Raw, restarting: Mapping[str, str]) -> None:
    """A container that is not started again does not run again: a report that says so is late, or a lie."""
    states = {text(one, "name"): obj(one, "state") for _, one in objs(status, field, "status")}
    for where, one in objs(before, field, "status"):
        ended, policy = obj(one, "state").get("terminated"), restarting.get(text(one, "name"), "Always")
        if not isinstance(ended, dict) or policy == "Always" or (policy == "OnFailure" and number(ended, "exitCode") != 0):
            continue
        if "terminated" not in states.get(text(one, "name"), {"terminated": ended}):
            report.forbidden(f"{where}.state", "may not be transitioned to non-terminated state")


def _check_balancer(report: Report, status: Raw) -> None:
    for where, ingress in objs(obj(status, "loadBalancer"), "ingress", "status.loadBalancer"):
        address, name = text(ingress, "ip"), text(ingress, "hostname")
        if address and not is_ip(address):
            report.invalid(f"{where}.ip", address, "must be a valid IP address")
        if name:
            report.names(f"{where}.hostname", name, validate_subdomain(name))
            if is_ip(name):
                report.invalid(f"{where}.hostname", name, "must be a DNS name, not an IP address")
