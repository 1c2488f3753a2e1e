from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.controllers.templating import COMPARED_MAX, RENDERED_BYTES_MAX, RenderError, render, render_all

DEFINE = json.dumps(
    {
        "parties": [
            {"name": "alice", "role": "host", "services": [{"portName": "spu", "endpoints": ["t-0-spu.alice.svc"]}]},
            {"name": "bob", "role": "guest", "services": []},
        ],
        "selfPartyIdx": 1,
        "selfEndpointIdx": 0,
        "empty": None,
        "1": "one",
    }
)
VARIABLES = {"TASK_ID": "t", "TASK_CLUSTER_DEFINE": DEFINE, "quoted": 'a"b\\c\nd', "NOT_JSON": "{broken", "LIST": "[1,[2,3]]"}


def rendered(text: str, **more: str) -> str:
    return render("app", "task.conf", text, {**VARIABLES, **more})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("id={{.TASK_ID}}", "id=t", id="a variable"),
        pytest.param("{{.task_id}}", "t", id="lower case in the template"),
        pytest.param('"{{.QUOTED}}"', r'"a\"b\\c\nd"', id="escaped as in JSON, named in lower case by the container"),
        pytest.param("[{{.NOBODY}}]", "[]", id="missing is empty"),
        pytest.param("{{{.TASK_CLUSTER_DEFINE.selfPartyIdx}}}", "1", id="a number"),
        pytest.param("{{{.TASK_CLUSTER_DEFINE.parties[name=bob].role}}}", "guest", id="by key and value"),
        pytest.param(
            "{{{.TASK_CLUSTER_DEFINE.parties[0].services[portName=spu].endpoints[-1]}}}", "t-0-spu.alice.svc", id="deep"
        ),
        pytest.param("{{{.TASK_CLUSTER_DEFINE.parties[1]}}}", '{"name":"bob","role":"guest","services":[]}', id="an object"),
        pytest.param("{{{.TASK_CLUSTER_DEFINE.parties[2].name}}}", "", id="beyond the end"),
        pytest.param("{{{.TASK_CLUSTER_DEFINE.parties[-3].name}}}", "", id="before the beginning"),
        pytest.param("{{{.TASK_CLUSTER_DEFINE.parties.name}}}", "", id="a member of a list"),
        pytest.param("{{{.TASK_CLUSTER_DEFINE.nothing.at.all}}}", "", id="no such member"),
        pytest.param("{{{.TASK_CLUSTER_DEFINE.empty}}}", "", id="null"),
        pytest.param("{{{.TASK_CLUSTER_DEFINE[1]}}}", "one", id="a member that is a number"),
        pytest.param("{{{.LIST[1][0]}}}", "2", id="a list of lists"),
        pytest.param("{{{.NOT_JSON}}}", "{broken", id="text as it is"),
        pytest.param("{{{.NOT_JSON.a}}}", "", id="a query into text"),
        pytest.param("{{{.NOBODY.a}}}", "", id="a query into nothing"),
    ],
)
def test_render(text: str, expected: str) -> None:
    assert rendered(text) == expected


@pytest.mark.parametrize("name", ["KUSCIA_API_TOKEN", "KUSCIA_DOMAIN_KEY_DATA", "kuscia_api_token"])
def test_secrets_are_not_given_out(name: str) -> None:
    assert rendered(f"<{{{{.{name}}}}}{{{{{{.{name}}}}}}}>", **{name: "secret"}) == "<>"


def test_a_rendered_file_is_json_when_its_template_is() -> None:
    found = json.loads(rendered('{"id": "{{.TASK_ID}}", "def": "{{.TASK_CLUSTER_DEFINE}}"}'))
    assert json.loads(found["def"]) == json.loads(DEFINE)


def test_an_error_names_app_image_file_and_position() -> None:
    with pytest.raises(RenderError, match=r"AppImage app, configTemplates\[b.conf\], line 2, column 3: .* not closed"):
        render_all("app", {"a.conf": "fine", "b.conf": "x\n  {{.X"}, {})


def test_what_would_not_fit_is_refused() -> None:
    half = "x" * (RENDERED_BYTES_MAX // 2)
    with pytest.raises(RenderError, match="more than"):
        render_all("app", {"a": "{{.V}}", "b": "{{.V}}{{.V}}"}, {"V": half})


def test_queries_that_would_take_too_long_are_refused() -> None:
    rows = json.dumps([{"a": index} for index in range(COMPARED_MAX // 10)])
    assert rendered("{{{.V[a=x]}}}" * 10, V=rows) == ""
    with pytest.raises(RenderError, match=r"AppImage app, configTemplates\[task.conf\]: the \[key=value\] steps .* more than"):
        rendered("{{{.V[a=x]}}}" * 10_000, V=rows)


def test_elements_are_found_by_plain_values_only() -> None:
    assert rendered("{{{.V[a=1].b}}}", V='[{"a": [1]}, {"a": {"1": 1}}, {"a": 1, "b": "found"}]') == "found"


def test_json_too_deep_to_read_is_empty() -> None:
    assert rendered("{{{.V[0]}}}", V="[" * 100_000 + "]" * 100_000) == ""


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)
STEP = st.sampled_from([".a", "[0]", "[-1]", "[a=b]", "[x]", ".name", "[1]"])


@given(JSON, st.lists(STEP, max_size=5).map("".join), st.dictionaries(st.text(max_size=6), st.text(max_size=10), max_size=4))
def test_any_value_renders(value: Any, steps: str, others: dict[str, str]) -> None:
    text = json.dumps(value)
    out = render("app", "f", f"<{{{{.V}}}}|{{{{{{.V{steps}}}}}}}>", {**others, "V": text})
    assert out.startswith(f"<{json.dumps(text, ensure_ascii=False)[1:-1]}|")
    assert out.endswith(">")


@given(st.text(max_size=60))
def test_a_variable_survives_the_quotes(value: str) -> None:
    out = render("app", "f", '"{{.V}}"', {"V": value})
    assert json.loads(out) == value
