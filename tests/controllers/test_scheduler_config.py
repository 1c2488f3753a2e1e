"""Where the configuration comes from, that a wrong one is refused with the old one kept, and what is written about it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.configuring import REGISTRY, document, enabled, plugins

from muster.controllers.actions import Action, Emit, Patch
from muster.controllers.scheduler_config import (
    ACCEPTED,
    CONFIG_MAP,
    DEFAULT,
    FILE,
    STATUS,
    Accepted,
    ConfigSource,
    Refused,
    decide,
)
from muster.engine.configuration import ConfigurationInvalid, default_configuration, default_document
from muster.objects import yaml_text

FIRST = yaml_text.dump(document({"schedulerName": "first"}))
SECOND = yaml_text.dump(document({"schedulerName": "second", "shadow": True}))
WRONG = yaml_text.dump(document({"schedulerName": "third", **plugins(score=enabled(("Mine", -1), "Nobody"))}))
BREAKS = yaml_text.dump(document(plugins(multiPoint=enabled("Breaks"))))


def config_map(text: str | None, **annotations: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "muster-scheduler", "namespace": "kube-system", "uid": "u1", "annotations": annotations},
        "data": {} if text is None else {"config.yaml": text},
    }


def after(actions: list[Action], obj: dict[str, Any]) -> dict[str, Any]:
    """The ConfigMap once the patches are made."""
    annotations = dict(obj["metadata"]["annotations"])
    for action in actions:
        if isinstance(action, Patch):
            annotations |= action.patch["metadata"]["annotations"]
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}


def names(source: ConfigSource) -> list[str]:
    return [profile.name for profile in source.current.profiles]


def test_the_order_of_origins() -> None:
    source = ConfigSource(REGISTRY)
    assert (names(source), source.origin) == (["muster-scheduler"], DEFAULT)
    source = ConfigSource(REGISTRY, FIRST)
    assert (names(source), source.origin) == (["first"], FILE)
    outcome = source.offer(SECOND)
    assert (names(source), outcome.origin, outcome.is_changed) == (["second"], CONFIG_MAP, True)
    outcome = source.offer(None)
    assert (names(source), outcome.origin, outcome.is_changed) == (["first"], FILE, True)


def test_alone_it_serves_pods_that_name_no_scheduler_whatever_the_origin() -> None:
    source = ConfigSource(REGISTRY, is_sole=True)
    assert source.current.served["default-scheduler"] == "muster-scheduler"
    assert not source.offer(yaml_text.dump(default_document())).is_changed
    outcome = source.offer(yaml_text.dump(document({"shadow": True})))
    assert outcome.is_changed
    assert source.current.served["default-scheduler"] == "muster-scheduler"
    assert outcome.configuration.raw["profiles"][0]["aliases"][-1] == "default-scheduler"
    assert "default-scheduler" not in ConfigSource(REGISTRY).current.served


def test_a_wrong_file_is_said_at_the_start() -> None:
    with pytest.raises(ConfigurationInvalid, match="must not be negative"):
        ConfigSource(REGISTRY, WRONG)


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        pytest.param(
            WRONG,
            [
                "profiles[0].plugins.score.enabled[0].weight: must not be negative, as -1 is",
                "profiles[0].plugins.score.enabled[1].name: there is no plugin 'Nobody'; is its package installed?",
            ],
            id="every error is named",
        ),
        pytest.param("", ["the document is empty; write "], id="empty"),
        pytest.param("a: ]", ["line 1: "], id="no YAML"),
        pytest.param(BREAKS, ["profiles[0]: muster-scheduler: a plugin can't be made: RuntimeError: no licence"], id="trial"),
    ],
)
def test_a_wrong_one_is_refused_and_the_old_one_kept(text: str, errors: list[str]) -> None:
    source = ConfigSource(REGISTRY)
    source.offer(FIRST)
    before = source.current
    outcome = source.offer(text)
    assert isinstance(outcome.decision, Refused)
    assert len(outcome.errors) == len(errors)
    assert all(found.startswith(error) for found, error in zip(outcome.errors, errors, strict=True))
    assert source.current is before
    assert not outcome.is_changed
    assert source.offer(SECOND).is_changed, "the next good one is taken"


def test_the_same_again_changes_nothing() -> None:
    source = ConfigSource(REGISTRY)
    assert source.offer(FIRST).is_changed
    assert not source.offer(FIRST).is_changed
    assert not source.offer(f"# another comment\n{FIRST}").is_changed


def test_decide_is_a_function() -> None:
    current = default_configuration(REGISTRY)
    assert decide(current, yaml_text.dump(default_document()), REGISTRY) == Accepted(current)
    assert isinstance(decide(current, WRONG, REGISTRY), Refused)


def test_refusal_is_written_on_the_config_map_once() -> None:
    source = ConfigSource(REGISTRY)
    wrong = config_map(WRONG)
    observed = source.observe(wrong)
    patch, emit = observed.actions
    assert isinstance(patch, Patch)
    status = msgspec.json.decode(patch.patch["metadata"]["annotations"][STATUS])
    assert (status["state"], status["inForce"]) == ("Refused", "default")
    assert status["errors"] == list(observed.outcome.errors)
    assert len(status["errors"]) == 2
    assert isinstance(emit, Emit)
    assert (emit.reason, emit.type) == ("ConfigurationInvalid", "Warning")
    assert all(error in emit.message for error in observed.outcome.errors)
    assert source.observe(after(observed.actions, wrong)).actions == []


def test_what_is_written_is_bounded() -> None:
    source = ConfigSource(REGISTRY)
    long = document({"schedulerName": "a"}, **{f"{'x' * 70}{n}": n for n in range(200)})
    [patch, _] = source.observe(config_map(yaml_text.dump(long))).actions
    assert isinstance(patch, Patch)
    status = patch.patch["metadata"]["annotations"][STATUS]
    assert len(status) < 20_000
    assert " more; see the scheduler's log" in msgspec.json.decode(status)["errors"][-1]

    padding = "# " + "x" * 70_000 + "\n"
    [patch] = source.observe(config_map(padding + FIRST)).actions
    assert isinstance(patch, Patch)
    assert set(patch.patch["metadata"]["annotations"]) == {STATUS}
    assert names(source) == ["first"]
    [patch] = source.observe(config_map(padding + SECOND, **{ACCEPTED: FIRST})).actions
    assert isinstance(patch, Patch)
    assert patch.patch["metadata"]["annotations"][ACCEPTED] is None


def test_acceptance_is_written_with_the_warnings_and_without_an_event() -> None:
    source = ConfigSource(REGISTRY)
    good = config_map(yaml_text.dump(document(parallelism=4)))
    observed = source.observe(good)
    [patch] = observed.actions
    assert isinstance(patch, Patch)
    status = msgspec.json.decode(patch.patch["metadata"]["annotations"][STATUS])
    assert (status["state"], status["warnings"]) == ("Accepted", ["parallelism: has no effect here"])
    assert source.observe(after(observed.actions, good)).actions == []


def test_a_config_map_without_the_key_is_refused() -> None:
    source = ConfigSource(REGISTRY)
    source.offer(FIRST)
    observed = source.observe({**config_map(None), "data": {"config.yml": FIRST}})
    assert observed.outcome.errors == (
        "data: the ConfigMap has no key 'config.yaml'; it has config.yml; add the key, or delete the ConfigMap for the default",
    )
    assert names(source) == ["first"]


@pytest.mark.parametrize("data", [None, [], "x", {"config.yaml": 5}])
def test_a_config_map_of_a_strange_shape_is_refused(data: Any) -> None:
    observed = ConfigSource(REGISTRY).observe({**config_map(None), "data": data})
    assert observed.outcome.errors


def test_a_restart_keeps_what_was_accepted_while_a_wrong_one_is_there() -> None:
    first = ConfigSource(REGISTRY)
    good = config_map(FIRST)
    stored = after(first.observe(good).actions, good)
    wrong = {**stored, "data": {"config.yaml": WRONG}}
    stored = after(first.observe(wrong).actions, wrong)
    assert stored["metadata"]["annotations"][ACCEPTED] == FIRST

    second = ConfigSource(REGISTRY)
    observed = second.observe(stored)
    assert names(second) == ["first"]
    assert observed.outcome.is_changed
    assert observed.outcome.errors
    assert observed.actions == [], "it says what the one before said"


def test_deleting_the_config_map_brings_the_default_back() -> None:
    source = ConfigSource(REGISTRY)
    source.observe(config_map(FIRST))
    observed = source.observe(None)
    assert names(source) == ["muster-scheduler"]
    assert (observed.outcome.is_changed, observed.actions) == (True, [])


@given(st.lists(st.sampled_from([None, FIRST, SECOND, WRONG, "", BREAKS]), max_size=8))
def test_in_force_is_always_the_last_that_was_good(texts: list[str | None]) -> None:
    source = ConfigSource(REGISTRY)
    expected = "muster-scheduler"
    for text in texts:
        before = source.current
        outcome = source.offer(text)
        expected = {None: "muster-scheduler", FIRST: "first", SECOND: "second"}.get(text, expected)
        assert names(source) == [expected]
        assert outcome.is_changed == (source.current != before)
        assert bool(outcome.errors) == (text in (WRONG, "", BREAKS))


def test_the_log_names_broken_plugins_refusals_and_warnings(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        source = ConfigSource(REGISTRY)
        source.observe(config_map(WRONG))
        source.observe(config_map(yaml_text.dump(document(parallelism=4))))
    said = "\n".join(caplog.messages)
    assert REGISTRY.problems[0] in said
    assert "must not be negative" in said
    assert "parallelism: has no effect here" in said


def test_what_is_in_force_is_kept_also_when_the_config_map_is_replaced() -> None:
    source = ConfigSource(REGISTRY)
    source.observe(config_map(FIRST))
    replaced = config_map(WRONG)  # without the annotations that were written on the one before
    observed = source.observe(replaced)
    written = after(observed.actions, replaced)
    assert written["metadata"]["annotations"][ACCEPTED] == FIRST
    assert source.observe(written).actions == []
    restarted = ConfigSource(REGISTRY)
    assert restarted.observe(written).actions == []
    assert names(restarted) == ["first"]


def test_a_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    source = ConfigSource(REGISTRY)
    wrong = config_map(WRONG)
    for observed in (wrong, after(source.observe(wrong).actions, wrong), wrong):
        source.observe(observed)
    assert sum("is refused" in record.getMessage() for record in caplog.records) == 1
    source.observe(config_map(None))
    assert "has no key" in caplog.records[-1].getMessage()
