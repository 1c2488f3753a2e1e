"""One Muster API server from start to stop.

    server = Server(ServerConfig(data_dir=Path("data")))
    await server.start()      # TLS port open, kubeconfig written
    await server.wait()       # until stop() is called
    await server.stop()

Start: store, certificates, memory, bootstrap, token, port, kubeconfig; each may fail with an error that says what to do, and
then everything before it is undone. Stop: no new connections, watches ended, requests finished, then the store is closed, so
that whatever was answered is on disk.

Concurrency: one event loop owns a server and its store. Several servers may live in one process on different directories.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import ssl
from collections.abc import Callable
from pathlib import Path

from starlette.routing import BaseRoute

from muster.client.kubeconfig_file import write_kubeconfig
from muster.objects.status import Raw
from muster.server import access_review
from muster.server.admission import builtin_hooks
from muster.server.app import App
from muster.server.audit import AuditLog
from muster.server.authentication import Authenticator
from muster.server.authorization import Authorizer
from muster.server.bandwidth_admission import BandwidthFits
from muster.server.bootstrap import Keeper, bootstrap, ensure_admin_token
from muster.server.config import ServerConfig, check
from muster.server.flow import Flow
from muster.server.handlers import ResourceHandlers
from muster.server.job_selector import JobSelector
from muster.server.joining import Joining
from muster.server.kubelet_proxy import NodeLogs
from muster.server.limits_admission import SubmissionLimits
from muster.server.listener import Listener
from muster.server.logs import logger
from muster.server.memory import Memory
from muster.server.metrics import Metrics
from muster.server.node_access import NodeAccess
from muster.server.node_index import NODE_USER_PREFIX
from muster.server.node_restriction import NodeDeletion, NodeRestriction
from muster.server.pki import Pki
from muster.server.queue_acts import QueueActs, by_rbac
from muster.server.resource_metrics import ResourceMetrics
from muster.server.reviews import Reviews
from muster.server.routes import Routes
from muster.server.subresources import Subresources
from muster.server.tokens import TOKEN_PREFIX, new_token, token_hash
from muster.server.user_access import UserAccess
from muster.server.who_am_i import WhoAmI
from muster.server.whose_work import FillsInUser
from muster.store.embedded import EmbeddedStore
from muster.store.embedded.admission import Admission, Admissions
from muster.store.embedded.metrics import StoreCollector

log = logger(__name__)


class Server:
    """After `start`: `.store`, `.url`, `.port`, `.kubeconfig_path`, `.ca_path`, `.handlers`, `.metrics`.

    Before `start`, other parts of Muster may add to `extra_routes` (Starlette routes, tried first), `extra_hooks` (admission,
    after the built-in ones) and `checks` (readiness, by name).
    """

    def __init__(self, config: ServerConfig, *, entropy: Callable[[int], bytes] = os.urandom) -> None:
        check(config)
        self.config = config
        self.extra_routes: list[BaseRoute] = []
        self.extra_hooks: list[Admission] = []
        self.checks: dict[str, Callable[[], str]] = {}
        self.pod_range = ""
        """Of which nodes that joined may take a part for their pods, set before `start`; none when empty."""
        self.audit_listener: Callable[[Raw], None] | None = None
        self.metrics = Metrics(config.limits)
        self.store: EmbeddedStore
        self.handlers: ResourceHandlers
        self.memory: Memory
        self.pki: Pki
        self._entropy = entropy
        self._listener: Listener
        self._keeper: Keeper
        self._undo = contextlib.AsyncExitStack()
        self._stopped = asyncio.Event()
        self._is_started = False

    # --- after start

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def url(self) -> str:
        return f"https://{self.address}"

    @property
    def address(self) -> str:
        """host:port as a client on this machine reaches it."""
        host = self.config.reachable_host
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(host).version == 6:
                host = f"[{host}]"
        return f"{host}:{self.port}"

    @property
    def ca_path(self) -> Path:
        return self.pki.ca_path

    @property
    def kubeconfig_path(self) -> Path:
        return self.config.kubeconfig_path

    # --- life

    async def start(self) -> None:
        """Raises StoreError, PkiError or ListenError, with nothing left running."""
        assert not self._is_started, "a server is started once"
        try:
            await self._start()
        except BaseException:
            await self._undo.aclose()
            raise
        self._is_started = True
        log.info("serving", url=self.url, data_dir=str(self.config.data_dir))

    async def _start(self) -> None:
        config = self.config
        config.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        hooks = Admissions()
        self.store = await EmbeddedStore.open(config.store_dir, clock=config.clock, entropy=self._entropy, admission=hooks)
        self._undo.push_async_callback(self.store.close)
        self.pki = await asyncio.to_thread(Pki.ensure, config.pki_dir, config.clock, self._certificate_names())
        self.memory = Memory(self.store, config.clock)
        self.memory.start()
        authorizer = Authorizer(self.memory.rbac, [NodeAccess(self.memory.nodes), UserAccess(self.memory.people)])
        hooks.hooks += [
            *builtin_hooks(authorizer, self.memory.priorities, self.memory.has_account),
            JobSelector(),
            NodeRestriction(self.memory.nodes, self.pod_range),
            NodeDeletion(self.memory.nodes),
            BandwidthFits(self.memory.capacities),
            QueueActs(by_rbac(authorizer), config.clock),
            FillsInUser(self.memory.people),
            *self.extra_hooks,
            # The last to judge: what it accepts counts from then on.
            SubmissionLimits(self.memory.people, access_review.by_rbac(Authorizer(self.memory.rbac))),
        ]
        await bootstrap(self.store)
        token = await self._admin_token()
        audit = self._open_audit()
        app = self._application(authorizer, audit)
        context = self.pki.server_context()
        self._listener = Listener(
            app,
            config.host,
            config.port,
            limits=config.limits,
            metrics=self.metrics,
            clock=config.clock,
            context=context,
            end_streams=app.close_streams,
        )
        await self._listener.start()
        self._undo.push_async_callback(self._listener.stop, config.stop_grace_s)
        self._keeper = Keeper(self.store, self.memory.rbac, self._ca_text)
        await self._keeper.start()
        self._undo.push_async_callback(self._keeper.stop)
        renewal = asyncio.get_running_loop().create_task(self._renew_certificates(context))
        self._undo.push_async_callback(_cancel, renewal)
        write_kubeconfig(config.kubeconfig_path, server=self.url, ca=self.pki.ca_pem, token=token)

    def _application(self, authorizer: Authorizer, audit: AuditLog | None) -> App:
        config = self.config
        authenticator = Authenticator(
            tokens=self.memory.tokens,
            token_key=self.pki.token_key.public_key(),
            uid_of=self.memory.uid_of,
            clock=config.clock,
            limits=config.limits,
            check_node=self.memory.nodes.check_certificate,
        )
        self.handlers = ResourceHandlers(self.store, limits=config.limits, metrics=self.metrics, clock=config.clock)
        Reviews(self.handlers, authorizer, authenticator).register()
        Subresources(
            self.handlers,
            self.store,
            token_key=self.pki.token_key,
            clock=config.clock,
            limits=config.limits,
            entropy=self._entropy,
        ).register()
        logs = NodeLogs(self.store, self.pki, self.memory.nodes, limits=config.limits, metrics=self.metrics)
        self._undo.push_async_callback(logs.close)
        self.handlers.subresources[("", "pods", "log")] = logs
        routes = Routes(self.store, self.metrics, lambda: self.address)
        routes.checks.update(self.checks)
        ResourceMetrics(self.handlers, self.store, clock=config.clock, limits=config.limits).register()
        routes.computed += [resource for resource, _ in self.handlers.computed.values()]
        self.metrics.registry.register(StoreCollector(self.store))
        joining = Joining(
            self.store, self.pki, self.memory.nodes, clock=config.clock, limits=config.limits, metrics=self.metrics
        )
        app = App(
            handlers=self.handlers,
            routes=routes.application([*self.extra_routes, *joining.routes(), *WhoAmI(self.memory.people).routes()]),
            authenticator=authenticator,
            authorizer=authorizer,
            flow=Flow(config.limits, self.metrics),
            audit=audit,
            metrics=self.metrics,
            limits=config.limits,
            clock=config.clock,
        )
        self.memory.nodes.on_revoked.append(lambda node: app.close_streams_of(NODE_USER_PREFIX + node))
        return app

    def _ca_text(self) -> str:
        return self.pki.ca_pem.decode()

    def _open_audit(self) -> AuditLog | None:
        if not self.config.audit_enabled:
            return None
        audit = AuditLog(self.config.audit_path, self.config.limits)
        audit.listener = self.audit_listener
        audit.open()
        self._undo.push_async_callback(audit.close)
        self.metrics.audit_dropped.set_function(lambda: audit.dropped)
        return audit

    def _certificate_names(self) -> list[str]:
        wildcards = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
        names = [self.config.host, self.config.advertise_host, *self.config.certificate_names]
        return [name for name in names if name not in wildcards]

    async def _admin_token(self) -> str:
        """The token in the kubeconfig if it is still the one whose hash is stored; otherwise a new one, which ends the old."""
        known = _token_in(self.config.kubeconfig_path)
        if known and self.memory.tokens.find(known, self.config.clock()) is not None:
            return known
        token = new_token(self._entropy(32))
        await ensure_admin_token(self.store, token_hash(token))
        return token

    async def _renew_certificates(self, context: ssl.SSLContext) -> None:
        while True:
            await asyncio.sleep(self.config.certificate_check_interval_s)
            try:
                renewed = await asyncio.to_thread(self.pki.renew, self._certificate_names())
                if "server" in renewed:
                    self.pki.load_server_chain(context)
            except Exception as error:  # noqa: BLE001 - the root of a task; the old certificate serves on
                log.error("certificates could not be renewed", error=str(error))
            else:
                if renewed:
                    log.info("certificates renewed", names=renewed)

    async def settled(self) -> None:
        """Until the server has done what follows from the writes so far. For tests and orderly ends."""
        await self._keeper.idle()
        await self.store.settled()
        await self._keeper.idle()

    async def wait(self) -> None:
        """Until `stop` has been called and is done."""
        await self._stopped.wait()

    async def stop(self) -> None:
        """Finish and close, in order. A second call waits for nothing."""
        if not self._is_started:
            return
        self._is_started = False
        await self._undo.aclose()
        log.info("stopped", data_dir=str(self.config.data_dir))
        self._stopped.set()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _token_in(path: Path) -> str:
    """The token of a kubeconfig that we wrote; "" when there is none or it can't be read."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
    for line in text.splitlines():
        key, _, value = line.strip().partition(":")
        if key == "token" and value.strip().strip("\"'").startswith(TOKEN_PREFIX):
            return value.strip().strip("\"'")
    return ""
