"""Logs of many pods as one stream of lines, each with the pod that wrote it.

Without `follow`, pods are read one after the other, in the order of the tree. With it, each pod is one task that feeds a
bounded queue, and pods that appear later are joined in as long as the job goes on. A pod whose log can't be read (it has no
node yet, its node has no agent) gives one line that says so, and does not end the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

import msgspec

from muster.client.api import ApiClient
from muster.client.job_tree import JobTree, PodNode
from muster.objects.status import ApiError, BadRequest, NotFound

PODS_MAX = 200
"""Of one query. A follow holds a connection for each."""
QUEUE_LEN_MAX = 10_000


class LogQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines of which pods. Empty fields choose all."""

    task: str = ""
    """Alias of a task, or name of a role."""
    party: str = ""
    pod: str = ""
    container: str = ""
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since_s: int | None = None


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """`error` marks a line that no pod wrote: why a log could not be read."""

    namespace: str
    pod: str
    container: str = ""
    task: str = ""
    party: str = ""
    text: str = ""
    error: bool = False


class _Source(msgspec.Struct, frozen=True):
    task: str
    party: str
    pod: PodNode


async def read_logs(
    client: ApiClient, tree: JobTree, query: LogQuery, trees: AsyncGenerator[JobTree, None] | None
) -> AsyncGenerator[LogLine, None]:
    """`trees` is the job's watch, for a follow."""
    _check(tree, query)
    if trees is not None:
        async with aclosing(_follow(client, query, trees)) as lines:
            async for line in lines:
                yield line
        return
    # A pod that never had a node has no log; who names it is told so by the server.
    found = [source for source in _sources(tree, query) if source.pod.node or query.pod]
    if not found:
        raise NotFound(f"{tree.title} has no pods{_described(query)} with a log; see 'muster job tree {tree.name}'")
    if len(found) > PODS_MAX:
        raise BadRequest(
            f"{tree.title} has {len(found)} pods{_described(query)}; at most {PODS_MAX} are read at once: choose with --task, "
            "--party or --pod"
        )
    for source in found:
        async with aclosing(_lines(client, source, query)) as lines:
            async for line in lines:
                yield line


def _check(tree: JobTree, query: LogQuery) -> None:
    """A word that fits nothing in the spec is a mistake; a pod may still come."""
    tasks = [task.alias for task in tree.tasks]
    if query.task and query.task not in tasks:
        raise NotFound(f"{tree.title} has no task {query.task!r}; its tasks are: {', '.join(tasks[:20])}", name=tree.name)
    if query.party and query.party not in tree.parties:
        known = f"its parties are: {', '.join(tree.parties)}" if tree.parties else "it has one owner and no parties"
        raise NotFound(f"party {query.party!r} takes no part in {tree.title}; {known}", name=tree.name)


def _described(query: LogQuery) -> str:
    words = [f"{word} {value}" for word, value in (("task", query.task), ("party", query.party), ("pod", query.pod)) if value]
    return f" of {', '.join(words)}" if words else ""


def _sources(tree: JobTree, query: LogQuery) -> Iterator[_Source]:
    for task in tree.tasks:
        for party in task.parties:
            for pod in party.pods:
                is_wanted = (
                    query.task in ("", task.alias)
                    and query.party in ("", party.party)
                    and query.pod in ("", pod.name, f"{pod.namespace}/{pod.name}")
                )
                if is_wanted:
                    yield _Source(task.alias, party.party, pod)


async def _lines(client: ApiClient, source: _Source, query: LogQuery) -> AsyncGenerator[LogLine, None]:
    pod = source.pod
    containers = [query.container] if query.container else pod.containers or await _containers(client, pod)
    for container in containers:
        line = LogLine(namespace=pod.namespace, pod=pod.name, container=container, task=source.task, party=source.party)
        chunks = client.logs(
            pod.name,
            pod.namespace,
            container=container,
            follow=query.follow,
            previous=query.previous,
            timestamps=query.timestamps,
            tail_lines=query.tail_lines,
            since_s=query.since_s,
        )
        try:
            async with aclosing(chunks):
                async for text in chunks:
                    yield msgspec.structs.replace(line, text=text.decode("utf-8", "replace"))
        except ApiError as error:
            yield msgspec.structs.replace(line, text=error.message, error=True)


async def _containers(client: ApiClient, pod: PodNode) -> list[str]:
    """A pod that is known from its task's status alone is asked; "" lets the server choose, or say why it can't."""
    try:
        raw = await client.get(await client.resource("", "Pod"), pod.name, pod.namespace)
    except ApiError:
        return [""]
    return [str(one.get("name") or "") for one in (raw.get("spec") or {}).get("containers") or ()] or [""]


async def _follow(client: ApiClient, query: LogQuery, trees: AsyncGenerator[JobTree, None]) -> AsyncGenerator[LogLine, None]:
    queue: asyncio.Queue[LogLine | None] = asyncio.Queue(QUEUE_LEN_MAX)
    reading: dict[tuple[str, str, str], asyncio.Task[None]] = {}

    async def pump(source: _Source) -> None:
        async with aclosing(_lines(client, source, query)) as lines:
            async for line in lines:
                await queue.put(line)

    async def join_pods() -> None:
        """Ends with the job: then what was begun is read to its end, and no more comes."""
        async with aclosing(trees):
            async for tree in trees:
                for source in _sources(tree, query):
                    pod = source.pod
                    # A task that is tried again has pods of the same names; those that are known by name alone are not new.
                    key = (pod.namespace, pod.name, pod.uid)
                    is_new = key not in reading if pod.uid else not any(known[:2] == key[:2] for known in reading)
                    if is_new and pod.node and _has_started(pod) and len(reading) < PODS_MAX:
                        reading[key] = asyncio.create_task(pump(source))
        await asyncio.gather(*reading.values())
        await queue.put(None)

    joining = asyncio.create_task(join_pods())
    try:
        while True:
            getting = asyncio.create_task(queue.get())
            await asyncio.wait((getting, joining), return_when=asyncio.FIRST_COMPLETED)
            if not getting.done() and joining.done() and queue.empty():
                getting.cancel()
                joining.result()
            line = await getting
            if line is None:
                return
            yield line
    finally:
        for task in (joining, *reading.values()):
            task.cancel()
        await asyncio.gather(joining, *reading.values(), return_exceptions=True)


def _has_started(pod: PodNode) -> bool:
    return pod.phase in ("Running", "Succeeded", "Failed")
