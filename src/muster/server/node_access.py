"""What a node may ask for: itself, what is bound to it, and what that names. An opinion beside RBAC, for `system:node:*` only.

| what | which | verbs |
|---|---|---|
| nodes | any | get, list, watch |
| nodes, nodes/status | its own | create, patch, update; delete of the Node itself |
| leases in kube-node-lease, nodemetrics, devices, nodeslos | of its own name | all that it needs |
| pods | with fieldSelector spec.nodeName=<its name> | list, watch |
| pods, pods/status | bound to it | get, patch, delete (pods); patch, update (status) |
| secrets, configmaps | named by an unfinished pod that is bound to it | get |
| serviceaccounts/token | of an unfinished pod that is bound to it, for that pod | create |
| services, endpoints, endpointslices | any | get, list, watch |
| events | | create, patch, update |
| tokenreviews, subjectaccessreviews | | create: to find out who asks its log endpoint |

What it may change of these is in `node_restriction`, since that depends on the objects. For what is not in the table RBAC is
asked, where a node has no more than everybody who is authenticated (discovery, reviews of itself), unless an administrator
binds more to `system:nodes`.

Pure but for the index, which is in memory; on the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from muster.objects.names import NAMESPACE_NODE_LEASE
from muster.objects.selectors import parse_field_selector
from muster.server.authorization import Decision
from muster.server.node_index import NODE_FIELD, NodeIndex, node_of_user
from muster.server.rbac import Attributes
from muster.server.tokens import AUDIENCE

RENEW_PATH: Final = "/muster/v1/nodes/renew"
_READ: Final = frozenset({"get", "list", "watch"})
_WRITE: Final = frozenset({"create", "patch", "update"})
_ALLOWED: Final = Decision(True, "it is the node's own, or bound to it")
_EVERYBODYS: Final = frozenset({("", "nodes"), ("", "services"), ("", "endpoints"), ("discovery.k8s.io", "endpointslices")})
_REVIEWS: Final = frozenset({("authentication.k8s.io", "tokenreviews"), ("authorization.k8s.io", "subjectaccessreviews")})
_EVENTS: Final = frozenset({("", "events"), ("events.k8s.io", "events")})
OWN_BY_NAME: Final = {
    ("slo.koordinator.sh", "nodemetrics"): _WRITE | _READ,
    ("slo.koordinator.sh", "nodeslos"): _READ,
    ("scheduling.koordinator.sh", "devices"): _WRITE | _READ,
}
"""Cluster-wide kinds with one object for each node, of the node's name."""


class NodeAccess:
    """See the module."""

    def __init__(self, nodes: NodeIndex) -> None:
        self._nodes = nodes

    def __call__(self, user: str, groups: Sequence[str], asked: Attributes) -> Decision | None:
        node = node_of_user(user, groups)
        if not node:
            return None
        if not asked.is_resource:
            return _ALLOWED if (asked.verb, asked.path) == ("post", RENEW_PATH) else None
        return _ALLOWED if self._may(node, asked) else None

    def _may(self, node: str, asked: Attributes) -> bool:
        what, verb = (asked.group, asked.resource), asked.verb
        is_own = asked.name == node
        if what in _EVERYBODYS and verb in _READ and not asked.subresource:
            return True
        if what == ("", "nodes"):
            return self._may_node(verb, asked.subresource, is_own=is_own, is_unnamed=not asked.name)
        if what == ("", "pods"):
            return self._may_pod(node, asked)
        if what in (("", "secrets"), ("", "configmaps")):
            is_plain = verb == "get" and not asked.subresource
            return is_plain and self._nodes.names(node, asked.resource, asked.namespace, asked.name)
        if what == ("", "serviceaccounts"):
            is_token = verb == "create" and asked.subresource == "token"
            return is_token and self._nodes.names(node, asked.resource, asked.namespace, asked.name)
        if what == ("coordination.k8s.io", "leases"):
            is_mine = is_own or (verb == "create" and not asked.name)
            verbs = _WRITE | {"get", "delete"}
            return asked.namespace == NAMESPACE_NODE_LEASE and is_mine and verb in verbs and not asked.subresource
        if what in OWN_BY_NAME:
            is_mine = is_own or (verb == "create" and not asked.name)
            return is_mine and verb in OWN_BY_NAME[what] and asked.subresource in ("", "status")
        if what in _EVENTS:
            return verb in _WRITE and not asked.subresource
        return what in _REVIEWS and verb == "create" and not asked.subresource

    @staticmethod
    def _may_node(verb: str, subresource: str, *, is_own: bool, is_unnamed: bool) -> bool:
        if verb == "create":
            return not subresource and (is_own or is_unnamed)
        if subresource == "status":
            return is_own and verb in ("get", "patch", "update")
        return is_own and not subresource and verb in ("patch", "update", "delete")

    def _may_pod(self, node: str, asked: Attributes) -> bool:
        if asked.verb in ("list", "watch"):
            return not asked.subresource and selects_own(asked.field_selector, node)
        if not self._nodes.is_bound(node, asked.namespace, asked.name):
            return False
        if asked.subresource == "status":
            return asked.verb in ("get", "patch", "update")
        return not asked.subresource and asked.verb in ("get", "patch", "delete")


def token_refusal(node: str, kind: str, pod_spec: Mapping[str, Any], audiences: Sequence[str]) -> str:
    """Why a node may not have this token of an account that it may ask for; "" when it may. What it is bound to is known."""
    if kind != "Pod":
        return f'node "{node}" may have tokens that are bound to a Pod only'
    if pod_spec.get("nodeName") != node:
        return f'node "{node}" may have tokens for pods that are bound to it only'
    allowed = {AUDIENCE}
    for volume in pod_spec.get("volumes") or ():
        for source in (volume.get("projected") or {}).get("sources") or ():
            allowed.add((source.get("serviceAccountToken") or {}).get("audience") or AUDIENCE)
    if others := [audience for audience in audiences if audience not in allowed]:
        return f'node "{node}" may have tokens for the audiences that the pod names only, not for {others[0]!r:.100}'
    return ""


def selects_own(selector: str, node: str) -> bool:
    """Whether a list with this field selector can show pods of this node only."""
    try:
        terms = parse_field_selector(selector).terms
    except ValueError:
        return False
    return any(term.field == NODE_FIELD and term.value == node and not term.negated for term in terms)
