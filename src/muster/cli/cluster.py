"""Muster's controllers against a real cluster: leader election, webhooks, health; what `muster controller` runs.

All on one event loop. Every replica serves webhooks and keeps its caches warm; only the leader's controllers act. Start:
connection, CA, webhooks, controllers, health. Stop: the same backwards; the lease is given up on the way, so that another
replica takes over at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

import msgspec

from muster.cli import manifests
from muster.cli.endpoints import Endpoint, HealthApp
from muster.cli.errors import CliError, ExitCode
from muster.cli.history_options import HistoryOptions
from muster.cli.webhook_ca import CHECK_INTERVAL_S, Serving, WebhookCa, certificate_names
from muster.client.api import ApiClient
from muster.controllers import cluster_controllers
from muster.controllers.long_runs import tune_for_long_runs
from muster.controllers.manager import Election, Manager
from muster.controllers.runtime import Controller, Runnable
from muster.controllers.scheduler_running import SchedulerRunner
from muster.controllers.work_sizes import is_part_of_job
from muster.history.actions import action_of
from muster.history.recorder import Recorder
from muster.objects.labels import Muster
from muster.objects.status import Forbidden, NotFound, Raw
from muster.objects.time import Clock, wall_clock
from muster.server import access_review
from muster.server.accounting import AccountedPods
from muster.server.bandwidth_admission import FOLLOWED, BandwidthFits, Capacities
from muster.server.change_notes import ChangeNotes
from muster.server.forecasting import Forecasting
from muster.server.limits_admission import SubmissionLimits
from muster.server.logs import logger
from muster.server.people import FOLLOWED as PEOPLE
from muster.server.people import People
from muster.server.queue_acts import QueueActs, by_review
from muster.server.webhook import Webhook
from muster.server.whose_work import FillsInUser
from muster.store.cache import Cached
from muster.store.informer import Change, ChangeType, Informer
from muster.store.kubernetes import KubernetesStore
from muster.store.leases import new_identity

log = logger(__name__)


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses are (host, port)."""

    lease_namespace: str
    webhook_listen: tuple[str, int]
    health_listen: tuple[str, int]
    webhook_hosts: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    scheduler_config: str | None = None
    workload_approval: bool = False
    history: HistoryOptions | None = None
    """Where decisions are recorded; nowhere without it."""

    @property
    def has_webhooks(self) -> bool:
        return "webhooks" not in self.left_out


class Cluster:
    """One replica. `start`, then `wait_failed`, then `stop`."""

    def __init__(
        self,
        client: ApiClient,
        options: ClusterOptions,
        *,
        election: ApiClient,
        clock: Clock = wall_clock,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """`election`: a client of its own for the lease, whose renewals would wait behind a burst of bindings until the term is
        over."""
        self.options = options
        self.identity = new_identity(socket.gethostname(), entropy)
        self.manager: Manager | None = None
        self.webhooks: Endpoint | None = None
        self.health: Endpoint | None = None
        self._client = client
        self._store = KubernetesStore(client)
        self._election_store = KubernetesStore(election)
        self._clock = clock
        self._capacities = Capacities()
        self._people = People(clock, self._capacities.image, self._capacities.is_partner)
        self._history: Recorder | None = None
        self._followed: list[Informer] | None = None
        """By which webhooks judge; None until all are there."""
        self._undo = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        self._undo.push_async_callback(self._store.close)
        self._undo.push_async_callback(self._election_store.close)
        await self._check_namespace()
        self._history = self._recorder()
        every = cluster_controllers(
            scheduler_config=self.options.scheduler_config,
            workload_approval=self.options.workload_approval,
            history=self._history,
            forecast=Forecasting(lambda: None, self._capacities.image).forecast,
        )
        controllers = [c for c in every if c.name not in self.options.left_out]
        if self.options.has_webhooks:
            controllers.append(await self._start_webhooks())
        self._start_manager(controllers)
        if self.options.has_webhooks:
            self._followed = [*await self._follow_capacities(), *await self._follow_people()]
        host, port = self.options.health_listen
        self.health = Endpoint("health", HealthApp({"controllers": self._ready}), host, port)
        await self.health.start()
        self._undo.push_async_callback(self.health.stop)

    def _recorder(self) -> Recorder | None:
        if self.options.history is None:
            return None
        recorder = self.options.history.recorder(self._clock)
        recorder.stand_by(self.identity)
        self._undo.push_async_callback(asyncio.to_thread, recorder.close)
        return recorder

    async def _check_namespace(self) -> None:
        """A missing namespace would otherwise show only as an election that nobody ever wins."""
        namespace = self.options.lease_namespace
        try:
            leases = await self._store.resource("coordination.k8s.io", "Lease")
            await self._store.get(leases, manifests.LEASE, namespace)
        except NotFound as e:
            raise CliError(
                f"namespace {namespace} holds no lease {manifests.LEASE}; run 'muster install --namespace "
                f"{namespace}' first, or name the right namespace with --lease-namespace",
                ExitCode.NOT_FOUND,
            ) from e

    async def _start_webhooks(self) -> Controller:
        serving = await self._serving()
        host, port = self.options.webhook_listen
        trusted, allows = frozenset({self._account}), access_review.by_review(self._store)
        hooks = [
            BandwidthFits(self._capacities),
            ChangeNotes(),
            QueueActs(by_review(self._store), self._clock, trusted=trusted),
            FillsInUser(self._people),
            *([] if "ledger" in self.options.left_out else [AccountedPods(trusted=trusted, allows=allows)]),
            # The last to judge: what it accepts counts from then on.
            SubmissionLimits(self._people, allows, trusted=trusted),
        ]
        app = Webhook(
            hooks=hooks,
            listener=self._note_action,
            unheard=trusted,
            is_ours=self._is_ours,
            not_ready=self._not_filled,
            clock=self._clock,
        )
        self.webhooks = Endpoint("webhook", app, host, port, serving.context)
        await self.webhooks.start()
        self._undo.push_async_callback(self.webhooks.stop)
        self._spawn(self._renew(serving), "webhook certificates")
        return WebhookCa(lambda: serving.trust.ca_bundle)

    @property
    def _account(self) -> str:
        """As whom the replicas act."""
        return f"system:serviceaccount:{self.options.lease_namespace}:{manifests.CONTROLLER}"

    def _is_ours(self, pod: Raw) -> bool:
        """Whether a pod is for a scheduler that Muster is."""
        name = str((pod.get("spec") or {}).get("schedulerName") or "")
        runners = self.manager.runners if self.manager is not None else ()
        sources = [runner.source for runner in runners if isinstance(runner, SchedulerRunner)]
        return any(source is not None and name in source.current.served for source in sources)

    def _note_action(self, entry: Raw) -> None:
        action = action_of(entry)
        if action is not None and self._history is not None:
            self._history.action(action)

    async def _serving(self) -> Serving:
        extra = [*self.options.webhook_hosts, self.options.webhook_listen[0]]
        wildcards = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
        names = certificate_names(self.options.lease_namespace, [name for name in extra if name not in wildcards])
        serving = Serving(self._store, self.options.lease_namespace, names, self._clock)
        try:
            await serving.check()
        except Forbidden as e:
            raise CliError(
                f"{e.message}; the webhooks need this Secret: run as the service account that 'muster install' makes, or leave "
                "them out with --without webhooks",
                ExitCode.FORBIDDEN,
            ) from e
        return serving

    async def _renew(self, serving: Serving) -> None:
        """Follow a CA that was replaced, and sign a new certificate in time."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                if await serving.check():
                    log.info("webhook certificate renewed")
            except Exception as error:  # noqa: BLE001 - the root of a task; the present certificate serves on
                log.warning("the webhook certificate could not be checked", error=str(error))

    def _start_manager(self, controllers: list[Runnable]) -> None:
        tune_for_long_runs()
        election = Election(identity=self.identity, name=manifests.LEASE, namespace=self.options.lease_namespace)
        self.manager = Manager(
            self._store, controllers, clock=self._clock, election=election, election_store=self._election_store
        )
        self._spawn(self.manager.run(), "controllers")

    def _not_filled(self) -> str:
        """Why webhooks would judge by half a picture: a limit that is not known yet holds nobody."""
        if self._followed is None:
            return "the controller has just started"
        missing = [informer.resource.qualified for informer in self._followed if not informer.has_synced]
        return f"it has not read all {', '.join(sorted(missing))} yet" if missing else ""

    async def _follow_capacities(self) -> list[Informer]:
        """Every replica answers webhooks, so each keeps its own picture of what the nodes have."""
        assert self.manager is not None
        followed = []
        for group, kind in FOLLOWED:
            try:
                informer = await self.manager.hub.informer(group, kind)
            except NotFound as error:  # a cluster without this kind has no objects of it either
                log.warning("requests for bandwidth are judged without a kind", kind=kind, error=str(error))
                continue

            def take(change: Change, kind: str = kind) -> None:
                self._capacities.apply(kind, change.newest.raw, deleted=change.type is ChangeType.DELETED)

            informer.add_handler(take)
            followed.append(informer)
        return followed

    async def _follow_people(self) -> list[Informer]:
        """Who is who, and what is submitted."""
        assert self.manager is not None
        followed = []
        for group, kind in PEOPLE:
            try:
                informer = await self.manager.hub.informer(group, kind)
            except NotFound as error:
                log.warning("submissions are judged without a kind", kind=kind, error=str(error))
                continue

            def take(change: Change, kind: str = kind) -> None:
                newest = change.newest
                if kind == "Pod" and newest.controller_uid and not _counts_by_itself(newest):
                    return
                self._people.apply(kind, newest.raw, deleted=change.type is ChangeType.DELETED)

            informer.add_handler(take)
            followed.append(informer)
        return followed

    def _spawn(self, work: object, name: str) -> None:
        assert asyncio.iscoroutine(work)
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        self._tasks.append(task)
        self._undo.push_async_callback(_end, task)

    def _ready(self) -> str:
        if self.manager is None:
            return "not started yet"
        health = self.manager.health()
        lagging = "; ".join(f"{kind}: {why}" for kind, why in health.informers.items())
        return "" if health.is_ready else f"caches are not filled yet; {lagging}".rstrip("; ")

    async def wait_failed(self) -> None:
        """Returns only by raising: a task that should run for ever has ended."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        raise CliError("a part of the controller has stopped by itself, which is a bug; the log says why")

    async def stop(self) -> None:
        await self._undo.aclose()


def _counts_by_itself(pod: Cached) -> bool:
    """Of pods with a controller, those of others' controllers that name a user or queue. Most are read no further."""
    return bool({Muster.USER, Muster.QUEUE, Muster.GROUP} & pod.labels.keys()) and not is_part_of_job(pod.raw)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
