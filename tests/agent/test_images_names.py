from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.contracts import AgentError
from muster.agent.images_names import ImageId, LocalPath, Name, default_policy, is_registry_allowed, parse, parse_name

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "path", "host", "full"),
    [
        pytest.param("app", "app", "", "app:latest", id="a word"),
        pytest.param("app:1.0", "app", "", "app:1.0", id="with tag"),
        pytest.param("group/app", "group/app", "", "group/app:latest", id="the first word is no host"),
        pytest.param("reg.example/app", "reg.example/app", "reg.example", "reg.example/app:latest", id="host by its dot"),
        pytest.param("localhost/app", "localhost/app", "localhost", "localhost/app:latest", id="localhost"),
        pytest.param(
            "127.0.0.1:5000/a/b:t", "127.0.0.1:5000/a/b", "127.0.0.1:5000", "127.0.0.1:5000/a/b:t", id="host with port"
        ),
        pytest.param(f"app@{DIGEST}", "app", "", f"app@{DIGEST}", id="digest"),
        pytest.param(f"app:1@{DIGEST}", "app", "", f"app@{DIGEST}", id="a digest wins over the tag"),
    ],
)
def test_names(text: str, path: str, host: str, full: str) -> None:
    found = parse(text)
    assert isinstance(found, Name)
    assert (found.path, found.host, str(found)) == (path, host, full)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("oci-archive:/p/a.tar", LocalPath(kind="oci-archive", path="/p/a.tar"), id="oci archive"),
        pytest.param("oci:/p/layout:1", LocalPath(kind="oci", path="/p/layout", tag="1"), id="layout with tag"),
        pytest.param("docker-archive:/p/a.tar:t", LocalPath(kind="docker-archive", path="/p/a.tar", tag="t"), id="docker"),
        pytest.param("dir:/p/a:b", LocalPath(kind="dir", path="/p/a:b"), id="directories have no tags"),
        pytest.param(DIGEST, ImageId(DIGEST), id="id"),
    ],
)
def test_others(text: str, found: object) -> None:
    assert parse(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "App",
        "a//b",
        "app:",
        "app@sha256:12",
        "../x",
        "/etc/passwd",
        "app tag",
        "a" * 600,
        "oci-archive:",
        "-x",
        "app:a/b",
        "app\n",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(AgentError) as e:
        parse(text)
    assert e.value.reason == "InvalidImageName"
    assert "image" in e.value.message


@pytest.mark.parametrize("text", [DIGEST, f"app@{DIGEST}", "dir:/etc"])
def test_not_a_name_to_give(text: str) -> None:
    with pytest.raises(AgentError):
        parse_name(text)


@given(st.text(max_size=80))
def test_any_text_is_answered(text: str) -> None:
    with suppress(AgentError):
        found = parse(text)
        assert not isinstance(found, Name) or parse(str(found)) == found or found.digest


@pytest.mark.parametrize(
    ("text", "policy", "means"),
    [
        ("app", "", "Always"),
        ("app:latest", "", "Always"),
        ("app:1", "", "IfNotPresent"),
        (f"app@{DIGEST}", "", "IfNotPresent"),
        ("app", "Never", "Never"),
    ],
)
def test_policy(text: str, policy: str, means: str) -> None:
    assert default_policy(parse(text), policy) == means


@pytest.mark.parametrize(
    ("host", "allowed", "is_allowed"),
    [
        ("", ["*"], True),
        ("reg.example", ["*.example"], True),
        ("evil.test", ["*.example"], False),
        ("", ["*.example"], False),
        ("a", [], False),
    ],
)
def test_registries(host: str, allowed: list[str], is_allowed: bool) -> None:
    assert is_registry_allowed(host, allowed) is is_allowed
