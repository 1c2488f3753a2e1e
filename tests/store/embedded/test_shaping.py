"""What a write hears: everything that is wrong at once, and that it is too large before much work went into it."""

from __future__ import annotations

from typing import Any

import pytest

from muster.objects import structural_shape
from muster.objects.catalog import CATALOG
from muster.objects.status import AlreadyExists, BadRequest, Invalid, Raw, RequestEntityTooLarge
from muster.store.contract import PatchType, WriteOptions
from muster.store.embedded import AdmissionRequest, Limits, patches, shaping
from muster.store.embedded.context import LARGE_BYTES
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
    with pytest.raises(BadRequest, match='Pod in version "v1" cannot be handled as a Pod: ') as refused:
        await store.create(PODS, {"metadata": {"name": "Bad_Name"}, "spec": spec}, "default")
    assert [cause.field for cause in refused.value.causes] == fields
    await store.close()


async def test_a_wrong_quantity_is_named_once_and_in_words() -> None:
    store = await open_store()
    wrong = pod("p")
    wrong["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "lots"}}
    with pytest.raises(BadRequest) as refused:
        await store.create(PODS, wrong, "default")
    (cause,) = refused.value.causes
    assert cause.field == "spec.containers[0].resources.requests.cpu"
    assert '"lots": must be a quantity such as 500m, 1.5Gi or 2e3' in cause.message
    await store.close()


async def test_what_was_stored_in_another_spelling_may_still_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store()
    sent = pod("p")
    sent["spec"]["containers"][0]["resources"] = {"requests": {"cpu": 0.5}}
    with monkeypatch.context() as before:
        before.setattr(structural_shape, "as_kept", lambda value, is_listed: value)
        made = await store.create(PODS, sent, "default")
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"cpu": 0.5}
    labelled = {**made, "metadata": {**made["metadata"], "labels": {"a": "b"}}}
    changed = await store.update(PODS, labelled)
    assert changed["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "500m"}
    other = {**changed["spec"]["containers"][0], "resources": {"requests": {"cpu": 1}}}
    with pytest.raises(Invalid):
        await store.update(PODS, {**changed, "spec": {**changed["spec"], "containers": [other]}})
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


# -- large objects let others run between their steps -------------------------------------------------------------------------


class Turns:
    """Counts the turns that a write asks for, and does something in one of them."""

    def __init__(self, act: Any = None, at: int = 1) -> None:
        self.taken = 0
        self._act, self._at = act, at

    async def __call__(self) -> None:
        self.taken += 1
        if self._act is not None and self.taken == self._at:
            await self._act()


def large(name: str, size: int = 2 * LARGE_BYTES) -> Raw:
    return config_map(name, {"k": "v" * size})


async def test_a_large_object_takes_turns_and_a_small_one_does_not() -> None:
    store = await open_store()
    for raw, least, most in ((large("large"), 5, 20), (config_map("small", {"k": "v"}), 0, 0)):
        name = raw["metadata"]["name"]
        turn = Turns()
        record = await store.create_record(CONFIG_MAPS, raw, "default", turn=turn)
        assert least <= turn.taken <= most
        turn = Turns()
        changed = {**record.raw(), "data": {"k": "w" * len(raw["data"]["k"])}}
        await store.update_record(CONFIG_MAPS, changed, "default", turn=turn)
        assert least <= turn.taken <= most
        for patch_type in (PatchType.MERGE, PatchType.STRATEGIC, PatchType.APPLY):
            turn = Turns()
            labelled = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"labels": {"a": patch_type.name.lower()}}}
            options = WriteOptions(field_manager="me", force=patch_type is PatchType.APPLY)
            await store.patch_record(CONFIG_MAPS, name, labelled, "default", options, patch_type=patch_type, turn=turn)
            assert least <= turn.taken <= most
    await store.close()


@pytest.mark.parametrize("at", range(1, 8))
async def test_what_others_do_in_between_is_noticed(at: int) -> None:
    store = await open_store()

    async def create() -> None:
        await store.create(CONFIG_MAPS, config_map("one", {"k": "theirs"}), "default")

    with pytest.raises(AlreadyExists):
        await store.create_record(CONFIG_MAPS, large("one"), "default", turn=Turns(create, at))

    await store.create(CONFIG_MAPS, large("two"), "default")

    async def label() -> None:
        await store.patch(CONFIG_MAPS, "two", {"metadata": {"labels": {"theirs": "yes"}}}, "default")

    patch = {"metadata": {"labels": {"mine": "yes"}}}
    record = await store.patch_record(CONFIG_MAPS, "two", patch, "default", turn=Turns(label, at))
    assert record.raw()["metadata"]["labels"] == {"mine": "yes", "theirs": "yes"}
    await store.close()


async def test_a_write_that_is_disturbed_again_and_again_is_soon_left_in_peace() -> None:
    store = await open_store()
    await store.create(CONFIG_MAPS, large("busy"), "default")
    count = 0

    async def disturb() -> None:
        nonlocal count
        count += 1
        await store.patch(CONFIG_MAPS, "busy", {"metadata": {"labels": {"n": str(count)}}}, "default")

    record = await store.patch_record(CONFIG_MAPS, "busy", {"metadata": {"labels": {"mine": "yes"}}}, "default", turn=disturb)
    assert record.raw()["metadata"]["labels"] == {"mine": "yes", "n": str(count)}
    await store.close()


# -- patches that are too large by themselves ---------------------------------------------------------------------------------


@pytest.mark.parametrize("patch_type", [PatchType.MERGE, PatchType.STRATEGIC, PatchType.APPLY])
async def test_a_patch_too_large_for_any_object_is_not_merged(patch_type: PatchType, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any, **options: Any) -> Any:
        raise AssertionError("went on to merge it")

    store = await open_store(limits=Limits(object_bytes_max=10_000))
    await store.create(CONFIG_MAPS, config_map("m", {"k": "v"}), "default")
    monkeypatch.setattr(patches, "patched_with", never)
    monkeypatch.setattr(patches, "apply_steps", never)
    patch = config_map("m", {f"k{n}": "v" for n in range(2_000)})
    for name in ("m",) if patch_type is not PatchType.APPLY else ("m", "new"):
        patch["metadata"]["name"] = name
        with pytest.raises(RequestEntityTooLarge, match=rf'configmaps "{name}" has \d+ bytes as JSON and the limit is 10000'):
            await store.patch(CONFIG_MAPS, name, patch, "default", WriteOptions(field_manager="me"), patch_type=patch_type)
    await store.close()


@pytest.mark.parametrize(
    ("patch_type", "removal"),
    [
        pytest.param(PatchType.MERGE, {"data": {f"k{n}": None for n in range(2_000)}}, id="nulls"),
        pytest.param(
            PatchType.STRATEGIC,
            {"metadata": {"$deleteFromPrimitiveList/finalizers": [f"a.b/c{n}" for n in range(2_000)]}},
            id="directives",
        ),
    ],
)
async def test_a_large_patch_that_takes_away_is_merged(patch_type: PatchType, removal: Raw) -> None:
    store = await open_store(limits=Limits(object_bytes_max=10_000))
    await store.create(CONFIG_MAPS, config_map("m", {"k1": "v", "other": "w"}, finalizers=["a.b/c1"]), "default")
    patched = await store.patch(CONFIG_MAPS, "m", removal, "default", patch_type=patch_type)
    assert patched["data"].keys() <= {"k1", "other"}
    assert ("k1" in patched["data"]) is (patch_type is PatchType.STRATEGIC)
    assert ("finalizers" in patched["metadata"]) is (patch_type is PatchType.MERGE)
    await store.close()
