"""`muster explain`: why work waits, where it is, or where it would go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from muster.cli.completions import complete_references
from muster.cli.errors import CliError, ExitCode, UsageError
from muster.cli.framework import State, command, state_of
from muster.cli.options import Target, file_options, target_options

if TYPE_CHECKING:
    from muster.cli.files import Document
    from muster.cli.session import Failures, Session
    from muster.objects.resources import Resource
    from muster.objects.status import Raw

EXAMPLE = "muster explain pod/web-1; muster explain -f job.yaml"
PATH = "/muster/v1/explain"
POLL_S = 0.2
OBJECT_TTL = "10m"
TASKS_MAX = 50
"""Tasks of one job that are asked about."""


class _Asked(NamedTuple):
    """What the command line says."""

    references: tuple[str, ...]
    filenames: tuple[str, ...]
    recursive: bool
    output: str | None
    nodes: int


class Asking:
    """Asks one server: over HTTP where it is Muster's own, else with a ScheduleExplanation that is deleted again."""

    def __init__(self, s: Session, nodes: int, wait_s: float) -> None:
        self._s, self._nodes, self._wait_s = s, nodes, wait_s
        self._is_own: bool | None = None

    async def about(self, resource: Resource, name: str) -> list[Raw]:
        if resource.kind == "KusciaJob":
            return await self._about_tasks(name)
        return await self.named(resource.kind, self._s.namespace, name)

    async def named(self, kind: str, namespace: str, name: str) -> list[Raw]:
        key = f"{kind}/{namespace}/{name}"
        return await self._ask({"key": key}, {"questionObjectKey": key}, namespace, key)

    async def _about_tasks(self, name: str) -> list[Raw]:
        """A job of several parties is decided task by task: those that wait or run are asked about."""
        from muster.client.jobs import Jobs

        tree = await Jobs(self._s.client).tree(f"KusciaJob/{name}")
        chosen = [task.task_id for task in tree.tasks if task.phase in ("Pending", "Running") and task.task_id][:TASKS_MAX]
        if not chosen:
            why = f"{tree.reason}: {tree.message}" if tree.reason else tree.message or "nothing of it waits to be placed"
            raise CliError(f"no task of it is with the scheduler; its phase is {tree.outcome or tree.phase or 'empty'}: {why}")
        return [answer for task in chosen for answer in await self.named("KusciaTask", tree.namespace, task)]

    async def hypothetical(self, document: Document) -> list[Raw]:
        manifest = document.object
        namespace = str((manifest.get("metadata") or {}).get("namespace") or self._s.namespace)
        question = {"manifest": manifest, "namespace": namespace}
        return await self._ask(question, {"questionObjectTemplate": manifest}, namespace, document.where)

    async def when(self, spec: Raw, namespace: str, sizes: Sequence[int]) -> Raw:
        """When it will start, on a cluster whose API server is not Muster's own."""
        from muster.objects.labels import Muster

        notes = {Muster.ETA: ",".join(str(size) for size in sizes)}
        answer = await self._by_object(spec, namespace, notes)
        details = answer.get("detailedExplanation") or []
        if answer.get("failedMessage") and not any("eta" in detail for detail in details):
            raise CliError(str(answer["failedMessage"]))
        found = next((detail["eta"] for detail in details if "eta" in detail), None)
        if found is None:
            raise CliError("the controller of this cluster foretells nothing; is it older than this command (muster version)?")
        return dict(found)

    async def _ask(self, body: Raw, spec: Raw, namespace: str, subject: str) -> list[Raw]:
        import msgspec

        if self._is_own is None:
            version = await self._s.client.version()
            self._is_own = "+muster" in str(version.get("gitVersion", ""))
        if not self._is_own:
            return [{"subject": subject, "explanation": await self._by_object(spec, namespace)}]
        answer = await self._s.client.request("POST", PATH, params=[("nodes", str(self._nodes))], body=body)
        items: list[Raw] = msgspec.json.decode(answer.body)["items"]
        return items

    async def _by_object(self, spec: Raw, namespace: str, notes: Mapping[str, str] | None = None) -> Raw:
        import asyncio

        client = self._s.client
        kind = await client.resource("scheduling.koordinator.sh", "ScheduleExplanation")
        question: Raw = {
            "apiVersion": f"{kind.group}/{kind.version}",
            "kind": kind.kind,
            "metadata": {"generateName": "muster-explain-", "namespace": namespace, "annotations": dict(notes or {})},
            "spec": {**spec, "ttl": OBJECT_TTL},
        }
        name = (await client.create(kind, question, namespace))["metadata"]["name"]
        try:
            async with asyncio.timeout(self._wait_s):
                while True:
                    status: Raw = (await client.get(kind, name, namespace)).get("status") or {}
                    if status.get("lastUpdateTime"):
                        return status
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise CliError(
                f"ScheduleExplanation {namespace}/{name} was not answered within {self._wait_s:g} s; is the controller "
                "running (see muster status), and does it lead?",
                ExitCode.UNREACHABLE,
            ) from None
        finally:
            await client.delete(kind, name, namespace)


async def _explain(target: Target, state: State, asked: _Asked) -> ExitCode:
    from muster.cli.session import Failures, session

    failures = Failures()
    found: list[Raw] = []
    async with session(target, state) as s:
        asking = Asking(s, asked.nodes, target.request_timeout_s)
        await _by_name(s, asking, asked.references, found, failures)
        await _by_file(asking, asked, found, failures)
    _show(found, asked.output)
    return failures.exit_code


async def _by_name(s: Session, asking: Asking, words: tuple[str, ...], found: list[Raw], failures: Failures) -> None:
    from muster.cli.references import parse_references
    from muster.cli.session import each

    for reference in parse_references(words, example=EXAMPLE) if words else ():
        if not reference.names:
            raise UsageError(f"name the work, as in: {EXAMPLE}")
        resource = await s.client.find(reference.word)
        if not resource.namespaced:
            raise UsageError(f"{resource.kind} {reference.names[0]} is no work; name a pod, a PodGroup or what owns pods")

        async def one(name: str, resource: Resource = resource) -> None:
            found.extend(await asking.about(resource, name))

        await each(list(reference.names), one, failures, lambda name, kind=resource.kind: f"{kind} {name}")  # type: ignore[misc]


async def _by_file(asking: Asking, asked: _Asked, found: list[Raw], failures: Failures) -> None:
    from muster.cli.files import read_manifests
    from muster.cli.session import each

    if not asked.filenames:
        return
    manifests = read_manifests(asked.filenames, recursive=asked.recursive)
    for problem in manifests.problems:
        failures.add(CliError(problem))

    async def one(document: Document) -> None:
        found.extend(await asking.hypothetical(document))

    await each(manifests.documents, one, failures, lambda document: document.where)


def _show(found: list[Raw], output: str | None) -> None:
    from muster.cli.explaining import answer_text, explanation_text
    from muster.cli.output import emit, render_value

    if output in ("json", "yaml"):
        emit(render_value({"items": found}, output))
        return
    texts = [
        explanation_text(str(one["subject"]), one["explanation"])
        if "explanation" in one
        else answer_text(one, wide=output == "wide")
        for one in found
    ]
    if texts:
        emit("\n\n".join(texts))


@command("explain", "Say why work waits, where it is, or where it would go.")
@click.argument("references", metavar="[KIND/NAME... | KIND NAME...]", nargs=-1, shell_complete=complete_references)
@file_options("Manifest of work that need not exist: it is tried, and nothing is stored")
@click.option(
    "-o", "--output", type=click.Choice(["wide", "json", "yaml"]), help="wide shows each node; the others are for programs."
)
@click.option(
    "--nodes",
    metavar="N",
    type=click.IntRange(min=0, max=5000),
    default=10,
    show_default=True,
    help="How many nodes to evaluate one by one, the best first.",
)
@target_options()
@click.pass_context
def explain(
    ctx: click.Context,
    *,
    target: Target,
    references: tuple[str, ...],
    filenames: tuple[str, ...],
    recursive: bool,
    output: str | None,
    nodes: int,
) -> None:
    """Say why work waits and what would help, where it is and how its node compares, or where a manifest would go.

    Names pods, PodGroups, KusciaJobs (each of their tasks that waits or runs), and whatever owns pods. With -f, the work in
    the files is tried on the cluster as it is now; it is not created.
    """
    from muster.cli.session import run

    asked = _Asked(references, filenames, recursive, output, nodes)
    if bool(asked.references) == bool(asked.filenames):
        raise UsageError(f"name work or a manifest, one of both: {EXAMPLE}")
    ctx.exit(run(_explain(target, state_of(ctx), asked)))
