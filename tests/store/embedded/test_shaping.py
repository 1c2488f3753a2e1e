"""What a write hears: everything that is wrong at once, and that it is too large before much work went into it."""

from __future__ import annotations

from typing import Any

import pytest

from muster.objects.catalog import CATALOG
from muster.objects.status import BadRequest, Invalid, Raw, RequestEntityTooLarge
from muster.store.embedded import AdmissionRequest, Limits, shaping
from tests.store.embedded.support import CONFIG_MAPS, PODS, config_map, open_store, pod

KUSCIA_JOBS = CATALOG.by_kind("kuscia.secretflow", "KusciaJob")


def job(name: str, **spec: Any) -> Raw:
    parties = [{"domainID": "alice"}]
    tasks = [{"alias": "psi", "appImage": "image", "taskInputConfig": "{}", "parties": parties}]
    return {"metadata": {"name": name}, "spec": {"initiator": "alice", "scheduleMode": "Strict", "tasks": tasks, **spec}}


async def test_schema_and_rules_are_reported_together() -> None:
    store = await open_store()
    await store.create(KUSCIA_JOBS, job("good"), "default")
    with pytest.raises(Invalid) as refused:
        await store.create(KUSCIA_JOBS, job("Bad_Name", maxParallelism="two"), "default")
    assert [cause.field for cause in refused.value.causes] == ["spec.maxParallelism", "metadata.name"]
    await store.close()


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        pytest.param({"containers": "none"}, ["spec.containers", "metadata.name"], id="a field has one cause"),
        pytest.param("none", ["spec", "metadata.name"], id="nothing is said of the inside of what is no object"),
        pytest.param(
            {"containers": [{"name": "A B", "image": 1}]},
            ["spec.containers[0].image", "metadata.name", "spec.containers[0].name"],
            id="a neighbour is spoken of",
        ),
    ],
)
async def test_a_field_is_named_once(spec: Any, fields: list[str]) -> None:
    store = await open_store()
    with pytest.raises(Invalid) as refused:
        await store.create(PODS, {"metadata": {"name": "Bad_Name"}, "spec": spec}, "default")
    assert [cause.field for cause in refused.value.causes] == fields
    await store.close()


class Steps:
    """Counts the steps that cost much, and does them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: list[str] = []
        for name in ("apply_defaults", "validate_object"):
            monkeypatch.setattr(shaping, name, self._counted(name, getattr(shaping, name)))

    def _counted(self, name: str, step: Any) -> Any:
        def counted(*args: Any, **options: Any) -> Any:
            self.taken.append(name)
            return step(*args, **options)

        return counted


@pytest.mark.parametrize(
    ("count", "image"),
    [pytest.param(40_000, "example.com/app:1", id="as sent"), pytest.param(20_000, "a", id="with the schema's defaults")],
)
async def test_what_is_too_large_is_refused_before_the_work(count: int, image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store()
    steps = Steps(monkeypatch)
    large = pod("large")
    large["spec"]["containers"] = [{"name": f"c{number}", "image": image} for number in range(count)]
    with pytest.raises(RequestEntityTooLarge, match=r'pods "large" has [0-9]+ bytes as JSON and the limit is 1572864'):
        await store.create(PODS, large, "default")
    assert steps.taken == []
    await store.create(PODS, pod("small"), "default")
    assert steps.taken == ["apply_defaults", "validate_object"]
    await store.close()


class Inflating:
    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        return {**request.object, "data": {"x": "y" * 3000}} if request.object and request.name == "a" else None

    async def validate(self, request: AdmissionRequest) -> None:
        assert request.name != "a", "too large to be asked about"


async def test_what_a_hook_makes_too_large_is_refused() -> None:
    store = await open_store(admission=Inflating(), limits=Limits(object_bytes_max=2000))
    with pytest.raises(RequestEntityTooLarge, match=r'configmaps "a" has [0-9]+ bytes'):
        await store.create(CONFIG_MAPS, config_map("a"), "default")
    await store.close()


async def test_what_is_not_json_is_a_bad_request() -> None:
    store = await open_store()
    with pytest.raises(BadRequest, match=r'configmaps "a" can\'t be written as JSON'):
        await store.create(CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"x": object()}}, "default")
    await store.close()
