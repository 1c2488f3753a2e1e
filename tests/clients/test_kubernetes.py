"""The official Python client, `kubernetes`: typed API, watch, patches, errors, bundles, leader election, informer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.server.manifests import DEPLOYMENT
from tests.waiting import WAIT_S, blocked_until

pytestmark = pytest.mark.slow


def _client(kubeconfig: Path) -> Any:
    from kubernetes import config

    return config.new_client_from_config(str(kubeconfig))


@pytest.fixture
def api(kubeconfig: Path) -> Iterator[Any]:
    with _client(kubeconfig) as made:
        yield made


@pytest.fixture
def core(api: Any) -> Any:
    from kubernetes.client import CoreV1Api

    return CoreV1Api(api)


def _map(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "data": {"n": "0"}}


def test_who_am_i(any_kubeconfig: tuple[Path, str]) -> None:
    from kubernetes.client import AuthenticationV1Api, V1SelfSubjectReview, VersionApi

    path, user = any_kubeconfig
    with _client(path) as api:
        assert AuthenticationV1Api(api).create_self_subject_review(V1SelfSubjectReview()).status.user_info.username == user
        assert VersionApi(api).get_code().major == "1"


def test_discovery(api: Any) -> None:
    """Each of these asks with a slash at the end of the path."""
    from kubernetes.client import ApisApi, AppsApi, AppsV1Api, CoreApi, CoreV1Api

    assert CoreApi(api).get_api_versions().versions == ["v1"]
    assert {"apps", "muster.dev"} <= {group.name for group in ApisApi(api).get_api_versions().groups}
    assert AppsApi(api).get_api_group().preferred_version.group_version == "apps/v1"
    assert "deployments/scale" in {found.name for found in AppsV1Api(api).get_api_resources().resources}
    assert "pods" in {found.name for found in CoreV1Api(api).get_api_resources().resources}


def test_create_get_patch_delete(core: Any, namespace: str) -> None:
    from kubernetes.client import V1ConfigMap, V1DeleteOptions, V1ObjectMeta, V1Preconditions
    from kubernetes.client.exceptions import ApiException

    made = core.create_namespaced_config_map(namespace, V1ConfigMap(metadata=V1ObjectMeta(name="m"), data={"n": "0"}))
    assert core.read_namespaced_config_map("m", namespace).metadata.uid == made.metadata.uid

    patch = core.patch_namespaced_config_map
    assert patch("m", namespace, {"data": {"a": "1"}}).data == {"n": "0", "a": "1"}  # strategic
    assert patch("m", namespace, [{"op": "remove", "path": "/data/n"}]).data == {"a": "1"}
    merged = patch("m", namespace, {"data": {"a": None, "b": "2"}}, _content_type="application/merge-patch+json")
    assert merged.data == {"b": "2"}
    applied = patch(
        "m",
        namespace,
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"c": "3"}},
        field_manager="tests",
        force=True,
        _content_type="application/apply-patch+yaml",
    )
    assert applied.data == {"b": "2", "c": "3"}
    assert "tests" in {entry.manager for entry in applied.metadata.managed_fields}

    wrong = V1DeleteOptions(preconditions=V1Preconditions(uid="00000000-0000-0000-0000-000000000000"))
    with pytest.raises(ApiException) as caught:
        core.delete_namespaced_config_map("m", namespace, body=wrong)
    assert (caught.value.status, json.loads(caught.value.body)["reason"]) == (409, "Conflict")
    right = V1DeleteOptions(preconditions=V1Preconditions(uid=made.metadata.uid), propagation_policy="Background")
    assert core.delete_namespaced_config_map("m", namespace, body=right)["status"] == "Success"
    with pytest.raises(ApiException):
        core.read_namespaced_config_map("m", namespace)


def test_lists_selectors_and_pages(core: Any, namespace: str) -> None:
    for number in range(7):
        core.create_namespaced_config_map(namespace, _map(f"m{number}", parity="odd" if number % 2 else "even"))
    odd = core.list_namespaced_config_map(namespace, label_selector="parity=odd")
    assert [one.metadata.name for one in odd.items] == ["m1", "m3", "m5"]
    one = core.list_namespaced_config_map(namespace, field_selector="metadata.name=m2")
    assert [found.metadata.name for found in one.items] == ["m2"]

    names, token, versions = [], None, set()
    while True:
        page = core.list_namespaced_config_map(namespace, label_selector="parity", limit=3, _continue=token)
        names += [found.metadata.name for found in page.items]
        versions.add(page.metadata.resource_version)
        token = page.metadata._continue
        if not token:
            break
        core.create_namespaced_config_map(namespace, _map(f"z{len(names)}", parity="late"))
    assert names == [f"m{number}" for number in range(7)]
    assert len(versions) == 1
    assert core.list_config_map_for_all_namespaces(label_selector="parity in (odd)").items


def test_watch_resumes_and_hears_of_compaction(core: Any, namespace: str, compact: Callable[[], None]) -> None:
    from kubernetes import watch
    from kubernetes.client.exceptions import ApiException

    start = core.list_namespaced_config_map(namespace).metadata.resource_version
    core.create_namespaced_config_map(namespace, _map("a"))
    core.patch_namespaced_config_map("a", namespace, {"data": {"n": "1"}})
    core.delete_namespaced_config_map("a", namespace)

    seen: list[tuple[str, str]] = []
    watching = watch.Watch()
    for event in watching.stream(core.list_namespaced_config_map, namespace, resource_version=start):
        seen.append((event["type"], event["object"].data["n"]))
        if event["type"] == "MODIFIED":
            watching.stop()
    assert seen == [("ADDED", "0"), ("MODIFIED", "1")]
    last = watching.resource_version
    again = watch.Watch()
    for event in again.stream(core.list_namespaced_config_map, namespace, resource_version=last):
        assert event["type"] == "DELETED"
        again.stop()

    compact()
    with pytest.raises(ApiException) as caught:
        list(watch.Watch().stream(core.list_namespaced_config_map, namespace, resource_version=start, timeout_seconds=5))
    assert caught.value.status == 410


def test_errors(core: Any, namespace: str, nobody_kubeconfig: Path) -> None:
    from kubernetes.client import CoreV1Api
    from kubernetes.client.exceptions import ApiException, ConflictException, ForbiddenException, NotFoundException

    with pytest.raises(NotFoundException) as missing:
        core.read_namespaced_pod("nobody", namespace)
    assert json.loads(missing.value.body)["details"] == {"name": "nobody", "kind": "pods"}
    made = core.create_namespaced_config_map(namespace, _map("m"))
    with pytest.raises(ConflictException) as taken:
        core.create_namespaced_config_map(namespace, _map("m"))
    assert json.loads(taken.value.body)["reason"] == "AlreadyExists"
    core.patch_namespaced_config_map("m", namespace, {"data": {"n": "1"}})
    with pytest.raises(ConflictException) as stale:
        core.replace_namespaced_config_map("m", namespace, made)
    assert json.loads(stale.value.body)["reason"] == "Conflict"
    with pytest.raises(ApiException) as invalid:
        core.create_namespaced_pod(namespace, {"metadata": {"name": "UPPER"}, "spec": {"containers": [{"name": "c"}]}})
    assert invalid.value.status == 422
    causes = json.loads(invalid.value.body)["details"]["causes"]
    assert {cause["field"] for cause in causes} >= {"metadata.name", "spec.containers[0].image"}
    with _client(nobody_kubeconfig) as other, pytest.raises(ForbiddenException):
        CoreV1Api(other).list_namespaced_config_map(namespace)


def test_status_scale_eviction_and_propagation(api: Any, core: Any, namespace: str) -> None:
    from kubernetes.client import AppsV1Api
    from kubernetes.client.exceptions import ApiException

    apps = AppsV1Api(api)
    deployment = next(yaml.safe_load_all(DEPLOYMENT))
    made = apps.create_namespaced_deployment(namespace, deployment)
    apps.patch_namespaced_deployment_status("shop", namespace, {"status": {"replicas": 2, "readyReplicas": 1}})
    live = apps.read_namespaced_deployment_status("shop", namespace)
    assert (live.status.ready_replicas, live.spec.replicas, live.metadata.generation) == (1, 2, 1)
    apps.patch_namespaced_deployment_scale("shop", namespace, {"spec": {"replicas": 5}})
    assert apps.read_namespaced_deployment_scale("shop", namespace).spec.replicas == 5

    owner = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "shop",
        "uid": made.metadata.uid,
        "blockOwnerDeletion": True,
    }
    core.create_namespaced_config_map(namespace, {"metadata": {"name": "owned", "ownerReferences": [owner]}})
    apps.delete_namespaced_deployment("shop", namespace, propagation_policy="Foreground")

    def is_gone() -> bool:
        try:
            apps.read_namespaced_deployment("shop", namespace)
        except ApiException as error:
            return bool(error.status == 404)
        return False

    blocked_until(is_gone)
    assert "owned" not in {one.metadata.name for one in core.list_namespaced_config_map(namespace).items}

    core.create_namespaced_pod(namespace, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    core.create_namespaced_pod_eviction("p", namespace, {"metadata": {"name": "p"}})
    core.delete_collection_namespaced_config_map(namespace)


def test_custom_objects(api: Any, namespace: str, widgets: str) -> None:
    from kubernetes.client import ApiextensionsV1Api, CustomObjectsApi
    from kubernetes.client.exceptions import ApiException

    custom = CustomObjectsApi(api)
    of = (widgets, "v1", namespace, "widgets")
    made = custom.create_namespaced_custom_object(*of, {"metadata": {"name": "w"}, "kind": "Widget", "spec": {"size": 3}})
    assert made["spec"] == {"size": 3, "color": "red"}
    custom.patch_namespaced_custom_object(*of, "w", {"spec": {"size": 4}})
    custom.patch_namespaced_custom_object_status(*of, "w", {"status": {"phase": "Up"}})
    custom.patch_namespaced_custom_object_scale(*of, "w", {"spec": {"replicas": 2}})
    live = custom.get_namespaced_custom_object(*of, "w")
    assert (live["spec"]["size"], live["status"]["phase"], live["spec"]["replicas"]) == (4, "Up", 2)
    with pytest.raises(ApiException) as caught:
        custom.patch_namespaced_custom_object(*of, "w", {"spec": {"size": 40}})
    assert caught.value.status == 422
    crd = ApiextensionsV1Api(api).read_custom_resource_definition(f"widgets.{widgets}")
    assert {c.type: c.status for c in crd.status.conditions}["Established"] == "True"

    job = {"metadata": {"name": "j"}, "kind": "Job", "spec": {"roles": [{"name": "worker", "command": ["true"]}]}}
    custom.create_namespaced_custom_object("muster.dev", "v1alpha1", namespace, "jobs", job)
    custom.create_cluster_custom_object(
        "kuscia.secretflow", "v1alpha1", "domains", {"kind": "Domain", "metadata": {"name": "zoe"}, "spec": {}}
    )
    listed = custom.list_cluster_custom_object("kuscia.secretflow", "v1alpha1", "domains")
    assert "zoe" in {one["metadata"]["name"] for one in listed["items"]}
    custom.delete_cluster_custom_object("kuscia.secretflow", "v1alpha1", "domains", "zoe")


def test_create_from_yaml(api: Any, namespace: str, tmp_path: Path) -> None:
    from kubernetes import utils

    bundle = tmp_path / "shop.yaml"
    bundle.write_text(DEPLOYMENT)
    made = utils.create_from_yaml(api, str(bundle), namespace=namespace)
    assert [type(one[0]).__name__ for one in made] == ["V1Deployment", "V1Service"]
    with pytest.raises(utils.FailToCreateError) as caught:
        utils.create_from_yaml(api, str(bundle), namespace=namespace)
    assert {json.loads(error.body)["reason"] for error in caught.value.api_exceptions} == {"AlreadyExists"}


def test_dynamic_client_with_its_discovery_cache(api: Any, namespace: str, widgets: str, tmp_path: Path) -> None:
    from kubernetes.dynamic import DynamicClient
    from kubernetes.dynamic.exceptions import ConflictError, NotFoundError, ResourceNotFoundError

    cache = tmp_path / "discovery.json"
    client = DynamicClient(api, cache_file=str(cache))
    kind = client.resources.get(api_version=f"{widgets}/v1", kind="Widget")
    assert cache.stat().st_size > 1000
    made = kind.create(body={"metadata": {"name": "d"}, "spec": {"size": 1}}, namespace=namespace)
    with pytest.raises(ConflictError):
        kind.create(body={"metadata": {"name": "d"}, "spec": {"size": 1}}, namespace=namespace)
    patched = kind.patch(name="d", namespace=namespace, body={"spec": {"size": 2}}, content_type="application/merge-patch+json")
    assert patched.spec.size == 2
    applied = kind.server_side_apply(
        name="d", namespace=namespace, field_manager="tests", force_conflicts=True, body={"spec": {"size": 3}} | _named(widgets)
    )
    assert applied.spec.size == 3
    kind.status.patch(
        name="d", namespace=namespace, body={"status": {"phase": "Up"}}, content_type="application/merge-patch+json"
    )
    for event in kind.watch(namespace=namespace, name="d", timeout=5):
        assert (event["type"], event["object"].status.phase) == ("ADDED", "Up")
        break
    assert kind.get(namespace=namespace, label_selector="").items[0].metadata.uid == made.metadata.uid

    again = DynamicClient(api, cache_file=str(cache))  # all of it from the file
    again.resources.get(api_version=f"{widgets}/v1", kind="Widget").delete(name="d", namespace=namespace)
    with pytest.raises(NotFoundError):
        kind.get(name="d", namespace=namespace)
    with pytest.raises(ResourceNotFoundError):
        again.resources.get(api_version="example.org/v1", kind="Nothing")
    jobs = [f"{found.group}/{found.kind}" for found in again.resources.search(kind="Job")]
    assert {"batch/Job", "muster.dev/Job"} <= set(jobs)


def _named(group: str) -> dict[str, Any]:
    return {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": "d"}}


def test_leader_election_on_leases(kubeconfig: Path, namespace: str) -> None:
    """Two candidates: one leads; when it stops to renew, the other takes over."""
    from kubernetes import config
    from kubernetes.leaderelection import electionconfig, leaderelection
    from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

    config.load_kube_config(str(kubeconfig))
    leading: list[str] = []

    class Ended(Exception):
        pass

    def candidate(name: str, is_renewing: threading.Event) -> threading.Thread:
        lock = LeaseLock("lock", namespace, name)
        renew = lock.update

        def update(*args: Any) -> bool:
            if not is_renewing.is_set():
                raise Ended
            return bool(renew(*args))

        lock.update = update
        settings = electionconfig.Config(
            lock,
            lease_duration=3,
            renew_deadline=2,
            retry_period=1,
            onstarted_leading=lambda: leading.append(name),
            onstopped_leading=lambda: None,
        )

        def run() -> None:
            try:
                leaderelection.LeaderElection(settings).run()
            except Ended:
                return

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    first_renews, second_renews = threading.Event(), threading.Event()
    first_renews.set()
    second_renews.set()
    first = candidate("first", first_renews)
    blocked_until(lambda: leading == ["first"])
    second = candidate("second", second_renews)
    first_renews.clear()
    first.join(WAIT_S)
    blocked_until(lambda: leading == ["first", "second"])
    second_renews.clear()
    second.join(WAIT_S)
    assert not first.is_alive()
    assert not second.is_alive()


def test_informer(core: Any, namespace: str, compact: Callable[[], None]) -> None:
    """The client's own cache: lists, watches, and lists anew when the server has forgotten where it was."""
    from kubernetes.informer import SharedInformer

    informer = SharedInformer(list_func=core.list_namespaced_config_map, namespace=namespace, label_selector="of=informer")
    informer.start()
    try:
        core.create_namespaced_config_map(namespace, _map("a", of="informer"))
        blocked_until(lambda: {one.metadata.name for one in informer.cache.list()} == {"a"})
        compact()
        core.create_namespaced_config_map(namespace, _map("b", of="informer"))
        core.delete_namespaced_config_map("a", namespace)
        blocked_until(lambda: {one.metadata.name for one in informer.cache.list()} == {"b"})
    finally:
        informer.stop()


SUBMITTED = {
    "apiVersion": "muster.dev/v1alpha1",
    "kind": "Job",
    "metadata": {"generateName": "nightly-", "labels": {"made-by": "submitter"}},
    "spec": {
        "roles": [
            {
                "name": "worker",
                "replicas": 2,
                "command": ["python", "train.py"],
                "env": [{"name": "MUSTER_SIMULATED_SECONDS", "value": "1"}],
                "resources": {"requests": {"cpu": "1"}},
            }
        ]
    },
}


def test_a_submitter_follows_its_job_to_the_end(simulated: Path) -> None:
    """The task: submit a Job, follow it by a watch from the version of its creation, and say how it ended."""
    from kubernetes import watch
    from kubernetes.client import CoreV1Api, CustomObjectsApi

    with _client(simulated) as api:
        custom, of = CustomObjectsApi(api), ("muster.dev", "v1alpha1", "default", "jobs")
        made = custom.create_namespaced_custom_object(*of, SUBMITTED)
        name = made["metadata"]["name"]
        phases: list[str] = []
        assert name.startswith("nightly-")
        watching = watch.Watch()
        for event in watching.stream(
            custom.list_namespaced_custom_object,
            *of,
            field_selector=f"metadata.name={name}",
            resource_version=made["metadata"]["resourceVersion"],
            timeout_seconds=int(WAIT_S),
        ):
            phase = event["object"].get("status", {}).get("phase")
            if phase and phase not in phases[-1:]:
                phases.append(phase)
            if phase in ("Succeeded", "Failed"):
                watching.stop()
        assert phases[-1] == "Succeeded"
        assert "Running" in phases
        pods = CoreV1Api(api).list_namespaced_pod("default", label_selector=f"muster.dev/job={name}").items
        assert {pod.status.phase for pod in pods} == {"Succeeded"}
        assert len(pods) == 2
