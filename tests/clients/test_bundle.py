"""What a chart of the real world brings along, applied in one go: every kind, again without a change, and gone at the end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.server.running import RunningServer

pytestmark = pytest.mark.slow

BUNDLE = Path(__file__).parent / "bundle"
CRDS, OBJECTS = (str(BUNDLE / name) for name in ("crds.yaml", "bundle.yaml"))
HAS_KIND = re.compile(r"^kind: \w+", re.MULTILINE)
COUNT = len(HAS_KIND.findall((BUNDLE / "bundle.yaml").read_text()))

Kubectl = Callable[..., str]


@pytest.fixture
def kubectl(server: RunningServer, namespace: str) -> Iterator[Kubectl]:
    """kubectl in the test's own namespace; the cluster-wide objects of the bundle are gone afterwards."""

    def run(*args: str, **more: object) -> str:
        return server.kubectl("-n", namespace, *args, **more)  # type: ignore[arg-type]

    yield run
    run("delete", "--ignore-not-found", "--wait", "-f", OBJECTS, "-f", CRDS, code=None)
    assert run("get", "--ignore-not-found", "clusterrole/bundle-controller", "crd/issuers.certs.bundle.example") == ""


def _outcomes(said: str) -> dict[str, int]:
    """How often kubectl said created, unchanged, and so on."""
    said = re.sub(r" from \S+ namespace$", "", said, flags=re.MULTILINE)  # what newer ones say of a deletion
    words = [line.rsplit(" ", 1)[1] for line in said.splitlines() if not line.startswith("Warning: ")]
    return {word: words.count(word) for word in dict.fromkeys(words)}


# Client-side apply sends these again each time, on Kubernetes too: text of a secret that is written into its data, a selector
# that is replaced as a whole, lists that are replaced as a whole and whose items have defaults. Nothing may come of it.
SENT_AGAIN = {
    "secret/bundle-admin",
    "deployment.apps/bundle-controller",
    "statefulset.apps/bundle-store",
    "networkpolicy.networking.k8s.io/bundle-store",
    "poddisruptionbudget.policy/bundle-controller",
    "validatingwebhookconfiguration.admissionregistration.k8s.io/bundle-admission",
    "scrape.monitoring.bundle.example/bundle",
}


def _versions(kubectl: Kubectl) -> dict[str, str]:
    got = yaml.safe_load(kubectl("get", "-o", "yaml", "-f", CRDS, "-f", OBJECTS))["items"]
    return {f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["resourceVersion"] for one in got}


def _install_crds(kubectl: Kubectl) -> None:
    assert _outcomes(kubectl("apply", "-f", CRDS)) == {"created": 2}
    kubectl("wait", "--for=condition=established", "--timeout=60s", "-f", CRDS)


def test_client_side_apply(kubectl: Kubectl) -> None:
    _install_crds(kubectl)
    assert _outcomes(kubectl("apply", "-f", OBJECTS)) == {"created": COUNT}
    before = _versions(kubectl)
    assert len(before) == COUNT + 2
    again = kubectl("apply", "-f", CRDS, "-f", OBJECTS)
    assert {line.split(" ")[0] for line in again.splitlines() if not line.endswith(" unchanged")} == SENT_AGAIN
    assert _versions(kubectl) == before
    assert kubectl("diff", "-f", CRDS, "-f", OBJECTS) == ""
    assert _outcomes(kubectl("delete", "--wait", "-f", OBJECTS)) == {"deleted": COUNT}
    assert kubectl("get", "--ignore-not-found", "-f", OBJECTS) == ""


def test_server_side_apply(kubectl: Kubectl) -> None:
    _install_crds(kubectl)
    assert _outcomes(kubectl("apply", "--server-side", "-f", OBJECTS)) == {"serverside-applied": COUNT}
    before = _versions(kubectl)
    assert _outcomes(kubectl("apply", "--server-side", "-f", OBJECTS)) == {"serverside-applied": COUNT}
    assert _versions(kubectl) == before
    assert kubectl("diff", "--server-side", "-f", OBJECTS) == ""


def test_from_client_side_to_server_side(kubectl: Kubectl) -> None:
    """What a team does that changes its tool. The same values are owned by both, and kubectl hands over what was its own.

    Only what is owned as a whole and has defaults within it differs from what the manifest says, and has to be forced: on
    Kubernetes too.
    """
    _install_crds(kubectl)
    kubectl("apply", "-f", OBJECTS)
    refused = kubectl("apply", "--server-side", "-f", OBJECTS, code=1)
    assert refused.count(" serverside-applied\n") == COUNT - 5
    assert re.findall(
        r"\.(?:volumeClaimTemplates|ingress|rules|endpoints|sources|fieldRef|resourceFieldRef)$", refused, re.MULTILINE
    )
    forced = kubectl("apply", "--server-side", "--force-conflicts", "-f", OBJECTS)
    assert _outcomes(forced) == {"serverside-applied": COUNT}
    for kind in ("service", "deployment", "role"):
        name = "bundle-leader" if kind == "role" else "bundle-controller"
        live = yaml.safe_load(kubectl("get", kind, name, "-o", "yaml", "--show-managed-fields"))
        assert {(m["manager"], m["operation"]) for m in live["metadata"]["managedFields"]} == {
            ("kubectl", "Apply"),
            ("kubectl-last-applied", "Apply"),
        }
    assert kubectl("diff", "-f", OBJECTS) == ""


def test_definitions_and_their_objects_in_one_go(kubectl: Kubectl, tmp_path: Path) -> None:
    """kubectl looks every kind up before it makes the first object, so what needs the definitions comes the second time."""
    fresh = {"HOME": str(tmp_path)}  # it remembers kinds that it has seen
    first = kubectl("apply", "-f", CRDS, "-f", OBJECTS, code=1, env=fresh)
    assert first.count(" created\n") == COUNT
    assert first.count("ensure CRDs are installed first") == 2
    assert kubectl("apply", "-f", CRDS, "-f", OBJECTS, env=fresh).count(" created\n") == 2


def test_tables_of_every_kind(kubectl: Kubectl) -> None:
    _install_crds(kubectl)
    kubectl("apply", "-f", OBJECTS)
    tables = kubectl("get", "-f", OBJECTS)
    assert tables.count("NAME ") == len(set(HAS_KIND.findall((BUNDLE / "bundle.yaml").read_text())))
    shown = kubectl("get", "hpa", "--no-headers")
    assert re.match(
        r"bundle-controller +Deployment/bundle-controller +cpu: <unknown>/50%, memory: <unknown>/500Mi +1 +11 +0 ", shown
    )
    assert re.search(r"Reference: +Deployment/bundle-controller", kubectl("describe", "hpa", "bundle-controller"))


def test_a_deployment_is_given_an_autoscaler(kubectl: Kubectl) -> None:
    """`kubectl autoscale` sends it as protobuf."""
    kubectl("create", "deployment", "web", "--image=nginx")
    assert "autoscaled" in kubectl("autoscale", "deployment", "web", "--cpu=50%", "--min=1", "--max=10")
    live = yaml.safe_load(kubectl("get", "hpa", "web", "-o", "yaml"))["spec"]
    assert live["metrics"] == [
        {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}
    ]
    assert (live["minReplicas"], live["maxReplicas"]) == (1, 10)
    refused = kubectl("patch", "hpa", "web", "--type=merge", "-p", '{"spec":{"minReplicas":20}}', code=1)
    assert "spec.maxReplicas: Invalid value: 10: must be greater than or equal to `minReplicas`" in refused


def test_aggregated_servers_are_not_there_and_kubectl_says_so(kubectl: Kubectl) -> None:
    service = """
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec: {group: metrics.k8s.io, version: v1beta1, groupPriorityMinimum: 100, versionPriority: 100}
"""
    refused = kubectl("apply", "-f", "-", stdin=service, code=1)
    assert 'no matches for kind "APIService" in version "apiregistration.k8s.io/v1"' in refused
