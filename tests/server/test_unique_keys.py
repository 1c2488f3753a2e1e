"""What one object only may have: of writes that come at once one gets it, whatever fails, and after a restart too."""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.objects.catalog import CATALOG
from muster.objects.resources import Resource
from muster.objects.status import ApiError, Forbidden, Raw
from muster.server.admission import Hook
from muster.server.limits_admission import SubmissionLimits
from muster.server.people import People
from muster.server.rbac import Attributes
from muster.server.unique_keys import UniqueKeys
from muster.server.unique_rules import RULES, PodRanges
from muster.store.contract import Operation, WriteOptions
from muster.store.embedded import EmbeddedStore
from muster.store.embedded.admission import Actor, AdmissionRequest
from tests.server.running import RunningServer, running
from tests.store.embedded.faulty import faulty_disk
from tests.store.embedded.support import CRDS, open_store

SEEDS = 200 if os.environ.get("MUSTER_SOAK") else 10
DRY = WriteOptions(dry_run=True)
ADMIN = Actor(user="root", groups=("system:masters", "system:authenticated"))


class Kind(msgspec.Struct, frozen=True):
    """A kind with a rule. `having` is what an object says that has a key; two objects with one of them can't be."""

    resource: Resource
    without: Raw
    having: tuple[Raw, ...]
    """The first takes the key, as all of these do."""
    said: str

    def object(self, name: str, part: Raw | None = None) -> Raw:
        return {
            "apiVersion": self.resource.api_version,
            "kind": self.resource.kind,
            "metadata": {"name": name},
            **_merged(self.without, part or {}),
        }

    def has(self, raw: Raw) -> bool:
        return any(_says(raw, part) for part in self.having)


def _merged(first: Raw, second: Raw) -> Raw:
    return {
        key: {**first.get(key, {}), **second[key]} if isinstance(second.get(key), dict) else second.get(key, first.get(key))
        for key in {*first, *second}
    }


def _says(raw: Raw, part: Raw) -> bool:
    return all(
        _says(raw.get(key) or {}, value) if isinstance(value, dict) else raw.get(key) == value for key, value in part.items()
    )


KINDS = {
    "logins": Kind(
        CATALOG.by_kind("muster.dev", "User"),
        {"spec": {"group": "g"}},
        ({"spec": {"usernames": ["x@example.org"]}}, {"spec": {"usernames": ["a-second", "x@example.org"]}}),
        "spec.usernames: 'x@example.org' is User {other} already; a login stands for one user",
    ),
    "default": Kind(
        CATALOG.by_kind("scheduling.k8s.io", "PriorityClass"),
        {"value": 1000},
        ({"globalDefault": True},),
        "PriorityClass {other} is already marked as default. Only one default can exist",
    ),
    "ranges": Kind(
        CATALOG.by_kind("", "Node"),
        {"spec": {}},
        ({"spec": {"podCIDR": "10.7.1.0/24", "podCIDRs": ["10.7.1.0/24"]}},),
        "spec.podCIDR: '10.7.1.0/24': node {other} has addresses in it; choose another, or leave it out",
    ),
}


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


class Slow(Hook):
    """Lets others run, as webhooks do."""

    async def mutate(self, request: AdmissionRequest) -> None:
        await asyncio.sleep(0)

    async def validate(self, request: AdmissionRequest) -> None:
        await asyncio.sleep(0)


@asynccontextmanager
async def opened(path: Path | None = None) -> AsyncIterator[EmbeddedStore]:
    store = await open_store(path, admission=Slow())
    UniqueKeys(store, RULES).start()
    try:
        yield store
    finally:
        await store.close()


async def refusals(writes: Iterable[Awaitable[Any]]) -> list[str]:
    """Of writes at once: "" for each that came to be, and what the others were told. Whatever is not Forbidden is raised."""
    answers = await asyncio.gather(*writes, return_exceptions=True)
    others = [answer for answer in answers if isinstance(answer, BaseException) and not isinstance(answer, Forbidden)]
    assert not others
    return [str(answer) if isinstance(answer, Forbidden) else "" for answer in answers]


def owners(store: EmbeddedStore, kind: Kind) -> list[str]:
    return [record.name for record in store.list_records(kind.resource).records if kind.has(record.raw())]


def parts(kind: Kind, count: int) -> Iterator[Raw]:
    for number in range(count):
        yield kind.having[number % len(kind.having)]


# -- at once ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_on_disk", [True, False])
async def test_of_many_that_are_created_at_once_one_comes_to_be(tmp_path: Path, kind: Kind, is_on_disk: bool) -> None:
    async with opened(tmp_path / "s" if is_on_disk else None) as store:
        made = [kind.object(f"o{n}", part) for n, part in enumerate(parts(kind, 20))]
        said = await refusals(store.create(kind.resource, one) for one in made)
        assert said == [
            "",
            *(f'{kind.resource.qualified} "o{n}" is forbidden: {kind.said.format(other="o0")}' for n in range(1, 20)),
        ]
        assert owners(store, kind) == ["o0"]


Write = Callable[[EmbeddedStore, Kind, str, Raw], Awaitable[Any]]


async def _update(store: EmbeddedStore, kind: Kind, name: str, part: Raw) -> None:
    found = await store.get(kind.resource, name)
    await store.update(kind.resource, {**found, **_merged(kind.without, part)})


async def _patch(store: EmbeddedStore, kind: Kind, name: str, part: Raw) -> None:
    await store.patch(kind.resource, name, part)


async def _transaction(store: EmbeddedStore, kind: Kind, name: str, part: Raw) -> None:
    await store.transaction([Operation(verb="patch", resource=kind.resource, name=name, patch=part)])


@pytest.mark.parametrize("write", [_update, _patch, _transaction])
async def test_of_many_that_change_at_once_one_gets_it(tmp_path: Path, kind: Kind, write: Write) -> None:
    async with opened(tmp_path / "s") as store:
        names = [f"o{n}" for n in range(10)]
        for name in names:
            await store.create(kind.resource, kind.object(name))
        said = await refusals(write(store, kind, name, part) for name, part in zip(names, parts(kind, 10), strict=True))
        assert said.count("") == 1
        assert owners(store, kind) == [names[said.index("")]]


async def test_one_that_has_it_may_change_in_everything_else(kind: Kind) -> None:
    async with opened() as store:
        await store.create(kind.resource, kind.object("a", kind.having[0]))
        await store.patch(kind.resource, "a", {"metadata": {"labels": {"l": "1"}}})
        await store.patch(kind.resource, "a", kind.having[-1])
        with pytest.raises(Forbidden):
            await store.create(kind.resource, kind.object("b", kind.having[0]))


async def test_a_dry_run_is_judged_and_takes_nothing(kind: Kind) -> None:
    async with opened() as store:
        for name in ("a", "b"):
            await store.create(kind.resource, kind.object(name, kind.having[0]), None, DRY)
        await store.create(kind.resource, kind.object("b", kind.having[0]))
        with pytest.raises(Forbidden, match=re.escape(kind.said.format(other="b"))):
            await store.create(kind.resource, kind.object("a", kind.having[0]), None, DRY)


# -- given up -----------------------------------------------------------------------------------------------------------------


async def test_whoever_goes_frees_it_from_the_moment_the_deletion_is_submitted(tmp_path: Path, kind: Kind) -> None:
    async with opened(tmp_path / "s") as store:
        await store.create(kind.resource, kind.object("a", kind.having[0]))
        deleting = store.delete(kind.resource, "a")
        assert await refusals([deleting, store.create(kind.resource, kind.object("b", kind.having[0]))]) == ["", ""]
        assert owners(store, kind) == ["b"]


async def test_what_waits_for_a_finalizer_has_it_still(kind: Kind) -> None:
    async with opened() as store:
        kept = kind.object("a", kind.having[0])
        kept["metadata"]["finalizers"] = ["example.org/waits"]
        await store.create(kind.resource, kept)
        await store.delete(kind.resource, "a")
        with pytest.raises(Forbidden):
            await store.create(kind.resource, kind.object("b", kind.having[0]))
        await store.patch(kind.resource, "a", {"metadata": {"finalizers": None}})
        await store.create(kind.resource, kind.object("b", kind.having[0]))


async def test_within_a_transaction_it_changes_hands(kind: Kind) -> None:
    async with opened() as store:
        await store.create(kind.resource, kind.object("a", kind.having[0]))
        going = Operation(verb="delete", resource=kind.resource, name="a")
        taking = Operation(verb="create", resource=kind.resource, object=kind.object("b", kind.having[0]))
        await store.transaction([going, taking])
        assert owners(store, kind) == ["b"]
        back = Operation(verb="create", resource=kind.resource, object=kind.object("a", kind.having[0]))
        await store.transaction([back, Operation(verb="delete", resource=kind.resource, name="b")])
        assert owners(store, kind) == ["a"], "it is judged as a whole: the order does not matter"


async def test_two_of_one_transaction_do_not_both_have_it(kind: Kind) -> None:
    async with opened() as store:
        both = [
            Operation(verb="create", resource=kind.resource, object=kind.object(name, part))
            for name, part in zip("ab", parts(kind, 2), strict=True)
        ]
        with pytest.raises(Forbidden) as refused:
            await store.transaction(both)
        assert str(refused.value).endswith(kind.said.format(other="a"))
        assert not store.list_records(kind.resource).records, "all or nothing"
        await store.transaction(both[1:])


async def test_two_users_swap_their_logins() -> None:
    kind = KINDS["logins"]
    async with opened() as store:
        for name, login in (("a", "x"), ("b", "y")):
            await store.create(kind.resource, kind.object(name, {"spec": {"usernames": [login]}}))
        swap = [
            Operation(verb="patch", resource=kind.resource, name=name, patch={"spec": {"usernames": [login]}})
            for name, login in (("a", "y"), ("b", "x"))
        ]
        with pytest.raises(Forbidden):
            await store.transaction(swap[:1])
        await store.transaction(swap)
        found = {record.name: record.raw()["spec"]["usernames"] for record in store.list_records(kind.resource).records}
        assert found == {"a": ["y"], "b": ["x"]}


async def test_a_user_without_logins_has_its_name(tmp_path: Path) -> None:
    kind = KINDS["logins"]
    async with opened(tmp_path / "s") as store:
        both = [kind.object("ann"), kind.object("eve", {"spec": {"usernames": ["ann"]}})]
        assert (await refusals(store.create(kind.resource, one) for one in both)).count("") == 1


# -- what fails, and what starts again ----------------------------------------------------------------------------------------


async def test_what_was_not_stored_takes_nothing_and_gives_nothing_up(tmp_path: Path, kind: Kind) -> None:
    with faulty_disk() as disk:
        async with opened(tmp_path / "s") as store:
            disk.fail(0, 1000, full=True)
            with pytest.raises(ApiError) as failed:
                await store.create(kind.resource, kind.object("a", kind.having[0]))
            assert not isinstance(failed.value, Forbidden)
            disk.fail(0, 0, full=False)
            await store.create(kind.resource, kind.object("b", kind.having[0]))
            disk.fail(0, 1000, full=True)
            with pytest.raises(ApiError):
                await store.delete(kind.resource, "b")
            disk.fail(0, 0, full=False)
            with pytest.raises(Forbidden):
                await store.create(kind.resource, kind.object("c", kind.having[0]))
            assert owners(store, kind) == ["b"]


async def test_a_refusal_that_rested_on_what_failed_is_none(tmp_path: Path, kind: Kind) -> None:
    """The first of them has it while it is in flight. Its commit fails: nobody else is refused for its sake."""
    with faulty_disk() as disk:
        async with opened(tmp_path / "s") as store:
            disk.fail(0, 1, full=True)
            made = [kind.object(f"o{n}", part) for n, part in enumerate(parts(kind, 5))]
            answers = await asyncio.gather(*(store.create(kind.resource, one) for one in made), return_exceptions=True)
            assert disk.failed == 1
            names = [f"o{n}" for n, answer in enumerate(answers) if not isinstance(answer, BaseException)]
            assert len(names) == 1
            assert names == owners(store, kind)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_nobody_has_what_another_has_whatever_the_disk_does(tmp_path: Path, seed: int) -> None:
    """Users come, go and change logins at once, on a disk that fails where the seed says. Afterwards everything is free that
    nobody has, and nothing else."""
    chance = random.Random(seed)
    kind = KINDS["logins"]
    logins = [f"l{n}" for n in range(4)]

    def part() -> Raw:
        return {"spec": {"usernames": chance.sample(logins, chance.randint(1, 2))}}

    def write(store: EmbeddedStore) -> Awaitable[Any]:
        name = f"o{chance.randrange(6)}"
        match chance.randrange(4):
            case 0:
                return store.delete(kind.resource, name)
            case 1:
                return store.patch(kind.resource, name, part())
            case 2:
                going = Operation(verb="delete", resource=kind.resource, name=name)
                return store.transaction(
                    [going, Operation(verb="create", resource=kind.resource, object=kind.object(name, part()))]
                )
            case _:
                return store.create(kind.resource, kind.object(name, part()))

    def held(store: EmbeddedStore) -> Counter[str]:
        return Counter(
            login for record in store.list_records(kind.resource).records for login in record.raw()["spec"]["usernames"]
        )

    with faulty_disk() as disk:
        async with opened(tmp_path / "s") as store:
            for _ in range(10):
                disk.fail(chance.randrange(8), chance.choice([0, 1, 3]), full=chance.random() < 0.5)
                answers = await asyncio.gather(*(write(store) for _ in range(12)), return_exceptions=True)
                assert all(isinstance(one, ApiError) for one in answers if isinstance(one, BaseException))
                assert max(held(store).values(), default=0) <= 1
            disk.fail(0, 0, full=False)
            before = held(store)
            for login in logins:
                one = kind.object(f"last-{login}", {"spec": {"usernames": [login]}})
                assert (await refusals([store.create(kind.resource, one)]) == [""]) == (login not in before)


async def test_whoever_starts_knows_who_has_it(tmp_path: Path, kind: Kind) -> None:
    async with opened(tmp_path / "s") as store:
        await store.create(kind.resource, kind.object("a", kind.having[0]))
    async with opened(tmp_path / "s") as store:
        with pytest.raises(Forbidden, match=re.escape(kind.said.format(other="a"))):
            await store.create(kind.resource, kind.object("b", kind.having[0]))
        await store.delete(kind.resource, "a")
        await store.create(kind.resource, kind.object("b", kind.having[0]))


async def test_two_that_were_let_in_before_can_be_set_right(tmp_path: Path, kind: Kind) -> None:
    bare = await open_store(tmp_path / "s")
    for name in ("a", "b"):
        await bare.create(kind.resource, kind.object(name, kind.having[0]))
    await bare.close()
    async with opened(tmp_path / "s") as store:
        await store.patch(kind.resource, "b", {"metadata": {"labels": {"l": "1"}}})
        with pytest.raises(Forbidden):
            await store.create(kind.resource, kind.object("c", kind.having[0]))
        await store.delete(kind.resource, "a")
        with pytest.raises(Forbidden, match=re.escape(kind.said.format(other="b"))):
            await store.create(kind.resource, kind.object("c", kind.having[0]))
        await store.delete(kind.resource, "b")
        await store.create(kind.resource, kind.object("c", kind.having[0]))


# -- addresses ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "yours", "is_one"),
    [
        pytest.param("10.7.0.0/16", "10.7.3.0/24", True, id="within"),
        pytest.param("10.7.3.0/24", "10.7.0.0/16", True, id="around"),
        pytest.param("10.7.3.0/24", "10.7.4.0/24", False, id="beside"),
        pytest.param("::a07:0/112", "10.7.0.0/16", False, id="the same numbers in another family"),
        pytest.param("fd00::/64", "fd00::/80", True, id="long addresses"),
        pytest.param("nonsense", "nonsense", False, id="no addresses"),
    ],
)
def test_ranges_that_overlap(mine: str, yours: str, is_one: bool) -> None:
    rule = PodRanges()
    taken = dict.fromkeys(rule.keys_of({"spec": {"podCIDRs": [yours]}}))
    assert any(list(rule.in_the_way(key, taken)) for key in rule.keys_of({"spec": {"podCIDR": mine}})) == is_one


async def test_an_administrator_may_give_two_nodes_one_range() -> None:
    """As on Kubernetes. What they have is respected: a node that asks for it is refused."""
    kind = KINDS["ranges"]
    node = Actor(user="system:node:c", groups=("system:nodes",))
    async with opened() as store:
        for name in ("a", "b"):
            await store.create(kind.resource, kind.object(name, kind.having[0]), actor=ADMIN)
        with pytest.raises(Forbidden, match="node a has addresses in it"):
            await store.create(kind.resource, kind.object("c", kind.having[0]), actor=node)


# -- the whole server ---------------------------------------------------------------------------------------------------------


def _prepare(server: Any) -> None:
    server.pod_range = "10.7.0.0/16"
    server.extra_hooks.append(Slow())


def _at_once(server: RunningServer, kind: Kind, actors: Sequence[Actor]) -> list[str]:
    store = server.server.store

    async def main() -> list[str]:
        made = (kind.object(f"o{n}", part) for n, part in enumerate(parts(kind, len(actors))))
        return await refusals(store.create(kind.resource, one, actor=actor) for one, actor in zip(made, actors, strict=True))

    return server.call(main())


@pytest.mark.parametrize("name", ["logins", "default"])
def test_on_a_server_one_of_many_comes_to_be(tmp_path: Path, name: str) -> None:
    kind = KINDS[name]
    with running(tmp_path, prepare=_prepare) as server:
        assert _at_once(server, kind, [ADMIN] * 10).count("") == 1
        assert len(owners(server.server.store, kind)) == 1
        path = f"/apis/{kind.resource.api_version}/{kind.resource.plural}"
        late = server.request("POST", path, kind.object("late", kind.having[0]))
        (owner,) = owners(server.server.store, kind)
        assert (late.code, late.message) == (
            403,
            f'{kind.resource.qualified} "late" is forbidden: {kind.said.format(other=owner)}',
        )
    with running(tmp_path) as server:
        assert server.request("POST", path, kind.object("late", kind.having[0])).code == 403, "after a restart too"
        assert server.request("DELETE", f"{path}/{owner}").code == 200
        assert server.request("POST", path, kind.object("late", kind.having[0])).code == 201


def test_on_a_server_one_of_many_nodes_takes_the_addresses(tmp_path: Path) -> None:
    kind = KINDS["ranges"]
    nodes = [Actor(user=f"system:node:o{n}", groups=("system:nodes", "system:authenticated")) for n in range(5)]
    with running(tmp_path, prepare=_prepare) as server:

        async def main() -> list[str]:
            store = server.server.store
            for n in range(5):
                await store.create(kind.resource, kind.object(f"o{n}"), actor=ADMIN)
            return await refusals(
                store.patch(kind.resource, f"o{n}", kind.having[0], actor=actor) for n, actor in enumerate(nodes)
            )

        assert server.call(main()).count("") == 1
        assert len(owners(server.server.store, kind)) == 1


def test_on_a_server_a_login_changes_hands_within_a_transaction(tmp_path: Path) -> None:
    """The hooks, which know what is on disk, do not stand in the way."""
    kind = KINDS["logins"]
    with running(tmp_path, prepare=_prepare) as server:
        users = server.server.store
        patch = [("a", []), ("b", ["x@example.org"])]
        moves = [
            Operation(verb="patch", resource=kind.resource, name=name, patch={"spec": {"usernames": logins}})
            for name, logins in patch
        ]

        async def main() -> None:
            await users.create(kind.resource, kind.object("a", kind.having[0]), actor=ADMIN)
            await users.create(kind.resource, kind.object("b"), actor=ADMIN)
            await users.transaction(moves, actor=ADMIN)

        server.call(main())
        assert server.server.memory.people.user_of("x@example.org") == "b"


def test_who_is_refused_for_a_login_is_promised_nothing(tmp_path: Path) -> None:
    """What others are given below a limit is not less for the sake of a User that never came to be."""
    with running(tmp_path) as server:
        path = "/apis/muster.dev/v1alpha1"
        limits = {"spec": {"limits": {"concurrent": {"cpu": 4}}}}
        group = {"apiVersion": "muster.dev/v1alpha1", "kind": "UserGroup", "metadata": {"name": "g"}, **limits}
        server.create(f"{path}/usergroups", group)
        kind = KINDS["logins"]
        server.create(f"{path}/users", kind.object("a", kind.having[0]))
        assert server.request("POST", f"{path}/users", kind.object("b", _merged(limits, kind.having[0]))).code == 403
        assert server.request("POST", f"{path}/users", kind.object("c", limits)).code == 201


async def test_as_a_webhook_logins_are_judged_by_what_was_seen() -> None:
    """There nobody tells of writes in flight."""
    kind, people = KINDS["logins"], People(lambda: 0.0)

    async def nobody(_actor: Actor, _asked: Attributes) -> bool:
        return False

    hook = SubmissionLimits(people, nobody)

    async def judge(name: str) -> None:
        raw = kind.object(name, kind.having[0])
        await hook.validate(
            AdmissionRequest(
                operation="CREATE", resource=kind.resource, namespace="", name=name, old=None, object=raw, warn=lambda _: None
            )
        )

    for name in ("a", "b"):
        await judge(name)
    people.apply("User", kind.object("a", kind.having[0]))
    with pytest.raises(Forbidden, match=re.escape(kind.said.format(other="a"))):
        await judge("b")
    await judge("a")


# -- names of definitions -----------------------------------------------------------------------------------------------------


async def test_of_definitions_that_come_at_once_one_has_the_kind(tmp_path: Path) -> None:
    """They are not refused, as on Kubernetes: whoever comes second says in its status that it has no names."""

    def definition(plural: str) -> Raw:
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        names = {"plural": plural, "singular": plural, "kind": "Same", "listKind": "SameList"}
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.example.org"},
            "spec": {"group": "example.org", "scope": "Cluster", "names": names, "versions": [version]},
        }

    async with opened(tmp_path / "s") as store:
        made = await asyncio.gather(*(store.create(CRDS, definition(plural)) for plural in ("as", "bs", "cs")))
        accepted = [
            condition["status"]
            for one in made
            for condition in one["status"]["conditions"]
            if condition["type"] == "NamesAccepted"
        ]
        assert sorted(accepted) == ["False", "False", "True"]
