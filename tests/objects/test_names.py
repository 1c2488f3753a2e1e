from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects import names

Validate = Callable[[str], list[str]]


@pytest.mark.parametrize(
    ("validate", "good", "bad"),
    [
        pytest.param(
            names.validate_label_name,
            ["a", "1", "a-b", "a" * 63],
            ["", "A", "-a", "a-", "a.b", "a_b", "a" * 64, "ä", "a\n", "a b"],
            id="label",
        ),
        pytest.param(
            names.validate_subdomain,
            ["a", "a.b", "1.2-3", "a" * 63 + "." + "b" * 189],
            ["", ".", "a..b", ".a", "a.", "a.-b", "A.b", "a" * 254, "a/b", "a\n"],
            id="subdomain",
        ),
        pytest.param(names.validate_dns1035_label, ["a", "a1-b"], ["", "1a", "-a", "a-", "a.b", "a" * 64], id="rfc1035"),
        pytest.param(
            names.validate_path_segment, ["a", "A:b", "system:x", "a\\b"], ["", ".", "..", "a/b", "50%", "a" * 254], id="path"
        ),
        pytest.param(
            names.validate_qualified_name,
            ["a", "MyName", "my.name", "1", "example.com/MyName", "a/b", "a" * 63, "b.c/" + "a" * 63],
            ["", "/", "/a", "a/", "a/b/c", "Example.com/a", "-a", "a-", "a b", "x/" + "a" * 64, "a" * 64, "ä", "a\n"],
            id="qualified",
        ),
        pytest.param(
            names.validate_label_value, ["", "a", "A_b.c-1"], ["-a", "a-", "a b", "a" * 64, "a/b", "ä", "a\n"], id="value"
        ),
        pytest.param(
            names.validate_config_key, ["a", ".a", "a.b_c-d"], ["", ".", "..", "..a", "a/b", "a b", "a" * 254], id="config key"
        ),
        pytest.param(
            names.validate_env_name,
            ["A", "_a", "a.b-c", "A" * 5000],
            ["", "1a", "a=b", "a b", ".", "..a", "A" * 5000 + "="],
            id="env",
        ),
        pytest.param(names.validate_port_name, ["a", "http-2", "1a"], ["", "1", "-a", "a--b", "A", "a" * 16], id="port"),
        pytest.param(names.validate_field_manager, ["", "kubectl", "a b"], ["a\n", "a" * 129], id="manager"),
    ],
)
def test_names(validate: Validate, good: list[str], bad: list[str]) -> None:
    assert {text: validate(text) for text in good if validate(text)} == {}
    assert [text for text in bad if not validate(text)] == []


def test_all_that_is_wrong_is_told() -> None:
    assert len(names.validate_label_name("A" * 64)) == 2
    assert any("no more than 63" in problem for problem in names.validate_label_name("A" * 64))


def test_maps_name_the_key() -> None:
    assert names.validate_labels({"a": "b"}) == []
    assert [key for key, _ in names.validate_labels({"-": "b", "c": "-", "d": 5, "e": "ok"})] == ["-", "c", "d"]
    assert names.validate_annotations({"a": "any text\n", "Example.com/x": "y"}) == []
    assert [key for key, _ in names.validate_annotations({"a b": "", "c": None})] == ["a b", "c"]
    assert names.validate_annotations({"a": "x" * 300_000})[0][1].endswith("the limit is 262144")
    applied = names.validate_annotations({"kubectl.kubernetes.io/last-applied-configuration": "x" * 300_000})
    assert "the limit is 262144; 'kubectl apply --server-side' keeps no copy" in applied[0][1]


@given(st.text(max_size=70))
def test_any_text_has_an_answer(text: str) -> None:
    for validate in (
        names.validate_label_name, names.validate_subdomain, names.validate_dns1035_label, names.validate_path_segment,
        names.validate_qualified_name, names.validate_label_value, names.validate_config_key, names.validate_env_name,
        names.validate_port_name, names.validate_field_manager, names.validate_generate_name,
    ):  # fmt: skip
        assert all(problem.startswith(("m", "t", "a")) for problem in validate(text))


def test_generate_name_prefixes_may_end_in_a_dash() -> None:
    assert names.validate_generate_name("web-") == []
    assert names.validate_generate_name("web") == []
    assert names.validate_generate_name("web_") != []
    assert names.validate_generate_name("1-", names.validate_dns1035_label) != []


@given(st.binary(min_size=8, max_size=8), st.from_regex(r"[a-z][a-z0-9]{0,80}-", fullmatch=True))
def test_generated_names_are_names(seed: bytes, prefix: str) -> None:
    name = names.generated_name(prefix, lambda count: seed[:count])
    assert names.validate_label_name(name) == []
    assert name[:-5] == prefix[:58]
    assert set(name[-5:]) <= set("bcdfghjklmnpqrstvwxz2456789")
    assert name == names.generated_name(prefix, lambda count: seed[:count])


def test_generated_names_differ() -> None:
    rng = random.Random(1)
    assert len({names.generated_name("a-", rng.randbytes) for _ in range(500)}) > 490
