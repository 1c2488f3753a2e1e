"""Jobs, as their owners work with them: submit, look, follow, stop, start again, compare. KusciaJob and Job (muster.dev) alike.

    async with await ApiClient.from_kubeconfig() as client:
        jobs = Jobs(client)
        [tree] = await jobs.submit([manifest], wait=True)
        print(tree.outcome)

A job is named `NAME`, or `KIND/NAME` where both kinds have one of that name. One `Jobs` belongs to its client's event loop, and
any number of tasks may use it at once; it keeps no state but what it found out about kinds. `SyncClient.jobs` is the same,
blocking.

Invariants: a command is written on the version of the job that it was decided on, so two people never overwrite each other
unseen; a watch ends when the job has ended, and a connection that breaks is taken up again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

import msgspec

from muster.client.api import ApiClient
from muster.client.errors import OutcomeUnknown, Unreachable
from muster.client.job_commands import (
    RERUNS_MAX,
    Command,
    approval_patch,
    command_patch,
    name_len_max,
    rerun_from_patch,
    rerun_name,
    rerun_of,
)
from muster.client.job_diff import JobDiff
from muster.client.job_diff import diff as diff_runs
from muster.client.job_following import Changes
from muster.client.job_kinds import JobKind, Outcome, is_job, kind_of, parse_name, title_of
from muster.client.job_logs import LogLine, LogQuery, read_logs
from muster.client.job_reading import JobFilter, JobPage, Reading
from muster.client.job_tree import JobTree
from muster.client.requests import with_type
from muster.objects.meta import name_of, namespace_of, uid_of
from muster.objects.requests import DEFAULT_WRITE, Preconditions, WriteOptions
from muster.objects.resources import Resource
from muster.objects.status import AlreadyExists, BadRequest, Conflict, Forbidden, NotFound, Raw, Timeout

TRIES_MAX = 8
"""Of a command on a job that keeps changing meanwhile."""
MANIFESTS_MAX = 1_000
RECONNECTS_MAX = 30
RECONNECT_S_MAX = 5.0
__all__ = ["JobDiff", "JobFilter", "JobPage", "JobTree", "Jobs", "LogLine", "LogQuery", "Outcome"]

Trees = list[JobTree]
PatchFor = Callable[[Raw], Raw | None]


class Jobs:
    """See the module. `namespace` is where a Job (muster.dev) is looked for and made; the client's own unless given."""

    def __init__(self, client: ApiClient, *, namespace: str = "") -> None:
        self._client = client
        self.namespace = namespace or client.config.namespace or "default"
        self._reading = Reading(client)

    def within(self, namespace: str) -> Jobs:
        """The same for jobs of one owner in another namespace."""
        return Jobs(self._client, namespace=namespace)

    # --- looking --------------------------------------------------------------------------------------------------------------

    async def get(self, name: str) -> Raw:
        """The object. NotFound says where it was looked for; BadRequest when both kinds have one of that name."""
        kinds, plain = parse_name(name)
        found: list[Raw] = []
        refused: Forbidden | None = None
        for kind in kinds:
            try:
                resource = await self._client.resource(kind.group, kind.kind)
                raw = await self._client.get(resource, plain, kind.namespace or self.namespace)
                found.append(dict(with_type(raw, resource)))
            except NotFound:
                continue
            except Forbidden as error:
                refused = error  # whoever may read one kind alone still finds those
        if refused is not None and not found:
            raise refused
        if len(found) > 1:
            raise BadRequest(
                f"{plain} is both {title_of(found[0])} and {title_of(found[1])}; write kusciajob/{plain} or job/{plain}",
                name=plain,
            )
        if not found:
            places = " and ".join(f"no {kind.kind} in namespace {kind.namespace or self.namespace}" for kind in kinds)
            raise NotFound(f"job {plain} does not exist: {places} has that name; see 'muster job list'", name=plain)
        return found[0]

    async def tree(self, name: str) -> JobTree:
        """The job with its tasks, parties and pods: phases, why each waits, progress, attempts, nodes."""
        return await self._reading.tree(await self.get(name))

    async def list(
        self, where: JobFilter | None = None, *, limit: int = 0, continue_token: str = "", now: float | None = None
    ) -> JobPage:
        """Jobs of both kinds, at most `limit` of them; ask on with the page's `continue_token` until it is "".

        `now` is needed for filters by age. Trees in a list have no pods. Expired when a token's snapshot is gone.
        """
        return await self._reading.page(
            where or JobFilter(), own_namespace=self.namespace, limit=limit, continue_token=continue_token, now=now
        )

    async def diff(self, before: str, after: str) -> JobDiff:
        """Two runs beside each other: fields of the spec that differ; phases, durations, attempts and nodes of the tasks."""
        old, new = await self.get(before), await self.get(after)
        return diff_runs((old, await self._reading.tree(old)), (new, await self._reading.tree(new)))

    # --- following ------------------------------------------------------------------------------------------------------------

    async def watch(self, name: str, *, pause_s: float = 0.2) -> AsyncGenerator[JobTree, None]:
        """The tree now and after each change, at most one per `pause_s`; ends with the tree that has an outcome.

        NotFound when the job is deleted on the way.
        """
        raw = await self.get(name)
        exact = f"{raw['kind']}/{name_of(raw)}"
        async with Changes(self._client, await self._reading.streams(raw)) as changes:
            last: JobTree | None = None
            while True:
                changes.clear()
                began_s = asyncio.get_running_loop().time()
                tree = await self._look(exact, raw)
                took_s = asyncio.get_running_loop().time() - began_s
                if tree != last:
                    last = tree
                    yield tree
                if tree.outcome:
                    return
                await changes.wait()
                await asyncio.sleep(max(pause_s, took_s))  # a large job must not keep the server busy with being looked at

    async def wait(self, name: str, *, timeout_s: float | None = None) -> JobTree:
        """Return when the job has ended. Timeout says where it stood; the job itself goes on."""
        last: JobTree | None = None
        try:
            async with asyncio.timeout(timeout_s), aclosing(self.watch(name)) as trees:
                async for tree in trees:
                    last = tree
        except TimeoutError:
            stands = f"status.phase is {last.phase or 'empty'}" if last else "it could not be read"
            raise Timeout(f"job {name} has not ended within {timeout_s:g} s: {stands}; it goes on", name=name) from None
        assert last is not None
        return last

    async def logs(self, name: str, query: LogQuery | None = None) -> AsyncGenerator[LogLine, None]:
        """Lines of all pods of the job, or of those that `query` picks; with `follow` as they are written, new pods too."""
        query = query or LogQuery()
        trees = self.watch(name) if query.follow else None
        async with aclosing(read_logs(self._client, await self.tree(name), query, trees)) as lines:
            async for line in lines:
                yield line

    # --- submitting -----------------------------------------------------------------------------------------------------------

    async def submit(
        self,
        manifests: Iterable[Mapping[str, Any]],
        *,
        wait: bool = False,
        timeout_s: float | None = None,
        options: WriteOptions = DEFAULT_WRITE,
    ) -> Trees:
        """Create the jobs; all are checked by the server before the first is created. With `wait`, until all have ended.

        Other objects among the manifests (AppImage, Domain, ...) are applied first, unless a job is wrong in itself.
        AlreadyExists when a job has the name of an old one: jobs are not changed, they are run again.
        """
        objects = [dict(one) for one in manifests]
        jobs = [one for one in objects if is_job(one)]
        if not jobs:
            raise BadRequest("there is no job among the manifests: neither a KusciaJob nor a Job (muster.dev)")
        if len(objects) > MANIFESTS_MAX:
            raise BadRequest(f"{len(objects)} manifests at once; at most {MANIFESTS_MAX} are taken, so submit them in parts")
        placed = [(await self._resource(kind_of(one)), self._placed(one)) for one in jobs]
        trial = msgspec.structs.replace(options, dry_run=True)
        others = [one for one in objects if not is_job(one)]
        for resource, one in placed if others else ():
            with suppress(Forbidden, NotFound):  # may be right once the others are there: a larger template, the namespace
                await self._create(resource, one, trial)
        await self._apply(others, options)
        for resource, one in placed:
            await self._create(resource, one, trial)
        if options.dry_run:
            return [await self._reading.tree({**one, "kind": resource.kind}) for resource, one in placed]
        made = [dict(with_type(await self._create(resource, one, options), resource)) for resource, one in placed]
        names = [f"{one['kind']}/{name_of(one)}" for one in made]
        homes = [self.within(namespace_of(one)) for one in made]
        if wait:
            waits = (home.wait(name, timeout_s=timeout_s) for home, name in zip(homes, names, strict=True))
            return list(await asyncio.gather(*waits))
        return [await self._reading.tree(one) for one in made]

    # --- commands -------------------------------------------------------------------------------------------------------------

    async def stop(self, name: str, *, party: str = "") -> JobTree:
        """End what runs; a KusciaJob can be restarted later. Stopping what is stopped changes nothing."""
        return await self._command(name, Command.STOP, party)

    async def suspend(self, name: str, *, party: str = "") -> JobTree:
        """End what runs and keep what has succeeded, to be resumed."""
        return await self._command(name, Command.SUSPEND, party)

    async def resume(self, name: str, *, party: str = "") -> JobTree:
        """Go on with a suspended job; tasks that succeeded are not run again."""
        return await self._command(name, Command.RESUME, party)

    async def restart(self, name: str, *, party: str = "") -> JobTree:
        """Run again, in place, what did not succeed in a job that failed or was stopped."""
        return await self._command(name, Command.RESTART, party)

    async def cancel(self, name: str, *, party: str = "") -> JobTree:
        """End the job for good."""
        return await self._command(name, Command.CANCEL, party)

    async def rerun(self, name: str, *, from_: str | Sequence[str] = (), party: str = "") -> JobTree:
        """A new job `<name>-rerun-N` from the spec of one that has ended; with `from_`, these tasks and what depends on them
        again, in place."""
        aliases = [from_] if isinstance(from_, str) and from_ else list(from_)
        if aliases:
            return await self._write(name, lambda raw: rerun_from_patch(raw, aliases, trigger=party))
        raw = await self.get(name)
        resource = await self._resource(kind_of(raw))
        first = await self._next_rerun(resource, raw)
        for number in range(first, first + RERUNS_MAX):
            try:
                made = await self._client.create(resource, rerun_of(raw, number), namespace_of(raw))
            except AlreadyExists:
                continue
            return await self._reading.tree(dict(with_type(made, resource)))
        raise Conflict(f"{title_of(raw)} has been rerun too often; submit it under another name", name=name_of(raw))

    async def delete(self, name: str, *, options: WriteOptions = DEFAULT_WRITE) -> Raw:
        """Delete the job and all that belongs to it; what runs is ended. The object as it was."""
        raw = await self.get(name)
        resource = await self._resource(kind_of(raw))
        precondition = Preconditions(uid=uid_of(raw))
        await self._client.delete(resource, name_of(raw), namespace_of(raw), options, preconditions=precondition)
        return raw

    async def approve(self, name: str, party: str) -> JobTree:
        """`party` takes part in the job."""
        return await self._write(name, lambda raw: approval_patch(raw, party, is_accepted=True), subresource="status")

    async def reject(self, name: str, party: str) -> JobTree:
        """`party` takes no part in the job, which ends it."""
        return await self._write(name, lambda raw: approval_patch(raw, party, is_accepted=False), subresource="status")

    # --- inside ---------------------------------------------------------------------------------------------------------------

    async def _command(self, name: str, command: Command, party: str) -> JobTree:
        return await self._write(name, lambda raw: command_patch(raw, command, trigger=party))

    async def _write(self, name: str, patch_for: PatchFor, *, subresource: str = "") -> JobTree:
        """Decide on the job as it is, and write only if it is still so; otherwise decide again."""
        for attempt in range(1, TRIES_MAX + 1):
            raw = await self.get(name)
            patch = patch_for(raw)
            if patch is None:
                return await self._reading.tree(raw)
            resource = await self._resource(kind_of(raw))
            try:
                after = await self._client.patch(resource, name_of(raw), patch, namespace_of(raw), subresource=subresource)
            except Conflict:
                if attempt == TRIES_MAX:
                    raise
                continue
            return await self._reading.tree(dict(with_type(after, resource)))
        raise AssertionError("unreachable")

    async def _look(self, exact: str, raw: Raw) -> JobTree:
        """The tree as it is now. A server that is away for a moment is waited for; another job of the name is not it."""
        failures = 0
        while True:
            try:
                now = await self.within(namespace_of(raw)).get(exact)
                if uid_of(now) != uid_of(raw):
                    raise NotFound(f"{title_of(raw)} was deleted, and another job of that name was made", name=name_of(raw))
                return await self._reading.tree(now)
            except (Unreachable, OutcomeUnknown):
                failures += 1
                if failures > RECONNECTS_MAX:
                    raise
                await asyncio.sleep(min(RECONNECT_S_MAX, 0.2 * 2 ** min(failures, 10)))

    async def _resource(self, kind: JobKind) -> Resource:
        return await self._client.resource(kind.group, kind.kind)

    def _placed(self, one: Raw) -> Raw:
        """The manifest with its namespace filled in."""
        kind, metadata = kind_of(one), dict(one.get("metadata") or {})
        given = str(metadata.get("namespace") or "")
        if kind.namespace and given not in ("", kind.namespace):
            raise BadRequest(
                f'{kind.kind} {metadata.get("name")}: metadata.namespace is "{given}"; jobs of several parties live in '
                f'"{kind.namespace}", so say that or leave it out'
            )
        metadata["namespace"] = given or kind.namespace or self.namespace
        return {**one, "metadata": metadata}

    async def _create(self, resource: Resource, one: Raw, options: WriteOptions) -> Raw:
        try:
            return await self._client.create(resource, one, None, options)
        except AlreadyExists as error:
            name = name_of(one)
            raise AlreadyExists(
                f"{title_of(one)} exists already; run it again with 'muster job rerun {name}', delete it with "
                f"'muster job delete {name}', or give metadata.generateName instead of a name",
                kind=error.kind,
                group=error.group,
                name=name,
            ) from error

    async def _apply(self, objects: Sequence[Raw], options: WriteOptions) -> None:
        """What jobs refer to. All are checked before the first is applied."""
        resources = [await self._kind_of(one) for one in objects]
        for is_trial in (True, False):
            if not is_trial and options.dry_run:
                break
            chosen = msgspec.structs.replace(options, dry_run=is_trial, field_manager=options.field_manager or "muster")
            for resource, one in zip(resources, objects, strict=True):
                namespace = (namespace_of(one) or self.namespace) if resource.namespaced else None
                is_missing = is_trial and resource.namespaced and not await self._has_namespace(str(namespace))
                if not is_missing:  # a namespace that the same manifests make can't be tried in
                    await self._apply_one(resource, one, namespace, chosen)

    async def _apply_one(self, resource: Resource, one: Raw, namespace: str | None, options: WriteOptions) -> None:
        try:
            await self._client.apply(resource, one, namespace, options)
        except Conflict as error:
            raise Conflict(
                f"{error.message}; {resource.kind} {name_of(one)} was set otherwise by somebody else: leave it out, or take it "
                "over first with 'muster apply --force-conflicts'",
                kind=error.kind,
                group=error.group,
                name=name_of(one),
                causes=error.causes,
            ) from error

    async def _kind_of(self, one: Raw) -> Resource:
        group = str(one.get("apiVersion", "")).rpartition("/")[0]
        return await self._client.resource(group, str(one.get("kind", "")))

    async def _has_namespace(self, name: str) -> bool:
        try:
            await self._client.get(await self._client.resource("", "Namespace"), name)
        except NotFound:
            return False
        return True

    async def _next_rerun(self, resource: Resource, raw: Raw) -> int:
        """One past the highest N of `<base>-rerun-N` that exists."""
        prefix = rerun_name(name_of(raw), 1, len_max=name_len_max(raw)).removesuffix("1")
        highest = 0
        for one in await self._reading.beside(resource, raw):
            number = name_of(one).removeprefix(prefix)
            if number != name_of(one) and number.isascii() and number.isdigit() and len(number) < 6:
                highest = max(highest, int(number))
        return highest + 1
