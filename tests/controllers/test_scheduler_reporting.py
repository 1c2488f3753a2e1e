"""Reports about pods: the newest word on a pod is the one that stands, however slow the writes before it are."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from muster.controllers.scheduler_reporting import Board
from muster.engine.facts import PodFacts
from muster.objects.reasons import Reason, Verdict
from muster.objects.view import view_of
from muster.store.cache import ObjectKey
from muster.store.contract import Store

KEY = ObjectKey("default", "a")


class SlowFirst:
    """A store whose first write takes effect when the test lets it."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.calls = 0
        self.said: list[str] = []

    async def resource(self, _group: str, kind: str) -> str:
        return kind

    async def patch(self, _resource: Any, _name: str, body: Any, *_: Any, **__: Any) -> None:
        self.calls += 1
        if self.calls == 1:
            await self.gate.wait()
        self.said.append(body["status"]["conditions"][0]["reason"])


async def test_the_newest_word_stands() -> None:
    store = SlowFirst()
    facts = view_of(PodFacts, {"metadata": {"name": "a", "namespace": "default", "uid": "u"}, "spec": {}, "status": {}})
    board = Board(
        cast("Store", store), recorder=None, clock=lambda: 0.0, instance="t", find=lambda _key: facts, is_busy=lambda: False
    )
    running = asyncio.create_task(board.run())
    for reason in (Reason.GANG_INCOMPLETE, Reason.CPU_INSUFFICIENT, Reason.QUOTA_EXCEEDED):
        board.parked("Pod/default/a", Verdict(reason=reason), [("u", KEY)])
        for _ in range(20):
            await asyncio.sleep(0)
    store.gate.set()
    for _ in range(50):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert store.said == ["GangIncomplete", "QuotaExceeded"], "what was passed over meanwhile is not said at all"
    assert len(board) == 0
