"""VolumeRestrictions: disks that are not mounted twice on a node, claims for one pod at a time."""

from __future__ import annotations

from typing import Any

import pytest

from muster.engine.facts import PodFacts
from muster.engine.plugins.volume_restrictions import VolumeRestrictions
from muster.objects.reasons import Reason
from tests.engine.asking import allowed, attached, block_of, explained
from tests.engine.building import node, pod, state_of
from tests.engine.volumes_building import claim, keep, mounting

NODES = [node("a"), node("b")]


def disk(name: str, on: str = "", **source: Any) -> PodFacts:
    return pod(name, node=on, volumes=[{"name": "v", "gcePersistentDisk": source}])


@pytest.mark.parametrize(
    ("held", "wanted", "expected"),
    [
        pytest.param({"pdName": "x"}, {"pdName": "x"}, ["b"], id="the same disk"),
        pytest.param({"pdName": "x"}, {"pdName": "y"}, ["a", "b"], id="another"),
        pytest.param({"pdName": "x", "readOnly": True}, {"pdName": "x", "readOnly": True}, ["a", "b"], id="both only read"),
    ],
)
def test_disks(held: dict[str, Any], wanted: dict[str, Any], expected: list[str]) -> None:
    state = state_of(NODES, [disk("old", "a", **held)])
    assert allowed(attached(state, VolumeRestrictions()), disk("new", **wanted)) == expected


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        pytest.param("ReadWriteOncePod", [], id="one pod at a time"),
        pytest.param("ReadWriteOnce", ["a", "b"], id="one node at a time is not this plugin's"),
    ],
)
def test_claims(mode: str, expected: list[str]) -> None:
    state = keep(state_of(NODES, [mounting("old", "data", on="a")]), claim("data", modes=(mode,)))
    plugin = attached(state, VolumeRestrictions())
    assert allowed(plugin, mounting("new", "data")) == expected
    assert allowed(plugin, mounting("new", "data", namespace="other")) == ["a", "b"], "claims belong to namespaces"
    state.remove_pod("uid-default-old")
    assert allowed(plugin, mounting("new", "data")) == ["a", "b"]


def test_disks_follow_their_pods() -> None:
    state = state_of(NODES)
    plugin = attached(state, VolumeRestrictions())
    state.see_pod(disk("one", "a", pdName="x"))
    state.see_pod(disk("two", "b", pdName="x"))
    assert allowed(plugin, disk("new", pdName="x")) == []
    state.see_pod(disk("one", "a", pdName="y"))
    assert allowed(plugin, disk("new", pdName="x")) == ["a"]
    state.remove_pod("uid-default-two")
    assert allowed(plugin, disk("new", pdName="x")) == ["a", "b"]
    assert allowed(plugin, disk("new", pdName="y")) == ["b"]


def test_explain_names_what_is_taken_and_by_whom() -> None:
    state = state_of(NODES, [disk("x", "a", pdName="d"), mounting("y", "data", on="b")])
    plugin = attached(keep(state, claim("data", modes=("ReadWriteOncePod",))), VolumeRestrictions())
    (one,) = explained(plugin, disk("new", pdName="d"))[1]
    assert (one.resource, [h.name for h in one.holders]) == ("GCE disk d", ["default/x"])
    reason, (other,) = explained(plugin, mounting("new", "data"))
    assert reason is Reason.VOLUME_NODE_CONFLICT
    assert other.resource == "PersistentVolumeClaim default/data (ReadWriteOncePod)"
    assert [(h.name, h.node) for h in other.holders] == [("default/y", "b")]


def test_ordinary_pods_are_no_concern() -> None:
    plugin = attached(state_of(NODES), VolumeRestrictions())
    assert not plugin.concerns(block_of(plugin.state, pod("p", volumes=[{"name": "v", "emptyDir": {}}])))
    assert plugin.concerns(block_of(plugin.state, disk("p", pdName="x")))
    assert plugin.concerns(block_of(plugin.state, mounting("p", "data")))
