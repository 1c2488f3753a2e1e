from __future__ import annotations

from typing import Any

import pytest

from muster.cli import manifests
from muster.cli.installing import CRD, NAMESPACE, REMOVAL_ORDER
from muster.cli.manifests import CONTROLLER_RULES, InstallOptions, everything, rules_for
from muster.controllers import cluster_controllers
from muster.objects.catalog import CATALOG
from muster.objects.labels import Muster
from muster.objects.schema import schema_of
from muster.objects.status import Raw
from muster.objects.structural import Structural
from muster.objects.validation import validate_object

OPTIONS = InstallOptions(namespace="ns", image="registry/muster:1", replicas=3)
ALL = everything(OPTIONS, CATALOG.custom)


def of(kind: str, objects: list[Raw] = ALL) -> list[Raw]:
    return [o for o in objects if o["kind"] == kind]


def group_of(obj: Raw) -> str:
    return str(obj["apiVersion"]).rpartition("/")[0]


def test_every_object_can_be_found_again_by_its_label() -> None:
    for obj in ALL:
        assert obj["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "muster-install", obj["metadata"]["name"]


def test_every_kind_that_is_installed_is_also_removed() -> None:
    known = {*REMOVAL_ORDER, CRD, NAMESPACE}
    assert {(group_of(o), o["kind"]) for o in ALL} <= known
    assert ("", "Secret") in known, "the controllers make the webhooks' CA"


def test_kinds_come_first_and_webhooks_last() -> None:
    kinds = [o["kind"] for o in ALL]
    assert kinds[: len(CATALOG.custom)] == ["CustomResourceDefinition"] * len(CATALOG.custom)
    assert kinds[len(CATALOG.custom)] == "Namespace"
    assert set(kinds[-2:]) == {"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"}


@pytest.mark.parametrize("obj", ALL, ids=lambda o: f"{o['kind']}/{o['metadata']['name']}")
def test_every_object_is_valid(obj: Raw) -> None:
    resource = CATALOG.by_kind(group_of(obj), obj["kind"])
    assert resource.view is not None
    structural = Structural(schema_of(resource.view))
    filled = structural.default(obj)
    assert structural.prune(filled)[1] == [], "fields that the kind does not have"
    assert structural.validate(filled) == []
    assert validate_object(resource, filled) == []


def test_namespaced_objects_are_in_the_chosen_namespace() -> None:
    for obj in ALL:
        resource = CATALOG.by_kind(group_of(obj), obj["kind"])
        assert obj["metadata"].get("namespace") == ("ns" if resource.namespaced else None)


def test_the_same_options_give_the_same_manifests() -> None:
    assert everything(OPTIONS, CATALOG.custom) == ALL


def test_deployment() -> None:
    [deployment] = of("Deployment")
    spec = deployment["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert deployment["spec"]["replicas"] == 3
    assert container["image"] == "registry/muster:1"
    assert "--lease-namespace=ns" in container["args"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert of("PodDisruptionBudget")[0]["spec"]["selector"]["matchLabels"] == selector
    assert of("Service")[0]["spec"]["selector"] == selector
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert ports == {"webhook": manifests.WEBHOOK_PORT, "health": manifests.HEALTH_PORT}


def test_the_deployments_arguments_are_a_command_line_that_muster_takes() -> None:
    from muster.cli import main
    from muster.cli.errors import ExitCode

    [deployment] = of("Deployment")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    # --help is answered only after everything before it was understood.
    assert main.run([*arguments, "--help"]) == ExitCode.OK


@pytest.mark.parametrize("kind", ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"])
def test_webhooks_cover_all_our_kinds_and_no_other(kind: str) -> None:
    [configuration] = of(kind)
    hook = configuration["webhooks"][0]
    covered = {(r["apiGroups"][0], v, p) for r in hook["rules"] for v in r["apiVersions"] for p in r["resources"]}
    assert covered == {(r.group, r.version, r.plural) for r in CATALOG.custom}
    assert hook["clientConfig"]["service"]["namespace"] == "ns"
    assert "caBundle" not in hook["clientConfig"], "it belongs to the leader"
    deleted = {plural for r in hook["rules"] if "DELETE" in r["operations"] for plural in r["resources"]}
    assert deleted == (set(manifests.DELETIONS) if kind.startswith("Validating") else set())


@pytest.mark.parametrize("kind", ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"])
@pytest.mark.parametrize(
    ("labels", "is_needed"),
    [
        pytest.param({Muster.USER}, True, id="of a user"),
        pytest.param({Muster.QUEUE}, True, id="in a queue"),
        pytest.param({Muster.USER, Muster.QUEUE}, True, id="both"),
        pytest.param({"app"}, False, id="neither"),
    ],
)
def test_every_new_pod_is_asked_about_once(kind: str, labels: set[str], is_needed: bool) -> None:
    """And those that nobody knows anything of do not need an answer."""
    [configuration] = of(kind)

    def takes(hook: Raw) -> bool:
        terms = hook["objectSelector"]["matchExpressions"]
        return all((term["key"] in labels) == (term["operator"] == "Exists") for term in terms)

    [hook] = [hook for hook in configuration["webhooks"][1:] if takes(hook)]
    assert hook["failurePolicy"] == ("Fail" if is_needed else "Ignore")
    [rule] = hook["rules"]
    assert (rule["apiGroups"], rule["resources"]) == ([""], ["pods"])
    assert ("UPDATE" in rule["operations"]) == is_needed, "who adds a label later is asked about then"


def test_webhooks_outside_the_cluster() -> None:
    options = InstallOptions(webhook_url="https://10.0.0.1:9443/")
    hooks = [o["webhooks"][0]["clientConfig"] for o in manifests.webhooks(options, CATALOG.custom)]
    assert hooks == [{"url": "https://10.0.0.1:9443/mutate"}, {"url": "https://10.0.0.1:9443/validate"}]


def test_budget_version_follows_the_cluster() -> None:
    old = manifests.workload(InstallOptions(budget_version="v1beta1"))
    assert of("PodDisruptionBudget", old)[0]["apiVersion"] == "policy/v1beta1"


def _rules(kind: str, name: str) -> list[dict[str, Any]]:
    [role] = [o for o in of(kind) if o["metadata"]["name"] == name]
    rules: list[dict[str, Any]] = role["rules"]
    return rules


def test_controllers_get_no_wildcards_and_no_secrets_of_others() -> None:
    for rule in _rules("ClusterRole", "muster-controller") + _rules("Role", "muster-controller"):
        assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
    assert not any("secrets" in rule["resources"] for rule in _rules("ClusterRole", "muster-controller"))
    for rule in _rules("Role", "muster-controller"):
        assert rule.get("resourceNames") or rule["verbs"] == ["create"]


def test_roles_of_agents_are_bound_to_nobody_and_split_by_where_they_count() -> None:
    """Secrets and the pods themselves only where a party's role is bound; leases only where nodes have theirs."""
    everywhere = {(g, r, v) for rule in _rules("ClusterRole", "muster-agent") for g, r, v in _granted(rule)}
    assert not {(g, r) for g, r, _ in everywhere} & {("", "secrets"), ("", "configmaps"), ("coordination.k8s.io", "leases")}
    assert {v for g, r, v in everywhere if (g, r) == ("", "pods")} == {"list", "watch"}
    assert not any("*" in one for one in everywhere)
    in_a_namespace = {(g, r, v) for rule in _rules("ClusterRole", "muster-agent-pods") for g, r, v in _granted(rule)}
    assert {v for g, r, v in in_a_namespace if r in ("secrets", "configmaps")} == {"get"}
    bound = {o["roleRef"]["name"] for kind in ("ClusterRoleBinding", "RoleBinding") for o in of(kind)}
    assert bound == {"muster-controller"}


def _granted(rule: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(g, r, v) for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]]


def test_every_controller_has_its_permissions_written_down() -> None:
    names = [controller.name for controller in cluster_controllers()]
    assert set(names) == set(CONTROLLER_RULES)
    assert all(rule.reason for rule in rules_for(names))


def test_users_may_view_and_edit_all_our_kinds() -> None:
    for name, role in (("muster-view", "view"), ("muster-edit", "edit")):
        [found] = [o for o in of("ClusterRole") if o["metadata"]["name"] == name]
        assert found["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{role}"] == "true"
        granted = {(r["apiGroups"][0], p) for r in found["rules"] for p in r["resources"]}
        assert granted == {(r.group, r.plural) for r in CATALOG.custom}
