"""KusciaDeployments: parties, replicas, strategies and names; each wrong field is named, with the way out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.catalog import CATALOG
from muster.objects.labels import KusciaAnnotation
from muster.objects.rules.kuscia_deployments import share_problem
from muster.objects.schema import schema_of
from muster.objects.status import Raw
from muster.objects.structural import Structural
from muster.objects.validation import validate_object

KIND = CATALOG.by_kind("kuscia.secretflow", "KusciaDeployment")
assert KIND.view is not None
STRUCTURAL = Structural(schema_of(KIND.view))


def party(domain: str = "alice", **more: Any) -> Raw:
    return {"domainID": domain, "appImageRef": "serving", **more}


def deployment(*parties: Raw, mode: str = "", **spec: Any) -> Raw:
    metadata: Raw = {"name": "credit", "namespace": "cross-domain"}
    if mode:
        metadata["annotations"] = {KusciaAnnotation.AFFINITY_MODE: mode}
    whole = {"initiator": "alice", "inputConfig": "{}", "parties": list(parties), **spec}
    return {"apiVersion": KIND.api_version, "kind": KIND.kind, "metadata": metadata, "spec": whole}


def causes(raw: Raw, old: Raw | None = None) -> dict[str, str]:
    found = STRUCTURAL.validate(raw) or validate_object(KIND, raw, old)
    return {cause.field: cause.message for cause in found}


def rolling(**shares: Any) -> Raw:
    return party(template={"strategy": {"type": "RollingUpdate", "rollingUpdate": shares}})


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(deployment(party()), id="plain"),
        pytest.param(deployment(party(), party("bob", role="server")), id="two parties"),
        pytest.param(deployment(party(role="a"), party(role="b")), id="two roles of one party"),
        pytest.param(deployment(party(template={"replicas": 0})), id="scaled to none"),
        pytest.param(deployment(rolling(maxSurge="25%", maxUnavailable=0)), id="shares"),
        pytest.param(deployment(party(template={"strategy": {"type": "Recreate"}})), id="recreate"),
        pytest.param(deployment(party(serviceNamePrefix="credit"), mode="none"), id="prefix and mode"),
    ],
)
def test_taken(raw: Raw) -> None:
    assert causes(raw) == {}


@pytest.mark.parametrize(
    ("raw", "field", "words"),
    [
        pytest.param(deployment(), "spec.parties", "at least one party", id="nobody"),
        pytest.param(deployment(party(), initiator=""), "spec.initiator", "whose service", id="no initiator"),
        pytest.param(deployment(party("Alice")), "spec.parties[0].domainID", "lower case", id="party"),
        pytest.param(deployment(party(role="a b")), "spec.parties[0].role", "lower case", id="role"),
        pytest.param(deployment(party(appImageRef="")), "spec.parties[0].appImageRef", "AppImage", id="no image"),
        pytest.param(deployment(party(), party()), "spec.parties[1]", "DuplicateName", id="twice"),
        pytest.param(
            deployment(party(role="a", serviceNamePrefix="x"), party(role="b", serviceNamePrefix="x")),
            "spec.parties[1].serviceNamePrefix",
            "DuplicateName",
            id="one prefix twice",
        ),
        pytest.param(
            deployment(party(serviceNamePrefix="1x")),
            "spec.parties[0].serviceNamePrefix",
            "beginning with a letter",
            id="prefix",
        ),
        pytest.param(
            deployment(party(serviceNamePrefix="x" * 41)), "spec.parties[0].serviceNamePrefix", "no more than 40", id="long"
        ),
        pytest.param(
            deployment(party(template={"replicas": 1001})), "spec.parties[0].template.replicas", "0 to 1,000", id="replicas"
        ),
        pytest.param(
            deployment(rolling(maxSurge="x")),
            "spec.parties[0].template.strategy.rollingUpdate.maxSurge",
            "percentage",
            id="surge",
        ),
        pytest.param(
            deployment(rolling(maxSurge=0, maxUnavailable="0%")),
            "spec.parties[0].template.strategy.rollingUpdate.maxUnavailable",
            "nothing could move",
            id="both nothing",
        ),
        pytest.param(
            deployment(party(template={"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}})),
            "spec.parties[0].template.strategy.rollingUpdate",
            "no meaning with type Recreate",
            id="recreate with shares",
        ),
        pytest.param(
            deployment(party(), mode="far"),
            f"metadata.annotations[{KusciaAnnotation.AFFINITY_MODE}]",
            "none, affinity, anti-affinity",
            id="mode",
        ),
        pytest.param(
            deployment(party(template={"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2Mbps"}}}]}})),
            "spec.parties[0].template.spec.containers[0].resources.requests[cpu]",
            "",
            id="amounts",
        ),
    ],
)
def test_refused(raw: Raw, field: str, words: str) -> None:
    found = causes(raw)
    assert list(found) == [field]
    assert words in found[field]
    assert causes({**raw, "spec": {**raw["spec"], "inputConfig": "x"}}, raw) == {}, "what was wrong before may stay"


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)))
def test_no_value_breaks_a_share(value: Any) -> None:
    share_problem(value)
