"""Leader election by Lease, with fencing: at most one candidate believes to lead, and it knows until when.

The record is Kubernetes' `coordination.k8s.io` Lease, so that other candidates written with its client libraries can take
part. What makes it safe:

- The leader may act until `renew_deadline_s` after it *sent* its last successful renewal. Others may take the lease
  only when they have seen no change of it for `lease_s`, counted from when they *received* what they saw. Both use their own
  monotonic clock, and `renew_deadline_s < lease_s`; nobody's wall clock matters, and the difference pays for clocks that
  run at different speed and for a request that was under way.
- A candidate leads only by a write of its own that succeeded. A write whose outcome is unknown does not count.
- Whoever *creates* the Lease waits `lease_s` before it leads: someone may have deleted it under a leader that does not know
  yet. (`muster install` creates it empty beforehand, so that the first start does not wait.)
- Each term has an `epoch` (`leaseTransitions`), larger than that of all terms before it for as long as the Lease is not
  deleted. Writers put it into what they write, where a reader must be able to refuse the old leader.

Concurrency: `Elector.run` is one task; a `Fence` is read anywhere on the same loop. `Fence.is_valid` compares with the clock at
the moment of the call, so that a loop which was blocked for a minute does not act on old belief.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from prometheus_client import Counter, Gauge

from muster.objects.meta import resource_version_of
from muster.objects.resources import Resource
from muster.objects.status import AlreadyExists, ApiError, Conflict, NotFound, Raw, ServiceUnavailable, Timeout
from muster.objects.time import Clock, format_micro_time
from muster.store.backoff import spread
from muster.store.contract import Store

log = logging.getLogger(__name__)

LEADING = Gauge("muster_leader", "1 while this process leads.", ["lease"])
TERMS = Counter("muster_leader_terms", "Terms that this process has begun.", ["lease"])
RENEW_FAILURES = Counter("muster_leader_renew_failures", "Renewals that failed.", ["lease"])

_LEASE_S_MAX = 3_600


class LeaseTiming(msgspec.Struct, frozen=True, kw_only=True):
    """`lease_s`: how long others wait. `renew_deadline_s`: how long the leader acts without a renewal. `retry_s`: how often."""

    lease_s: int = 15
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_s < self.renew_deadline_s < self.lease_s <= _LEASE_S_MAX:
            raise ValueError(
                f"leader election needs 0 < retry_s < renew_deadline_s < lease_s <= {_LEASE_S_MAX}, "
                f"not {self.retry_s}, {self.renew_deadline_s}, {self.lease_s}"
            )


class NotLeading(ServiceUnavailable):
    """The caller does not lead, or no longer: nothing was written."""

    reason = "NotLeading"


def new_identity(host: str, entropy: Callable[[int], bytes]) -> str:
    """A candidate's name for this run of this process. `entropy` gives random bytes (`os.urandom`)."""
    return f"{host}_{entropy(8).hex()}"


class Fence:
    """The right to act as leader, for one term. Valid from `not_before_s` until the last renewal runs out or it is revoked."""

    def __init__(self, lease: str, holder: str, epoch: int, *, now_s: Callable[[], float], not_before_s: float) -> None:
        self.lease = lease
        self.holder = holder
        self.epoch = epoch
        self._now_s = now_s
        self._not_before_s = not_before_s
        self._until_s = 0.0
        self._is_revoked = False

    @property
    def until_s(self) -> float:
        """On the loop's clock."""
        return self._until_s

    @property
    def not_before_s(self) -> float:
        return self._not_before_s

    @property
    def is_revoked(self) -> bool:
        return self._is_revoked

    @property
    def is_valid(self) -> bool:
        return not self._is_revoked and self._not_before_s <= self._now_s() < self._until_s

    def check(self, what: str = "act") -> None:
        """Raise NotLeading unless the fence is valid now."""
        if not self.is_valid:
            raise NotLeading(f"{self.holder} may not {what}: its term {self.epoch} on lease {self.lease} has ended")

    @contextlib.asynccontextmanager
    async def guard(self, what: str = "act") -> AsyncIterator[None]:
        """Check, and cut the body short when the term ends while it runs (Timeout: the outcome is unknown)."""
        self.check(what)
        deadline_s = self._until_s
        while_valid = asyncio.timeout_at(deadline_s)
        try:
            async with while_valid:
                yield
        except TimeoutError:
            if not while_valid.expired():
                raise
            raise Timeout(f"{self.holder} tried to {what} and got no answer before its right to do so ran out") from None

    def extend(self, until_s: float) -> None:
        """Only the elector calls this, with the moment it sent a renewal that succeeded plus the deadline."""
        self._until_s = max(self._until_s, until_s)

    def revoke(self) -> None:
        self._is_revoked = True


class _Seen(msgspec.Struct):
    """The Lease as last received, and since when (own clock) it has been like that."""

    raw: Raw
    version: str
    since_s: float

    @property
    def spec(self) -> dict[str, Any]:
        spec = self.raw.get("spec")
        return spec if isinstance(spec, dict) else {}

    @property
    def holder(self) -> str:
        return str(self.spec.get("holderIdentity") or "")

    @property
    def epoch(self) -> int:
        transitions = self.spec.get("leaseTransitions")
        return transitions if isinstance(transitions, int) else 0

    def lease_s(self, default_s: int) -> int:
        """What its holder promised; nonsense counts as our own setting."""
        promised = self.spec.get("leaseDurationSeconds")
        return promised if isinstance(promised, int) and promised > 0 else default_s


class Elector:
    """One candidate. `identity` must be unique to this run of this process, not only to its host."""

    def __init__(
        self,
        store: Store,
        *,
        name: str,
        namespace: str,
        identity: str,
        clock: Clock,
        timing: LeaseTiming | None = None,
    ) -> None:
        self.name = name
        self.namespace = namespace
        self.identity = identity
        self.timing = timing or LeaseTiming()
        self.fence: Fence | None = None
        """Of the present term, if there is one."""
        self._store = store
        self._clock = clock
        self._now_s = asyncio.get_running_loop().time
        self._resource: Resource | None = None
        self._seen: _Seen | None = None
        self._epoch_seen = 0
        self._may_have_created = False
        """Whether a create was sent whose outcome is not known."""
        self._clear_after_s = 0.0
        """Until then, a leader under a Lease that was deleted may not have noticed."""
        self._path = f"{namespace}/{name}"

    @property
    def is_leading(self) -> bool:
        return self.fence is not None and self.fence.is_valid

    @property
    def leader(self) -> str:
        """Who held the lease when last looked at; empty when nobody did."""
        return self._seen.holder if self._seen else ""

    async def run(self, lead: Callable[[Fence], Awaitable[None]]) -> None:
        """Stand for election until `lead` returns or raises, which ends this too, or until cancelled.

        While leading, `lead` runs; it is cancelled when the term is lost, and this stands again. The lease is given up on the
        way out, after `lead` has ended.
        """
        while True:
            fence = await self._campaign()
            if await self._reign(fence, lead):
                return

    # -- becoming leader ----------------------------------------------------------------------------------------------

    async def _campaign(self) -> Fence:
        attempts = 0
        while True:
            try:
                async with asyncio.timeout(self.timing.renew_deadline_s):
                    fence = await self._try_to_take()
                if fence is not None:
                    return fence
            except (ApiError, TimeoutError) as error:
                log.info("lease %s: %s could not be a candidate: %s", self._path, self.identity, error)
            attempts += 1
            # Candidates look at different moments, so that they seldom collide.
            await asyncio.sleep(self.timing.retry_s * (0.75 + 0.5 * spread(self.identity, attempts)))

    async def _try_to_take(self) -> Fence | None:
        seen = await self._look()
        if seen is None:
            return await self._create()
        if seen.holder == self.identity and self._may_have_created:
            # An earlier create got through although no answer came: its time counts from now.
            self._may_have_created = False
            self._clear_after_s = self._now_s() + self.timing.lease_s
        is_free = seen.holder in ("", self.identity)
        if not is_free and self._now_s() < seen.since_s + seen.lease_s(self.timing.lease_s):
            return None
        epoch = max(seen.epoch, self._epoch_seen) + 1
        sent_s = self._now_s()
        if not await self._write(seen, self._record(epoch, acquire=True)):
            return None
        return self._begin(epoch, sent_s)

    async def _create(self) -> Fence | None:
        epoch = self._epoch_seen + 1
        sent_s = self._now_s()
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": self._record(epoch, acquire=True),
        }
        self._may_have_created = True
        try:
            made = await self._store.create(await self._kind(), lease, self.namespace)
        except AlreadyExists:
            return None
        self._note(made)
        self._may_have_created = False
        self._clear_after_s = self._now_s() + self.timing.lease_s
        return self._begin(epoch, sent_s)

    def _begin(self, epoch: int, sent_s: float) -> Fence:
        not_before_s = max(sent_s, self._clear_after_s)
        fence = Fence(self._path, self.identity, epoch, now_s=self._now_s, not_before_s=not_before_s)
        fence.extend(sent_s + self.timing.renew_deadline_s)
        self.fence = fence
        return fence

    # -- being leader -------------------------------------------------------------------------------------------------

    async def _reign(self, fence: Fence, lead: Callable[[Fence], Awaitable[None]]) -> bool:
        """One term. True when `lead` came to its own end; its exception is raised."""
        renewing = asyncio.create_task(self._renew(fence), name=f"renew {self._path}")
        leading = asyncio.create_task(self._lead(fence, lead), name=f"lead {self._path}")
        try:
            await asyncio.wait((renewing, leading), return_when=asyncio.FIRST_COMPLETED)
            if not leading.done():
                why = renewing.exception() or "it could not be renewed in time, or another holds it"
                log.warning("lease %s: %s lost its term %d: %r", self._path, self.identity, fence.epoch, why)
                fence.revoke()
                return False
            leading.result()
            return True
        finally:
            # While the term lasts it is renewed, so that `lead` can put things in order before it ends.
            try:
                await _end(leading)
            finally:
                is_voluntary = not fence.is_revoked
                fence.revoke()
                self.fence = None
                LEADING.labels(self._path).set(0)
                await _end(renewing)
            # Before its time it must not be handed on: the next one would not know that it has to wait.
            if is_voluntary and self._now_s() >= fence.not_before_s:
                await self._release()

    async def _lead(self, fence: Fence, lead: Callable[[Fence], Awaitable[None]]) -> None:
        await asyncio.sleep(max(0.0, fence.not_before_s - self._now_s()))
        log.info("lease %s: %s leads, term %d", self._path, self.identity, fence.epoch)
        TERMS.labels(self._path).inc()
        LEADING.labels(self._path).set(1)
        await lead(fence)

    async def _renew(self, fence: Fence) -> None:
        """Renew until that is no longer possible: somebody else has the lease, or the deadline has passed."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(fence.until_s):
                    await asyncio.sleep(self.timing.retry_s)
                    # A connection whose way has died is not waited for until the term is over: there is time for another.
                    async with asyncio.timeout((self.timing.renew_deadline_s - self.timing.retry_s) / 2):
                        if not await self._renew_once(fence):
                            return
            if self._now_s() >= fence.until_s:
                return

    async def _renew_once(self, fence: Fence) -> bool:
        """False when the lease is another's. Failures to ask are not an answer: True."""
        try:
            seen = self._seen
            if seen is None or seen.holder != self.identity:
                seen = await self._look()
                if seen is None or seen.holder != self.identity or seen.epoch != fence.epoch:
                    return False
            sent_s = self._now_s()
            if await self._write(seen, self._record(fence.epoch, acquire=False)):
                fence.extend(sent_s + self.timing.renew_deadline_s)
            return True
        except NotFound:
            return False
        except ApiError as error:
            RENEW_FAILURES.labels(self._path).inc()
            log.info("lease %s: %s could not renew: %s", self._path, self.identity, error)
            self._seen = None
            return True

    async def _release(self) -> None:
        """Give the lease up, so that the next leader need not wait. Best effort: if it fails, it expires."""
        try:
            async with asyncio.timeout(self.timing.retry_s):
                seen = self._seen or await self._look()
                if seen is not None and seen.holder == self.identity:
                    spec = self._record(seen.epoch, acquire=False)
                    spec.update(holderIdentity="", leaseDurationSeconds=1)
                    await self._write(seen, spec)
        except (ApiError, TimeoutError) as error:
            log.info("lease %s: %s could not give it up, it will expire: %s", self._path, self.identity, error)

    # -- the record ---------------------------------------------------------------------------------------------------

    async def _kind(self) -> Resource:
        if self._resource is None:
            self._resource = await self._store.resource("coordination.k8s.io", "Lease")
        return self._resource

    async def _look(self) -> _Seen | None:
        try:
            return self._note(await self._store.get(await self._kind(), self.name, self.namespace))
        except NotFound:
            self._seen = None
            return None

    def _note(self, raw: Raw) -> _Seen:
        version = resource_version_of(raw)
        if self._seen is None or self._seen.version != version:
            self._seen = _Seen(raw, version, self._now_s())
        self._epoch_seen = max(self._epoch_seen, self._seen.epoch)
        return self._seen

    async def _write(self, seen: _Seen, spec: Raw) -> bool:
        """Replace the record that was seen; False when it has changed since."""
        lease = {**seen.raw, "spec": {**seen.spec, **spec}}
        self._seen = None
        try:
            self._note(await self._store.update(await self._kind(), lease, self.namespace))
        except Conflict:
            return False
        return True

    def _record(self, epoch: int, *, acquire: bool) -> Raw:
        now = format_micro_time(self._clock())
        record: Raw = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self.timing.lease_s,
            "renewTime": now,
            "leaseTransitions": epoch,
        }
        if acquire:
            record["acquireTime"] = now
        return record


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel and wait. What it raised in the meantime was seen before, or is its own affair."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
