"""The server against its own OpenAPI: requests that schemathesis makes of what is served, right ones and wrong ones.

The server must answer each without a 5xx, and with a Status when it refuses. `make soak` walks every group with many examples;
otherwise small groups with a few: making one body of a pod's schema takes seconds. Each group is a test, so that a long run
shows how far it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.counts import SOAK
from tests.server.running import RunningServer, running

_EXAMPLES = 25 if SOAK else 2
_SMALL = ("apis/coordination.k8s.io/v1", "apis/scheduling.k8s.io/v1", "apis/authorization.k8s.io/v1", "apis/node.k8s.io/v1")
_LARGE = (
    "api/v1",
    "apis/admissionregistration.k8s.io/v1",
    "apis/apiextensions.k8s.io/v1",
    "apis/apps/v1",
    "apis/authentication.k8s.io/v1",
    "apis/autoscaling/v1",
    "apis/autoscaling/v2",
    "apis/batch/v1",
    "apis/config.koordinator.sh/v1alpha1",
    "apis/discovery.k8s.io/v1",
    "apis/events.k8s.io/v1",
    "apis/kuscia.secretflow/v1alpha1",
    "apis/metrics.k8s.io/v1beta1",
    "apis/muster.dev/v1alpha1",
    "apis/networking.k8s.io/v1",
    "apis/policy/v1",
    "apis/quota.koordinator.sh/v1alpha1",
    "apis/rbac.authorization.k8s.io/v1",
    "apis/scheduling.koordinator.sh/v1alpha1",
    "apis/scheduling.sigs.k8s.io/v1alpha1",
    "apis/slo.koordinator.sh/v1alpha1",
    "apis/storage.k8s.io/v1",
)


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("victim")) as made:
        yield made


def _served(server: RunningServer) -> dict[str, str]:
    """Group and version to where its document is."""
    found = server.request("GET", "/openapi/v3").json["paths"]
    return {name: each["serverRelativeURL"] for name, each in found.items()}


def test_the_list_of_groups_is_what_is_served(victim: RunningServer) -> None:
    assert sorted(_served(victim)) == sorted({*_SMALL, *_LARGE})


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("group", [*_SMALL, *_LARGE] if SOAK else _SMALL)
def test_every_operation_answers(victim: RunningServer, group: str) -> None:
    from schemathesis import GenerationMode, openapi
    from schemathesis.core.result import Ok

    asked = 0
    document = victim.request("GET", _served(victim)[group]).json
    for found in openapi.from_dict(document).get_all_operations():
        assert isinstance(found, Ok), f"{group}: {found}"
        operation = found.ok()

        @given(case=operation.as_strategy(GenerationMode.POSITIVE) | operation.as_strategy(GenerationMode.NEGATIVE))
        @settings(max_examples=_EXAMPLES, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
        def ask(case: Any) -> None:
            nonlocal asked
            asked += 1
            _ask(victim, case)

        ask()
    assert asked >= _EXAMPLES


def _ask(server: RunningServer, case: Any) -> None:
    query = dict(case.query or {})
    if query.get("watch") not in (None, "false", False):
        query["timeoutSeconds"] = "1"
    case.query = query
    made = case.as_transport_kwargs(base_url=f"https://localhost:{server.server.port}")
    from requests import Request

    sent = Request(**{key: value for key, value in made.items() if key not in ("timeout", "cookies")}).prepare()
    path = (sent.url or "").partition(str(server.server.port))[2]
    body = sent.body.encode() if isinstance(sent.body, str) else sent.body
    headers = {key: str(value) for key, value in sent.headers.items() if key.lower() in ("content-type", "accept")}
    reply = server.request(str(sent.method), path, body, headers=headers)
    said = (sent.method, path, body, reply.code, reply.body[:500])
    assert reply.code < 500 or (reply.code == 504 and reply.reason == "Timeout"), said
    if reply.code >= 400:
        assert json.loads(reply.body)["kind"] == "Status", said
