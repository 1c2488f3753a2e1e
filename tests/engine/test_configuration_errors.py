"""What of a configuration is refused, and with which words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.engine.configuration import (
    PROFILES_MAX,
    TEXT_LEN_MAX,
    ConfigurationInvalid,
    load,
    read,
)
from muster.engine.notes import ERRORS_MAX
from muster.objects import yaml_text
from tests.engine.configuring import HEAD, REGISTRY, config, disabled, document, enabled, errors_of, of, plugins


@pytest.mark.parametrize(
    ("value", "error"),
    [
        pytest.param(None, "the document is empty; write apiVersion: muster.dev/v1alpha1 and kind: ", id="empty"),
        pytest.param([], "the document must be a mapping, not a list", id="a list"),
        pytest.param("x", "the document must be a mapping, not 'x'", id="text"),
        pytest.param({**HEAD, "apiVersion": "v1"}, "apiVersion: must be one of muster.dev/v1alpha1, ", id="version"),
        pytest.param({"kind": HEAD["kind"]}, "apiVersion: must be one of muster.dev/v1alpha1, ", id="no version"),
        pytest.param({**HEAD, "kind": "Pod"}, "kind: must be KubeSchedulerConfiguration, not 'Pod'", id="kind"),
        pytest.param(document(profile=[]), "profile: is not known; did you mean profiles?", id="misspelt key"),
        pytest.param(document(parallelism="many"), "parallelism: must be a whole number, not 'many'", id="ignored but wrong"),
        pytest.param(document(parallelism=True), "parallelism: must be a whole number, not True", id="ignored but a boolean"),
        pytest.param(document(extenders=[{}]), "extenders: extenders are not called from here", id="extenders"),
        pytest.param(document(profiles={}), "profiles: must be a list, not a mapping", id="profiles are no list"),
        pytest.param(document(profiles="a"), "profiles: must be a list, not 'a'", id="profiles are text"),
        pytest.param(document(7), "profiles[0]: must be a mapping, not 7", id="a profile is a number"),
        pytest.param(document({"name": "x"}), "profiles[0].name: is not known; ", id="unknown key of a profile"),
        pytest.param(document({"schedulerName": 5}), "profiles[0].schedulerName: must be text, not 5", id="name is a number"),
        pytest.param(document({"schedulerName": ""}), "profiles[0].schedulerName: must not be empty", id="name is empty"),
        pytest.param(
            document({"schedulerName": "x" * 300}), "profiles[0].schedulerName: is 300 characters long", id="long name"
        ),
        pytest.param(document({}, {}), "profiles[0].schedulerName: is missing", id="two profiles need names"),
        pytest.param(
            document({"schedulerName": "a"}, {"schedulerName": "a"}),
            "profiles[1].schedulerName: a is taken by profiles[0].schedulerName already",
            id="one name twice",
        ),
        pytest.param(
            document({"schedulerName": "a"}, {"schedulerName": "b", "aliases": ["a"]}),
            "profiles[1].aliases[0]: a is taken by profiles[0].schedulerName already",
            id="an alias is another's name",
        ),
        pytest.param(document({"aliases": "a"}), "profiles[0].aliases: must be a list, not 'a'", id="aliases are text"),
        pytest.param(document({"aliases": [1]}), "profiles[0].aliases[0]: must be text, not 1", id="an alias is a number"),
        pytest.param(document({"shadow": "yes"}), "profiles[0].shadow: must be true or false, not 'yes'", id="shadow"),
        pytest.param(document({"plugins": []}), "profiles[0].plugins: must be a mapping, not a list", id="plugins are a list"),
        pytest.param(
            document(plugins(fliter={})), "profiles[0].plugins.fliter: is not known; did you mean filter?", id="point"
        ),
        pytest.param(document(plugins(filter=[])), "profiles[0].plugins.filter: must be a mapping, not a list", id="set"),
        pytest.param(document(plugins(filter={"on": []})), "profiles[0].plugins.filter.on: is not known; ", id="key of a set"),
        pytest.param(
            document(plugins(filter={"enabled": {"name": "Mine"}})),
            "profiles[0].plugins.filter.enabled: must be a list, not a mapping",
            id="enabled is no list",
        ),
        pytest.param(
            document(plugins(filter={"enabled": ["Mine"]})),
            "profiles[0].plugins.filter.enabled[0]: must be a mapping, not 'Mine'",
            id="enabled has text",
        ),
        pytest.param(
            document(plugins(filter={"enabled": [{}]})), "profiles[0].plugins.filter.enabled[0].name: is missing", id="no name"
        ),
        pytest.param(
            document(plugins(filter={"enabled": [{"name": "Mine", "wieght": 1}]})),
            "profiles[0].plugins.filter.enabled[0].wieght: is not known; did you mean weight?",
            id="key of an entry",
        ),
        pytest.param(
            document(plugins(score=enabled("Bandwith"))),
            "profiles[0].plugins.score.enabled[0].name: there is no plugin 'Bandwith'; did you mean Bandwidth?",
            id="misspelt plugin",
        ),
        pytest.param(
            document(plugins(score=enabled("Lost"))),
            "profiles[0].plugins.score.enabled[0].name: there is no plugin 'Lost'; plugin 'Lost' of package lost (lost:Lost) "
            "is left out: importing it failed",
            id="plugin of a broken package",
        ),
        pytest.param(
            document(plugins(score=enabled("DeviceShare"))),
            "profiles[0].plugins.score.enabled[0].name: DeviceShare is a plugin of Koordinator that Muster does not have",
            id="plugin of a peer",
        ),
        pytest.param(
            document(plugins(score=enabled("NodeName", "NodeName"))),
            "profiles[0].plugins.score.enabled[1].name: NodeName is enabled twice here",
            id="enabled twice",
        ),
        pytest.param(
            document(plugins(score=enabled("NodeResourcesFit", "NodeResourcesMostAllocated"))),
            "profiles[0].plugins.score.enabled[1].name: NodeResourcesFit is enabled twice here",
            id="enabled twice under an old name",
        ),
        pytest.param(
            document(plugins(multiPoint=enabled("NodeResourcesLeastAllocated"), score=enabled("NodeResourcesMostAllocated"))),
            "profiles[0].plugins: a profile scores by one strategy, and LeastAllocated and MostAllocated are enabled",
            id="two strategies",
        ),
        pytest.param(
            document(
                {
                    **plugins(score=enabled("NodeResourcesMostAllocated")),
                    "pluginConfig": [config("NodeResourcesFit", scoringStrategy={"type": "LeastAllocated"})],
                }
            ),
            "profiles[0].pluginConfig[0].args.scoringStrategy: the deprecated plugin for MostAllocated is enabled beside it",
            id="strategy and old name",
        ),
        pytest.param(
            document({**plugins(score=enabled("RequestedToCapacityRatio"))}),
            "profiles[0].pluginConfig.scoringStrategy: requestedToCapacityRatio.shape: at least one point is needed",
            id="ratio without a shape",
        ),
        pytest.param(
            document(plugins(score=enabled(("Mine", -1)))),
            "profiles[0].plugins.score.enabled[0].weight: must not be negative, as -1 is",
            id="negative weight",
        ),
        pytest.param(
            document(plugins(score={"enabled": [{"name": "Mine", "weight": 1.5}]})),
            "profiles[0].plugins.score.enabled[0].weight: must be a whole number, not 1.5",
            id="broken weight",
        ),
        pytest.param(
            document(plugins(score={"enabled": [{"name": "Mine", "weight": True}]})),
            "profiles[0].plugins.score.enabled[0].weight: must be a whole number, not True",
            id="boolean weight",
        ),
        pytest.param(
            document(plugins(score=enabled(("Mine", 10**5000)))),
            "profiles[0].plugins.score.enabled[0].weight: a number of that size is too large; up to 10737418 is possible",
            id="weight beyond all numbers",
        ),
        pytest.param(
            document(plugins(score=enabled(("Mine", 10_000_000), ("Bandwidth", 10_000_000)))),
            "profiles[0].plugins.score: the weights add up to 20000004; up to 10737418 is possible",
            id="weights add up to too much",
        ),
        pytest.param(
            document(plugins(score=disabled("Bandwith"))),
            "profiles[0].plugins.score.disabled[0]: there is no plugin 'Bandwith'; did you mean Bandwidth?",
            id="disabling a misspelt plugin",
        ),
        pytest.param(
            document(plugins(score={"disabled": [7]})),
            "profiles[0].plugins.score.disabled[0]: must be a mapping, not 7",
            id="7",
        ),
        pytest.param(document({"pluginConfig": {}}), "profiles[0].pluginConfig: must be a list, not a mapping", id="config"),
        pytest.param(
            document({"pluginConfig": [1]}), "profiles[0].pluginConfig[0]: must be a mapping, not 1", id="config of 1"
        ),
        pytest.param(document({"pluginConfig": [{}]}), "profiles[0].pluginConfig[0].name: is missing", id="config of nobody"),
        pytest.param(
            document({"pluginConfig": [{"name": "Mine", "arg": {}}]}),
            "profiles[0].pluginConfig[0].arg: is not known; did you mean args?",
            id="key of a config",
        ),
        pytest.param(
            document({"pluginConfig": [config("Nobody")]}),
            "profiles[0].pluginConfig[0].name: there is no plugin 'Nobody'",
            id="config of an unknown plugin",
        ),
        pytest.param(
            document({"pluginConfig": [config("Mine"), config("Mine")]}),
            "profiles[0].pluginConfig[1].name: Mine is configured twice",
            id="configured twice",
        ),
        pytest.param(
            document({"pluginConfig": [{"name": "Mine", "args": []}]}),
            "profiles[0].pluginConfig[0].args: must be a mapping, not a list",
            id="args are a list",
        ),
        pytest.param(
            document({"pluginConfig": [config("Mine", kind="YoursArgs")]}),
            "profiles[0].pluginConfig[0].args.kind: must be MineArgs or left out, not 'YoursArgs'",
            id="kind of another plugin",
        ),
        pytest.param(
            document({"pluginConfig": [config("Mine", howMamy=1)]}),
            "profiles[0].pluginConfig[0].args.howMamy: is not known; did you mean howMany?",
            id="unknown argument, even where the class would take it",
        ),
        pytest.param(
            document({"pluginConfig": [config("Mine", howMany="1")]}),
            "profiles[0].pluginConfig[0].args.howMany: expected 'int', got 'str'; it is '1'",
            id="argument of a wrong type",
        ),
        pytest.param(
            document({"pluginConfig": [config("Mine", words=["a", 2])]}),
            "profiles[0].pluginConfig[0].args.words[1]: expected 'str', got 'int'; it is 2",
            id="argument wrong inside",
        ),
        pytest.param(
            document({"pluginConfig": [config("Mine", levels={"a": "b"})]}),
            "profiles[0].pluginConfig[0].args.levels[...]: expected 'int', got 'str'",
            id="argument wrong in a mapping",
        ),
        pytest.param(
            document({"pluginConfig": [config("Mine", howMany=-2)]}),
            "profiles[0].pluginConfig[0].args.howMany: expected 'int' >= 0; it is -2",
            id="argument out of range",
        ),
        pytest.param(
            document({"pluginConfig": [config("Mine", howMany=13)]}),
            "profiles[0].pluginConfig[0].args: howMany: 13 brings bad luck",
            id="argument that the class refuses",
        ),
        pytest.param(
            document({"pluginConfig": [config("Mine", howMany=14)]}),
            "profiles[0].pluginConfig[0].args: could not be read: RuntimeError: out of order",
            id="argument class that raises",
        ),
        pytest.param(
            document(plugins(multiPoint=enabled("NeedsArgs"))),
            "profiles[0].pluginConfig: NeedsArgs: object missing required field 'rack'",
            id="argument that must be given",
        ),
        pytest.param(
            document({"pluginConfig": [config("Bandwidth", reclaim=True)]}),
            "profiles[0].pluginConfig[0].args.reclaim: needs the feature gate BandwidthReclaim",
            id="gate of an argument",
        ),
        pytest.param(
            document(plugins(multiPoint=enabled("Resizes"))),
            "profiles[0].plugins.reserve: Resizes takes part in resize, which needs the feature gate ResizePod",
            id="gate of a point",
        ),
        pytest.param(
            document(featureGates={"Resize": True}),
            "featureGates.Resize: there is no such gate; did you mean ResizePod?",
            id="unknown gate",
        ),
        pytest.param(document(limits=[]), "limits: must be a mapping, not a list", id="limits"),
        pytest.param(document(limits={"x": 1}), "limits.x: is not known; known are cachedShapesMax", id="unknown limit"),
        pytest.param(
            document(limits={"cachedShapesMax": 1}), "limits.cachedShapesMax: expected 'int' >= 16; it is 1", id="low limit"
        ),
    ],
)
def test_errors(value: Any, error: str) -> None:
    found = errors_of(value)
    assert any(one.startswith(error) for one in found), found


def test_open_gates_let_through() -> None:
    found = of(
        {**plugins(multiPoint=enabled("Resizes")), "pluginConfig": [config("Bandwidth", reclaim=True)]},
        featureGates={"ResizePod": True, "BandwidthReclaim": True},
    )
    assert found.gates["ResizePod"]
    assert [plugin.name for plugin in found.build(REGISTRY)[0].at["resize"]] == ["Resizes"]


def test_a_gate_does_not_mind_the_default_value() -> None:
    assert of({"pluginConfig": [config("Bandwidth", reclaim=False)]}).warnings == ()


def test_all_errors_come_at_once() -> None:
    value = document(
        {"schedulerName": "a", **plugins(score=enabled(("Mine", -1), "Nobody"))},
        {"schedulerName": "a", "pluginConfig": [config("Mine", howMany="x", words=3, other=1)]},
        {"schedulerName": "c", "shadow": 1},
        parallelism="x",
        featureGates={"X": True},
    )
    paths = {error.split(": ")[0] for error in errors_of(value)}
    assert paths == {
        "profiles[0].plugins.score.enabled[0].weight",
        "profiles[0].plugins.score.enabled[1].name",
        "profiles[1].schedulerName",
        "profiles[1].pluginConfig[0].args.howMany",
        "profiles[1].pluginConfig[0].args.words",
        "profiles[1].pluginConfig[0].args.other",
        "profiles[2].shadow",
        "parallelism",
        "featureGates.X",
    }


def test_the_number_of_errors_is_bounded() -> None:
    found = errors_of(document(**{f"key{n}": n for n in range(500)}))
    assert len(found) == ERRORS_MAX + 1
    assert found[-1] == "and 400 more errors"


def test_the_number_of_profiles_is_bounded() -> None:
    names = [{"schedulerName": f"s{n}", "plugins": {"multiPoint": disabled("*")}} for n in range(PROFILES_MAX + 1)]
    assert errors_of(document(*names)) == [f"profiles: has {PROFILES_MAX + 1} entries; there may be {PROFILES_MAX}"]


def test_a_plugin_that_can_not_be_made_is_refused_when_it_is_built() -> None:
    found = of(plugins(multiPoint=enabled("Breaks")))
    with pytest.raises(ConfigurationInvalid, match=r"profiles\[0\]: muster-scheduler: .*RuntimeError: no licence"):
        found.build(REGISTRY)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param("", "the document is empty", id="empty"),
        pytest.param("a: ]", "line 1: ", id="no YAML"),
        pytest.param("kind: a\nkind: b", "line 2: key 'kind' is given twice", id="a key twice"),
        pytest.param("a: 1\n---\nb: 2", "line 3: a second document begins", id="two documents"),
        pytest.param("[" * 100, "line 1: nested deeper than 32 levels", id="deep"),
        pytest.param("x" * (TEXT_LEN_MAX + 1), "the text has 1048577 characters", id="long"),
        pytest.param("a: \ud800", "the text can't be written as UTF-8", id="half a character"),
        pytest.param("a: &a [1, 2]\nb: &b [*a, *a]\nc: *c", "", id="alias that is nowhere"),
    ],
)
def test_text_that_can_not_be_read(text: str, error: str) -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        load(text, REGISTRY)
    assert caught.value.errors[0].startswith(error)


def test_text_is_yaml_or_json() -> None:
    value = document({"schedulerName": "a", **plugins(score=enabled(("Mine", 2)))})
    expected = read(value, REGISTRY)
    assert load(yaml_text.dump(value), REGISTRY) == expected
    assert load(msgspec.json.encode(value).decode(), REGISTRY) == expected


@pytest.mark.parametrize(
    ("plugin", "args", "error"),
    [
        pytest.param("Bandwidth", {"strategy": "Pak"}, "strategy: invalid enum value 'Pak'; choose ", id="at the top"),
        pytest.param(
            "NodeResourcesFit",
            {"scoringStrategy": {"type": "Most"}},
            "scoringStrategy.type: invalid enum value 'Most'; choose LeastAllocated or ",
            id="further in",
        ),
    ],
)
def test_a_wrong_word_is_answered_with_those_to_choose_from(plugin: str, args: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigurationInvalid) as refused:
        read(document({"pluginConfig": [{"name": plugin, "args": args}]}))
    [said] = refused.value.errors
    assert said.startswith(f"profiles[0].pluginConfig[0].args.{error}")
