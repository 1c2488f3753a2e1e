"""Who stands behind a service: tables, and a life in the simulator."""

from __future__ import annotations

import pytest

from muster.controllers import endpoint_slices
from muster.controllers.actions import Create, Delete, Patch, Target
from muster.controllers.endpoints import (
    ADDRESSES_MAX,
    HEADLESS,
    TRUNCATED,
    BackingPod,
    EndpointsKeeper,
    PodView,
    Present,
    ServiceSpec,
    plan,
    subsets,
)
from muster.objects.status import Raw
from muster.objects.view import view_of
from muster.sim.world import World, simulate

SERVICE = Target("", "Service", "web", "shop", "s1")


def pod(
    name: str,
    ip: str = "10.0.0.1",
    *,
    ready: bool = True,
    phase: str = "Running",
    leaving: bool = False,
    port: int = 8080,
    **spec: object,
) -> BackingPod:
    raw = {
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "ports": [{"name": "http", "containerPort": port}]}], **spec},
        "status": {"phase": phase, "podIP": ip, "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }
    return BackingPod("shop", name, f"u-{name}", view_of(PodView, raw), leaving)


def spec(**fields: object) -> ServiceSpec:
    return view_of(
        ServiceSpec, {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}], **fields}
    )


def brief(made: list[Raw]) -> list[tuple[list[str], list[str], list[int]]]:
    return [
        (
            [address["ip"] for address in one.get("addresses", [])],
            [address["ip"] for address in one.get("notReadyAddresses", [])],
            [port["port"] for port in one.get("ports", [])],
        )
        for one in made
    ]


@pytest.mark.parametrize(
    ("service", "pods", "expected"),
    [
        pytest.param(spec(), [], [], id="nobody"),
        pytest.param(spec(), [pod("a")], [(["10.0.0.1"], [], [8080])], id="a named port"),
        pytest.param(spec(ports=[{"port": 80}]), [pod("a")], [(["10.0.0.1"], [], [80])], id="no target: the same number"),
        pytest.param(spec(ports=[{"port": 80, "targetPort": 9}]), [pod("a")], [(["10.0.0.1"], [], [9])], id="a number"),
        pytest.param(spec(ports=[{"port": 80, "targetPort": "x"}]), [pod("a")], [], id="a name that no container has"),
        pytest.param(
            spec(ports=[{"port": 80, "targetPort": "http", "protocol": "UDP"}]),
            [pod("a")],
            [],
            id="the name, but not the protocol",
        ),
        pytest.param(spec(ports=[], clusterIP="None"), [pod("a")], [(["10.0.0.1"], [], [])], id="headless without ports"),
        pytest.param(spec(), [pod("a", ready=False)], [([], ["10.0.0.1"], [8080])], id="not ready stands apart"),
        pytest.param(
            spec(publishNotReadyAddresses=True),
            [pod("a", ready=False)],
            [(["10.0.0.1"], [], [8080])],
            id="published before it is ready",
        ),
        pytest.param(spec(), [pod("a", "")], [], id="no address yet"),
        pytest.param(spec(), [pod("a", phase="Succeeded"), pod("b", phase="Failed")], [], id="ended"),
        pytest.param(spec(), [pod("a", leaving=True)], [], id="leaving"),
        pytest.param(
            spec(publishNotReadyAddresses=True),
            [pod("a", leaving=True)],
            [(["10.0.0.1"], [], [8080])],
            id="leaving, but published",
        ),
        pytest.param(
            spec(),
            [pod("b", "10.0.0.2"), pod("a", "10.0.0.1"), pod("c", "10.0.0.3", port=9090)],
            [(["10.0.0.1", "10.0.0.2"], [], [8080]), (["10.0.0.3"], [], [9090])],
            id="grouped by what the name means at each",
        ),
    ],
)
def test_subsets(service: ServiceSpec, pods: list[BackingPod], expected: list[tuple[list[str], list[str], list[int]]]) -> None:
    made, is_truncated = subsets("web", service, pods)
    assert brief(made) == expected
    assert not is_truncated


def test_an_address_says_whose_it_is() -> None:
    made, _ = subsets(
        "web", spec(), [pod("a", hostname="a", subdomain="web"), pod("b", "10.0.0.2", hostname="b", subdomain="db")]
    )
    addresses = made[0]["addresses"]
    assert addresses[0] == {
        "ip": "10.0.0.1",
        "hostname": "a",
        "nodeName": "n1",
        "targetRef": {"kind": "Pod", "namespace": "shop", "name": "a", "uid": "u-a"},
    }
    assert "hostname" not in addresses[1]


def test_more_than_fit_are_left_out_and_those_that_are_not_ready_first() -> None:
    pods = [pod(f"p{n}", f"10.0.{n // 250}.{n % 250}", ready=n > 5) for n in range(ADDRESSES_MAX + 6)]
    actions = plan(SERVICE, {}, spec(), pods, None, slices={})
    assert isinstance(actions[0], Create)
    made = actions[0].object
    assert len(made["subsets"][0]["addresses"]) == ADDRESSES_MAX
    assert "notReadyAddresses" not in made["subsets"][0]
    assert made["metadata"]["annotations"] == {TRUNCATED: "truncated"}


def present(**changes: object) -> Present:
    made, _ = subsets("web", spec(), [pod("a")])
    fields: dict[str, object] = {"subsets": made, "labels": {"l": "1"}, "annotations": {}, "is_owned": True}
    return Present(**{**fields, **changes})  # type: ignore[arg-type]


def slices_of(*actions: object) -> dict[str, Raw]:
    made = [action.object for action in actions if isinstance(action, Create) and action.object["kind"] == "EndpointSlice"]
    return {one["metadata"]["name"]: one for one in made}


SLICES = slices_of(*plan(SERVICE, {"l": "1"}, spec(), [pod("a")], None, slices={}))


def test_slices_say_the_same() -> None:
    pods = [pod("a", hostname="a", subdomain="web"), pod("b", "10.0.0.2", ready=False), pod("c", "10.0.0.3", port=9090)]
    made = slices_of(*plan(SERVICE, {"l": "1"}, spec(), pods, None, slices={}))
    first, second = sorted(made.values(), key=lambda one: int(one["ports"][0]["port"]))
    assert [(e["addresses"], e["conditions"]["ready"]) for e in first["endpoints"]] == [
        (["10.0.0.1"], True),
        (["10.0.0.2"], False),
    ]
    assert first["endpoints"][0]["hostname"] == "a"
    assert first["metadata"]["labels"]["kubernetes.io/service-name"] == "web"
    assert first["metadata"]["labels"]["l"] == "1"
    assert [e["addresses"] for e in second["endpoints"]] == [["10.0.0.3"]]


@pytest.mark.parametrize(
    ("pods", "there", "expected"),
    [
        pytest.param([pod("a")], SLICES, [], id="as it should be"),
        pytest.param([pod("a")], {}, [Create], id="new"),
        pytest.param([pod("a", "10.0.0.9")], SLICES, [Patch], id="another address"),
        pytest.param([pod("a", port=1)], SLICES, [Create, Delete], id="another port"),
        pytest.param([], SLICES, [Delete], id="nobody any more"),
    ],
)
def test_plan_of_slices(pods: list[BackingPod], there: dict[str, Raw], expected: list[type]) -> None:
    made, _ = subsets("web", spec(), pods)
    assert [type(action) for action in endpoint_slices.plan(SERVICE, {"l": "1"}, {}, made, there)] == expected


@pytest.mark.parametrize(
    ("service", "there", "kinds"),
    [
        pytest.param(spec(), None, [Create], id="new"),
        pytest.param(spec(), present(), [], id="as it should be"),
        pytest.param(spec(), present(subsets=[]), [Patch], id="another address"),
        pytest.param(spec(), present(labels={"l": "1", "old": "2"}), [Patch], id="another label"),
        pytest.param(spec(), present(is_owned=False), [Patch], id="made by a user: taken over"),
        pytest.param(spec(), present(annotations={TRUNCATED: "truncated"}), [Patch], id="no longer too many"),
        pytest.param(spec(selector={}), present(), [], id="no selector: somebody else's"),
        pytest.param(spec(type="ExternalName"), present(), [Delete, Delete], id="became another name"),
        pytest.param(spec(type="ExternalName"), present(is_owned=False), [Delete], id="another name, and not ours"),
        pytest.param(spec(type="ExternalName"), None, [Delete], id="another name"),
    ],
)
def test_plan(service: ServiceSpec, there: Present | None, kinds: list[type]) -> None:
    actions = plan(SERVICE, {"l": "1"}, service, [pod("a")], there, slices=SLICES)
    assert [type(action) for action in actions] == kinds


def test_headless_is_said() -> None:
    (action,) = plan(SERVICE, {}, spec(clusterIP="None"), [], None, slices={})
    assert isinstance(action, Create)
    assert action.object["metadata"]["labels"] == {HEADLESS: ""}
    assert action.object["subsets"] == []


def service(name: str, **fields: object) -> Raw:
    wanted = {"selector": {"app": name}, "clusterIP": "None", "ports": [{"port": 80}], **fields}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"}, "spec": wanted}


def manifest(name: str, app: str) -> Raw:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": app}},
        "spec": {"containers": [{"name": "main", "image": "i"}]},
    }


def test_a_service_lives() -> None:
    async def scenario(world: World) -> None:
        world.add_manager("controllers", lambda: [EndpointsKeeper()])
        store = world.store
        pods, services = await store.resource("", "Pod"), await store.resource("", "Service")
        endpoints = await store.resource("", "Endpoints")

        async def addresses() -> tuple[list[str], list[str]]:
            await world.run_for(2)
            found = await store.get(endpoints, "web", "default")
            ready = [one["ip"] for subset in found.get("subsets") or [] for one in subset.get("addresses", [])]
            return ready, [one["ip"] for s in found.get("subsets") or [] for one in s.get("notReadyAddresses", [])]

        await world.create(service("web"))
        await world.create(manifest("a", "web"))
        await world.create(manifest("b", "other"))
        assert await addresses() == ([], [])
        await store.patch(pods, "a", {"status": {"phase": "Running", "podIP": "10.1.0.1"}}, "default", subresource="status")
        await store.patch(pods, "b", {"status": {"phase": "Running", "podIP": "10.1.0.2"}}, "default", subresource="status")
        assert await addresses() == ([], ["10.1.0.1"])
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        await store.patch(pods, "a", {"status": ready}, "default", subresource="status")
        assert await addresses() == (["10.1.0.1"], [])
        await store.patch(pods, "b", {"metadata": {"labels": {"app": "web"}}}, "default")
        assert await addresses() == (["10.1.0.1"], ["10.1.0.2"])
        await store.patch(services, "web", {"spec": {"publishNotReadyAddresses": True}}, "default")
        assert await addresses() == (["10.1.0.1", "10.1.0.2"], [])
        await store.patch(pods, "a", {"status": {"phase": "Succeeded"}}, "default", subresource="status")
        assert await addresses() == (["10.1.0.2"], [])
        version = (await store.get(endpoints, "web", "default"))["metadata"]["resourceVersion"]
        (before,) = await world.objects("discovery.k8s.io", "EndpointSlice", "default")
        await store.patch(pods, "b", {"metadata": {"annotations": {"x": "y"}}}, "default")
        await store.patch(services, "web", {"metadata": {"annotations": {"x": "y"}}}, "default")
        await world.run_for(5)
        assert (await store.get(endpoints, "web", "default"))["metadata"]["resourceVersion"] == version
        (slice_,) = await world.objects("discovery.k8s.io", "EndpointSlice", "default")
        assert [one["addresses"] for one in slice_["endpoints"]] == [["10.1.0.2"]]
        assert slice_["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"], "nothing is written without need"
        await store.delete(services, "web", "default")
        await world.run_for(5)
        assert await world.objects("", "Endpoints", "default") == []
        assert await world.objects("discovery.k8s.io", "EndpointSlice", "default") == []

    simulate(scenario)
