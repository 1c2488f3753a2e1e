"""Reading jobs with what belongs to them: trees, pages of both kinds, and which objects to follow for changes.

Runs on the client's event loop; keeps nothing. What a user may not read (pods in a partner's namespace) is left out, not an
error: the status of the tasks says the most of it anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from muster.client.api import ApiClient
from muster.client.job_kinds import KINDS, KUSCIA_JOB, JobKind, is_job, kind_of, phase_of
from muster.client.job_tree import FINISHED_PHASES, JobTree, build_tree, instant, parties_of
from muster.client.requests import with_type
from muster.objects.labels import KusciaLabel, Muster
from muster.objects.meta import is_controlled_by, labels_of, metadata_of, name_of, namespace_of, uid_of
from muster.objects.resources import Resource
from muster.objects.status import BadRequest, Forbidden, NotFound, Raw

PAGE_LEN = 500
UIDS_PER_REQUEST = 50
LIVE_TASKS_MAX = 200
"""Of how many unfinished tasks the pods themselves are read. Beyond that, their tasks' status has to do."""


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs. Empty fields choose all; several phases or parties mean any of them."""

    phases: Sequence[str] = ()
    """By phase, or by outcome (`Stopped`); without case."""
    parties: Sequence[str] = ()
    initiator: str = ""
    """Of a Job its user."""
    label_selector: str = ""
    newer_than_s: float | None = None
    older_than_s: float | None = None
    kinds: Sequence[JobKind] = KINDS
    all_namespaces: bool = False
    """Jobs (muster.dev) of every namespace."""

    def takes(self, raw: Raw, tree: JobTree, now: float | None) -> bool:
        wanted = {phase.lower() for phase in self.phases}
        if wanted and not wanted & {(phase_of(raw) or "pending").lower(), tree.outcome.lower()}:
            return False
        if self.parties and not set(self.parties) & set(parties_of(raw)):
            return False
        if self.initiator and tree.initiator != self.initiator:
            return False
        if self.newer_than_s is None and self.older_than_s is None:
            return True
        if now is None:
            raise BadRequest("a filter by age needs to know what time it is: pass now=...")
        created_s = instant(tree.created)
        age_s = now - created_s if created_s is not None else 0.0
        is_new = self.newer_than_s is None or age_s <= self.newer_than_s
        return is_new and (self.older_than_s is None or age_s >= self.older_than_s)


class JobPage(msgspec.Struct, frozen=True):
    items: list[JobTree]
    continue_token: str = ""


class Stream(NamedTuple):
    """Objects to watch, because a change of them may change a tree."""

    resource: Resource
    namespace: str | None
    label_selector: str = ""
    field_selector: str = ""
    narrower: str = ""
    """The label selector for those who may not watch all of that, but what is their own."""


class Reading:
    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def tree(self, raw: Raw) -> JobTree:
        """`raw` with the tasks and pods that belong to it now."""
        if not uid_of(raw):
            return build_tree(raw)  # a trial: there is nothing that could belong to it
        if kind_of(raw) is not KUSCIA_JOB:
            return build_tree(raw, pods=await self._own_pods(raw))
        tasks = await self._tasks(raw)
        return build_tree(raw, tasks, await self._task_pods(raw, tasks))

    async def streams(self, raw: Raw) -> list[Stream]:
        """What to follow for changes of the tree of `raw`."""
        kind = kind_of(raw)
        resource = await self._client.resource(kind.group, kind.kind)
        found = [Stream(resource, namespace_of(raw), field_selector=f"metadata.name={name_of(raw)}")]
        if kind is KUSCIA_JOB:
            tasks = await self._client.resource(kind.group, "KusciaTask")
            selector = f"{KusciaLabel.JOB_UID}={uid_of(raw)}"
            found.append(Stream(tasks, namespace_of(raw), selector, narrower=_narrowed(selector, raw)))
        else:
            pods = await self._client.resource("", "Pod")
            selector = f"{Muster.JOB}={name_of(raw)}"
            found.append(Stream(pods, namespace_of(raw), selector, narrower=_narrowed(selector, raw)))
        return found

    async def page(
        self, where: JobFilter, *, own_namespace: str, limit: int, continue_token: str, now: float | None
    ) -> JobPage:
        """The server is asked for as many as are still wanted, so that no page is cut in the middle.

        Who may read one kind alone gets that one; who may read none is told so.
        """
        at, token = _parse_token(continue_token, len(where.kinds))
        found: list[JobTree] = []
        refusals = 0
        while at < len(where.kinds):
            kind = where.kinds[at]
            wanted = limit - len(found) if limit else PAGE_LEN
            namespace = kind.namespace or (None if where.all_namespaces else own_namespace)
            try:
                resource = await self._client.resource(kind.group, kind.kind)
                page = await self._client.list(
                    resource, namespace, label_selector=where.label_selector, limit=wanted, continue_token=token
                )
            except (NotFound, Forbidden) as error:
                refusals += isinstance(error, Forbidden)
                if refusals == len(where.kinds):
                    raise
                at, token = at + 1, ""
                continue
            for item in page.items:
                raw = dict(with_type(item, resource))
                tree = build_tree(raw)
                if is_job(raw) and where.takes(raw, tree, now):
                    found.append(tree)
            token = page.continue_token
            if not token:
                at += 1
            if limit and len(found) >= limit:
                break
        return JobPage(found, f"{at}:{token}" if at < len(where.kinds) else "")

    async def beside(self, resource: Resource, job: Raw) -> list[Raw]:
        """Jobs of its kind in its namespace, as far as they may be read."""
        return await self._items(resource, namespace_of(job), "", job)

    async def _tasks(self, job: Raw) -> list[Raw]:
        try:
            resource = await self._client.resource(KUSCIA_JOB.group, "KusciaTask")
        except NotFound:
            return []
        return await self._items(resource, namespace_of(job), f"{KusciaLabel.JOB_UID}={uid_of(job)}", job)

    async def _task_pods(self, job: Raw, tasks: Iterable[Raw]) -> list[Raw]:
        """Pods of the tasks that have not ended: only they know more than their task's status."""
        uids = [uid_of(task) for task in tasks if phase_of(task) not in FINISHED_PHASES][:LIVE_TASKS_MAX]
        found: list[Raw] = []
        for i in range(0, len(uids), UIDS_PER_REQUEST):
            among = ",".join(uids[i : i + UIDS_PER_REQUEST])
            found += await self._pods(None, f"{KusciaLabel.TASK_UID} in ({among})", job)
        return found

    async def _own_pods(self, job: Raw) -> list[Raw]:
        pods = await self._pods(namespace_of(job), f"{Muster.JOB}={name_of(job)}", job)
        # Pods of an earlier job of the same name may still be going.
        return [pod for pod in pods if not metadata_of(pod).get("ownerReferences") or _belongs(pod, job)]

    async def _pods(self, namespace: str | None, selector: str, job: Raw) -> list[Raw]:
        return await self._items(await self._client.resource("", "Pod"), namespace, selector, job)

    async def _items(self, resource: Resource, namespace: str | None, selector: str, job: Raw) -> list[Raw]:
        """All that may be read. A list of those who see only what is their own must say whose it is."""
        for one in dict.fromkeys((selector, _narrowed(selector, job))):
            try:
                found = self._client.items(resource, namespace, label_selector=one, page_size=PAGE_LEN)
                return [item async for item in found]
            except Forbidden:
                continue
        return []


def _narrowed(selector: str, job: Raw) -> str:
    """The same of the job's own user; as it is where the job is nobody's."""
    user = labels_of(job).get(Muster.USER)
    return ",".join(filter(None, (selector, f"{Muster.USER}={user}"))) if user else selector


def _belongs(pod: Raw, job: Raw) -> bool:
    return is_controlled_by(pod, job) or any(
        owner.get("kind") != kind_of(job).kind for owner in metadata_of(pod).get("ownerReferences") or ()
    )


def _parse_token(text: str, kinds_len: int) -> tuple[int, str]:
    if not text:
        return 0, ""
    at, colon, token = text.partition(":")
    if not colon or not at.isascii() or not at.isdigit() or int(at[:3]) >= kinds_len:
        raise BadRequest(f'continue token "{text[:40]}" is not one that a page of jobs gave; begin again without it')
    return int(at), token
