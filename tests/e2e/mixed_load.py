"""Mixed load on a real server: what users, controllers and dashboards do all day, at a rate that is given.

`Load.as_fast_as_possible` finds out what the server can do; `Load.at` begins so many acts a second, whether or not the earlier
ones have been answered, so that a server that stalls is seen to (a client that waits politely would hide it). An act is a
request, or a deletion and a creation; both count acts, so that 70 % of the one is 70 % of the other.

One event loop; the load has its own objects, as many in the end as in the beginning.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from tests.counts import SOAK

NAMESPACE = "load"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
OBJECTS = 500 if SOAK else 50
"""Of each kind; what is deleted is created again."""
IN_FLIGHT_MAX = 2_000
"""Of an open load: beyond that the server does not keep up, and that is the finding."""
ANSWER_TIMEOUT_S = 60.0
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


class Load:
    def __init__(self, session: aiohttp.ClientSession, url: str, seed: int = 7) -> None:
        self._session, self._url = session, url
        self._random = random.Random(seed)
        self._number = itertools.count(1)
        self._renewed: set[int] = set()
        """Pods that are being deleted and created again: others leave them alone."""
        self.latencies_s: list[float] = []
        """Of each act of `at`: how long it took from when it was due. For whoever looks to take away."""
        self.acts = 0
        self.codes: Counter[int] = Counter()
        self.wrong: list[str] = []

    async def prepare(self) -> None:
        await self._call("POST", "/api/v1/namespaces", json={"metadata": {"name": NAMESPACE}})
        for number in range(OBJECTS):
            await self._call("POST", PODS, json=pod(f"pod-{number}", number))
            await self._call("POST", MAPS, json={"metadata": {"name": f"map-{number}"}, "data": {"n": "0"}})

    async def as_fast_as_possible(self, seconds: float, clients: int) -> float:
        """Acts a second."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        before = self.acts

        async def client() -> None:
            while loop.time() < end:
                await self._one()()
                self.acts += 1

        await asyncio.gather(*(client() for _ in range(clients)))
        return (self.acts - before) / seconds

    async def at(self, per_s: float, seconds: float, every_s: float, look: Callable[[], None]) -> None:
        """So many a second for so long; `look` is called every so often."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        pending: set[asyncio.Task[None]] = set()
        next_look = begin
        for number in range(int(per_s * seconds)):
            due = begin + number / per_s
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            if loop.time() >= next_look:
                look()
                next_look += every_s
            if len(pending) >= IN_FLIGHT_MAX:
                self.wrong.append(f"{len(pending)} requests wait for their answers after {due - begin:.0f} s")
                break
            task = asyncio.create_task(self._timed(due, self._one()))
            pending.add(task)
            task.add_done_callback(pending.discard)
        await asyncio.gather(*pending)
        look()

    async def watch(self, path: str, started: asyncio.Event) -> int:
        """Reads a watch until it is cancelled; how many events came."""
        seen = 0
        timeout = aiohttp.ClientTimeout(total=None)
        try:
            while True:
                async with self._session.get(f"{self._url}{path}?watch=true", timeout=timeout) as answer:
                    started.set()
                    async for line in answer.content:
                        seen += 1
                        if line.startswith(b'{"type":"ERROR"'):
                            self.wrong.append(f"watch of {path}: {line[:300]!r}")
        except asyncio.CancelledError:
            return seen

    # -- one request -----------------------------------------------------------------------------------------------------------

    async def _timed(self, due: float, act: Callable[[], Awaitable[None]]) -> None:
        await act()
        self.acts += 1
        self.latencies_s.append(asyncio.get_running_loop().time() - due)

    def _one(self) -> Callable[[], Awaitable[None]]:
        """What is done next, chosen in order, so that the seed gives the load."""
        kind = self._random.choices(list(_SHARES), list(_SHARES.values()))[0]
        number, count = self._random.randrange(OBJECTS), next(self._number)
        name = f"pod-{number}"
        match kind:
            case "get":
                return lambda: self._call("GET", f"{PODS}/{name}", absent=True)
            case "patch":
                body = {"metadata": {"annotations": {"load/count": str(count)}}}
                headers = {"content-type": "application/merge-patch+json"}
                return lambda: self._call("PATCH", f"{PODS}/{name}", json=body, headers=headers, absent=True)
            case "update":
                new = {"metadata": {"name": f"map-{number}"}, "data": {"n": str(count)}}
                return lambda: self._call("PUT", f"{MAPS}/map-{number}", json=new)
            case "renew":
                return lambda: self._renew(number)
            case "page":
                return lambda: self._call("GET", f"{PODS}?limit=100&labelSelector=shard%3D{number % 20}")
            case "list":
                return lambda: self._call("GET", PODS)
            case _:
                return lambda: self._apply(number, count)

    async def _renew(self, number: int) -> None:
        if number in self._renewed:
            return await self._call("GET", PODS + "?limit=1")
        self._renewed.add(number)
        try:
            await self._call("DELETE", f"{PODS}/pod-{number}?gracePeriodSeconds=0")
            await self._call("POST", PODS, json=pod(f"pod-{number}", number))
        finally:
            self._renewed.discard(number)

    async def _apply(self, number: int, count: int) -> None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"map-{number}"}, "data": {"applied": str(count)}}
        headers = {"content-type": "application/apply-patch+yaml"}
        await self._call("PATCH", f"{MAPS}/map-{number}?fieldManager=load&force=true", json=body, headers=headers)

    async def _call(self, method: str, path: str, *, absent: bool = False, **more: Any) -> None:
        """`absent`: the object may be away just now."""
        try:
            async with (
                asyncio.timeout(ANSWER_TIMEOUT_S),
                self._session.request(method, self._url + path, **more) as answer,
            ):
                body = await answer.read()
        except (TimeoutError, aiohttp.ClientError, ConnectionError) as error:
            self.wrong.append(f"{method} {path}: {error!r}")
            return
        self.codes[answer.status] += 1
        if answer.status >= 400 and not (absent and answer.status == 404):
            self.wrong.append(f"{method} {path}: {answer.status} {body[:300]!r}")
