"""What the audit log is told about each request, and when: as much as the policy says, once it is known who asks.

Listeners inside the process hear of every request, whatever the policy says. Concurrency: on the event loop.
"""

from __future__ import annotations

from muster.objects.time import Clock
from muster.server import audit_events
from muster.server.audit import AuditLog
from muster.server.audit_policy import Policy, Stage, Telling
from muster.server.one_request import Exchange


class AuditTrail:
    def __init__(self, log: AuditLog | None, policy: Policy, clock: Clock) -> None:
        """Without a `log` nothing is told."""
        self.log = log
        self._policy = policy
        self._clock = clock

    def _telling(self, exchange: Exchange) -> Telling:
        """What the policy says, asked once: about who authenticated, before they act as somebody else."""
        if exchange.telling is None:
            actor = exchange.actor
            user, groups = (actor.user, actor.groups) if actor is not None else ("", ())
            exchange.telling = self._policy.telling(user, groups, exchange.info)
        return exchange.telling

    def received(self, exchange: Exchange) -> None:
        if self.log is not None and self._telling(exchange).tells(Stage.RECEIVED):
            self.log.write(audit_events.event(exchange, Stage.RECEIVED, self._telling(exchange), self._clock()))

    def reached(self, exchange: Exchange, stage: Stage, seconds: float) -> None:
        if self.log is None:
            return
        now, telling = self._clock(), self._telling(exchange)
        if self.log.listener is not None:
            self.log.listener(audit_events.entry(exchange, stage, exchange.method, seconds, now))
        if telling.tells(stage):
            bodies = audit_events.bodies(exchange, telling) if stage is not Stage.STARTED else None
            self.log.write(audit_events.event(exchange, stage, telling, now), bodies)
