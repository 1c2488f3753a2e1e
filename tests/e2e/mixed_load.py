"""Mixed load on a real server: what users, controllers and dashboards do all day, at a rate that is given.

`Load.as_fast_as_possible` finds out what the server can do; `Load.at` begins so many acts a second, whether or not the earlier
ones have been answered, so that a server that stalls is seen to (a client that waits politely would hide it). An act is a
request, or a deletion and then a creation; both count acts, so that 70 % of the one is 70 % of the other. What is timed is each
request: the first of an act from when it was due, the next from when it could be sent.

Several service accounts with the role `edit` take turns, as users do: an administrator's requests would pass by the queue in
which everybody else's stand. Answers are taken as they come, compressed ones too, and not decoded: what the load did for
itself would be done while the next answers wait, and be counted as theirs.

One event loop; the load has its own objects, as many in the end as in the beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import ssl
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import msgspec

from muster.bench.http_client import Connection, LoadError
from tests.counts import SOAK

NAMESPACE = "load"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
OBJECTS = 500 if SOAK else 50
"""Of each kind; what is deleted is created again."""
IN_FLIGHT_MAX = 20_000 if SOAK else 2_000
"""Of an open load: beyond that the server does not keep up, and that is the finding. A long load outlives half a minute in
which the machine does half of what it did: the tail tells of it, and whether the server comes back is seen too."""
ANSWER_TIMEOUT_S = 60.0
ACCOUNTS = 8
TOKEN_LIFETIME_S = 3 * 3600
_now = time.monotonic
"""Not the loop's: uvloop's tells whole milliseconds, as they were when the turn of the loop began."""
_FAULT = b'{"type":"ERROR"'
"""How an event begins with which a watch ends."""
Act = Callable[[], Awaitable[Any]]
_SHARES = {"get": 40, "patch": 20, "update": 10, "renew": 15, "page": 5, "list": 1, "apply": 9}


def pod(name: str, number: int) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "registry.example/app:1",
        "command": ["python", "-m", "work"],
        "env": [{"name": f"KEY_{index}", "value": "v" * 20} for index in range(8)],
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
    }
    labels = {"app": "load", "shard": str(number % 20)}
    # A scheduler that is nobody: the load is about the server, and nothing is to happen to these pods.
    spec = {"schedulerName": "nobody", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


class _Connections:
    """Kept ones, so many at the most: who finds none free waits in line."""

    def __init__(self, url: str, tls: ssl.SSLContext, number: int) -> None:
        self._where, self._tls = urlsplit(url), tls
        self._free: asyncio.Queue[Connection | None] = asyncio.Queue()
        for _ in range(number):
            self._free.put_nowait(None)

    async def open(self) -> Connection:
        return await Connection.open(str(self._where.hostname), self._where.port or 443, self._tls)

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[Connection]:
        connection = await self._free.get()
        kept = None
        try:
            if connection is None or connection.is_closed:
                connection = await self.open()
            yield connection
            kept = connection
        except LoadError as error:
            kept = connection if error.code else None  # a refusal is an answer, too
            raise
        finally:
            if connection is not None and kept is None:
                connection.close()
            self._free.put_nowait(kept)

    def close(self) -> None:
        while not self._free.empty():
            if (connection := self._free.get_nowait()) is not None:
                connection.close()


class Load:
    def __init__(self, url: str, tls: ssl.SSLContext, token: str, *, connections: int, seed: int = 7) -> None:
        """`token` is that of somebody who may do anything; the load itself is not."""
        self._connections = _Connections(url, tls, connections)
        self._random = random.Random(seed)
        self._number = itertools.count(1)
        self._renewed: set[int] = set()
        """Pods that are being deleted and created again: others leave them alone."""
        self._accounts: Iterator[str] = itertools.repeat(_login(token))
        """What the next act, or watch, logs in with."""
        self.latencies_s = array("d")
        """Of each request of `at`. For whoever looks to take away."""
        self.acts = 0
        self.watches = 0
        """How many were begun: one that ends is begun again."""
        self.wrong: list[str] = []

    async def prepare(self) -> None:
        core, rbac = f"/api/v1/namespaces/{NAMESPACE}", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
        await self._call("POST", "/api/v1/namespaces", json={"metadata": {"name": NAMESPACE}})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
        accounts = [{"kind": "ServiceAccount", "name": f"user-{number}", "namespace": NAMESPACE} for number in range(ACCOUNTS)]
        binding = {"metadata": {"name": "users"}, "roleRef": role, "subjects": accounts}
        await self._call("POST", f"{rbac}/rolebindings", json=binding)
        logins = []
        for account in accounts:
            await self._call("POST", f"{core}/serviceaccounts", json={"metadata": {"name": account["name"]}})
            asked = {"spec": {"expirationSeconds": TOKEN_LIFETIME_S}}
            made = msgspec.json.decode(await self._call("POST", f"{core}/serviceaccounts/{account['name']}/token", json=asked))
            logins.append(_login(made["status"]["token"]))
        self._accounts = itertools.cycle(logins)
        for number in range(OBJECTS):
            await self._call("POST", PODS, json=pod(f"pod-{number}", number))
            await self._call("POST", MAPS, json={"metadata": {"name": f"map-{number}"}, "data": {"n": "0"}})

    async def as_fast_as_possible(self, seconds: float, clients: int) -> float:
        """Acts a second."""
        end = _now() + seconds
        before = self.acts

        async def client() -> None:
            while _now() < end:
                await self._one(None)()
                self.acts += 1

        await asyncio.gather(*(client() for _ in range(clients)))
        return (self.acts - before) / seconds

    async def at(self, per_s: float, seconds: float, every_s: float, look: Callable[[], None]) -> None:
        """So many a second for so long; `look` is called every so often."""
        begin = _now()
        pending: set[asyncio.Task[None]] = set()
        next_look = begin
        for number in range(int(per_s * seconds)):
            due = begin + number / per_s
            if (early_s := due - _now()) > 0:
                await asyncio.sleep(early_s)
            if _now() >= next_look:
                look()
                next_look += every_s
            if len(pending) >= IN_FLIGHT_MAX:
                self.wrong.append(f"{len(pending)} requests wait for their answers after {due - begin:.0f} s")
                break
            task = asyncio.create_task(self._counted(self._one(due)))
            pending.add(task)
            task.add_done_callback(pending.discard)
        await asyncio.gather(*pending)
        look()

    async def watch(self, path: str, started: asyncio.Event) -> int:
        """Reads a watch until it is cancelled; how many events came."""
        seen, tail = 0, b""
        ended = asyncio.Event()

        def take(piece: bytes) -> None:
            nonlocal seen, tail
            if not piece:
                ended.set()
                return
            seen += piece.count(b"\n")
            if _FAULT in tail + piece:
                self.wrong.append(f"watch of {path}: {piece[:300]!r}")
            tail = piece[-len(_FAULT) :]

        login = next(self._accounts)
        try:
            while True:
                ended.clear()
                connection = await self._connections.open()
                self.watches += 1
                try:
                    await connection.stream(f"{path}?watch=true", take, headers=login)
                    started.set()
                    await ended.wait()
                finally:
                    connection.close()
        except LoadError as error:
            self.wrong.append(f"watch of {path}: {error}")
            started.set()
            return seen
        except asyncio.CancelledError:
            return seen

    def close(self) -> None:
        self._connections.close()

    # -- one request -----------------------------------------------------------------------------------------------------------

    async def _counted(self, act: Act) -> None:
        await act()
        self.acts += 1

    def _one(self, due: float | None) -> Act:
        """What is done next, chosen in order, so that the seed gives the load. `due`: when, if requests are to be timed."""
        kind = self._random.choices(list(_SHARES), list(_SHARES.values()))[0]
        number, count = self._random.randrange(OBJECTS), next(self._number)
        one = partial(self._call, login=next(self._accounts), due=due)
        name = f"pod-{number}"
        match kind:
            case "get":
                return partial(one, "GET", f"{PODS}/{name}", absent=True)
            case "patch":
                body = {"metadata": {"annotations": {"load/count": str(count)}}}
                return partial(one, "PATCH", f"{PODS}/{name}", json=body, media="application/merge-patch+json", absent=True)
            case "update":
                new = {"metadata": {"name": f"map-{number}"}, "data": {"n": str(count)}}
                return partial(one, "PUT", f"{MAPS}/map-{number}", json=new)
            case "renew":
                return partial(self._renew, one, number)
            case "page":
                return partial(one, "GET", f"{PODS}?limit=100&labelSelector=shard%3D{number % 20}")
            case "list":
                return partial(one, "GET", PODS)
            case _:
                meta = {"name": f"map-{number}"}
                applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"applied": str(count)}}
                path = f"{MAPS}/map-{number}?fieldManager=load&force=true"
                return partial(one, "PATCH", path, json=applied, media="application/apply-patch+yaml")

    async def _renew(self, one: Callable[..., Awaitable[bytes]], number: int) -> None:
        if number in self._renewed:
            await one("GET", PODS + "?limit=1")
            return
        self._renewed.add(number)
        try:
            await one("DELETE", f"{PODS}/pod-{number}?gracePeriodSeconds=0")
            await one("POST", PODS, json=pod(f"pod-{number}", number), is_second=True)
        finally:
            self._renewed.discard(number)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        media: str = "application/json",
        login: str = "",
        due: float | None = None,
        is_second: bool = False,
        absent: bool = False,
    ) -> bytes:
        """`is_second`: of an act, so it could not be sent when the act was due. `absent`: the object may be away just now."""
        now = _now()
        since = now if is_second or due is None else min(due, now)
        body = msgspec.json.encode(json) if json is not None else b""
        answer = b""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S), self._connections.one() as connection:
                answer = await connection.call(method, path, body, media, headers=login or next(self._accounts))
        except (TimeoutError, OSError, LoadError) as error:
            if not (absent and isinstance(error, LoadError) and error.code == 404):
                self.wrong.append(f"{method} {path}: {error!r}")
            if not isinstance(error, LoadError) or not error.code:
                return b""
        if due is not None:
            self.latencies_s.append(_now() - since)
        return answer


def _login(token: str) -> str:
    return f"authorization: Bearer {token}\r\naccept-encoding: gzip\r\n"
