"""Where the scheduler's configuration comes from, and what happens to one that is wrong.

The ConfigMap `kube-system/muster-scheduler`, key `config.yaml`, when it is there; else the file given at the start; else the
default. A change takes effect without a restart. One that is wrong is refused whole: the configuration before it stays in
force, an Event (`ConfigurationInvalid`) and the annotation `muster.dev/config-status` on the ConfigMap name every error. The
last text that was accepted is kept in `muster.dev/config-accepted`, so that a restart or another leader does not fall back to
the default while a wrong one is there.

`decide` and `ConfigSource` do no I/O: the scheduler's shell watches the ConfigMap, hands it to `observe`, carries out the
actions and tells the engine. One `ConfigSource` per shell, used from its task. Invariant: `current` has always been built once
with all its plugins; observing the same ConfigMap again gives no actions.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from muster.controllers.actions import Action, Emit, Patch, target_of
from muster.engine.configuration import Configuration, ConfigurationInvalid, default_configuration, load
from muster.engine.registry import Registry
from muster.objects.meta import metadata_of
from muster.objects.names import NAMESPACE_SYSTEM
from muster.objects.reasons import Reason
from muster.objects.status import Raw
from muster.store.events import WARNING

log = logging.getLogger(__name__)

NAMESPACE: Final = NAMESPACE_SYSTEM
NAME: Final = "muster-scheduler"
KEY: Final = "config.yaml"
STATUS: Final = "muster.dev/config-status"
ACCEPTED: Final = "muster.dev/config-accepted"
_ACCEPTED_LEN_MAX: Final = 64 * 1024
_STATUS_LEN_MAX: Final = 16 * 1024
"""Annotations may have 256 KiB together, and kubectl keeps a copy of the text among them. A longer text is not kept."""
_MESSAGE_LEN_MAX: Final = 500

CONFIG_MAP: Final = f"ConfigMap {NAMESPACE}/{NAME}"
FILE: Final = "file"
DEFAULT: Final = "default"


class Accepted(msgspec.Struct, frozen=True):
    configuration: Configuration


class Refused(msgspec.Struct, frozen=True):
    errors: tuple[str, ...]


Decision = Accepted | Refused


def decide(current: Configuration, text: str, registry: Registry, *, is_sole: bool = False) -> Decision:
    """Whether `text` may take the place of `current`. It is built once on trial, so that nothing is left to go wrong."""
    try:
        found = load(text, registry)
        if is_sole:
            found = found.as_sole()
        if found == current:
            return Accepted(current)
        found.build(registry)
    except ConfigurationInvalid as error:
        return Refused(error.errors)
    return Accepted(found)


class Outcome(msgspec.Struct, frozen=True):
    """What an offer led to. `configuration` is the one in force now."""

    decision: Decision
    configuration: Configuration
    origin: str
    """Where the one in force comes from: CONFIG_MAP, FILE or DEFAULT."""
    is_changed: bool
    """The engine is to be told: send it `Configured(outcome.configuration.raw)`."""

    @property
    def errors(self) -> tuple[str, ...]:
        return self.decision.errors if isinstance(self.decision, Refused) else ()


class Observed(msgspec.Struct, frozen=True):
    outcome: Outcome
    actions: list[Action]
    """What to write on the ConfigMap, by whoever leads."""


class ConfigSource:
    def __init__(self, registry: Registry, file_text: str | None = None, *, is_sole: bool = False) -> None:
        """`file_text`: what `--scheduler-config FILE` has. ConfigurationInvalid when it is wrong: nothing to keep yet.
        `is_sole`: no other scheduler looks after the store, so that pods that name none are ours."""
        self.registry = registry
        self._is_sole = is_sole
        for problem in registry.problems:
            log.warning("%s", problem)
        base = default_configuration(registry) if file_text is None else load(file_text, registry)
        self._base = base.as_sole() if is_sole else base
        self._base.build(registry)
        self._base_origin = DEFAULT if file_text is None else FILE
        self.current: Configuration = self._base
        self.origin = self._base_origin
        self._accepted_text = ""
        self._said: tuple[str, ...] = ()
        self._warn()

    def offer(self, text: str | None) -> Outcome:
        """Try the text of the ConfigMap; None when there is no ConfigMap."""
        before = self.current
        decision: Decision = Accepted(self._base)
        if text is not None:
            decision = decide(before, text, self.registry, is_sole=self._is_sole)
        if isinstance(decision, Accepted):
            self.current = decision.configuration
            self.origin = self._base_origin if text is None else CONFIG_MAP
            self._accepted_text = text or ""
        is_changed = self.current != before
        if is_changed:
            log.info("the scheduler's configuration is now that of the %s", self.origin)
            self._warn()
        return Outcome(decision, self.current, self.origin, is_changed)

    def _warn(self) -> None:
        for warning in self.current.warnings:
            log.warning("configuration of the %s: %s", self.origin, warning)

    def observe(self, config_map: Raw | None) -> Observed:
        """Take the ConfigMap as it is now; None when it is gone."""
        if config_map is None:
            self._said = ()
            return Observed(self.offer(None), [])
        text = text_of(config_map)
        before, annotations = self.current, metadata_of(config_map).get("annotations") or {}
        outcome = Outcome(text, self.current, self.origin, False) if isinstance(text, Refused) else self.offer(text)
        kept = annotations.get(ACCEPTED)
        if outcome.errors and self.origin != CONFIG_MAP and isinstance(kept, str):
            again = self.offer(kept)  # refused now, and before a restart something else was in force
            outcome = Outcome(outcome.decision, again.configuration, again.origin, self.current != before)
        if outcome.errors and outcome.errors != self._said:
            log.warning("%s is refused, the configuration before stays in force: %s", CONFIG_MAP, "; ".join(outcome.errors))
        self._said = outcome.errors
        accepted = self._accepted_text if self.origin == CONFIG_MAP else None
        return Observed(outcome, _actions(config_map, annotations, outcome, text if isinstance(text, str) else "", accepted))


def text_of(config_map: Mapping[str, Any]) -> str | Refused:
    """The configuration's text in the ConfigMap."""
    data = config_map.get("data")
    text = data.get(KEY) if isinstance(data, Mapping) else None
    if isinstance(text, str):
        return text
    others = sorted(str(key) for key in data)[:10] if isinstance(data, Mapping) else []
    has = f"; it has {', '.join(others)}" if others else ""
    return Refused((f"data: the ConfigMap has no key {KEY!r}{has}; add the key, or delete the ConfigMap for the default",))


def _actions(
    config_map: Raw, annotations: Mapping[str, Any], outcome: Outcome, text: str, accepted: str | None
) -> list[Action]:
    """`accepted`: the text in force, None where that does not come from the ConfigMap."""
    status = status_text(outcome, text)
    wanted: dict[str, str | None] = {STATUS: status}
    if accepted is not None:
        # Also beside one that is refused: whoever replaces the ConfigMap takes our annotations away with it. A text that is
        # too long to keep at least does not leave an older one there to come back to.
        wanted[ACCEPTED] = accepted if len(accepted.encode(errors="replace")) <= _ACCEPTED_LEN_MAX else None
    changed = {key: value for key, value in wanted.items() if annotations.get(key) != value}
    if not changed:
        return []
    actions: list[Action] = [Patch(target_of(config_map), {"metadata": {"annotations": changed}})]
    if outcome.errors and STATUS in changed:
        message = f"{len(outcome.errors)} errors, the configuration before stays in force: {'; '.join(outcome.errors)}"
        actions.append(Emit(config_map, WARNING, Reason.CONFIGURATION_INVALID, message))
    return actions


def status_text(outcome: Outcome, text: str) -> str:
    """What the annotation says: one JSON object, the same for the same outcome, so that it is written once."""
    status: dict[str, Any] = {
        "state": "Refused" if outcome.errors else "Accepted",
        "inForce": outcome.origin,
        "digest": hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16],
    }
    if outcome.errors:
        status["errors"] = _bounded(outcome.errors)
    elif outcome.configuration.warnings:
        status["warnings"] = _bounded(outcome.configuration.warnings)
    return msgspec.json.encode(status).decode()


def _bounded(messages: Sequence[str]) -> list[str]:
    """As many of the messages as there is room for, and how many are left out."""
    kept: list[str] = []
    room = _STATUS_LEN_MAX
    for message in messages:
        short = message[:_MESSAGE_LEN_MAX]
        room -= len(short.encode(errors="replace"))
        if room < 0:
            return [*kept, f"and {len(messages) - len(kept)} more; see the scheduler's log"]
        kept.append(short)
    return kept
