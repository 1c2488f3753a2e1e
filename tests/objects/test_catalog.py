from __future__ import annotations

import re
from pathlib import Path

import pytest

import muster.objects.kinds
from muster.objects.catalog import CATALOG, Catalog
from muster.objects.jsonpath import compile as compile_jsonpath
from muster.objects.names import validate_dns1035_label
from muster.objects.resources import Resource
from muster.objects.status import NotFound

SUBRESOURCES = {"status", "scale", "binding", "eviction", "token", "exec", "log", "portforward", "finalize", "approval"}
each = pytest.mark.parametrize("resource", CATALOG.all, ids=lambda r: f"{r.qualified}.{r.version}")


@pytest.mark.parametrize(
    ("word", "group", "kind"),
    [
        ("pods", "", "Pod"),
        ("pod", "", "Pod"),
        ("Pod", "", "Pod"),
        ("po", "", "Pod"),
        ("deploy", "apps", "Deployment"),
        ("deployments.apps", "apps", "Deployment"),
        ("deployments.v1.apps", "apps", "Deployment"),
        ("deploy.apps", "apps", "Deployment"),
        ("crd", "apiextensions.k8s.io", "CustomResourceDefinition"),
        ("events", "", "Event"),
        ("events.events.k8s.io", "events.k8s.io", "Event"),
        ("kusciajobs", "kuscia.secretflow", "KusciaJob"),
        ("queues.muster.dev", "muster.dev", "Queue"),
    ],
)
def test_find_knows_what_users_type(word: str, group: str, kind: str) -> None:
    found = CATALOG.find(word)
    assert found is not None
    assert (found.group, found.kind) == (group, kind)


def test_find_of_an_unknown_word_is_none() -> None:
    assert CATALOG.find("unicorns") is None
    assert CATALOG.find("pods.apps") is None


def test_by_plural_and_by_kind_agree() -> None:
    for resource in CATALOG:
        assert CATALOG.by_plural(resource.group, resource.version, resource.plural) is resource
        assert CATALOG.by_kind(resource.group, resource.kind).plural == resource.plural


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(NotFound, match=r'"Unicorn".*"muster\.dev"'):
        CATALOG.by_kind("muster.dev", "Unicorn")


def test_twice_the_same_is_refused() -> None:
    with pytest.raises(ValueError, match="pods v1 is listed twice"):
        Catalog([CATALOG.by_kind("", "Pod")] * 2)


def test_extending_keeps_what_is_there() -> None:
    mine = Resource(group="example.com", version="v1", kind="Pod", plural="pods", short_names=("po", "ex"), is_custom=True)
    extended = CATALOG.extended([mine, CATALOG.by_kind("", "Node")])
    assert len(extended) == len(CATALOG) + 1
    assert extended.find("po") is CATALOG.by_kind("", "Pod")
    assert extended.find("ex") is mine
    assert extended.find("pods.example.com") is mine
    assert CATALOG.find("ex") is None


def test_every_module_with_resources_is_listed() -> None:
    folder = Path(str(muster.objects.kinds.__file__)).parent
    listed = {id(resource) for resource in CATALOG}
    for file in folder.glob("*.py"):
        if re.search(r"^RESOURCES\b", file.read_text(), re.MULTILINE):
            module = __import__(f"muster.objects.kinds.{file.stem}", fromlist=["RESOURCES"])
            assert {id(resource) for resource in module.RESOURCES} <= listed, file.stem


def test_custom_kinds_are_those_of_other_groups_than_kubernetes_own() -> None:
    own = {r.group for r in CATALOG if not r.is_custom}
    assert own.isdisjoint({r.group for r in CATALOG.custom})
    assert {"kuscia.secretflow", "muster.dev", "slo.koordinator.sh", "scheduling.sigs.k8s.io"} <= {
        r.group for r in CATALOG.custom
    }


@each
def test_names_are_well_formed(resource: Resource) -> None:
    for name in (resource.plural, resource.kind.lower(), *resource.short_names, *resource.categories):
        assert validate_dns1035_label(name) == [], name
    assert resource.subresources <= SUBRESOURCES
    assert ("scale" in resource.subresources) == (resource.scale_paths is not None)


@each
def test_columns_can_be_evaluated(resource: Resource) -> None:
    for column in resource.columns:
        assert compile_jsonpath(column.path).find({}) == [], column
        assert column.type in {"string", "integer", "number", "boolean", "date"}, column
    assert len({column.name for column in resource.columns}) == len(resource.columns)


def test_short_names_are_unique_in_their_group() -> None:
    seen: dict[tuple[str, str], str] = {}
    for resource in CATALOG:
        for name in resource.short_names:
            assert seen.setdefault((resource.group, name), resource.kind) == resource.kind
