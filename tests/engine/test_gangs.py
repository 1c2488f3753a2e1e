"""The settings of gangs: every key, every default, and whatever people write there instead."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine.facts import PodFacts
from muster.engine.gangs import GROUPS_MAX, WAITING_S, GangSettings, Match, Mode, gang_key_of, pod_group_settings, pod_settings
from muster.objects.labels import KoordinatorPod, Sigs
from tests.engine.building import pod
from tests.engine.tasks_building import PREFIX, member, pod_group

KEY = "default/g"


def of_pod(**settings: str) -> GangSettings:
    return pod_settings(member("g", "p", 3, settings={key.replace("_", "-"): value for key, value in settings.items()}), KEY)


# -- which gang ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "annotations", "expected"),
    [
        pytest.param({}, {}, "", id="none"),
        pytest.param({Sigs.POD_GROUP: "a"}, {}, "default/a", id="pod group"),
        pytest.param({"scheduling.x-k8s.io/pod-group": "a"}, {}, "default/a", id="pod group of the other spelling"),
        pytest.param({Sigs.POD_GROUP_NAME: "a", Sigs.POD_GROUP_MIN_AVAILABLE: "2"}, {}, "default/a", id="deprecated pair"),
        pytest.param({}, {KoordinatorPod.GANG_NAME: "a"}, "default/a", id="annotation"),
        pytest.param(
            {Sigs.POD_GROUP: "a", Sigs.POD_GROUP_NAME: "b"}, {KoordinatorPod.GANG_NAME: "c"}, "default/a", id="label first"
        ),
        pytest.param({Sigs.POD_GROUP_NAME: "b"}, {KoordinatorPod.GANG_NAME: "c"}, "default/b", id="pair before annotation"),
        pytest.param({Sigs.POD_GROUP: ""}, {KoordinatorPod.GANG_NAME: "c"}, "default/c", id="an empty label is none"),
        pytest.param({}, {KoordinatorPod.GANG_NAME: "a,default/b"}, "default/a%2Cdefault%2Fb", id="nobody slips into a group"),
        pytest.param({}, {KoordinatorPod.GANG_NAME: "x" * 9_000}, "default/" + "x" * 253, id="too long"),
    ],
)
def test_which_gang(labels: dict[str, str], annotations: dict[str, str], expected: str) -> None:
    assert gang_key_of(pod("p", labels=labels, annotations=annotations).metadata) == expected


# -- of a pod ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("3", 3, id="a number"),
        pytest.param("0", 0, id="nothing"),
        pytest.param("-2", 0, id="below nothing"),
        pytest.param("two", 0, id="a word"),
        pytest.param("2.5", 0, id="a fraction"),
        pytest.param("", 0, id="empty"),
        pytest.param("9" * 400, 0, id="too large"),
        pytest.param("٣", 0, id="digits that Go does not read"),
    ],
)
def test_min_available(text: str, expected: int) -> None:
    assert pod_settings(member("g", "p", text), KEY).min == expected
    pair = {Sigs.POD_GROUP_NAME: "g", Sigs.POD_GROUP_MIN_AVAILABLE: text}
    assert pod_settings(pod("p", labels=pair), KEY).min == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(None, 3, id="default"),
        pytest.param("5", 5, id="more"),
        pytest.param("2", 3, id="fewer than the minimum"),
        pytest.param("many", 3, id="a word"),
    ],
)
def test_total_number(text: str | None, expected: int) -> None:
    assert of_pod(**({} if text is None else {"total_number": text})).total == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("Strict", Mode.STRICT, id="strict"),
        pytest.param("NonStrict", Mode.NON_STRICT, id="not strict"),
        pytest.param("nonstrict", Mode.STRICT, id="another spelling"),
        pytest.param("", Mode.STRICT, id="empty"),
    ],
)
def test_mode(text: str, expected: Mode) -> None:
    assert of_pod(mode=text).mode is expected
    assert pod_group_settings(pod_group("g", 2, settings={"mode": text}).group).mode is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("90s", 90.0, id="seconds"),
        pytest.param("1h30m", 5400.0, id="hours and minutes"),
        pytest.param("1.5m", 90.0, id="a fraction"),
        pytest.param("500ms", 0.5, id="milliseconds"),
        pytest.param("0s", WAITING_S, id="nothing"),
        pytest.param("-10s", WAITING_S, id="below nothing"),
        pytest.param("90", WAITING_S, id="no unit"),
        pytest.param("soon", WAITING_S, id="a word"),
        pytest.param("9" * 30 + "h", 365 * 86_400.0, id="for ever"),
        pytest.param("1s" * 500, WAITING_S, id="too long"),
    ],
)
def test_waiting_time(text: str, expected: float) -> None:
    assert of_pod(waiting_time=text).waiting_s == expected
    assert pod_group_settings(pod_group("g", 2, settings={"waiting-time": text}).group).waiting_s == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param('["default/g", "other/a"]', ("default/g", "other/a"), id="two"),
        pytest.param('["other/a", "default/g", "other/a"]', ("default/g", "other/a"), id="in order, each once"),
        pytest.param('["other/a"]', (KEY,), id="itself left out"),
        pytest.param("other/a", (KEY,), id="no JSON"),
        pytest.param('{"default/g": 1}', (KEY,), id="no list"),
        pytest.param('["default/g", 7]', (KEY,), id="no text"),
        pytest.param('["default/g", "a"]', (KEY,), id="no namespace"),
        pytest.param('["default/g", "a/b,c/d"]', (KEY,), id="two in one"),
        pytest.param('["default/g", "a/b/c"]', (KEY,), id="three parts"),
        pytest.param("[" * 20_000, (KEY,), id="deep"),
        pytest.param(json.dumps([KEY, *(f"a/{i}" for i in range(GROUPS_MAX))]), (KEY,), id="too many"),
    ],
)
def test_groups(text: str, expected: tuple[str, ...]) -> None:
    assert of_pod(groups=text).groups == expected
    assert pod_group_settings(pod_group("g", 2, settings={"groups": text}).group).groups == expected


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        pytest.param(KoordinatorPod.GANG_MATCH_POLICY, "once-satisfied", Match.ONCE_SATISFIED, id="once satisfied"),
        pytest.param(KoordinatorPod.GANG_MATCH_POLICY, "only-waiting", Match.ONLY_WAITING, id="only waiting"),
        pytest.param(
            KoordinatorPod.GANG_MATCH_POLICY, "waiting-and-running", Match.WAITING_AND_RUNNING, id="waiting and running"
        ),
        pytest.param(Sigs.POD_GROUP_MATCH_POLICY, "only-waiting", Match.ONLY_WAITING, id="its other name"),
        pytest.param(KoordinatorPod.GANG_MATCH_POLICY, "whatever", Match.ONCE_SATISFIED, id="a word"),
    ],
)
def test_match_policy(key: str, text: str, expected: Match) -> None:
    assert pod_settings(pod("p", annotations={key: text}), KEY).match is expected


# -- of a PodGroup -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "settings", "expected"),
    [
        pytest.param({}, {}, WAITING_S, id="default"),
        pytest.param({"scheduleTimeoutSeconds": 30}, {}, 30.0, id="of the spec"),
        pytest.param({"scheduleTimeoutSeconds": 30}, {"waiting-time": "9s"}, 30.0, id="the spec first"),
        pytest.param({"scheduleTimeoutSeconds": 0}, {"waiting-time": "9s"}, 9.0, id="nothing in the spec"),
        pytest.param({"scheduleTimeoutSeconds": -5}, {"waiting-time": "9s"}, 9.0, id="nonsense in the spec"),
    ],
)
def test_time_of_a_pod_group(spec: dict[str, Any], settings: dict[str, str], expected: float) -> None:
    assert pod_group_settings(pod_group("g", 2, settings=settings, **spec).group).waiting_s == expected


@pytest.mark.parametrize(("given_min", "expected"), [(4, 4), (0, 1), (-3, 1), (2**31 - 1, 100_000)], ids=str)
def test_min_member(given_min: int, expected: int) -> None:
    assert pod_group_settings(pod_group("g", given_min).group).min == expected


def test_min_resources() -> None:
    group = pod_group("g", 2, minResources={"cpu": "2500m", "memory": "1Gi", "x": "nonsense", "y": "-1", "z": 0}).group
    assert pod_group_settings(group).min_free == {"cpu": 2500, "memory": 2**30}


@given(
    st.dictionaries(
        st.sampled_from(["min-available", "total-number", "mode", "waiting-time", "groups", "match-policy"]), st.text()
    )
)
def test_nothing_that_people_write_breaks_it(settings: dict[str, str]) -> None:
    facts: PodFacts = pod("p", annotations={PREFIX + key: value for key, value in settings.items()})
    found = pod_settings(facts, KEY)
    assert found.min >= 0
    assert found.waiting_s > 0
    assert KEY in found.groups
