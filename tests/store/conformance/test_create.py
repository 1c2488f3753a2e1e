"""Create: what the server sets, what it makes up, what it refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest

from muster.objects.status import AlreadyExists, ApiError, BadRequest, Invalid, NotFound, Raw
from muster.objects.time import parse_time
from muster.store.contract import Store, WriteOptions
from tests.store.conformance.support import NOT_OURS, config_map, custom_kind, network_policy, pod, unique, widget


async def test_the_server_sets_what_is_its_own(store: Store, namespace: str) -> None:
    policies = await store.resource("networking.k8s.io", "NetworkPolicy")
    created = await store.create(
        policies,
        {
            **network_policy("a"),
            "metadata": {
                "name": "a",
                "uid": "made-up",
                "generation": 7,
                "creationTimestamp": "2001-01-01T00:00:00Z",
                "deletionTimestamp": "2001-01-01T00:00:00Z",
                "labels": {"kept": "yes"},
                "annotations": {"kept": "also"},
            },
        },
        namespace,
    )
    meta = created["metadata"]
    assert meta["namespace"] == namespace
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", meta["uid"])
    assert meta["generation"] == 1
    assert parse_time(meta["creationTimestamp"]) > parse_time("2020-01-01T00:00:00Z")
    assert meta["resourceVersion"] not in ("", "0")
    assert "deletionTimestamp" not in meta
    assert (meta["labels"], meta["annotations"]) == ({"kept": "yes"}, {"kept": "also"})


async def test_kinds_without_spec_have_no_generation(store: Store, namespace: str) -> None:
    created = await store.create(await store.resource("", "ConfigMap"), config_map("a"), namespace)
    assert "generation" not in created["metadata"]


async def test_a_second_one_already_exists(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    first = await store.create(maps, config_map("a"), namespace)
    with pytest.raises(AlreadyExists, match='configmaps "a" already exists') as refused:
        await store.create(maps, config_map("a", {"other": "data"}), namespace)
    assert refused.value.name == "a"
    assert await store.get(maps, "a", namespace) == first


async def test_the_same_name_in_another_kind_or_namespace_is_another_object(store: Store, namespace: str) -> None:
    maps, secrets = await store.resource("", "ConfigMap"), await store.resource("", "Secret")
    one = await store.create(maps, config_map("a"), namespace)
    two = await store.create(secrets, {"metadata": {"name": "a"}}, namespace)
    assert one["metadata"]["uid"] != two["metadata"]["uid"]


async def test_a_deleted_name_can_be_used_again_by_another_object(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    one = await store.create(maps, config_map("a"), namespace)
    await store.delete(maps, "a", namespace)
    two = await store.create(maps, config_map("a"), namespace)
    assert one["metadata"]["uid"] != two["metadata"]["uid"]


async def test_generate_name(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    made = [
        await store.create(maps, {"metadata": {"generateName": "job-"}, "data": {"n": str(n)}}, namespace) for n in range(10)
    ]
    names = [created["metadata"]["name"] for created in made]
    assert len(set(names)) == 10
    for name in names:
        assert re.fullmatch("job-[bcdfghjklmnpqrstvwxz2456789]{5}", name)
    assert made[0]["metadata"]["generateName"] == "job-"


async def test_generate_name_cuts_a_long_prefix(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    created = await store.create(maps, {"metadata": {"generateName": "x" * 100}}, namespace)
    assert re.fullmatch("x{58}[a-z0-9]{5}", created["metadata"]["name"])


async def test_a_name_wins_over_generate_name(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    created = await store.create(maps, {"metadata": {"name": "own", "generateName": "job-"}}, namespace)
    assert created["metadata"]["name"] == "own"


async def test_dry_run_changes_nothing(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    before = (await store.list(maps, namespace, label_selector="dry=yes")).resource_version
    tried = await store.create(maps, config_map("a", labels={"dry": "yes"}), namespace, WriteOptions(dry_run=True))
    assert tried["metadata"]["uid"]
    assert tried["data"] == {"key": "value"}
    with pytest.raises(NotFound):
        await store.get(maps, "a", namespace)
    created = await store.create(maps, config_map("a"), namespace)
    assert created["metadata"]["uid"] != tried["metadata"]["uid"]
    with pytest.raises(AlreadyExists):
        await store.create(maps, config_map("a"), namespace, WriteOptions(dry_run=True))
    assert before


async def test_status_of_a_new_object_is_not_the_clients(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    created = await store.create(pods, {**pod("a"), "status": {"phase": "Running", "podIP": "10.0.0.1"}}, namespace)
    assert created["status"]["phase"] == "Pending"
    assert "podIP" not in created["status"]


async def test_a_node_brings_its_status(store: Store) -> None:
    nodes = await store.resource("", "Node")
    name = unique("node")
    created = await store.create(nodes, {"metadata": {"name": name}, "status": {"capacity": {"cpu": "4"}}})
    try:
        assert created["status"]["capacity"] == {"cpu": "4"}
    finally:
        await store.delete(nodes, name)


async def test_the_namespace_must_be_there(store: Store) -> None:
    maps = await store.resource("", "ConfigMap")
    nowhere = unique("nowhere")
    with pytest.raises(NotFound, match=f'namespaces "{nowhere}" not found'):
        await store.create(maps, config_map("a"), nowhere)


async def test_the_namespace_must_be_the_requests(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    with pytest.raises(BadRequest, match="namespace of the provided object does not match"):
        await store.create(maps, config_map("a", namespace="default"), namespace)


async def test_a_new_object_has_no_version_yet(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    with pytest.raises(ApiError, match="resourceVersion should not be set on objects to be created"):
        await store.create(maps, config_map("a", resourceVersion="5"), namespace)
    with pytest.raises(NotFound):
        await store.get(maps, "a", namespace)


@pytest.mark.parametrize(
    ("obj", "refusal", "field"),
    [
        pytest.param({"metadata": {"name": "No_Such_Name"}}, Invalid, "metadata.name", id="name"),
        pytest.param({"metadata": {"name": "x" * 254}}, Invalid, "metadata.name", id="long name"),
        pytest.param({"metadata": {}}, ApiError, "", id="no name"),
        pytest.param({"metadata": {"name": "a", "labels": {"bad key!": "v"}}}, Invalid, "metadata.labels", id="label key"),
        pytest.param({"metadata": {"name": "a", "labels": {"k": "v" * 64}}}, Invalid, "metadata.labels", id="label value"),
        pytest.param({"metadata": {"name": "a", "annotations": {"/": "v"}}}, Invalid, "metadata.annotations", id="annotation"),
        pytest.param(
            {"metadata": {"name": "a", "annotations": {"k": "v" * 300_000}}}, Invalid, "metadata.annotations", id="annotations"
        ),
        pytest.param({"metadata": {"name": "a", "finalizers": ["bad one"]}}, Invalid, "metadata.finalizers", id="finalizer"),
        pytest.param(
            {"metadata": {"name": "a", "ownerReferences": [{"kind": "Pod", "name": "x"}]}}, ApiError, "", id="half an owner"
        ),
        pytest.param({"metadata": {"name": "a"}, "data": {"key": 7}}, ApiError, "", id="type of a value"),
        pytest.param({"metadata": {"name": "a"}, "data": ["list"]}, ApiError, "", id="type of a field"),
        pytest.param({"metadata": {"name": "a", "labels": {"k": 7}}}, ApiError, "", id="type of a label"),
        pytest.param({"metadata": "text"}, ApiError, "", id="type of metadata"),
        pytest.param({"metadata": {"name": "a"}, "data": {"bad key": "v"}}, Invalid, "data", id="key of the data"),
    ],
)
async def test_refused(store: Store, namespace: str, obj: Raw, refusal: type[ApiError], field: str) -> None:
    maps = await store.resource("", "ConfigMap")
    with pytest.raises(refusal) as refused:
        await store.create(maps, {"apiVersion": "v1", "kind": "ConfigMap", **obj}, namespace)
    assert 400 <= refused.value.code < 500
    if field:
        assert any(cause.field.startswith(field) for cause in refused.value.causes), refused.value.causes
    assert {item["metadata"]["name"] for item in (await store.list(maps, namespace)).items} <= {NOT_OURS}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        pytest.param({}, "spec.containers", id="no containers"),
        pytest.param({"containers": [{"image": "a"}]}, "spec.containers[0].name", id="a container without a name"),
        pytest.param({"containers": [{"name": "a", "image": "a"}] * 2}, "spec.containers[1].name", id="twice"),
        pytest.param(
            {"containers": [{"name": "a", "image": "a"}], "restartPolicy": "Sometimes"}, "spec.restartPolicy", id="policy"
        ),
        pytest.param(
            {"containers": [{"name": "a", "image": "a", "resources": {"requests": {"cpu": "-1"}}}]},
            "spec.containers[0].resources.requests",
            id="a negative quantity",
        ),
    ],
)
async def test_a_bad_pod_gets_every_field_named(store: Store, namespace: str, spec: dict[str, Any], field: str) -> None:
    pods = await store.resource("", "Pod")
    with pytest.raises(Invalid) as refused:
        await store.create(pods, {"metadata": {"name": "a"}, "spec": spec}, namespace)
    assert any(cause.field.startswith(field) for cause in refused.value.causes), refused.value.causes


async def test_kind_and_version_must_be_the_requests(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    for wrong in ({"kind": "Secret"}, {"apiVersion": "v2"}):
        with pytest.raises(BadRequest):
            await store.create(maps, {**config_map("a"), **wrong}, namespace)


async def test_pods_get_kubernetes_defaults(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    created = await store.create(pods, pod("a"), namespace)
    spec, container = created["spec"], created["spec"]["containers"][0]
    assert spec["restartPolicy"] == "Always"
    assert spec["dnsPolicy"] == "ClusterFirst"
    assert spec["schedulerName"] == "default-scheduler"
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert created["status"]["phase"] == "Pending"
    assert created["status"]["qosClass"] == "BestEffort"


GOOD: Raw = {"spec": {"containers": [{"name": "a", "image": "a"}]}}


async def test_what_is_not_stored_may_say_anything_of_the_right_type(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    metadata = {"name": "x", "creationTimestamp": "2001-01-01T00:00:00Z", "uid": "u", "generation": 7, "selfLink": "/x"}
    created = await store.create(
        pods, {"metadata": metadata, **GOOD, "status": {"phase": "Odd", "podIP": "nowhere"}}, namespace
    )
    assert created["status"]["phase"] == "Pending"
    assert created["metadata"]["uid"] != "u"
    assert not created["metadata"]["creationTimestamp"].startswith("2001")


async def test_null_in_a_list_is_an_empty_item(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    one = {"name": "a", "image": "a", "args": ["x", None], "env": []}
    created = await store.create(pods, {"metadata": {"name": "x"}, "spec": {"containers": [one]}}, namespace)
    assert created["spec"]["containers"][0]["args"] == ["x", ""]
    for spec, fields in (
        ({"containers": [None]}, {"spec.containers[0].name", "spec.containers[0].image"}),
        ({"containers": [{**one, "env": [None]}]}, {"spec.containers[0].env[0].name"}),
    ):
        with pytest.raises(Invalid) as refused:
            await store.create(pods, {"metadata": {"name": "y"}, "spec": spec}, namespace)
        assert {cause.field for cause in refused.value.causes} == fields


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        pytest.param("Pod", {"spec": {"containers": [{"name": "a", "image": 1}]}}, id="number for text"),
        pytest.param("Pod", {"spec": {"containers": {}}}, id="object for list"),
        pytest.param("Pod", {"spec": {"hostNetwork": "yes"}}, id="text for truth"),
        pytest.param("Pod", {"spec": {"restartPolicy": 5}}, id="number for one of some words"),
        pytest.param(
            "Pod", {"spec": {"containers": [{"name": "a", "ports": [{"containerPort": 2**40}]}]}}, id="beyond 32 bits"
        ),
        pytest.param("Pod", {"spec": {"activeDeadlineSeconds": 5.0}}, id="a fraction, if of nothing"),
        pytest.param("Pod", {"spec": {"overhead": {"cpu": "much"}}}, id="no quantity"),
        pytest.param("ConfigMap", {"data": {"a": 1}}, id="number in a map of texts"),
        pytest.param("ConfigMap", {"binaryData": {"a": "%%"}}, id="no base64"),
        pytest.param("Secret", {"stringData": {"a": 5}}, id="number for a secret"),
        pytest.param("ConfigMap", {"metadata": {"name": "x", "labels": {"a": 1}}}, id="number for a label"),
        # Nothing of these is stored.
        pytest.param("ConfigMap", {"metadata": {"name": "x", "creationTimestamp": 5}}, id="number for the time of creation"),
        pytest.param("ConfigMap", {"metadata": {"name": "x", "deletionTimestamp": "soon"}}, id="no time of deletion"),
        pytest.param("ConfigMap", {"metadata": {"name": "x", "generation": "5"}}, id="text for the generation"),
        pytest.param("ConfigMap", {"metadata": {"name": "x", "uid": 5}}, id="number for the uid"),
        pytest.param("Pod", {**GOOD, "status": "Running"}, id="text for a status"),
        pytest.param("Pod", {**GOOD, "status": {"phase": 5}}, id="number in a status"),
        pytest.param("Pod", {**GOOD, "status": {"startTime": "now"}}, id="no time in a status"),
    ],
)
async def test_wrong_types_make_no_object_of_the_kind(store: Store, namespace: str, kind: str, body: dict[str, Any]) -> None:
    resource = await store.resource("", kind)
    raw = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "x"}, **body}
    with pytest.raises(BadRequest, match=f'{kind} in version "v1" cannot be handled as a {kind}: '):
        await store.create(resource, raw, namespace)
    with pytest.raises(NotFound):
        await store.get(resource, "x", namespace)


async def test_wrong_types_in_a_custom_kind_are_for_its_schema(store: Store, namespace: str) -> None:
    async with custom_kind(store) as widgets:
        thing = widget(widgets.group, "x")
        with pytest.raises(Invalid):
            await store.create(widgets, {**thing, "spec": "text"}, namespace)
        with pytest.raises(BadRequest):
            await store.create(widgets, {**thing, "metadata": {"name": "x", "labels": {"a": 1}}}, namespace)


async def test_a_label_without_a_value_is_empty(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    made = await store.create(maps, config_map("a", labels={"l": None}), namespace)
    assert made["metadata"]["labels"] == {"l": ""}
