"""Variables from all their sources, and `$(NAME)`."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent import environment
from muster.agent.contracts import AgentError
from muster.agent.environment import ENV_BYTES_MAX, PodFields, data_of, expand, expand_all, references, resolve
from muster.objects.kinds.containers import Container
from muster.objects.kinds.pods import PodSpec
from muster.objects.status import Raw

POD: Raw = {
    "metadata": {
        "name": "p",
        "namespace": "n",
        "uid": "u",
        "labels": {"app": "a", "b/c": 'say "x"'},
        "annotations": {"note": "1"},
    }
}


def container(**more: Any) -> Container:
    return msgspec.convert({"name": "main", **more}, Container)


def fields(one: Container | None = None, **more: Any) -> PodFields:
    spec = PodSpec(containers=[one] if one else [], node_name="node-1", service_account_name="robot")
    return PodFields(pod=POD, spec=spec, pod_ip="10.0.0.2", host_ip="192.0.2.1", **more)


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


CONFIG: Raw = {"data": {"k": "v", "l": "w"}, "binaryData": {"b": b64("bin"), "bad": "%%%"}}
SECRET: Raw = {"data": {"pw": b64("s3cret"), "zero": b64("a\x00b")}}
SOURCES = {("ConfigMap", "cm"): CONFIG, ("Secret", "sec"): SECRET, ("Secret", "gone"): None, ("ConfigMap", "gone"): None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("$(A)", "1"),
        ("x$(A)y$(B)z", "x1y2z"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$(NOBODY)", "$(NOBODY)"),
        ("$A ${A}", "$A ${A}"),
        ("$(A", "$(A"),
        ("$()", "$()"),
        ("tail$", "tail$"),
    ],
)
def test_expand(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


@given(st.text(alphabet="$()AB x"))
def test_what_names_no_variable_only_loses_doubled_dollars(text: str) -> None:
    assert expand(text, {}).replace("$", "") == text.replace("$", "")
    assert len(expand(text, {})) <= len(text)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"fieldRef": {"fieldPath": "metadata.name"}}, "p"),
        ({"fieldRef": {"fieldPath": "metadata.uid"}}, "u"),
        ({"fieldRef": {"fieldPath": "metadata.labels['app']"}}, "a"),
        ({"fieldRef": {"fieldPath": "metadata.labels['nobody']"}}, ""),
        ({"fieldRef": {"fieldPath": "metadata.annotations['note']"}}, "1"),
        ({"fieldRef": {"fieldPath": "metadata.labels"}}, 'app="a"\nb/c="say \\"x\\""'),
        ({"fieldRef": {"fieldPath": "spec.nodeName"}}, "node-1"),
        ({"fieldRef": {"fieldPath": "spec.serviceAccountName"}}, "robot"),
        ({"fieldRef": {"fieldPath": "status.podIP"}}, "10.0.0.2"),
        ({"fieldRef": {"fieldPath": "status.hostIP"}}, "192.0.2.1"),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "2"),
        ({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}, "1500"),
        ({"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi"}}, "64"),
        ({"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Gi"}}, "8"),
        ({"resourceFieldRef": {"resource": "requests.cpu"}}, "0"),
        ({"configMapKeyRef": {"name": "cm", "key": "k"}}, "v"),
        ({"secretKeyRef": {"name": "sec", "key": "pw"}}, "s3cret"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_value_from(source: Raw, expected: str) -> None:
    resources = {"limits": {"cpu": "1500m"}, "requests": {"memory": "64Mi"}}
    one = container(env=[{"name": "X", "valueFrom": source}], resources=resources)
    assert resolve(one, fields(one, allocatable={"memory": "8Gi"}), SOURCES) == {"X": expected}


@pytest.mark.parametrize(
    "source",
    [
        {"configMapKeyRef": {"name": "cm", "key": "nobody", "optional": True}},
        {"configMapKeyRef": {"name": "gone", "key": "k", "optional": True}},
        {"secretKeyRef": {"name": "gone", "key": "k", "optional": True}},
    ],
)
def test_what_is_optional_may_be_missing(source: Raw) -> None:
    one = container(env=[{"name": "X", "valueFrom": source}, {"name": "Y", "value": "<$(X)>"}])
    assert resolve(one, fields(), SOURCES) == {"Y": "<$(X)>"}


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ([{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "nobody"}}}], ["X", "'cm'", "'nobody'"]),
        (
            [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "gone", "key": "k"}}}],
            ["Secret 'gone'", "not there", "optional"],
        ),
        ([{"name": "X", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "zero"}}}], ["zero byte"]),
        ([{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "spec.secret"}}}], ["'spec.secret'"]),
        ([{"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "cpu"}}}], ["'cpu'", "limits.cpu"]),
        ([{"name": "X", "valueFrom": {}}], ["valueFrom"]),
        ([{"name": "A=B", "value": "x"}], ["A=B"]),
        ([{"name": "X", "value": "x" * (ENV_BYTES_MAX + 1)}], [str(ENV_BYTES_MAX)]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_mistakes_are_named(env: list[Raw], words: list[str]) -> None:
    with pytest.raises(AgentError) as caught:
        resolve(container(env=env), fields(), SOURCES)
    assert caught.value.reason == "CreateContainerConfigError"
    for word in words:
        assert word in caught.value.message


def test_env_from_with_prefix_and_what_wins() -> None:
    many = [{"prefix": "P_", "configMapRef": {"name": "cm"}}, {"configMapRef": {"name": "gone", "optional": True}}]
    one = container(envFrom=many, env=[{"name": "P_k", "value": "own"}])
    assert resolve(one, fields(), SOURCES) == {"P_b": "bin", "P_k": "own", "P_l": "w"}
    with pytest.raises(AgentError, match="gone"):
        resolve(container(envFrom=[{"configMapRef": {"name": "gone"}}]), fields(), SOURCES)


def test_references() -> None:
    one = container(
        envFrom=[{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "b"}}],
        env=[
            {"name": "X", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
            {"name": "Y", "valueFrom": {"secretKeyRef": {"name": "d", "key": "k"}}},
        ],
    )
    assert list(references(one)) == [("ConfigMap", "a"), ("Secret", "b"), ("ConfigMap", "c"), ("Secret", "d")]


def test_data_that_is_not_base64_is_left_out() -> None:
    assert data_of("ConfigMap", CONFIG) == {"k": b"v", "l": b"w", "b": b"bin"}
    assert data_of("Secret", {"data": {"x": "%"}}) == {}
    assert data_of("Secret", {"data": "nonsense"}) == {}


def test_variables_that_name_each_other_do_not_grow_beyond_the_limit() -> None:
    env = [{"name": "A", "value": "x" * 1000}]
    env += [{"name": name, "value": f"$({before})" * 1000} for name, before in zip("BCDE", "ABCD", strict=True)]
    container = msgspec.convert({"name": "c", "env": env}, Container)
    with pytest.raises(AgentError, match="more than"):
        resolve(container, PodFields(pod={}, spec=PodSpec(containers=[])), {})
    with pytest.raises(AgentError, match="more than"):
        expand_all(["$(A)"] * 2000, {"A": "x" * 1000})
    assert expand_all(["$(A)", "$$", "$(Z)"], {"A": "x"}) == ("x", "$", "$(Z)")


def test_a_large_object_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    real = environment.data_of

    def counted(kind: str, raw: Raw) -> dict[str, bytes]:
        decoded.append(kind)
        return real(kind, raw)

    monkeypatch.setattr(environment, "data_of", counted)
    ref = {"secretKeyRef": {"name": "s", "key": "k"}}
    env = [{"name": f"V{n}", "valueFrom": ref} for n in range(100)]
    container = msgspec.convert({"name": "c", "env": env}, Container)
    found = resolve(container, PodFields(pod={}, spec=PodSpec(containers=[])), {("Secret", "s"): {"data": {"k": "eA=="}}})
    assert set(found.values()) == {"x"}
    assert decoded == ["Secret"]
