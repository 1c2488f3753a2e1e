"""Which level and which flow a request belongs to, and what it costs beside others. Pure.

The levels are fixed: they stand for what a cluster needs to go on (leader election and heartbeats before controllers, and these
before people), not for how important somebody is. Within a level, each user, service account, node or address has its own flow.

| level | who | flow |
|---|---|---|
| `exempt` | `system:masters` | the user |
| `system` | group `muster:controllers`; Leases of service accounts, nodes and `system:` users; nodes' own status | the user |
| `system` | health checks and `/version`: anybody may ask, so a flood of them must be nobody's but the sender's | the address |
| `controllers` | service accounts of `kube-system`; other `system:` users; nodes, apart from the above | the user |
| `users` | everybody else who is known | the user |
| `strangers` | who is not known: handshakes, failed logins, nodes that join | the address |
"""

from __future__ import annotations

from typing import Final, NamedTuple

from muster.server.authentication import ANONYMOUS, OPEN_PATHS
from muster.server.authorization import MASTERS
from muster.server.fair_queue import Level
from muster.server.node_index import NODE_USER_PREFIX
from muster.server.paths import RequestInfo
from muster.server.queue_acts import CONTROLLERS
from muster.store.embedded.admission import Actor

EXEMPT: Final = "exempt"
SYSTEM: Final = "system"
WORKERS: Final = "controllers"
USERS: Final = "users"
STRANGERS: Final = "strangers"

LEVELS: Final = (
    Level(name=EXEMPT, is_first=True),
    Level(name=SYSTEM, weight=4, share=0.2),
    Level(name=WORKERS, weight=3, share=0.2),
    Level(name=USERS, weight=3, share=0.2),
    Level(name=STRANGERS, weight=1, share=0.05),
)

# Costs are in the loop's time that one small read takes.
READ_COST: Final = 1.0
WRITE_COST: Final = 3.0
"""Checked and encoded on the loop, and flushed to disk."""
BODY_BYTES_PER_COST: Final = 2048
"""Of a body, on top: reading, checking and writing a megabyte takes a hundred times as long as a small write."""
RULES_PER_COST: Final = 200
"""Of the roles that somebody has, which are gone through to see what they may; a thousand and more are a turn of their own."""
PIECE_COST: Final = 4.0
"""A piece of a long answer, or of the search for what belongs to it: about a millisecond."""
PLAIN_PIECE_COST: Final = 2.0
"""A piece of an answer that is bytes as the store keeps them: put together, encrypted and sent."""
EVENTS_COST: Final = 0.5
"""Events that a watcher is handed at once."""
HANDSHAKE_COST: Final = 4.0
TURN_COST_MAX: Final = 8.0
"""What is let onto the loop before the loop looks again at who else has asked: two writes, or two pieces."""

_ACCOUNT: Final = "system:serviceaccount:"
_KUBE_SYSTEM_ACCOUNT: Final = "system:serviceaccount:kube-system:"


class Whose(NamedTuple):
    level: str
    flow: str


def whose(actor: Actor, info: RequestInfo, address: str) -> Whose:
    user = actor.user
    if MASTERS in actor.groups:
        return Whose(EXEMPT, user)
    if info.path in OPEN_PATHS:
        return Whose(SYSTEM, f"health {address}")
    if not user.startswith("system:"):
        return Whose(SYSTEM if CONTROLLERS in actor.groups else USERS, user)
    if user == ANONYMOUS.user:
        return Whose(STRANGERS, address)
    if CONTROLLERS in actor.groups or (info.resource == "leases" and info.name and info.group == "coordination.k8s.io"):
        return Whose(SYSTEM, user)
    if user.startswith(_ACCOUNT):
        return Whose(WORKERS if user.startswith(_KUBE_SYSTEM_ACCOUNT) else USERS, user)
    if user.startswith(NODE_USER_PREFIX) and info.resource == "nodes" and info.subresource == "status":
        return Whose(SYSTEM, user)
    return Whose(WORKERS, user)


def stranger(address: str) -> Whose:
    """Somebody before it is known who it is."""
    return Whose(STRANGERS, address)
