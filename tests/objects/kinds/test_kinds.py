"""What the kinds of Kuscia, Koordinator, sigs and Muster are called, and how they look in tables."""

from __future__ import annotations

import re
from collections import Counter

import msgspec
import pytest
from tests.objects.kinds.samples import ALL, BY_KIND, FOREIGN, manifest
from tests.objects.reference_pages import FOLDER, REMAKE, kinds, kinds_page

from muster.objects.catalog import CATALOG
from muster.objects.crd import crd_for, resource_from_crd, validate_crd
from muster.objects.jsonpath import compile as compile_path
from muster.objects.names import validate_dns1035_label, validate_label_name
from muster.objects.resources import Resource
from muster.objects.schema import schema_of
from muster.objects.structural import Structural

each_kind = pytest.mark.parametrize("resource", ALL, ids=lambda r: r.kind)

# kind, plural, short names, namespaced, status subresource, columns: as the original CRDs have them.
FACTS = [
    ("KusciaJob", "kusciajobs", "kj", True, True, "StartTime CompletionTime LastReconcileTime Phase"),
    ("KusciaJobSummary", "kusciajobsummaries", "kjs", True, False, "StartTime CompletionTime LastReconcileTime"),
    ("KusciaTask", "kusciatasks", "kt", True, True, "StartTime CompletionTime LastReconcileTime Phase"),
    ("KusciaTaskSummary", "kusciatasksummaries", "kts", True, False, "JobID TaskAlias Phase"),
    ("KusciaDeployment", "kusciadeployments", "kd", True, True, "TotalParties AvailableParties Phase Age"),
    ("KusciaDeploymentSummary", "kusciadeploymentsummaries", "kds", True, False, "Age"),
    ("TaskResourceGroup", "taskresourcegroups", "trg", False, True,
     "MinReservedMembers Phase StartTime CompletionTime LastTransitionTime"),
    ("TaskResource", "taskresources", "tr", True, False,
     "MinReservedPods Phase StartTime CompletionTime LastTransitionTime"),
    ("Domain", "domains", "", False, True, ""),
    ("ClusterDomainRoute", "clusterdomainroutes", "cdr", False, True, "Source Destination Host Authentication Ready"),
    ("DomainRoute", "domainroutes", "dr", True, True, "Source Destination Host Authentication"),
    ("Gateway", "gateways", "gw", True, True, "CreationTime UpTime HeartbeatTime Address Version"),
    ("AppImage", "appimages", "aimg", False, False, ""),
    ("DomainAppImage", "domainappimages", "daimg", True, False, ""),
    ("DomainData", "domaindatas", "kdd", True, True, ""),
    ("DomainDataSource", "domaindatasources", "dds", True, True, ""),
    ("DomainDataGrant", "domaindatagrants", "ddg", True, True, ""),
    ("InteropConfig", "interopconfigs", "interop", False, False, ""),
    ("PodGroup", "podgroups", "pg pgs", True, False, "Phase MinMember Running Succeeded Failed Age"),
    ("ElasticQuota", "elasticquotas", "eq eqs", True, False, "Used Max Age"),
    ("ElasticQuotaProfile", "elasticquotaprofiles", "eqp", True, False, ""),
    ("Device", "devices", "", False, False, ""),
    ("Reservation", "reservations", "", False, True, "Phase Age Node TTL Expires"),
    ("PodMigrationJob", "podmigrationjobs", "", False, True,
     "Phase Status Age Node Reservation PodNamespace Pod NewPod TTL"),
    ("ScheduleExplanation", "scheduleexplanations", "sched-exp", True, True, ""),
    ("ClusterNetworkTopology", "clusternetworktopologies", "", False, True, ""),
    ("NodeMetric", "nodemetrics", "", False, True, ""),
    ("NodeSLO", "nodeslos", "", False, True, ""),
    ("ClusterColocationProfile", "clustercolocationprofiles", "", False, True, ""),
]  # fmt: skip


def test_facts_cover_every_foreign_kind() -> None:
    assert [fact[0] for fact in FACTS if fact[0] not in BY_KIND] == []
    assert {fact[0] for fact in FACTS} == {resource.kind for resource in FOREIGN}


@pytest.mark.parametrize(("kind", "plural", "short", "namespaced", "has_status", "columns"), FACTS, ids=[f[0] for f in FACTS])
def test_foreign_kind_is_as_its_users_know_it(
    kind: str, plural: str, short: str, namespaced: bool, has_status: bool, columns: str
) -> None:
    resource = BY_KIND[kind]
    assert resource.plural == plural
    assert resource.short_names == tuple(short.split())
    assert (resource.namespaced, resource.has_status) == (namespaced, has_status)
    assert [column.name for column in resource.columns if not column.priority] == columns.split(), "more only with -o wide"
    assert resource.is_custom


@each_kind
def test_names_are_fit_for_a_crd(resource: Resource) -> None:
    for name in (resource.plural, resource.singular, *resource.short_names, *resource.categories):
        assert validate_dns1035_label(name) == []
    assert resource.singular == resource.kind.lower()
    assert resource.list_kind == f"{resource.kind}List"
    assert validate_label_name(resource.version) == []


@each_kind
def test_short_names_are_not_taken(resource: Resource) -> None:
    others = [r for r in (*CATALOG.all, *ALL) if (r.group, r.kind) != (resource.group, resource.kind)]
    taken = {name for r in others for name in (r.plural, r.kind.lower(), *r.short_names)}
    assert set(resource.short_names) & taken == set()


@each_kind
def test_columns_find_their_values(resource: Resource) -> None:
    raw = manifest(resource.kind)
    raw["metadata"]["creationTimestamp"] = "2026-11-15T20:05:41Z"
    for column in resource.columns:
        found = compile_path(column.path).find(raw)
        assert found, f"{column.name}: {column.path}"
        if column.type in {"integer", "number"}:
            assert all(isinstance(value, int | float) for value in found)


@each_kind
def test_definition_is_sound_and_small(resource: Resource) -> None:
    definition = crd_for(resource)
    assert validate_crd(definition) == []
    # kubectl apply keeps the whole manifest in an annotation, which may have 256 KiB.
    assert len(msgspec.json.encode(definition)) < 200_000
    [served] = resource_from_crd(definition)
    assert (served.qualified, served.version, served.kind) == (resource.qualified, resource.version, resource.kind)
    assert (served.short_names, served.namespaced, served.subresources) == (
        resource.short_names,
        resource.namespaced,
        resource.subresources,
    )
    assert [column.name for column in served.columns if column.name != "Age"] == [
        column.name for column in resource.columns if column.name != "Age"
    ]


@each_kind
def test_published_schema_takes_the_manifest(resource: Resource) -> None:
    schema = crd_for(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    raw = manifest(resource.kind)
    assert Structural(schema).validate(raw) == []
    assert Structural(schema).prune(raw) == (raw, [])


@each_kind
def test_every_kind_says_what_it_is(resource: Resource) -> None:
    assert resource.view is not None
    schema = schema_of(resource.view)
    assert schema["description"].endswith((".", "`."))
    assert "spec" in schema["properties"] or "status" in schema["properties"]


def test_page_of_kinds_is_up_to_date() -> None:
    assert (FOLDER / "kinds.md").read_text(encoding="utf-8") == kinds_page(), REMAKE


def test_page_of_kinds_names_every_kind() -> None:
    named = re.findall(r"^\| `(\w+)` \|", (FOLDER / "kinds.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert Counter(named) == Counter(resource.kind for resource in kinds())
    assert {resource.kind for resource in (*ALL, *CATALOG.all)} <= set(named)
