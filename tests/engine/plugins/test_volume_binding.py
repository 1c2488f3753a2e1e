"""VolumeBinding: where claims let a pod go, and what is wrong with those that let it go nowhere."""

from __future__ import annotations

from typing import Any, cast

import pytest

from muster.engine.plugins.volume_binding import VolumeBinding
from muster.engine.units import Unit
from muster.objects.reasons import Reason
from tests.engine.asking import allowed, attached, block_of, explained
from tests.engine.building import node, pod, state_of
from tests.engine.volumes_building import claim, keep, mounting, storage_class, volume

NODES = [node("a", labels={"zone": "east"}), node("b", labels={"zone": "west"}), node("c")]
LATE = storage_class("late", "WaitForFirstConsumer")
UNIT = cast(Unit, None)
"""The plugin looks at the pod, never at the unit."""


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        pytest.param([claim("data", volume="pv"), volume("pv")], "abc", id="bound, usable anywhere"),
        pytest.param([claim("data", volume="pv"), volume("pv", zone=("zone", "west"))], "b", id="bound, usable in a zone"),
        pytest.param([claim("data", volume="pv"), volume("pv", zone=("zone", "north"))], "", id="bound, usable nowhere here"),
        pytest.param([claim("data", storage_class="late"), LATE], "abc", id="made where the pod goes"),
        pytest.param(
            [claim("data", storage_class="late", annotations={"volume.kubernetes.io/selected-node": "b"}), LATE],
            "b",
            id="being made for a node",
        ),
        pytest.param(
            [
                claim("data", storage_class="zoned"),
                storage_class(
                    "zoned",
                    "WaitForFirstConsumer",
                    allowedTopologies=[
                        {"matchLabelExpressions": [{"key": "zone", "values": ["west", "north"]}]},
                        {"matchLabelExpressions": [{"key": "kubernetes.io/hostname", "values": ["c"]}]},
                    ],
                ),
            ],
            "bc",
            id="made in some zones only",
        ),
    ],
)
def test_filter(objects: list[Any], expected: str) -> None:
    plugin = attached(keep(state_of(NODES), *objects), VolumeBinding())
    facts = mounting("p", "data")
    assert plugin.prefilter(UNIT, block_of(plugin.state, facts), 0.0) is None
    assert allowed(plugin, facts) == list(expected)
    if len(expected) < len(NODES):
        assert explained(plugin, facts) == (Reason.VOLUME_NODE_CONFLICT, [])


def test_all_claims_must_be_usable() -> None:
    objects: list[Any] = [
        claim("one", volume="pv1"),
        volume("pv1", zone=("zone", "east")),
        claim("two", volume="pv2"),
        volume("pv2", zone=("kubernetes.io/hostname", "a")),
    ]
    plugin = attached(keep(state_of(NODES), *objects), VolumeBinding())
    assert allowed(plugin, mounting("p", "one", "two")) == ["a"]


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        pytest.param([], "PersistentVolumeClaim default/data does not exist", id="missing"),
        pytest.param(
            [claim("data", volume="pv", deletionTimestamp="2026-01-01T00:00:00Z"), volume("pv")], "deleted", id="ending"
        ),
        pytest.param([claim("data", volume="pv")], "PersistentVolume 'pv', which does not exist", id="the volume is missing"),
        pytest.param([claim("data", volume="pv", phase="Lost"), volume("pv")], "'pv', which does not exist", id="lost"),
        pytest.param([claim("data")], "is not bound to a volume yet", id="no class"),
        pytest.param(
            [claim("data", storage_class="now"), storage_class("now", "Immediate")], "not bound to a volume yet", id="at once"
        ),
        pytest.param([claim("data", storage_class="nice")], "StorageClass 'nice' does not exist", id="the class is missing"),
        pytest.param(
            [
                claim("data", storage_class="local"),
                storage_class("local", "WaitForFirstConsumer", "kubernetes.io/no-provisioner"),
            ],
            "StorageClass 'local' makes no volumes; set spec.volumeName",
            id="nobody makes it",
        ),
    ],
)
def test_claims_that_let_the_pod_go_nowhere(objects: list[Any], message: str) -> None:
    plugin = attached(keep(state_of(NODES), *objects), VolumeBinding())
    facts = mounting("p", "data")
    verdict = plugin.prefilter(UNIT, block_of(plugin.state, facts), 0.0)
    assert verdict is not None
    assert (verdict.reason, verdict.subject, verdict.plugin) == (Reason.VOLUME_NOT_BOUND, "default/p", "VolumeBinding")
    assert message in verdict.message
    assert allowed(plugin, facts) == []
    assert explained(plugin, facts)[0] is Reason.VOLUME_NOT_BOUND


@pytest.mark.parametrize(
    ("owner", "fits"),
    [
        pytest.param({"uid": "uid-default-p", "kind": "Pod", "controller": True}, True, id="its own"),
        pytest.param({"uid": "uid-default-p", "kind": "Pod"}, False, id="not controlled by it"),
        pytest.param({"uid": "other", "kind": "Pod", "controller": True}, False, id="an older pod's of the same name"),
    ],
)
def test_claims_that_are_made_for_a_pod(owner: dict[str, Any], fits: bool) -> None:
    made = claim("p-scratch", volume="pv", ownerReferences=[owner])
    plugin = attached(keep(state_of(NODES), made, volume("pv")), VolumeBinding())
    assert bool(allowed(plugin, pod("p", volumes=[{"name": "scratch", "ephemeral": {}}]))) is fits


def test_pods_without_claims_are_no_concern() -> None:
    plugin = attached(state_of(NODES), VolumeBinding())
    block = block_of(plugin.state, pod("p", volumes=[{"name": "v", "emptyDir": {}}]))
    assert not plugin.concerns(block)
    assert plugin.prefilter(UNIT, block, 0.0) is None
    assert plugin.concerns(block_of(plugin.state, mounting("p", "data")))
