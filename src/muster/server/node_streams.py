"""`pods/exec` and `pods/portforward`: connections into a pod, which end at the agent of the node that it is bound to.

Whoever may `create` the subresource gets a tunnel to the agent (`tunnel`), and speaks Kubernetes' protocols with it over
WebSocket. What the user can mend (no such container, nothing to run) is answered as Kubernetes words it, without asking the
agent; then the request must be one for a WebSocket. The agent is asked under the kubelet's paths:

    GET /exec/{namespace}/{pod}/{container}?command=..&input=1&output=1&error=1&tty=1&uid=..
    GET /portForward/{namespace}/{pod}?ports=..&uid=..

kubectl asks again with SPDY when it is refused a WebSocket, whatever the reason, and shows only the second answer. So that one
says why the first was refused.

Concurrency: on the event loop. Limits: `node_streams_max` at once, of one user `node_streams_per_user_max`; time to connect,
time to answer, silence.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from functools import partial
from typing import Final

from yarl import URL

from muster.objects.rules.report import obj, text
from muster.objects.status import ApiError, BadRequest, MethodNotAllowed, Raw, TooManyRequests
from muster.server import node_agents, tcp, upgrade
from muster.server.authorization import MASTERS
from muster.server.config import ServerLimits
from muster.server.exchange import Query, Request
from muster.server.metrics import Metrics
from muster.server.node_agents import NodeAgents, choose_container, place_of, refusal
from muster.server.tunnel import Far, Tunnel
from muster.server.upgrade import Answer, BadAnswer, Headers
from muster.store.embedded.admission import Actor

PORTS_MAX: Final = 32
_BUFFER_BYTES: Final = 64 * 1024
"""Of what an agent sends and nobody has taken; also the longest head of its answer."""
_SHUTDOWN_TIMEOUT_S: Final = 5.0
_REFUSED_MAX: Final = 256
_REFUSED_S: Final = 10.0
"""How long a refusal is remembered for a client that asks again."""
_STREAMS: Final = (("stdin", "input"), ("stdout", "output"), ("stderr", "error"))
_OVER: Final = ("Succeeded", "Failed")
_OLD_CLIENT: Final = (
    "this server speaks WebSocket and not SPDY/3.1; kubectl does from 1.31 on: use a newer one, and set neither "
    "KUBECTL_REMOTE_COMMAND_WEBSOCKETS nor KUBECTL_PORT_FORWARD_WEBSOCKETS to false"
)


class NodeStreams:
    """Handles `pods/NAME/exec` and `pods/NAME/portforward`."""

    def __init__(self, agents: NodeAgents, *, limits: ServerLimits, metrics: Metrics) -> None:
        self._agents = agents
        self._limits = limits
        self._metrics = metrics
        self._under_way: Counter[str] = Counter()
        """By user."""
        self._refused: OrderedDict[tuple[str, str], tuple[float, ApiError]] = OrderedDict()
        """By who asked for what: when, and what they were told."""
        metrics.node_streams.set_function(self._under_way.total)

    async def close(self) -> None:
        """Tunnels belong to their requests, which end before."""
        self._refused.clear()

    async def __call__(self, request: Request) -> Tunnel:
        info = request.info
        if info.verb not in ("get", "create"):  # a GET may also ask to watch
            raise MethodNotAllowed(
                f"the server does not allow {info.verb} on {info.resource_path}; allowed: create, get",
                kind="pods",
                name=info.name,
            )
        pod = self._agents.pod(info.name, info.namespace)
        path: tuple[str, ...]
        if info.subresource == "exec":
            container = choose_container(pod, request.query.text("container"))
            check_place(pod, "cannot exec into a container in a completed pod; current phase is {}")
            path, query = ("exec", info.namespace, info.name, container), read_exec(request.query)
        else:
            check_place(pod, "unable to forward port because pod is not running. Current status={}")
            path, query = ("portForward", info.namespace, info.name), read_ports(request.query)
        url = self._agents.url(pod, path, query, f'pod "{info.name}" is')
        user = request.actor.user
        asked = (user, str(url))
        self._check_protocol(request, asked)
        node = text(obj(pod, "spec"), "nodeName")

        async def dial(headers: Headers) -> Far:
            try:
                return await self._dial(request.actor, node, url, headers)
            except ApiError as error:
                self._remember(asked, error)
                raise

        return Tunnel(dial, silence_s=self._limits.node_silence_timeout_s, freed=partial(self._free, user))

    def _check_protocol(self, request: Request, asked: tuple[str, str]) -> None:
        protocol = upgrade.wanted(request.header("connection"), request.header("upgrade"))
        if protocol == upgrade.SPDY:
            raise self._recalled(asked) or BadRequest(_OLD_CLIENT)
        if not protocol:
            raise BadRequest("Upgrade request required")
        if protocol != upgrade.WEBSOCKET:
            raise BadRequest(f"unable to upgrade to {protocol!r:.80}: this server speaks websocket")
        if request.method != "GET":
            raise BadRequest("a WebSocket is opened with GET")

    # --- the agent

    async def _dial(self, actor: Actor, node: str, url: URL, headers: Headers) -> Far:
        self._check_room(actor)
        self._under_way[actor.user] += 1
        try:
            return await self._asked(node, url, headers)
        except BaseException:
            self._free(actor.user)
            raise

    def _check_room(self, actor: Actor) -> None:
        limits, mine, all_of_them = self._limits, self._under_way[actor.user], self._under_way.total()
        reserve = limits.in_flight_reserved if MASTERS in actor.groups else 0
        if mine >= limits.node_streams_per_user_max:
            name, whose = (
                "node_streams_per_user_max",
                f'user "{actor.user}" has {mine} connections into pods open, the most one user may',
            )
        elif all_of_them >= limits.node_streams_max + reserve:
            name, whose = "node_streams_max", f"{all_of_them} connections into pods are open, the most this server serves"
        else:
            return
        self._metrics.refused.labels(name).inc()
        raise TooManyRequests(f"{whose}; try later", retry_after_s=5)

    def _free(self, user: str) -> None:
        self._under_way[user] -= 1
        if not self._under_way[user]:
            del self._under_way[user]

    async def _asked(self, node: str, url: URL, headers: Headers) -> Far:
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(self._limits.node_connect_timeout_s):
                reader, writer = await asyncio.open_connection(
                    url.raw_host,
                    url.port,
                    ssl=self._agents.tls(node),
                    server_hostname=node,
                    ssl_shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
                    limit=_BUFFER_BYTES,
                )
            tcp.keep_alive(writer.transport)
            writer.write(upgrade.question(url, headers))
            async with asyncio.timeout(node_agents.ANSWER_TIMEOUT_S):
                answer = await _answer(reader)
            if not answer.agrees:
                raise refusal(place_of(node, url), answer.code, answer.body)
            return Far(reader, writer, answer.headers)
        except BaseException as error:
            if writer is not None:
                writer.transport.abort()
            if isinstance(error, OSError | EOFError | TimeoutError | ValueError | BadAnswer):
                raise self._agents.failure(node, url, error) from error
            raise

    # --- who asks again

    def _remember(self, asked: tuple[str, str], error: ApiError) -> None:
        """Without where it was raised."""
        told = type(error)(error.message, kind=error.kind, name=error.name, retry_after_s=error.retry_after_s)
        self._refused[asked] = (asyncio.get_running_loop().time(), told)
        self._refused.move_to_end(asked)
        if len(self._refused) > _REFUSED_MAX:
            self._refused.popitem(last=False)

    def _recalled(self, asked: tuple[str, str]) -> ApiError | None:
        at_s, error = self._refused.pop(asked, (0.0, None))
        return error if asyncio.get_running_loop().time() - at_s <= _REFUSED_S else None


async def _answer(reader: asyncio.StreamReader) -> Answer:
    """An answer that agrees, or one that refuses with as much of its body as is kept."""
    answer = Answer(node_agents.ERROR_BYTES_MAX)
    try:
        answer.feed(await reader.readuntil(b"\r\n\r\n"))
    except asyncio.IncompleteReadError:
        raise BadAnswer("it closed the connection") from None
    except asyncio.LimitOverrunError:
        raise BadAnswer(f"the head of its answer is longer than {_BUFFER_BYTES} bytes") from None
    while not answer.is_complete and (data := await reader.read(node_agents.ERROR_BYTES_MAX)):
        answer.feed(data)
    return answer


# -- what was asked, and of what ----------------------------------------------------------------------------------------------


def check_place(pod: Raw, over: str) -> None:
    """A pod that is nowhere, or has ended, has nobody to connect to; `over` says the latter, with the phase in it."""
    if not text(obj(pod, "spec"), "nodeName"):
        raise BadRequest(f"pod {text(obj(pod, 'metadata'), 'name')} does not have a host assigned")
    phase = text(obj(pod, "status"), "phase")
    if phase in _OVER:
        raise BadRequest(over.format(phase))


def read_exec(query: Query) -> list[tuple[str, str]]:
    """What is to run, and with which streams, as the agent takes it."""
    command = query.texts("command")
    if not command or not command[0]:
        raise BadRequest("you must specify at least one command for the container")
    if any("\0" in word for word in command):
        raise BadRequest("command: a NUL character can't be part of a command")
    streams = [(theirs, "1") for ours, theirs in _STREAMS if query.flag(ours)]
    if not streams:
        raise BadRequest("you must specify at least 1 of stdin, stdout, stderr")
    return [*(("command", word) for word in command), *streams, *([("tty", "1")] if query.flag("tty") else [])]


def read_ports(query: Query) -> list[tuple[str, str]]:
    """Some clients say which ones, others on the connection; several may stand in one parameter, with commas."""
    ports = [port for given in query.texts("ports") for port in given.split(",")]
    if len(ports) > PORTS_MAX:
        raise BadRequest(f"ports: {len(ports)} of them; at most {PORTS_MAX} can be forwarded by one connection")
    for port in ports:
        if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
            raise BadRequest(f"ports: {port[:40]!r} is no port; give numbers from 1 to 65535")
    return [("ports", port) for port in ports]
