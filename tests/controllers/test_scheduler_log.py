"""What is said of the decision log: each change once, and nothing before it is so."""

from __future__ import annotations

from typing import cast

from muster.controllers.scheduler_log import LogWatch
from muster.objects.status import Raw
from muster.store.events import EventRecorder


class _Said:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def event(self, regarding: Raw, type_: str, reason: str, message: str) -> None:
        assert regarding["name"] == "kube-system"
        assert message
        self.reasons.append(f"{type_} {reason}")


def test_each_change_is_said_once() -> None:
    said = _Said()
    watch = LogWatch(cast(EventRecorder, said))
    for trouble, is_recording in (
        ("", False),  # it begins
        ("", True),
        ("full", False),
        ("full", False),
        ("", False),  # tried again
        ("full, elsewhere", False),
        ("", False),
        ("", True),
        ("", True),
    ):
        watch.look(trouble, is_recording=is_recording)
    assert said.reasons == ["Warning DecisionsNotRecorded", "Normal DecisionsRecorded"]
    LogWatch(None).look("full", is_recording=False)
