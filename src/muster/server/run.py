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
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.routing import BaseRoute

from muster.client.kubeconfig_file import write_kubeconfig
from muster.objects.status import Raw
from muster.server import access_review, audit_policy
from muster.server.admission import builtin_hooks
from muster.server.api_access import ApiAccess
from muster.server.app import App
from muster.server.audit import AuditLog
from muster.server.authentication import Authenticator
from muster.server.authorization import MASTERS, Authorizer
from muster.server.backups import Backups
from muster.server.bandwidth_admission import BandwidthFits
from muster.server.bootstrap import Keeper, bootstrap, ensure_admin_token
from muster.server.change_notes import ChangeNotes
from muster.server.class_admission import ClaimGrowth, PodRuntimeClass
from muster.server.config import ServerConfig, check
from muster.server.exchange import Answer, Handler, Request
from muster.server.flow import Flow
from muster.server.handlers import ResourceHandlers
from muster.server.job_selector import JobSelector
from muster.server.joining import Joining
from muster.server.late import Late
from muster.server.limit_ranges_admission import LimitRanger
from muster.server.limits_admission import SubmissionLimits
from muster.server.listener import Listener
from muster.server.logs import logger
from muster.server.memory import Memory
from muster.server.metrics import Metrics
from muster.server.node_access import NodeAccess
from muster.server.node_index import NODE_USER_PREFIX
from muster.server.node_restriction import NodeDeletion, NodeRestriction
from muster.server.oidc import OidcTokens
from muster.server.pki import Pki
from muster.server.priority import HANDSHAKE_COST, stranger
from muster.server.queue_acts import QueueActs, by_rbac
from muster.server.quotas import QuotaNotes, Quotas
from muster.server.resource_metrics import ResourceMetrics
from muster.server.reviews import Reviews
from muster.server.routes import Routes
from muster.server.subresources import Subresources
from muster.server.token_keys import IssuerDiscovery, TokenKeys
from muster.server.tokens import TOKEN_PREFIX, TokenRefused, new_token, token_hash
from muster.server.unique_keys import UniqueKeys
from muster.server.unique_rules import RULES
from muster.server.user_access import UserAccess
from muster.server.webhook_metrics import WebhookMetrics
from muster.server.webhook_services import resolver
from muster.server.webhooks import Webhooks
from muster.server.who_am_i import WhoAmI
from muster.server.whose_work import FillsInUser
from muster.store.embedded import EmbeddedStore
from muster.store.embedded.admission import Admission, Admissions
from muster.store.embedded.metrics import StoreCollector
from muster.store.embedded.restoring import finish as finish_restore

if TYPE_CHECKING:
    from muster.server.kubelet_proxy import NodeLogs
    from muster.server.node_streams import NodeStreams
    from muster.server.webhook_calling import Caller

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
        self._token_keys: TokenKeys
        self._oidc: OidcTokens
        self._audit_policy = audit_policy.DEFAULT
        self._keeper: Keeper
        self._quotas: Quotas
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
        """Raises StoreError, PkiError, SettingsError or ListenError, with nothing left running."""
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
        await asyncio.to_thread(finish_restore, config.data_dir, config.clock())
        hooks = Admissions()
        self.store = await EmbeddedStore.open(config.store_dir, clock=config.clock, entropy=self._entropy, admission=hooks)
        self._undo.push_async_callback(self.store.close)
        self.pki = await asyncio.to_thread(Pki.ensure, config.pki_dir, config.clock, self._certificate_names())
        self._token_keys = await asyncio.to_thread(TokenKeys, config.pki_dir, config.clock, config.limits.token_lifetime_max_s)
        issuers = await asyncio.to_thread(config.authentication.load)
        if config.audit_policy_path is not None:
            self._audit_policy = await asyncio.to_thread(audit_policy.load, config.audit_policy_path)
        self._oidc = OidcTokens(issuers, config.clock, cached_max=config.limits.token_cache_max)
        self._undo.push_async_callback(self._oidc.close)
        self.memory = Memory(self.store, config.clock)
        self.memory.start()
        authorizer = Authorizer(self.memory.rbac, [NodeAccess(self.memory.nodes), UserAccess(self.memory.people)])
        hooks.hooks += [
            *builtin_hooks(authorizer, self.memory.priorities, self.memory.has_account),
            PodRuntimeClass(self.memory.find),
            ClaimGrowth(self.memory.find),
            LimitRanger(self.memory.limit_ranges),
            ApiAccess(self.memory.automount),
            JobSelector(),
            NodeRestriction(self.memory.nodes, self.pod_range),
            NodeDeletion(self.memory.nodes),
            BandwidthFits(self.memory.capacities),
            ChangeNotes(),
            QuotaNotes(self.store),
            QueueActs(by_rbac(authorizer), config.clock),
            FillsInUser(self.memory.people),
            *self.extra_hooks,
        ]
        webhooks = self._webhooks(Admissions(hooks.hooks))
        hooks.hooks += [
            # The last to judge: what it accepts counts from then on.
            SubmissionLimits(self.memory.people, access_review.by_rbac(Authorizer(self.memory.rbac)), judges_logins=False),
        ]
        UniqueKeys(self.store, RULES).start()
        await bootstrap(self.store)
        token = await self._admin_token()
        self._keeper = Keeper(self.store, self.memory.rbac, self._ca_text)
        await self._keeper.start()
        self._undo.push_async_callback(self._keeper.stop)
        self._quotas = Quotas(self.store)
        self._quotas.start()
        self._undo.push_async_callback(self._quotas.stop)
        # Only now, and before anybody can ask for anything: no webhook keeps a server from starting.
        hooks.hooks.insert(-1, webhooks)
        self.store.body_admission = webhooks
        flow = Flow(config.limits, self.metrics)
        app = self._application(authorizer, self._open_audit(), flow)
        context = self.pki.server_context()
        self._listener = Listener(
            app,
            config.host,
            config.port,
            limits=config.limits,
            metrics=self.metrics,
            clock=config.clock,
            context=context,
            end_streams=app.answering.close_streams,
            turn=lambda address: flow.begin(stranger(address), HANDSHAKE_COST),
        )
        await self._listener.start()
        self._undo.push_async_callback(self._listener.stop, config.stop_grace_s)
        renewal = asyncio.get_running_loop().create_task(self._renew_certificates(context))
        self._undo.push_async_callback(_cancel, renewal)
        following = asyncio.get_running_loop().create_task(self._follow_settings())
        self._undo.push_async_callback(_cancel, following)
        self._oidc.warm_up()
        write_kubeconfig(config.kubeconfig_path, server=self.url, ca=self.pki.ca_pem, token=token)

    def _webhooks(self, hooks: Admission) -> Webhooks:
        caller: Late[Caller] = Late(
            "muster.server.webhook_calling",
            lambda module: module.Caller(resolver(self.store), limits=self.config.limits, metrics=self.metrics),
        )
        self._undo.push_async_callback(caller.close)
        return Webhooks(
            self.memory.webhooks,
            caller,
            again=hooks,
            namespace_labels=self.memory.namespace_labels,
            metrics=WebhookMetrics(self.metrics.registry),
            refused=self.metrics.refused,
            limits=self.config.limits,
            entropy=self._entropy,
        )

    def _asking_agents(self, module: str, handler: str) -> Handler:
        """What asks the agents of nodes; imported with the first request for it."""

        def make(found: Any) -> NodeLogs | NodeStreams:
            agents = found.NodeAgents(self.store, self.pki, self.memory.nodes)
            made: NodeLogs | NodeStreams = getattr(found, handler)(agents, limits=self.config.limits, metrics=self.metrics)
            return made

        late = Late(module, make)
        self._undo.push_async_callback(late.close)

        async def answer(request: Request) -> Answer:
            return await (await late.get())(request)

        return answer

    def _application(self, authorizer: Authorizer, audit: AuditLog | None, flow: Flow) -> App:
        config = self.config
        authenticator = Authenticator(
            tokens=self.memory.tokens,
            token_keys=self._token_keys,
            oidc=self._oidc,
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
            token_keys=self._token_keys,
            clock=config.clock,
            limits=config.limits,
            entropy=self._entropy,
        ).register()
        self.handlers.subresources[("", "pods", "log")] = self._asking_agents("muster.server.kubelet_proxy", "NodeLogs")
        streams = self._asking_agents("muster.server.node_streams", "NodeStreams")
        for name in ("exec", "portforward"):
            self.handlers.subresources[("", "pods", name)] = streams
        routes = Routes(self.store, self.metrics, lambda: self.address)
        routes.checks.update(self.checks)
        ResourceMetrics(self.handlers, self.store, clock=config.clock, limits=config.limits).register()
        routes.computed += [resource for resource, _ in self.handlers.computed.values()]
        self.metrics.registry.register(StoreCollector(self.store))
        joining = Joining(
            self.store, self.pki, self.memory.nodes, clock=config.clock, limits=config.limits, metrics=self.metrics
        )
        backups = Backups(self.store, clock=config.clock, limits=config.limits, metrics=self.metrics)
        own = [
            *WhoAmI(self.memory.people).routes(),
            *IssuerDiscovery(self._token_keys, lambda: self.url).routes(),
            *backups.routes(),
        ]
        app = App(
            handlers=self.handlers,
            routes=routes.application([*self.extra_routes, *joining.routes(), *own]),
            authenticator=authenticator,
            authorizer=authorizer,
            flow=flow,
            audit=audit,
            audit_policy=self._audit_policy,
            metrics=self.metrics,
            limits=config.limits,
            clock=config.clock,
        )
        self.memory.nodes.on_revoked.append(lambda node: app.answering.close_streams_of(NODE_USER_PREFIX + node))
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
        with contextlib.suppress(TokenRefused):
            found = self.memory.tokens.find(known, self.config.clock()) if known else None
            if found is not None and MASTERS in found.groups:  # somebody may have written a user's kubeconfig over it
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

    async def _follow_settings(self) -> None:
        """Take up keys and issuers as they change on disk, and look whether issuers have withdrawn keys. What can't be used
        changes nothing, is said once, and keeps nothing else from being taken up: a stolen key ends whatever is wrong with an
        issuer."""
        said: dict[Callable[[], Awaitable[None]], str] = {self._follow_token_keys: "", self._follow_issuers: ""}
        while True:
            await asyncio.sleep(self.config.settings_check_interval_s)
            for follow, before in said.items():
                said[follow] = ""
                try:
                    await follow()
                except Exception as error:  # noqa: BLE001 - the root of a task; the settings of before stay
                    if str(error) != before:
                        log.error("changed settings are not taken up", error=str(error))
                    said[follow] = str(error)

    async def _follow_token_keys(self) -> None:
        if await asyncio.to_thread(self._token_keys.reload):
            log.info("keys of service-account tokens changed", keys=[key.key_id for key in self._token_keys.public])

    async def _follow_issuers(self) -> None:
        if self._oidc.replace(await asyncio.to_thread(self.config.authentication.load)):
            log.info("issuers of tokens changed")
            self._oidc.warm_up()
        self._oidc.refresh_aged()

    async def settled(self) -> None:
        """Until the server has done what follows from the writes so far. For tests and orderly ends."""
        await self._keeper.idle()
        await self.store.settled()
        await self._keeper.idle()
        await self._quotas.idle()

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
