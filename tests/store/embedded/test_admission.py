"""Hooks: what they see, what they may change, and what happens when the object changes while they think."""

from __future__ import annotations

import asyncio

import pytest

from muster.objects.status import BadRequest, Conflict, Forbidden, NotFound, Raw
from muster.store.contract import Operation, WriteOptions
from muster.store.embedded import Actor, AdmissionRequest, Admissions, EmbeddedStore
from tests.store.embedded.support import CONFIG_MAPS, PODS, config_map, open_store, pod


class Hook:
    """Notes what it is asked; changes or refuses on demand."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str, str]] = []
        self.requests: list[AdmissionRequest] = []
        self.labels: dict[str, str] = {}
        self.refuses = ""
        self.warning = ""

    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        self._note("mutate", request)
        if not self.labels or request.object is None:
            return None
        metadata = request.object["metadata"]
        return {**request.object, "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **self.labels}}}

    async def validate(self, request: AdmissionRequest) -> None:
        self._note("validate", request)
        if self.warning:
            request.warn(self.warning)
        if request.name == self.refuses:
            raise Forbidden(f"{request.resource.qualified} {request.name} is not wanted")

    def _note(self, step: str, request: AdmissionRequest) -> None:
        if request.resource.kind != "Namespace":
            self.asked.append((step, request.operation, request.name, request.subresource))
            self.requests.append(request)


async def hooked() -> tuple[EmbeddedStore, Hook]:
    hook = Hook()
    return await open_store(admission=hook), hook


async def test_every_write_is_asked_about() -> None:
    store, hook = await hooked()
    actor = Actor("alice", "u1", ("dev",))
    await store.create(CONFIG_MAPS, config_map("a"), "default", actor=actor)
    await store.update(CONFIG_MAPS, config_map("a", {"x": "1"}), "default", actor=actor)
    await store.patch(CONFIG_MAPS, "a", {"data": {"x": "2"}}, "default", actor=actor)
    await store.delete(CONFIG_MAPS, "a", "default", actor=actor)
    assert hook.asked == [
        ("mutate", "CREATE", "a", ""),
        ("validate", "CREATE", "a", ""),
        ("mutate", "UPDATE", "a", ""),
        ("validate", "UPDATE", "a", ""),
        ("mutate", "UPDATE", "a", ""),
        ("validate", "UPDATE", "a", ""),
        ("validate", "DELETE", "a", ""),
    ]
    assert all(request.actor == actor and request.namespace == "default" for request in hook.requests)
    last = hook.requests[-1]
    assert (last.object, last.old is not None and last.old["data"]) == (None, {"x": "2"})
    await store.close()


async def test_subresources_are_named() -> None:
    store, hook = await hooked()
    await store.create(PODS, pod("a"), "default")
    hook.asked.clear()
    await store.patch(PODS, "a", {"status": {"phase": "Running"}}, "default", subresource="status")
    await store.bind("a", "default", "n1")
    await store.evict("a", "default")
    assert [a for a in hook.asked if a[0] == "validate"] == [
        ("validate", "UPDATE", "a", "status"),
        ("validate", "CREATE", "a", "binding"),
        ("validate", "DELETE", "a", ""),
    ]
    await store.close()


async def test_a_hook_changes_the_object() -> None:
    store, hook = await hooked()
    hook.labels = {"team": "blue"}
    created = await store.create(CONFIG_MAPS, config_map("a", labels={"own": "1"}), "default")
    assert created["metadata"]["labels"] == {"own": "1", "team": "blue"}
    hook.labels = {"bad key!": "x"}
    with pytest.raises(Exception, match=r"metadata.labels"):
        await store.create(CONFIG_MAPS, config_map("b"), "default")
    await store.close()


async def test_a_hook_may_not_make_it_another_object() -> None:
    class Renames(Hook):
        async def mutate(self, request: AdmissionRequest) -> Raw | None:
            assert request.object is not None
            return {**request.object, "metadata": {**request.object["metadata"], "name": "other"}}

    store = await open_store()
    store.admission = Renames()
    with pytest.raises(BadRequest, match=r"changed metadata\.name"):
        await store.create(CONFIG_MAPS, config_map("a"), "default")
    await store.close()


async def test_a_refusal_changes_nothing() -> None:
    store, hook = await hooked()
    await store.create(CONFIG_MAPS, config_map("bad", finalizers=["example.com/x"]), "default")
    before = store.resource_version
    hook.refuses = "bad"
    for attempt in (
        store.create(CONFIG_MAPS, config_map("bad"), "default"),
        store.patch(CONFIG_MAPS, "bad", {"data": {"x": "1"}}, "default"),
        store.delete(CONFIG_MAPS, "bad", "default"),
        store.transaction(
            [
                Operation(verb="create", resource=CONFIG_MAPS, namespace="default", object=config_map("good")),
                Operation(verb="delete", resource=CONFIG_MAPS, namespace="default", name="bad"),
            ]
        ),
    ):
        with pytest.raises(Forbidden, match="configmaps bad is not wanted"):
            await attempt
    assert store.resource_version == before
    with pytest.raises(NotFound):
        await store.get(CONFIG_MAPS, "good", "default")
    await store.close()


async def test_warnings_reach_the_client() -> None:
    store, hook = await hooked()
    hook.warning = "this will be refused next year"
    warnings: list[str] = []
    await store.create(CONFIG_MAPS, config_map("a"), "default", warnings=warnings)
    await store.patch(CONFIG_MAPS, "a", {"data": {"x": "1"}}, "default", warnings=warnings)
    assert warnings == ["this will be refused next year"]
    await store.close()


async def test_dry_run_is_told() -> None:
    store, hook = await hooked()
    await store.create(CONFIG_MAPS, config_map("a"), "default", WriteOptions(dry_run=True))
    assert [request.dry_run for request in hook.requests] == [True, True]
    await store.close()


class Slow(Hook):
    """Thinks until it is allowed to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.thinking = asyncio.Event()
        self.go_on = asyncio.Event()

    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        if request.actor is not None:
            self.asked.append(("mutate", request.operation, request.name, ""))
            self.thinking.set()
            await self.go_on.wait()
        return None


async def test_what_changed_while_a_hook_was_thinking_is_not_overwritten() -> None:
    store = await open_store()
    await store.create(CONFIG_MAPS, config_map("a", {"n": "0"}), "default")
    hook = Slow()
    store.admission = hook
    slow = asyncio.ensure_future(store.patch(CONFIG_MAPS, "a", {"data": {"slow": "1"}}, "default", actor=Actor("slow")))
    await hook.thinking.wait()
    await store.patch(CONFIG_MAPS, "a", {"data": {"quick": "1"}}, "default")
    hook.go_on.set()
    assert (await slow)["data"] == {"n": "0", "slow": "1", "quick": "1"}
    assert hook.asked.count(("mutate", "UPDATE", "a", "")) == 2, "the hook was asked again about the new object"
    await store.close()


async def test_a_version_given_up_while_a_hook_was_thinking_is_a_conflict() -> None:
    store = await open_store()
    created = await store.create(CONFIG_MAPS, config_map("a", {"n": "0"}), "default")
    hook = Slow()
    store.admission = hook
    slow = asyncio.ensure_future(store.update(CONFIG_MAPS, {**created, "data": {"n": "1"}}, "default", actor=Actor("slow")))
    await hook.thinking.wait()
    await store.patch(CONFIG_MAPS, "a", {"data": {"n": "2"}}, "default")
    hook.go_on.set()
    with pytest.raises(Conflict):
        await slow
    assert (await store.get(CONFIG_MAPS, "a", "default"))["data"] == {"n": "2"}
    await store.close()


async def test_a_namespace_that_goes_while_a_hook_was_thinking() -> None:
    from tests.store.embedded.support import NAMESPACES

    store = await open_store()
    await store.create(NAMESPACES, {"metadata": {"name": "short-lived"}})
    hook = Slow()
    store.admission = hook
    slow = asyncio.ensure_future(store.create(CONFIG_MAPS, config_map("a"), "short-lived", actor=Actor("slow")))
    await hook.thinking.wait()
    await store.delete(NAMESPACES, "short-lived")
    await store.settled()
    hook.go_on.set()
    with pytest.raises(NotFound, match='namespaces "short-lived" not found'):
        await slow
    await store.close()


async def test_several_hooks_in_order() -> None:
    one, two = Hook(), Hook()
    one.labels, two.labels = {"l": "one", "m": "one"}, {"l": "two"}
    store = await open_store(admission=Admissions([one, two]))
    created = await store.create(CONFIG_MAPS, config_map("a"), "default")
    assert created["metadata"]["labels"] == {"l": "two", "m": "one"}
    seen = two.requests[-1].object
    assert seen is not None
    assert seen["metadata"]["labels"] == {"l": "two", "m": "one"}
    await store.close()
