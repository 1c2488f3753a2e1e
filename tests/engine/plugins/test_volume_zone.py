"""VolumeZone: volumes that carry the label of a zone or region."""

from __future__ import annotations

import pytest

from muster.engine.plugins.volume_zone import VolumeZone
from muster.objects.reasons import Reason
from tests.engine.asking import allowed, attached, block_of, explained
from tests.engine.building import node, pod, state_of
from tests.engine.volumes_building import claim, keep, mounting, volume

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"

NODES = [
    node("a", labels={ZONE: "a", REGION: "r"}),
    node("b", labels={ZONE: "b", REGION: "r"}),
    node("c", labels={REGION: "s"}),
    node("d", labels={OLD_ZONE: "a"}),
    node("e"),
]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        pytest.param({}, "abcde", id="no labels"),
        pytest.param({ZONE: "a"}, "ae", id="a zone; a node in no zone at all takes it"),
        pytest.param({ZONE: "a__b"}, "abe", id="several zones"),
        pytest.param({REGION: "r"}, "abe", id="a region"),
        pytest.param({ZONE: "a", REGION: "s"}, "e", id="all labels count"),
        pytest.param({OLD_ZONE: "a"}, "ade", id="the older name, on nodes with either"),
        pytest.param({OLD_ZONE: "b"}, "be", id="the older name decides where it is"),
        pytest.param({"zone": "x"}, "abcde", id="other labels mean nothing"),
    ],
)
def test_filter(labels: dict[str, str], expected: str) -> None:
    plugin = attached(keep(state_of(NODES), claim("data", volume="pv"), volume("pv", labels=labels)), VolumeZone())
    assert allowed(plugin, mounting("p", "data")) == list(expected)
    if len(expected) < len(NODES):
        assert explained(plugin, mounting("p", "data")) == (Reason.VOLUME_NODE_CONFLICT, [])


def test_what_is_not_bound_is_left_to_others() -> None:
    plugin = attached(keep(state_of(NODES), claim("open")), VolumeZone())
    assert allowed(plugin, mounting("p", "open", "missing")) == list("abcde")
    assert not plugin.concerns(block_of(plugin.state, pod("p")))
