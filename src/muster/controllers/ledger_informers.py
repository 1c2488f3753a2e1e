"""What the ledger follows: its pages, pods, who they are for, what was submitted, and how past use fades.

Kinds that a cluster may lack (KusciaJobs, AppImages, SchedulingPolicies) are left out where they are; for the others it waits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from muster.controllers.ledger_runs import RunPod
from muster.controllers.scheduler_feed import insist
from muster.controllers.work_sizes import FOLLOWED
from muster.engine.facts import PolicyFacts
from muster.objects.kinds.muster import User, UserGroup
from muster.objects.kinds.muster_queues import Queue
from muster.objects.status import NotFound
from muster.objects.view import View
from muster.quota.limits import NodeKind
from muster.store.hub import InformerHub
from muster.store.informer import Informer

GROUP: Final = "muster.dev"
ACCOUNTS: Final[Mapping[NodeKind, type[User] | type[UserGroup] | type[Queue]]] = {
    "UserGroup": UserGroup,
    "User": User,
    "Queue": Queue,
}


class Informers(msgspec.Struct):
    accounts: dict[NodeKind, Informer]
    pages: Informer
    works: dict[str, Informer]
    pods: Informer
    images: Informer | None
    policies: Informer | None

    def all(self) -> Iterator[Informer]:
        yield from self.accounts.values()
        yield from (self.pages, *self.works.values(), self.pods)
        yield from (one for one in (self.images, self.policies) if one is not None)


async def open_informers(hub: InformerHub, waits: Callable[[str], None]) -> Informers:
    """`waits` is told what it waits for."""

    async def needed(group: str, kind: str, view: type[View] | None = None) -> Informer:
        return await insist(lambda: hub.informer(group, kind, view=view), kind, waits)

    async def if_served(group: str, kind: str, view: type[View] | None = None) -> Informer | None:
        async def attempt() -> Informer | None:
            with contextlib.suppress(NotFound):
                return await hub.informer(group, kind, view=view)
            return None

        return await insist(attempt, kind, waits)

    works = {kind: await if_served(group, kind) for group, kind in FOLLOWED if kind != "Pod"}
    return Informers(
        accounts={kind: await needed(GROUP, kind) for kind in ACCOUNTS},
        pages=await needed(GROUP, "UsageRecord"),
        works={kind: informer for kind, informer in works.items() if informer is not None},
        pods=await needed("", "Pod", RunPod),
        images=await if_served("kuscia.secretflow", "AppImage"),
        policies=await if_served(GROUP, "SchedulingPolicy", PolicyFacts),
    )
