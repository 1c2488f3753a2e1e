from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.catalog import CATALOG
from muster.objects.rules.app_images import PORTS_MAX, app_image_problems
from muster.objects.status import Raw
from muster.objects.validation import validate_object

MANIFESTS = Path(__file__).parent / "kinds" / "manifests"
RESOURCE = CATALOG.by_kind("kuscia.secretflow", "AppImage")


def image(**changes: Any) -> Raw:
    spec: Raw = {
        "image": {"name": "repo/app", "tag": "1"},
        "configTemplates": {"task.conf": "{{.TASK_ID}}"},
        "deployTemplates": [
            {
                "name": "app",
                "role": "host",
                "replicas": 1,
                "networkPolicy": {"ingresses": [{"from": {"roles": ["guest"]}, "ports": [{"port": "spu"}]}]},
                "spec": {
                    "containers": [
                        {
                            "name": "main",
                            "ports": [{"name": "spu", "port": 54509, "scope": "Cluster"}, {"name": "metrics"}],
                            "env": [{"name": "A", "value": "b"}],
                            "configVolumeMounts": [{"mountPath": "/etc/task.conf", "subPath": "task.conf"}],
                            "livenessProbe": {"httpGet": {"port": "spu"}},
                            "metricProbe": {"path": "/metrics", "port": "metrics"},
                        }
                    ]
                },
            },
            {"name": "app", "role": "guest,third", "spec": {"containers": [{"name": "main"}]}},
        ],
    }
    made: Raw = {"apiVersion": "kuscia.secretflow/v1alpha1", "kind": "AppImage", "metadata": {"name": "app"}, "spec": spec}
    for path, value in changes.items():
        *steps, last = path.split("__")
        parent: Any = spec
        for step in steps:
            parent = parent[int(step)] if step.isdecimal() else parent[step]
        parent[int(last) if last.isdecimal() else last] = value
    return made


CONTAINER = "deployTemplates__0__spec__containers__0"


def test_a_good_one_passes() -> None:
    assert validate_object(RESOURCE, image()) == []


def test_kuscias_own_example_passes() -> None:
    """Two templates of one name, a probe of a number, a fixed port."""
    raw = yaml.safe_load((MANIFESTS / "appimage.yaml").read_text())
    assert app_image_problems(raw) == []


@pytest.mark.parametrize(
    ("change", "value", "field", "words"),
    [
        pytest.param("image", {"name": "", "tag": "1"}, "spec.image.name", "the image to run", id="no image"),
        pytest.param("image", {"name": "a b", "tag": "1"}, "spec.image.name", "white space", id="a space in the image"),
        pytest.param("deployTemplates", [], "spec.deployTemplates", "at least one", id="no templates"),
        pytest.param(
            "deployTemplates__1__role",
            "third,host",
            "spec.deployTemplates[1].role",
            "has a template already",
            id="a role twice",
        ),
        pytest.param("deployTemplates__1__role", "a,,b", "spec.deployTemplates[1].role", "empty role", id="an empty role"),
        pytest.param(
            "deployTemplates__1__role",
            "Guest",
            "spec.deployTemplates[1].role",
            "lower case",
            id="a role that can't be in a name",
        ),
        pytest.param(
            "deployTemplates__0__replicas", -1, "spec.deployTemplates[0].replicas", "must be 0 to", id="negative replicas"
        ),
        pytest.param(
            "deployTemplates__0__spec",
            {"containers": []},
            "spec.deployTemplates[0].spec.containers",
            "at least one",
            id="no containers",
        ),
        pytest.param(
            f"{CONTAINER}__name",
            "A_b",
            "spec.deployTemplates[0].spec.containers[0].name",
            "lower case",
            id="a bad container name",
        ),
        pytest.param(
            f"{CONTAINER}__ports__1__name",
            "spu",
            "spec.deployTemplates[0].spec.containers[0].ports[1].name",
            "DuplicateName",
            id="a port twice",
        ),
        pytest.param(
            f"{CONTAINER}__ports__1__name",
            "a" * 16,
            "spec.deployTemplates[0].spec.containers[0].ports[1].name",
            "15",
            id="a long port name",
        ),
        pytest.param(
            f"{CONTAINER}__ports__1__port",
            70_000,
            "spec.deployTemplates[0].spec.containers[0].ports[1].port",
            "1 to 65535",
            id="no port number",
        ),
        pytest.param(
            f"{CONTAINER}__ports__1__port",
            54_509,
            "spec.deployTemplates[0].spec.containers[0].ports[1].port",
            "DuplicateName",
            id="a number twice",
        ),
        pytest.param(
            f"{CONTAINER}__livenessProbe",
            {"tcpSocket": {"port": "nope"}},
            "spec.deployTemplates[0].spec.containers[0].livenessProbe.tcpSocket.port",
            "there are: metrics, spu",
            id="a probe of no port",
        ),
        pytest.param(
            f"{CONTAINER}__metricProbe__port",
            "nope",
            "spec.deployTemplates[0].spec.containers[0].metricProbe.port",
            "no port",
            id="metrics of no port",
        ),
        pytest.param(
            f"{CONTAINER}__metricProbe__port",
            0,
            "spec.deployTemplates[0].spec.containers[0].metricProbe.port",
            "1 to 65535",
            id="metrics of port 0",
        ),
        pytest.param(
            f"{CONTAINER}__configVolumeMounts__0__subPath",
            "x.conf",
            "spec.deployTemplates[0].spec.containers[0].configVolumeMounts[0].subPath",
            "there are: task.conf",
            id="a file that is not there",
        ),
        pytest.param(
            f"{CONTAINER}__configVolumeMounts__0__mountPath",
            "etc",
            "spec.deployTemplates[0].spec.containers[0].configVolumeMounts[0].mountPath",
            "absolute",
            id="a relative place",
        ),
        pytest.param(
            f"{CONTAINER}__env__0__name",
            "1 x",
            "spec.deployTemplates[0].spec.containers[0].env[0].name",
            "letters",
            id="a bad variable",
        ),
        pytest.param(
            "configTemplates",
            {"task.conf": "a\n{{.X"},
            "spec.configTemplates[task.conf]",
            "line 2, column 1",
            id="a broken template",
        ),
        pytest.param(
            "configTemplates", {"task.conf": "", "a/b": ""}, "spec.configTemplates[a/b]", "letters", id="a bad file name"
        ),
        pytest.param(
            "configTemplates",
            {"task.conf": "", **{f"f{n}": "" for n in range(64)}},
            "spec.configTemplates",
            "Too many",
            id="too many files",
        ),
        pytest.param(
            "configTemplates",
            {"task.conf": "x" * 200_000, "b": "x" * 200_000, "c": "x" * 200_000},
            "spec.configTemplates",
            "Too long",
            id="files too large together",
        ),
        pytest.param(
            "deployTemplates__0__networkPolicy__ingresses__0__ports",
            [{"port": "nope"}],
            "spec.deployTemplates[0].networkPolicy.ingresses[0].ports[0].port",
            "there are: metrics, spu",
            id="a policy for no port",
        ),
        pytest.param(
            "deployTemplates__0__networkPolicy__ingresses__0__from",
            {"roles": []},
            "spec.deployTemplates[0].networkPolicy.ingresses[0].from.roles",
            "roles",
            id="a policy for nobody",
        ),
        pytest.param(
            f"{CONTAINER}__resources",
            {"requests": {"bandwidth": "5MB"}},
            "spec.deployTemplates[0].spec.containers[0].resources.requests[bandwidth]",
            "UnitInvalid",
            id="bandwidth in a unit that is none",
        ),
    ],
)
def test_what_is_wrong_is_named(change: str, value: Any, field: str, words: str) -> None:
    found = {cause.field: cause.message for cause in validate_object(RESOURCE, image(**{change: value}))}
    assert words in found[field]
    assert len(found) <= 2, "one thing is wrong, and at most one that follows from it"


def test_what_is_said_of_very_many_ports_stays_small() -> None:
    ports = [{"name": f"p{index}"} for index in range(2_000)]
    policy = {"ingresses": [{"from": {"roles": ["guest"]}, "ports": [{"port": "unknown"} for _ in ports]}]}
    wrong = image(**{f"{CONTAINER}__ports": ports, "deployTemplates__0__networkPolicy": policy})
    assert max(len(cause.message) for cause in app_image_problems(wrong)) < 1_000


def test_a_pod_has_so_many_ports_and_no_more() -> None:
    at = f"{CONTAINER}__ports"
    ports = [{"name": f"p{index}"} for index in range(PORTS_MAX - 2)] + [{"name": "spu"}, {"name": "metrics"}]
    assert app_image_problems(image(**{at: ports})) == []
    [cause] = app_image_problems(image(**{at: [*ports, {"name": "one-more"}]}))
    assert cause.field == "spec.deployTemplates[0].spec.containers[*].ports"
    assert "65: must have at most 64" in cause.message


def test_an_update_answers_for_what_it_makes_wrong_only() -> None:
    old = image(deployTemplates__0__replicas=-1)
    new = copy.deepcopy(old)
    new["spec"]["configTemplates"]["b.conf"] = "{{.X"
    assert [cause.field for cause in validate_object(RESOURCE, new, old)] == ["spec.configTemplates[b.conf]"]


JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 70_000) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "role", "spec", "containers", "ports", "port", "env", "from", "roles"]), inner, max_size=4
        )
    ),
    max_leaves=20,
)


@given(JUNK, JUNK, JUNK)
def test_junk_never_crashes(files: Any, templates: Any, policy: Any) -> None:
    raw = image(configTemplates=files, deployTemplates=templates)
    app_image_problems(raw)
    app_image_problems(image(deployTemplates__0__networkPolicy=policy))
