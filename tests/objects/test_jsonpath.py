"""The expected texts of templates are what kubectl's own printer gives for the same object, except where said otherwise."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects import jsonpath

PODS: dict[str, Any] = {
    "kind": "List",
    "n": 5,
    "half": 0.5,
    "big": 1234567.5,
    "tiny": -0.00001,
    "nothing": None,
    "yes": True,
    "empty": [],
    "items": [
        {
            "kind": "Pod",
            "metadata": {"name": "a", "labels": {"x.y/z": "v", "k": "1"}},
            "status": {"n": 3, "conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}]},
        },
        {"kind": "Pod", "metadata": {"name": "b"}, "status": {"n": 7}},
        {"kind": "Node", "metadata": {"name": "c"}},
    ],
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".kind", ["List"]),
        ("kind", ["List"]),
        ("{.kind}", ["List"]),
        ("$.kind", ["List"]),
        ("@.kind", ["List"]),
        ("{$.kind}", ["List"]),
        (".n", [5]),
        (".nothing", [None]),
        (".nothing.deeper", []),
        (".missing", []),
        (".missing[0].x", []),
        (".kind.x", []),
        (".kind[0]", []),
        (".items[0].metadata.name", ["a"]),
        ("items[0].metadata.name", ["a"]),
        (".items[-1].metadata.name", ["c"]),
        (".items[9].metadata.name", []),
        (".items[*].metadata.name", ["a", "b", "c"]),
        (".items[0:2].metadata.name", ["a", "b"]),
        (".items[1:].metadata.name", ["b", "c"]),
        (".items[:1].metadata.name", ["a"]),
        (".items[0:3:2].metadata.name", ["a", "c"]),
        (".items[0,2].metadata.name", ["a", "c"]),
        (".items[*]['kind']", ["Pod", "Pod", "Node"]),
        (".items[0]['kind', 'metadata.name']", ["Pod", "a"]),
        (".items[0].metadata.labels['x.y/z']", ["v"]),
        ('.items[0].metadata.labels["x.y/z"]', ["v"]),
        (r".items[0].metadata.labels.x\.y/z", ["v"]),
        (".items[0].metadata.labels.*", ["v", "1"]),
        (".items[*].metadata.labels.k", ["1"]),
        ('.items[?(@.kind=="Pod")].metadata.name', ["a", "b"]),
        (".items[?(@.kind != 'Pod')].metadata.name", ["c"]),
        (".items[?(@.status.n>3)].metadata.name", ["b"]),
        (".items[?(@.status.n>=3)].metadata.name", ["a", "b"]),
        (".items[?(@.status.n<7)].metadata.name", ["a"]),
        (".items[?(@.status.n<=7)].metadata.name", ["a", "b"]),
        (".items[?(@.status.n==7.0)].metadata.name", ["b"]),
        (".items[?(@.status)].metadata.name", ["a", "b"]),
        (".items[?(@.metadata.name=='(b)')].kind", []),
        ('.items[0].status.conditions[?(@.type=="Ready")].status', ["True"]),
        ('.items[?(@.status.conditions[?(@.type=="Ready")].status=="True")].metadata.name', ["a"]),
        (".items[?(@.kind==1)].kind", []),
        (".items[?(@.kind<1)].kind", []),
        ("..name", ["a", "b", "c"]),
        ("..n", [5, 3, 7]),
        (".items..type", ["Ready", "Other"]),
        (".empty[*]", []),
        (".", [PODS]),
        ("@", [PODS]),
        ("", [PODS]),
        (".[0]", []),
    ],
)
def test_find(path: str, found: list[Any]) -> None:
    assert jsonpath.compile(path).find(PODS) == found


def test_first() -> None:
    assert jsonpath.compile(".items[*].kind").first(PODS) == "Pod"
    assert jsonpath.compile(".missing").first(PODS) is None


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.kind}", "List"),
        (".kind", "List"),
        ("kind: {.kind}!", "kind: List!"),
        ("{.n} {.half} {.big} {.tiny} {.yes}", "5 0.5 1.2345675e+06 -1e-05 true"),
        ("{.nothing}", "<nil>"),
        ("{.missing}", ""),
        ("{.items[*].metadata.name}", "a b c"),
        ('{range .items[*]}{.metadata.name}{"\\t"}{.status.n}{"\\n"}{end}', "a\t3\nb\t7\nc\t\n"),
        ("{range .items[*]}[{.metadata.name}{range .status.conditions[*]} {.type}{end}]{end}.", "[a Ready Other][b][c]."),
        ("{range .empty[*]}x{end}y", "y"),
        ("{.items[0].metadata.labels}", '{"k":"1","x.y/z":"v"}'),
        ("{.items[0].status.conditions}", '[{"status":"True","type":"Ready"},{"status":"False","type":"Other"}]'),
        ("{'single'}{\"double\"}", "singledouble"),
        ("{'it\\'s'}", "it's"),
        ("{5}{1.5}{true}", "51.5true"),
        ("", ""),
    ],
)  # fmt: skip
def test_templates(template: str, text: str) -> None:
    assert jsonpath.compile_template(template).render(PODS) == text


@pytest.mark.parametrize(
    "text",
    ["{.a", "{.a[}", "{.a[x]}", "{.a['x]}", "{range .a}{.b}", "{end}", "{.a[?(@.b]}", "{.a[?(@.b==)]}", "{.a[0:1:0]}",
     "{.a....b}", "{.a}}{", "{foo}", "{.a[?(@.b==1)}", "{.a[1,]}", "{'x}", "{range .a}" * 30 + "{end}" * 30,
     "{.a" + "[?(@.a" * 30 + ")]" * 30 + "}"],
)  # fmt: skip
def test_bad_templates_name_the_position(text: str) -> None:
    with pytest.raises(ValueError, match=r"position [0-9]+: expected"):
        jsonpath.compile_template(text)


@pytest.mark.parametrize("path", [".a b", ".a}", "{.a}{.b}", ".a[", "a]"])
def test_bad_paths(path: str) -> None:
    with pytest.raises(ValueError, match=r"position"):
        jsonpath.compile(path)


@pytest.mark.parametrize("path", [".missing", ".items[9]", ".kind[0]", ".kind[0:1]", ".kind[?(@.x)]", "['missing']"])
def test_what_is_missing_may_be_an_error(path: str) -> None:
    assert jsonpath.compile(path).find(PODS) == []
    with pytest.raises(ValueError, match=r"not found|out of bounds|needs a list"):
        jsonpath.compile(path).find(PODS, allow_missing=False)


def test_filters_pass_over_items_without_the_field_even_then() -> None:
    assert jsonpath.compile(".items[?(@.status.n==7)].kind").find(PODS, allow_missing=False) == ["Pod"]


def test_filters_compare_single_values() -> None:
    with pytest.raises(ValueError, match=r"several"):
        jsonpath.compile(".items[?(@..type=='Ready')]").find(PODS)


def test_work_is_bounded() -> None:
    tree: Any = 1
    for _ in range(12):
        tree = [tree, tree]
    with pytest.raises(ValueError, match=r"visits more than"):
        jsonpath.compile("..*..*..*..*..*..*").find(tree)
    nest: Any = {}
    for _ in range(60):
        nest = {"a": nest, "b": 1}
    for path in ("..*..*..*..*", "[" + ",".join(["*"] * 8000) + "]", "[*]['" + ".".join(["a"] * 8000) + "']"):
        with pytest.raises(ValueError, match=r"visits more than 10000 values"):
            jsonpath.compile(path).find([nest] * 200)
    assert len(jsonpath.compile("..b").find(nest)) == 60
    with pytest.raises(ValueError, match=r"visits more than 10000 values"):
        jsonpath.compile("[?(@.a==1)]").find([{"a": 0}] * 10_000)
    many = {"items": [{"name": "x"}] * 20_000}
    assert jsonpath.compile_template("{range .items[*]}{.name}{end}").render(many) == "x" * 20_000
    with pytest.raises(ValueError, match=r"16384 characters"):
        jsonpath.compile("." + "a" * 20_000)
    deep: Any = {}
    for _ in range(3000):
        deep = {"a": deep}
    with pytest.raises(ValueError, match=r"levels deep"):
        jsonpath.compile("..x").find(deep)
    with pytest.raises(ValueError, match=r"too deeply"):
        jsonpath.compile_template("{.a}").render(deep)


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["a", "Ready"])
)
documents = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "a.b", "type"]), inner, max_size=3),
    max_leaves=10,
)
pieces = st.sampled_from(
    [
        ".a",
        ".b",
        "['a.b']",
        "[0]",
        "[*]",
        "..",
        ".*",
        "[-1]",
        "[0:2]",
        "[?(@.a==1)]",
        '[?(@.type=="Ready")]',
        "[?(@.b)]",
        "{",
        "}",
        " ",
        "'",
    ]
)


@given(st.lists(pieces, max_size=5).map("".join), documents)
def test_any_path_on_any_document_finds_or_is_a_value_error(path: str, document: Any) -> None:
    with contextlib.suppress(ValueError):
        found = jsonpath.compile(path).find(document)
        assert isinstance(found, list)
        assert all(isinstance(jsonpath.text_of(value), str) for value in found)


@given(st.text(alphabet="{}.ab[]*?()@='\"\\ range,end:0-", max_size=30))
def test_any_template_renders_or_is_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(jsonpath.compile_template(text).render(PODS), str)
