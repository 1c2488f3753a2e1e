"""Whoever creates what nobody here acts on is told; nobody else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.objects.catalog import CATALOG
from muster.objects.status import Raw
from muster.server.run import Server
from muster.server.unattended import UNATTENDED, Unattended
from muster.store.embedded import AdmissionRequest
from muster.store.embedded.admission import Actor, AdmissionOperation
from tests.server.running import running

_ACTOR = Actor(user="kim")


async def _said(
    group: str,
    kind: str,
    *,
    operation: AdmissionOperation = "CREATE",
    actor: Actor | None = _ACTOR,
    subresource: str = "",
    old: Raw | None = None,
    new: Raw | None = None,
) -> list[str]:
    said: list[str] = []
    request = AdmissionRequest(
        operation=operation,
        resource=CATALOG.by_kind(group, kind),
        namespace="default",
        name="shop",
        old=old,
        object=new or {},
        subresource=subresource,
        actor=actor,
        warn=said.append,
    )
    await Unattended().validate(request)
    return said


@pytest.mark.parametrize(("group", "kind"), UNATTENDED)
async def test_a_creation_is_answered_with_a_warning(group: str, kind: str) -> None:
    (said,) = await _said(group, kind)
    assert said.startswith(f"{kind} shop is stored, but no controller here acts on it: ")
    assert len(said) <= 256, "longer ones are cut on their way"


async def test_nothing_else_is() -> None:
    assert not await _said("apps", "Deployment", operation="UPDATE")
    assert not await _said("apps", "Deployment", subresource="status")
    assert not await _said("apps", "Deployment", actor=None)
    for group, kind in (("", "Pod"), ("", "ConfigMap"), ("muster.dev", "Job"), ("kuscia.secretflow", "KusciaDeployment")):
        assert not await _said(group, kind)


async def test_labels_that_ask_for_pod_security_are_answered_with_a_warning() -> None:
    key = "pod-security.kubernetes.io/enforce"
    plain: Raw = {"metadata": {"labels": {"team": "red"}}}
    baseline: Raw = {"metadata": {"labels": {"team": "red", key: "baseline"}}}
    restricted: Raw = {"metadata": {"labels": {key: "restricted"}}}
    said = f"Namespace shop: the label {key}=baseline is stored, but nothing here checks pods by it"
    assert await _said("", "Namespace", new=baseline) == [said]
    assert await _said("", "Namespace", operation="UPDATE", old=plain, new=baseline) == [said]
    assert len(await _said("", "Namespace", operation="UPDATE", old=baseline, new=restricted)) == 1
    assert not await _said("", "Namespace", operation="UPDATE", old=baseline, new=baseline), "told once"
    assert not await _said("", "Namespace", operation="UPDATE", old=baseline, new=plain)
    assert not await _said("", "Namespace", new=plain)


def test_it_arrives(tmp_path: Path) -> None:
    def with_hook(server: Server) -> None:
        server.extra_hooks.append(Unattended())

    container = {"name": "main", "image": "nginx:1"}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    with running(tmp_path, prepare=with_hook) as made:
        reply = made.request("POST", "/apis/apps/v1/namespaces/default/deployments", {"metadata": {"name": "s"}, "spec": spec})
        assert reply.code == 201
        assert "no pods are made of it; for services use a KusciaDeployment" in reply.headers["warning"]
