"""Domains: names that a party may not have, certificates, quotas; each wrong field is named, with the way out."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.catalog import CATALOG
from muster.objects.rules.domains import cert_problem
from muster.objects.schema import schema_of
from muster.objects.status import Raw
from muster.objects.structural import Structural
from muster.objects.validation import validate_object

DOMAIN = CATALOG.by_kind("kuscia.secretflow", "Domain")
assert DOMAIN.view is not None
STRUCTURAL = Structural(schema_of(DOMAIN.view))
PEM = b"-----BEGIN CERTIFICATE-----\nMIIBszCCAVmg\nAwIBAgIU\n-----END CERTIFICATE-----\n"


def domain(name: str = "alice", **spec: Any) -> Raw:
    return {"apiVersion": DOMAIN.api_version, "kind": "Domain", "metadata": {"name": name}, "spec": spec}


def causes(raw: Raw, old: Raw | None = None) -> dict[str, str]:
    found = STRUCTURAL.validate(raw) or validate_object(DOMAIN, raw, old)
    return {cause.field: cause.message for cause in found}


@pytest.mark.parametrize(
    "name",
    ["master", "default", "kube-system", "kube-public", "kube-node-lease", "cross-domain", "kube-anything"],
)
def test_reserved_names(name: str) -> None:
    found = causes(domain(name))
    assert list(found) == ["metadata.name"]
    assert "NameReserved: " in found["metadata.name"]
    assert "choose another name" in found["metadata.name"]


@pytest.mark.parametrize("name", ["a.b", "a" * 64])
def test_names_must_make_a_namespace(name: str) -> None:
    found = causes(domain(name))
    assert "ManifestInvalid" in found["metadata.name"]
    assert "the party has a namespace of this name" in found["metadata.name"]


@pytest.mark.parametrize("name", ["alice", "masters", "kubernetes", "a" * 63, "1st-bank"])
def test_good_names(name: str) -> None:
    assert causes(domain(name)) == {}


def test_a_name_from_before_the_rule_can_still_be_worked_on() -> None:
    assert causes(domain("master", master="m1"), domain("master")) == {}


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("cert", "problem"),
    [
        pytest.param(b64(PEM), "", id="good"),
        pytest.param(b64(PEM.replace(b"\n", b"\r\n")), "", id="of Windows"),
        pytest.param("", "", id="none"),
        pytest.param("-----BEGIN", "is not base64", id="plain PEM"),
        pytest.param("été", "is not base64", id="not even ASCII"),
        pytest.param(b64(b"hello"), "not of one certificate", id="something else"),
        pytest.param(b64(PEM + PEM), "not of one certificate", id="a chain"),
        pytest.param(b64(PEM.replace(b"CERTIFICATE", b"PRIVATE KEY")), "not of one certificate", id="a private key"),
        pytest.param(b64(PEM.replace(b"AwIBAgIU", b"Aw=BAgIU")), "body is not base64", id="broken body"),
        pytest.param("A" * 70_000, "longer than 65536", id="too long"),
    ],
)
def test_certificates(cert: str, problem: str) -> None:
    found = causes(domain(cert=cert))
    if not problem:
        assert found == {}
    else:
        assert problem in found["spec.cert"]
        assert causes(domain(cert=cert), domain(cert=cert)) == {}, "what was wrong before may stay"


@given(st.text(max_size=200))
def test_no_text_breaks_the_check(text: str) -> None:
    cert_problem(text)


@pytest.mark.parametrize(
    ("quota", "field", "message"),
    [
        pytest.param({"podMaxCount": 0}, "", "", id="none at all"),
        pytest.param({"podMaxCount": -1}, "spec.resourceQuota.podMaxCount", "greater than or equal to 0", id="negative pods"),
        pytest.param({"hard": {"cpu": "2", "bandwidth": "1Gbps", "nvidia.com/gpu": 1}}, "", "", id="amounts"),
        pytest.param({"hard": {"cpu": "-2"}}, "spec.resourceQuota.hard[cpu]", "greater than or equal to 0", id="negative"),
        pytest.param({"hard": {"bandwidth": "500m"}}, "spec.resourceQuota.hard[bandwidth]", "UnitInvalid", id="unit"),
        pytest.param({"hard": {"requests.cpu": 2}}, "spec.resourceQuota.hard[requests.cpu]", "write cpu", id="scoped"),
        pytest.param({"hard": {"count/pods": 2}}, "spec.resourceQuota.hard[count/pods]", "write pods", id="counted"),
        pytest.param(
            {"hard": {f"example.com/r{n}": 1 for n in range(65)}}, "spec.resourceQuota.hard", "at most 64", id="too many"
        ),
    ],
)
def test_quotas(quota: Raw, field: str, message: str) -> None:
    found = causes(domain(resourceQuota=quota))
    assert list(found) == ([field] if field else [])
    assert message in "".join(found.values())


@pytest.mark.parametrize("master", ["Master", "a_b", "x" * 64])
def test_master(master: str) -> None:
    assert "spec.master" in causes(domain(role="partner", master=master))
    assert causes(domain(role="partner", master="bob-master")) == {}
