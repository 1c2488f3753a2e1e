"""The configuration: what is taken, what it becomes, and what is warned about."""

from __future__ import annotations

from typing import Any

import pytest

from muster.engine.configuration import (
    API_VERSIONS,
    DEFAULT_PLUGINS,
    default_configuration,
    load,
    profiles_from,
    read,
)
from muster.engine.events import Configured, decode, encode
from muster.engine.machine import Engine
from muster.engine.plugins.fit import FitArgs
from muster.engine.registry import Registry
from tests.engine.configuring import HEAD, REGISTRY, MineArgs, config, disabled, document, enabled, of, plugins


def test_the_default_serves_the_pods_of_kuscia_and_koordinator() -> None:
    found = default_configuration(REGISTRY)
    assert found.served == dict.fromkeys(("muster-scheduler", "kuscia-scheduler", "koord-scheduler"), "muster-scheduler")
    assert found.warnings == ()
    assert found.profiles[0].weights == {"NodeName": 1, "TaintToleration": 3, "NodeResourcesFit": 1, "Bandwidth": 1}


def test_the_default_has_all_its_plugins_and_weights() -> None:
    registry = Registry()
    found = default_configuration(registry)
    [profile] = found.build(registry)
    assert {plugin.name for plugin in profile.plugins} == {choice.name for choice in DEFAULT_PLUGINS}
    scoring = {plugin.name: profile.weights[plugin.name] for plugin in profile.at["score"]}
    assert scoring == {
        "NodeResourcesFit": 1,
        "NodeResourcesBalancedAllocation": 1,
        "ImageLocality": 1,
        "InterPodAffinity": 2,
        "NodeAffinity": 2,
        "PodTopologySpread": 2,
        "TaintToleration": 3,
        "Bandwidth": 1,
        "LoadAwareScheduling": 1,
        "PastRuns": 3,
    }


@pytest.mark.parametrize("version", API_VERSIONS)
def test_api_versions(version: str) -> None:
    assert read({**HEAD, "apiVersion": version}, REGISTRY).profiles == default_configuration(REGISTRY).profiles


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param({}, id="nothing"),
        pytest.param(None, id="null"),
        pytest.param({"plugins": {}}, id="no points"),
        pytest.param({"plugins": {"filter": {}, "score": None}}, id="empty points"),
        pytest.param({"plugins": {"filter": {"enabled": [], "disabled": None}}, "pluginConfig": []}, id="empty lists"),
    ],
)
def test_what_a_profile_leaves_out_is_the_default(profile: Any) -> None:
    assert of(profile).profiles == default_configuration(REGISTRY).profiles


FILTERS = ("NodeName", "TaintToleration", "NodeResourcesFit", "Bandwidth")


@pytest.mark.parametrize(
    ("profile", "filters", "scores"),
    [
        pytest.param({}, FILTERS, {"TaintToleration": 3, "NodeResourcesFit": 1, "Bandwidth": 1}, id="defaults"),
        pytest.param(
            plugins(multiPoint=enabled("Mine")),
            (*FILTERS, "Mine"),
            {"TaintToleration": 3, "NodeResourcesFit": 1, "Bandwidth": 1, "Mine": 1},
            id="one more",
        ),
        pytest.param(
            plugins(multiPoint=enabled(("Bandwidth", 7))),
            FILTERS,
            {"TaintToleration": 3, "NodeResourcesFit": 1, "Bandwidth": 7},
            id="a default with another weight stays in its place",
        ),
        pytest.param(
            plugins(multiPoint=disabled("Bandwidth")),
            FILTERS[:-1],
            {"TaintToleration": 3, "NodeResourcesFit": 1},
            id="one fewer",
        ),
        pytest.param(
            plugins(multiPoint={**disabled("*"), **enabled("Mine", "NodeName")}),
            ("Mine", "NodeName"),
            {"Mine": 1},
            id="only these",
        ),
        pytest.param(plugins(score=disabled("*")), FILTERS, {}, id="no scores"),
        pytest.param(
            plugins(score={"disabled": ["*"], **enabled(("Mine", 5))}), FILTERS, {"Mine": 5}, id="one score, star as plain text"
        ),
        pytest.param(
            plugins(score=disabled("TaintToleration")),
            FILTERS,
            {"NodeResourcesFit": 1, "Bandwidth": 1},
            id="filters but does not score",
        ),
        pytest.param(
            plugins(filter=enabled("Bandwidth", "Mine")),
            ("Bandwidth", "NodeName", "TaintToleration", "NodeResourcesFit", "Mine"),
            {"TaintToleration": 3, "NodeResourcesFit": 1, "Bandwidth": 1},
            id="named ones of the list first, new ones last",
        ),
        pytest.param(
            plugins(score=enabled("TaintToleration")),
            FILTERS,
            {"TaintToleration": 1, "NodeResourcesFit": 1, "Bandwidth": 1},
            id="without a weight the weight is 1",
        ),
        pytest.param(
            plugins(multiPoint=enabled(("Mine", 4)), score=enabled(("Mine", 9))),
            (*FILTERS, "Mine"),
            {"Mine": 9, "TaintToleration": 3, "NodeResourcesFit": 1, "Bandwidth": 1},
            id="score's weight wins",
        ),
        pytest.param(
            plugins(queueSort=enabled("PrioritySort"), permit=enabled("Coscheduling"), preEnqueue=enabled("SchedulingGates")),
            FILTERS,
            {"TaintToleration": 3, "NodeResourcesFit": 1, "Bandwidth": 1},
            id="what the engine does itself may be named",
        ),
    ],
)
def test_plugin_lists(profile: Any, filters: tuple[str, ...], scores: dict[str, int]) -> None:
    found = of(profile)
    [built] = found.build(REGISTRY)
    assert tuple(plugin.name for plugin in built.at["filter"]) == filters
    assert {plugin.name: built.weights[plugin.name] for plugin in built.at["score"]} == scores
    assert found.warnings == ()


def test_arguments_reach_the_plugin() -> None:
    found = of(
        {
            **plugins(multiPoint=enabled("Mine")),
            "pluginConfig": [
                {"name": "Mine", "args": {"apiVersion": "any/v1", "kind": "MineArgs", "howMany": 4, "words": None}},
                config("NodeResourcesFit", ignoredResources=["example.com/x"]),
            ],
        }
    )
    [profile] = found.build(REGISTRY)
    by_name = {plugin.name: plugin for plugin in profile.plugins}
    assert by_name["Mine"].args == MineArgs(how_many=4)
    assert by_name["NodeResourcesFit"].args == FitArgs(ignored_resources=("example.com/x",))


def test_building_twice_makes_plugins_of_their_own() -> None:
    found = default_configuration(REGISTRY)
    [first], [second] = found.build(REGISTRY), found.build(REGISTRY)
    assert not {id(plugin) for plugin in first.plugins} & {id(plugin) for plugin in second.plugins}


def test_several_profiles_aliases_and_shadow() -> None:
    found = read(
        document(
            {"schedulerName": "muster-scheduler"},
            {"schedulerName": "koord-scheduler", "shadow": True},
            {"schedulerName": "third", "aliases": ["fourth"]},
        ),
        REGISTRY,
    )
    assert found.served == {
        "muster-scheduler": "muster-scheduler",
        "kuscia-scheduler": "muster-scheduler",
        "koord-scheduler": "koord-scheduler",
        "third": "third",
        "fourth": "third",
    }
    built = found.build(REGISTRY)
    assert [profile.is_shadow for profile in built] == [False, True, False]
    assert [profile.names for profile in built] == [
        ("muster-scheduler", "kuscia-scheduler"),
        ("koord-scheduler",),
        ("third", "fourth"),
    ]


def test_limits_reach_the_profiles() -> None:
    assert of({}, limits={"cachedShapesMax": 77}).build(REGISTRY)[0].cached_shapes_max == 77


def test_the_engine_goes_over_to_what_a_configured_event_says() -> None:
    engine = Engine(default_configuration(REGISTRY).build(REGISTRY), configure=profiles_from(REGISTRY))
    document_ = document({"schedulerName": "other", **plugins(multiPoint=enabled("Mine"))})
    engine.step([decode(encode(Configured(read(document_, REGISTRY).raw)))], 1.0)
    assert set(engine.profiles) == {"other"}
    assert [plugin.name for plugin in engine.profiles["other"].plugins] == [*FILTERS, "Mine"]


@pytest.mark.parametrize(
    ("profiles", "served_by"),
    [
        pytest.param([], "muster-scheduler", id="the default"),
        pytest.param([{}], "muster-scheduler", id="a profile without a name"),
        pytest.param(
            [{"schedulerName": "other"}, {"schedulerName": "muster-scheduler"}], "muster-scheduler", id="among others"
        ),
        pytest.param([{"schedulerName": "muster-scheduler", "aliases": []}], None, id="aliases are given"),
        pytest.param([{"schedulerName": "other"}], None, id="the profile is not there"),
        pytest.param(
            [{"schedulerName": "muster-scheduler"}, {"schedulerName": "default-scheduler"}],
            "default-scheduler",
            id="a profile of it",
        ),
        pytest.param(
            [{"schedulerName": "muster-scheduler"}, {"schedulerName": "b", "aliases": ["default-scheduler"]}],
            "b",
            id="an alias of it",
        ),
    ],
)
def test_who_serves_pods_that_name_no_scheduler(profiles: list[dict[str, Any]], served_by: str | None) -> None:
    found = read({**HEAD, "profiles": profiles}, REGISTRY)
    assert found.served.get("default-scheduler") in {None, "default-scheduler", "b"}, "only where it is asked for"
    sole = found.as_sole()
    assert sole.served == found.served | ({"default-scheduler": served_by} if served_by else {})
    assert read(sole.raw, REGISTRY).profiles == sole.profiles, "what is logged says the same"
    assert sole.as_sole() == sole


def test_a_profile_that_gives_aliases_gets_no_others() -> None:
    assert of({"schedulerName": "muster-scheduler", "aliases": []}).served == {"muster-scheduler": "muster-scheduler"}


@pytest.mark.parametrize(
    ("profile", "type_", "weight"),
    [
        pytest.param(plugins(score=enabled(("NodeResourcesMostAllocated", 4))), "MostAllocated", 4, id="most"),
        pytest.param(
            plugins(score={**disabled("NodeResourcesLeastAllocated"), **enabled("NodeResourcesMostAllocated")}),
            "MostAllocated",
            1,
            id="most instead of least",
        ),
        pytest.param(
            {"pluginConfig": [config("NodeResourcesLeastAllocated", resources=[{"name": "cpu", "weight": 3}])]},
            "LeastAllocated",
            1,
            id="least was on by default",
        ),
        pytest.param(
            {
                **plugins(score=enabled(("RequestedToCapacityRatio", 2))),
                "pluginConfig": [config("RequestedToCapacityRatio", shape=[{"utilization": 0, "score": 10}])],
            },
            "RequestedToCapacityRatio",
            2,
            id="ratio",
        ),
    ],
)
def test_scoring_plugins_of_old_become_strategies(profile: Any, type_: str, weight: int) -> None:
    found = of(profile)
    args: Any = found.profiles[0].args["NodeResourcesFit"]
    assert args.scoring_strategy.type == type_
    assert found.profiles[0].weights["NodeResourcesFit"] == weight
    assert "NodeResourcesFit" in found.profiles[0].points["score"]
    if "plugins" in profile:
        assert any("is deprecated: use NodeResourcesFit" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("value", "warning"),
    [
        pytest.param(
            document(percentageOfNodesToScore=50),
            "percentageOfNodesToScore: has no effect: all nodes are scored, always",
            id="percentage",
        ),
        pytest.param(
            document({"percentageOfNodesToScore": 50}),
            "profiles[0].percentageOfNodesToScore: has no effect: all nodes are scored, always",
            id="percentage of a profile",
        ),
        pytest.param(document(parallelism=16), "parallelism: has no effect here", id="parallelism"),
        pytest.param(
            document(leaderElection={"leaderElect": True}), "leaderElection: has no effect here", id="leader election"
        ),
        pytest.param(
            document(plugins(filter=disabled("EBSLimits"))),
            "profiles[0].plugins.filter.disabled[0]: Muster has no plugin EBSLimits, so there is nothing to disable",
            id="disabling what is not here",
        ),
        pytest.param(
            document(plugins(bind=disabled("DefaultBinder"))),
            "profiles[0].plugins.bind.disabled[0]: DefaultBinder is part of the engine and stays",
            id="disabling the engine",
        ),
        pytest.param(
            document(plugins(filter=enabled(("Bandwidth", 3)))),
            "profiles[0].plugins.filter.enabled[0].weight: has no effect here; weights belong to score",
            id="weight of a filter",
        ),
        pytest.param(
            document(plugins(permit=enabled("Mine"))),
            "profiles[0].plugins.permit.enabled[0].name: Mine takes no part in permit, so this changes nothing",
            id="no part in the point",
        ),
        pytest.param(
            document({"pluginConfig": [config("Mine")]}),
            "profiles[0].pluginConfig[0].args: Mine is not enabled, so its arguments have no effect",
            id="arguments of a plugin that is off",
        ),
        pytest.param(
            document({"pluginConfig": [config("Coscheduling", defaultTimeout="600s")]}),
            "profiles[0].pluginConfig[0].args: Coscheduling is part of the engine, and its arguments have no effect",
            id="arguments for the engine",
        ),
        pytest.param(
            document({"pluginConfig": [config("DeviceShare", x=1)]}),
            "profiles[0].pluginConfig[0]: Muster has no plugin DeviceShare, so its arguments have no effect",
            id="arguments of what is not here",
        ),
        pytest.param(
            document({"pluginConfig": [config("NodeResourcesMostAllocated")]}),
            "profiles[0].pluginConfig[0].args: NodeResourcesMostAllocated is not enabled, so its arguments have no effect",
            id="arguments of a strategy that is off",
        ),
        pytest.param(
            document({"schedulerName": "default-scheduler"}),
            "profiles[0].schedulerName: default-scheduler is what pods get that name no scheduler; "
            "kube-scheduler must not run beside it",
            id="kube-scheduler's name",
        ),
    ],
)
def test_warnings(value: Any, warning: str) -> None:
    assert read(value, REGISTRY).warnings == (warning,)


KUBE_SCHEDULERS_OWN = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {acceptContentTypes: "", burst: 100, contentType: application/vnd.kubernetes.protobuf, qps: 50}
enableContentionProfiling: true
enableProfiling: true
leaderElection: {leaderElect: true, leaseDuration: 15s, renewDeadline: 10s, resourceName: kube-scheduler}
parallelism: 16
percentageOfNodesToScore: 0
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 10
profiles:
- schedulerName: default-scheduler
  plugins:
    bind: {}
    filter: {}
    multiPoint:
      enabled:
      - {name: SchedulingGates, weight: 0}
      - {name: PrioritySort, weight: 0}
      - {name: NodeUnschedulable, weight: 0}
      - {name: NodeName, weight: 0}
      - {name: TaintToleration, weight: 3}
      - {name: NodeAffinity, weight: 2}
      - {name: NodePorts, weight: 0}
      - {name: NodeResourcesFit, weight: 1}
      - {name: VolumeRestrictions, weight: 0}
      - {name: VolumeBinding, weight: 0}
      - {name: VolumeZone, weight: 0}
      - {name: PodTopologySpread, weight: 2}
      - {name: InterPodAffinity, weight: 2}
      - {name: DefaultPreemption, weight: 0}
      - {name: NodeResourcesBalancedAllocation, weight: 1}
      - {name: ImageLocality, weight: 1}
      - {name: DefaultBinder, weight: 0}
    queueSort: {}
  pluginConfig:
  - name: DefaultPreemption
    args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: DefaultPreemptionArgs, minCandidateNodesAbsolute: 100,
      minCandidateNodesPercentage: 10}
  - name: InterPodAffinity
    args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: InterPodAffinityArgs, hardPodAffinityWeight: 1,
      ignorePreferredTermsOfExistingPods: false}
  - name: NodeAffinity
    args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: NodeAffinityArgs}
  - name: NodeResourcesBalancedAllocation
    args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: NodeResourcesBalancedAllocationArgs,
      resources: [{name: cpu, weight: 1}, {name: memory, weight: 1}]}
  - name: NodeResourcesFit
    args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: NodeResourcesFitArgs,
      scoringStrategy: {type: LeastAllocated, resources: [{name: cpu, weight: 1}, {name: memory, weight: 1}]}}
  - name: PodTopologySpread
    args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: PodTopologySpreadArgs, defaultingType: System}
  - name: VolumeBinding
    args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: VolumeBindingArgs, bindTimeoutSeconds: 600}
"""


def test_a_file_as_kube_scheduler_writes_it_out_is_taken_whole() -> None:
    registry = Registry()
    found = load(KUBE_SCHEDULERS_OWN, registry)
    [profile] = found.build(registry)
    default = default_configuration(registry)
    assert profile.names == ("default-scheduler",)
    assert set(found.profiles[0].plugins) == set(default.profiles[0].plugins)
    assert {p.name: profile.weights[p.name] for p in profile.at["score"]} == {
        name: weight for name, weight in default.profiles[0].weights.items() if name in {p.name for p in profile.at["score"]}
    }
    assert "profiles[0].pluginConfig[6].args.bindTimeoutSeconds: has no effect here" in found.warnings
