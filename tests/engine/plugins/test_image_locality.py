"""ImageLocality: the formula, names with and without tags, and what happens when nodes and images come and go."""

from __future__ import annotations

from typing import Any

import pytest

from muster.engine.events import NodeGone, NodeSeen
from muster.engine.facts import NodeFacts
from muster.engine.plugins.image_locality import MEBIBYTE, ImageLocality, image_name
from tests.engine.asking import attached, block_of, scored
from tests.engine.building import node, pod, state_of


def having(name: str, **images_mib: int) -> NodeFacts:
    return node(name, images=[{"names": [f"{image}:v1"], "sizeBytes": mib * MEBIBYTE} for image, mib in images_mib.items()])


def running(*images: str, **spec: Any) -> Any:
    containers = [{"image": image} for image in images]
    return pod("p", containers=containers, **spec)


@pytest.mark.parametrize(
    ("nodes", "images", "expected"),
    [
        # 1000 MiB on one of two nodes counts 500: (500 - 23) * 100 / 977
        pytest.param([having("a", big=1000), having("b")], ["big:v1"], [48, 0], id="half of the nodes have it"),
        pytest.param([having("a", big=1000), having("b", big=1000)], ["big:v1"], [100, 100], id="all have it"),
        pytest.param([having("a", big=9000), having("b")], ["big:v1"], [100, 0], id="never above 100"),
        pytest.param([having("a", small=40), having("b")], ["small:v1"], [0, 0], id="too small to matter"),
        # two containers: the scale ends at 2000 MiB: (500 - 23) * 100 / 1977
        pytest.param([having("a", big=1000), having("b")], ["big:v1", "none:v1"], [24, 0], id="per container"),
        # 300 + 250 on a, 300 on b: (550 - 23) * 100 / 1977 and (300 - 23) * 100 / 1977
        pytest.param([having("a", x=300, y=500), having("b", x=300)], ["x:v1", "y:v1"], [26, 14], id="sizes add up"),
        # each node by its own size: 400 and 800 on both
        pytest.param([having("a", x=400), having("b", x=800)], ["x:v1"], [38, 79], id="each by its own size"),
    ],
)
def test_score(nodes: list[NodeFacts], images: list[str], expected: list[int]) -> None:
    assert list(scored(attached(state_of(nodes), ImageLocality()), running(*images)).values()) == expected


def test_init_containers_count() -> None:
    plugin = attached(state_of([having("a", big=1000)]), ImageLocality())
    facts = running("none:v1", initContainers=[{"image": "big:v1"}])
    assert scored(plugin, facts) == {"a": (1000 - 23) * 100 // (2000 - 23)}


def test_concerns_only_pods_whose_image_is_somewhere() -> None:
    state = state_of([having("a", big=1000), having("b")])
    plugin = attached(state, ImageLocality())
    assert plugin.concerns(block_of(state, running("none:v1", "big:v1")))
    assert not plugin.concerns(block_of(state, running("big:v2")))
    state.apply_node(NodeGone("a"))
    state.flush_nodes()
    assert not plugin.concerns(block_of(state, running("big:v1")))


def test_follows_nodes_and_their_images() -> None:
    state = state_of([having("b", big=1000)])
    plugin = attached(state, ImageLocality())
    assert scored(plugin, running("big:v1")) == {"b": 100}
    state.apply_node(NodeSeen(having("a")))
    state.flush_nodes()
    assert scored(plugin, running("big:v1")) == {"a": 0, "b": 48}
    state.apply_node(NodeSeen(having("a", big=1000)))
    state.flush_nodes()
    assert scored(plugin, running("big:v1")) == {"a": 100, "b": 100}
    state.apply_node(NodeSeen(having("b")))
    state.flush_nodes()
    assert scored(plugin, running("big:v1")) == {"a": 48, "b": 0}
    state.apply_node(NodeGone("b"))
    state.flush_nodes()
    assert scored(plugin, running("big:v1")) == {"a": 100}


def test_sizes_beyond_reason_do_no_harm() -> None:
    state = state_of([node("a", images=[{"names": ["x"], "sizeBytes": 2**63}, {"names": ["y"], "sizeBytes": -5}])])
    assert scored(attached(state, ImageLocality()), running("x", "y")) == {"a": 100}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("nginx", "nginx:latest", id="no tag"),
        pytest.param("nginx:1", "nginx:1", id="tag"),
        pytest.param("host:5000/nginx", "host:5000/nginx:latest", id="a port is no tag"),
        pytest.param("nginx@sha256:abc", "nginx@sha256:abc", id="digest"),
    ],
)
def test_image_name(text: str, expected: str) -> None:
    assert image_name(text) == expected
