"""Following one Job of `muster run`: its phases on stderr, its pods' logs on stdout, and what Ctrl-C does.

Two tasks of one command follow the job, one its phases, one its logs; a third waits for interrupts. The first Ctrl-C asks on a
terminal whether to cancel the job; everywhere else, and the second time, the command leaves and the job goes on.

Invariant: unless the user said so, nothing here ever ends a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing

import click

from muster.cli.errors import ExitCode
from muster.cli.job_following import exit_code_of_tree
from muster.client.api import ApiClient
from muster.client.job_kinds import Outcome
from muster.client.job_logs import LogLine, LogQuery
from muster.client.job_tree import JobTree
from muster.client.jobs import Jobs
from muster.objects.reason_codes import Category, Reason
from muster.objects.status import ApiError, Raw

LOGS_GRACE_S = 5.0
"""How long the last lines of a job that has ended are waited for."""
_HELPED = (Category.WAITING, Category.HELD, Category.IMPOSSIBLE)


class Phases:
    """One line for each change of phase or reason, and once for each reason what would help."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last = ("", "", "")
        self._helped: set[str] = set()

    def show(self, tree: JobTree) -> None:
        now = (tree.phase, tree.reason, tree.message)
        if now == self._last or not tree.phase:
            return
        self._last = now
        self._say(f"{tree.phase}{_details(tree)}")
        remedy = _remedy(tree.reason) if tree.phase in ("Queued", "Starting") else ""
        if remedy and tree.reason not in self._helped:
            self._helped.add(tree.reason)
            self._say(f"  what helps: {remedy}")


def _details(tree: JobTree) -> str:
    if tree.reason in (Reason.SCHEDULED, Reason.STARTED):
        nodes = sorted({node for task in tree.tasks for node in task.nodes})
        return f" on {', '.join(nodes[:5])}{', ...' if len(nodes) > 5 else ''}" if nodes else ""
    words = ["" if tree.reason == tree.phase else tree.reason, tree.message]
    return "".join(f": {word}" for word in words if word)


def _remedy(code: str) -> str:
    try:
        reason = Reason(code)
    except ValueError:
        return ""
    if reason.category not in _HELPED or reason is Reason.QUEUED or reason.remedy.startswith("None needed"):
        return ""
    return reason.remedy


class Logs:
    """Lines of the pods, with the pod's name before them when there are several. What can't be read is said once."""

    def __init__(self, say: Callable[[str], None], *, is_alone: bool, job: str) -> None:
        self._say = say
        self._is_alone = is_alone
        self._prefix_len = len(job) + 1
        self._has_complained = False

    def show(self, line: LogLine) -> None:
        if line.error:
            if not self._has_complained:
                self._has_complained = True
                self._say(f"logs can't be shown: {line.text}")
            return
        click.echo(line.text if self._is_alone else f"{line.pod[self._prefix_len :]} | {line.text}")


class Interrupts:
    """Counts Ctrl-C for the body of `with`. Where the loop can't take signals, Ctrl-C does what it always does."""

    def __init__(self) -> None:
        self.count = 0
        self._news = asyncio.Event()

    async def wait(self, past: int) -> int:
        """Until there were more than `past`."""
        while self.count <= past:
            self._news.clear()
            await self._news.wait()
        return self.count

    def note(self) -> None:
        self.count += 1
        self._news.set()

    @contextlib.contextmanager
    def taken(self) -> Iterator[Interrupts]:
        loop = asyncio.get_running_loop()
        try:
            loop.add_signal_handler(signal.SIGINT, self.note)
        except (NotImplementedError, RuntimeError, ValueError):
            yield self
            return
        try:
            yield self
        finally:
            loop.remove_signal_handler(signal.SIGINT)


class Following:
    """One job, from its submission to its end or to the moment when the user leaves."""

    def __init__(self, client: ApiClient, job: Raw, *, replicas: int, is_shown: bool = True) -> None:
        self._client = client
        self._jobs = Jobs(client, namespace=str(job["metadata"]["namespace"]))
        self._name = str(job["metadata"]["name"])
        self._exact = f"Job/{self._name}"
        self._is_shown = is_shown
        self._replicas = replicas
        self.last: JobTree | None = None

    def say(self, text: str) -> None:
        if self._is_shown:
            click.echo(f"{self._name}: {text}", err=True)

    async def run(self) -> int:
        """The exit code of the command."""
        interrupts = Interrupts()
        with interrupts.taken():
            phases = asyncio.create_task(self._phases())
            logs = asyncio.create_task(self._logs()) if self._is_shown else None
            leaving = asyncio.create_task(self._leave(interrupts))
            try:
                await asyncio.wait((phases, leaving), return_when=asyncio.FIRST_COMPLETED)
                if not phases.done():
                    return leaving.result()
                phases.result()
                if logs is not None:
                    await self._last_lines(logs)
            finally:
                await _end(phases, leaving, *((logs,) if logs is not None else ()))
        return await self._exit_code(was_cancelled_here=interrupts.count > 0)

    async def _phases(self) -> None:
        phases = Phases(self.say)
        async with aclosing(self._jobs.watch(self._exact)) as trees:
            async for tree in trees:
                self.last = tree
                phases.show(tree)

    async def _logs(self) -> None:
        shown = Logs(self.say, is_alone=self._replicas == 1, job=self._name)
        try:
            async with aclosing(self._jobs.logs(self._exact, LogQuery(follow=True))) as lines:
                async for line in lines:
                    shown.show(line)
        except ApiError as error:
            self.say(f"logs can't be shown: {error.message}")

    async def _last_lines(self, logs: asyncio.Task[None]) -> None:
        done, _ = await asyncio.wait((logs,), timeout=LOGS_GRACE_S)
        if not done:
            self.say(f"more of its log may come; see: muster job logs {self._exact}")

    # -- leaving --------------------------------------------------------------------------------------------------------------

    async def _leave(self, interrupts: Interrupts) -> int:
        """Ends when the user leaves; a job that is cancelled is followed to its end."""
        seen = 0
        while True:
            seen = await interrupts.wait(seen)
            if not sys.stdin.isatty() or not sys.stderr.isatty():
                break
            click.echo(f"\n{self._name}: cancel the job? [y/N] (Ctrl-C again leaves it running) ", err=True, nl=False)
            answer = await _answer(interrupts, seen)
            if answer is None:
                click.echo(err=True)
                break
            if answer.strip().lower() in ("y", "yes"):
                self.say("cancelling")
                await self._jobs.cancel(self._exact)
        self.say(f"goes on; follow it with 'muster job watch {self._exact}', end it with 'muster job cancel {self._exact}'")
        return ExitCode.INTERRUPTED

    async def _exit_code(self, *, was_cancelled_here: bool) -> int:
        tree = self.last
        if tree is None or tree.outcome != Outcome.FAILED.value:
            is_ours = was_cancelled_here and tree is not None and tree.outcome == Outcome.CANCELLED.value
            return ExitCode.INTERRUPTED if is_ours else exit_code_of_tree(tree)
        own = await self._container_code(tree) if self._replicas == 1 else None
        return ExitCode.FAILURE if own is None else own

    async def _container_code(self, tree: JobTree) -> int | None:
        """The exit code of the one container, where it has one other than 0."""
        try:
            pod = await self._client.get(await self._client.resource("", "Pod"), tree.tasks[0].pods[0].name, tree.namespace)
        except (ApiError, IndexError):
            return None
        for status in (pod.get("status") or {}).get("containerStatuses") or ():
            code = ((status.get("state") or {}).get("terminated") or {}).get("exitCode")
            if isinstance(code, int) and 0 < code < 256:
                return code
        return None


async def _answer(interrupts: Interrupts, seen: int) -> str | None:
    """A line from the terminal; None when another Ctrl-C came first."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        if not line.done():
            line.set_result(sys.stdin.readline())

    loop.add_reader(sys.stdin, read)
    again = asyncio.create_task(interrupts.wait(seen))
    try:
        await asyncio.wait((line, again), return_when=asyncio.FIRST_COMPLETED)
        return line.result() if line.done() else None
    finally:
        loop.remove_reader(sys.stdin)
        await _end(again)


async def _end(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
