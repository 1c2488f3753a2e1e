"""Permissions as tables: one line per thing that somebody does, with its reason; what is not there is not granted. Pure.

The controllers' tables are in `manifests`, beside what else is installed. The agents' are here: three roles, since what an
agent needs is of three kinds. Nobody has them until an administrator binds them to the account of an agent.

    muster-agent             everywhere: nodes, names of services, reports. RBAC does not tell one node from another here
    muster-agent-node-lease  in kube-node-lease only: elsewhere leases decide who leads
    muster-agent-pods        in the namespaces whose pods the agent carries: its party's, and no other's secrets
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from muster.objects.status import Raw

READ = ("get", "list", "watch")
WRITE = ("create", "update", "patch", "delete")


class Rule(NamedTuple):
    """A permission and what it is for. `names` narrows it to single objects, where Kubernetes allows that."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    reason: str
    names: tuple[str, ...] = ()


AGENT_ROLES: dict[str, tuple[Rule, ...]] = {
    "muster-agent": (
        Rule("", ("pods",), ("list", "watch"), "the pods that are bound to its node; RBAC can't ask for the field selector"),
        Rule("", ("nodes",), (*READ, "create", "patch", "delete"), "its own node, until it leaves; where other pods are"),
        Rule("", ("nodes/status",), ("patch",), "what the node has, and how it is"),
        Rule("", ("services", "endpoints"), ("list", "watch"), "names of services inside pods"),
        Rule("", ("events",), ("create", "patch"), "what happens to pods and to the node"),
        Rule("slo.koordinator.sh", ("nodemetrics",), ("get", "create"), "measured use of the node"),
        Rule("slo.koordinator.sh", ("nodemetrics/status",), ("patch",), "measured use of the node"),
        Rule("slo.koordinator.sh", ("nodeslos",), ("get",), "programs of the machine whose use is reported one by one"),
        Rule("authentication.k8s.io", ("tokenreviews",), ("create",), "who asks for logs"),
        Rule("authorization.k8s.io", ("subjectaccessreviews",), ("create",), "whether they may"),
    ),
    "muster-agent-node-lease": (
        Rule("coordination.k8s.io", ("leases",), ("get", "create", "patch", "delete"), "the sign of life of its node"),
    ),
    "muster-agent-pods": (
        Rule("", ("pods",), ("patch", "delete"), "progress and traffic, as annotations; pods that have ended and are to go"),
        Rule("", ("pods/status",), ("patch",), "how a pod is"),
        Rule("", ("configmaps", "secrets"), ("get",), "what pods name as volumes and variables"),
    ),
}
"""By the name of the ClusterRole."""


def policy_rules(rules: Sequence[Rule]) -> list[Raw]:
    made = []
    for rule in rules:
        raw: Raw = {"apiGroups": [rule.group], "resources": list(rule.resources), "verbs": list(rule.verbs)}
        if rule.names:
            raw["resourceNames"] = list(rule.names)
        made.append(raw)
    return made
