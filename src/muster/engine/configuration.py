"""The scheduler's configuration: a KubeSchedulerConfiguration, read whole or refused whole.

`load` takes text, `read` the parsed document. All mistakes are found in one go and raised together, each with its path;
`warnings` are about what is taken and will not do what its writer may think. What was written is kept as it is (`raw`), because
that is what the decision log holds: reading `raw` again gives the same configuration.

Pure. A `Configuration` is a value; `build` makes fresh plugin objects each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

from muster.engine.gates import Gates, GatesInvalid
from muster.engine.notes import Notes, shown
from muster.engine.plugin_args import GivenArgs, decode_args, decode_struct, read_plugin_config, with_strategy
from muster.engine.plugin_lists import KEYS, SCORE_TOTAL_MAX, Choice, Lists, PluginSet, read_sets, resolve, takes_part
from muster.engine.profile import Profile
from muster.engine.registry import Registry
from muster.objects import yaml_text

KIND: Final = "KubeSchedulerConfiguration"
OWN_VERSION: Final = "muster.dev/v1alpha1"
API_VERSIONS: Final = (OWN_VERSION, *(f"kubescheduler.config.k8s.io/{v}" for v in ("v1", "v1beta3", "v1beta2", "v1beta1")))

DEFAULT_NAME: Final = "muster-scheduler"
DEFAULT_ALIASES: Final = ("kuscia-scheduler", "koord-scheduler")
"""What the pods of Kuscia and Koordinator name: served by the profile `muster-scheduler` unless another one takes the name."""
KUBERNETES_NAME: Final = "default-scheduler"
"""What pods name that were written without a scheduler. Ours only where there is no other: see `Configuration.as_sole`."""

DEFAULT_PLUGINS: Final = (
    Choice("PartyNodes"),
    Choice("NodeUnschedulable"),
    Choice("NodeName"),
    Choice("NodeReady"),
    Choice("TaintToleration", 3),
    Choice("NodeAffinity", 2),
    Choice("NodePorts"),
    Choice("NodeResourcesFit", 1),
    Choice("VolumeRestrictions"),
    Choice("VolumeBinding"),
    Choice("VolumeZone"),
    Choice("NodePool"),
    Choice("Bandwidth", 1),
    Choice("LinkBandwidth"),
    Choice("PartyQuota"),
    Choice("PodTopologySpread", 2),
    Choice("InterPodAffinity", 2),
    Choice("DefaultPreemption"),
    Choice("NodeResourcesBalancedAllocation", 1),
    Choice("ImageLocality", 1),
    Choice("LoadAwareScheduling", 1),
    Choice("PastRuns", 3),
)
DEFAULT_ARGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "LoadAwareScheduling": {
        "filterExpiredNodeMetrics": False,
        "nodeMetricExpirationSeconds": 300,
        "resourceWeights": {"cpu": 1, "memory": 1},
        "usageThresholds": {"cpu": 0, "memory": 0},
    }
}
"""Arguments of plugins that a profile says nothing about. LoadAwareScheduling prefers idle nodes and refuses none."""

TEXT_LEN_MAX: Final = 1024 * 1024
PROFILES_MAX: Final = 64
ALIASES_MAX: Final = 64
_DEPTH_MAX: Final = 32
_NODES_MAX: Final = 100_000
_INT: Final = (int, "a whole number")
_MAP: Final = (Mapping, "a mapping")
_TEXT: Final = (str, "text")
_BOOL: Final = (bool, "true or false")

WITHOUT_EFFECT: Final[Mapping[str, tuple[type, str]]] = {
    "parallelism": _INT,
    "percentageOfNodesToScore": _INT,
    "leaderElection": _MAP,
    "clientConnection": _MAP,
    "healthzBindAddress": _TEXT,
    "metricsBindAddress": _TEXT,
    "enableProfiling": _BOOL,
    "enableContentionProfiling": _BOOL,
    "delayCacheUntilActive": _BOOL,
    "podInitialBackoffSeconds": _INT,
    "podMaxBackoffSeconds": _INT,
}
"""kube-scheduler's members that are taken and change nothing here, with what they must be."""


class ConfigurationInvalid(ValueError):
    """The configuration was refused; `errors` has all that is wrong, each with its path."""

    def __init__(self, errors: Iterable[str]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(self.errors))


class Limits(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    cached_shapes_max: Annotated[int, msgspec.Meta(ge=16, le=65_536)] = 1_024
    """Kinds of pods per profile whose scores are kept; more costs memory, fewer costs time."""


class ProfileSpec(msgspec.Struct, frozen=True):
    """A profile as it was asked for, with the defaults filled in."""

    name: str
    """The `schedulerName` that pods give."""
    aliases: tuple[str, ...] = ()
    """Further names that pods may give."""
    plugins: tuple[str, ...] = ()
    points: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Plugin names in order, by our own extension points."""
    weights: Mapping[str, int] = msgspec.field(default_factory=dict)
    args: Mapping[str, msgspec.Struct] = msgspec.field(default_factory=dict)
    is_shadow: bool = False

    def build(self, registry: Registry, limits: Limits) -> Profile:
        return Profile(
            self.name,
            [registry[name](self.args.get(name)) for name in self.plugins],
            weights=self.weights,
            points=self.points,
            is_shadow=self.is_shadow,
            aliases=self.aliases,
            cached_shapes_max=limits.cached_shapes_max,
        )


class Configuration(msgspec.Struct, frozen=True):
    profiles: tuple[ProfileSpec, ...]
    raw: Mapping[str, Any]
    gates: Gates
    limits: Limits = Limits()
    warnings: tuple[str, ...] = ()

    def build(self, registry: Registry) -> list[Profile]:
        """The profiles with plugin objects of their own. ConfigurationInvalid when a plugin can't be made."""
        built: list[Profile] = []
        errors: list[str] = []
        for index, spec in enumerate(self.profiles):
            try:
                built.append(spec.build(registry, self.limits))
            except Exception as error:  # noqa: BLE001 - a foreign plugin's constructor may do anything
                errors.append(f"profiles[{index}]: {spec.name}: a plugin can't be made: {type(error).__name__}: {error}")
        if errors:
            raise ConfigurationInvalid(errors)
        return built

    @property
    def served(self) -> dict[str, str]:
        """Each `schedulerName` that is answered to, and the profile behind it."""
        return {name: spec.name for spec in self.profiles for name in (spec.name, *spec.aliases)}

    def as_sole(self) -> Configuration:
        """The same where no other scheduler is: `muster-scheduler` also serves the pods that name none, unless its aliases are
        given or another profile serves them. Written into `raw`, so that reading that again gives this."""
        given = list(self.raw.get("profiles") or ({},))
        for index, spec in enumerate(self.profiles):
            if spec.name == DEFAULT_NAME and _leaves_aliases(given[index]) and KUBERNETES_NAME not in self.served:
                aliases = (*spec.aliases, KUBERNETES_NAME)
                given[index] = {**(given[index] or {}), "schedulerName": spec.name, "aliases": list(aliases)}
                profiles = list(self.profiles)
                profiles[index] = msgspec.structs.replace(spec, aliases=aliases)
                return msgspec.structs.replace(self, profiles=tuple(profiles), raw={**self.raw, "profiles": given})
        return self

    def effective(self) -> dict[str, Any]:
        """A document that says the same and leaves nothing to defaults."""
        return {
            "apiVersion": OWN_VERSION,
            "kind": KIND,
            "featureGates": {name: name in self.gates.on for name in sorted(self.gates.known)},
            "limits": msgspec.to_builtins(self.limits),
            "profiles": [_written(spec) for spec in self.profiles],
        }


def load(text: str, registry: Registry | None = None) -> Configuration:
    """From YAML or JSON text. ConfigurationInvalid for anything that is wrong with it."""
    if len(text) > TEXT_LEN_MAX:
        raise ConfigurationInvalid([f"the text has {len(text)} characters; there may be {TEXT_LEN_MAX}"])
    try:
        document = yaml_text.load(text, depth_max=_DEPTH_MAX, nodes_max=_NODES_MAX)
    except yaml_text.YamlError as error:
        raise ConfigurationInvalid([f"line {error.line}: {error}" if error.line else str(error)]) from error
    except UnicodeError as error:
        raise ConfigurationInvalid([f"the text can't be written as UTF-8: {error}"]) from error
    return read(document, registry)


def read(document: object, registry: Registry | None = None) -> Configuration:
    """From a parsed document. `registry`: the plugins there are; without it, the built-in ones."""
    registry = registry or Registry()
    notes = Notes()
    if not isinstance(document, Mapping):
        what = "is empty" if document is None else f"must be a mapping, not {shown(document)}"
        raise ConfigurationInvalid([f"the document {what}; write apiVersion: {OWN_VERSION} and kind: {KIND}"])
    members = notes.mapping(document, "")
    notes.known(members, "", ("apiVersion", "kind", "profiles", "featureGates", "limits", "extenders", *WITHOUT_EFFECT))
    _read_head(members, notes)
    gates = _read_gates(members.get("featureGates"), notes)
    _read_without_effect(members, "", WITHOUT_EFFECT, notes)
    if notes.sequence(members.get("extenders"), "extenders", 1_000):
        notes.error(
            "extenders", "extenders are not called from here, and leaving them out would change decisions; write a plugin"
        )
    limits = _read_limits(members.get("limits"), notes)
    given = notes.sequence(members.get("profiles"), "profiles", PROFILES_MAX) or ({},)
    reading = _Reading(registry, gates, notes)
    profiles = [_read_profile(value, f"profiles[{index}]", reading, len(given)) for index, value in enumerate(given)]
    profiles = _named_once(profiles, given, notes)
    if notes.errors:
        raise ConfigurationInvalid(notes.all_errors())
    return Configuration(tuple(profiles), members, gates, limits, tuple(notes.warnings))


def default_document() -> dict[str, Any]:
    """The shortest one that is valid: everything left to the defaults."""
    return {"apiVersion": OWN_VERSION, "kind": KIND}


def default_configuration(registry: Registry | None = None) -> Configuration:
    return read(default_document(), registry)


def profiles_from(registry: Registry) -> Callable[[Mapping[str, object]], list[Profile]]:
    """What the engine does with the document of a `Configured` event, which was checked before it was sent."""
    return lambda document: read(document, registry).build(registry)


# -- the document ------------------------------------------------------------------------------------------------------------


def _read_head(members: Mapping[str, Any], notes: Notes) -> None:
    version, kind = members.get("apiVersion"), members.get("kind")
    if version not in API_VERSIONS:
        notes.error("apiVersion", f"must be one of {', '.join(API_VERSIONS)}, not {shown(version)}")
    if kind != KIND:
        notes.error("kind", f"must be {KIND}, not {shown(kind)}")


def _read_gates(value: object, notes: Notes) -> Gates:
    try:
        gates = Gates.parse(value)
    except GatesInvalid as error:
        for message in error.errors:
            notes.error("", message)
        return Gates()
    for message in gates.warnings:
        notes.warn("", message)
    return gates


def _read_limits(value: object, notes: Notes) -> Limits:
    args = decode_struct(Limits, notes.mapping(value, "limits"), "limits", notes)
    return args if isinstance(args, Limits) else Limits()


def _read_without_effect(members: Mapping[str, Any], path: str, known: Mapping[str, tuple[type, str]], notes: Notes) -> None:
    for key, (wanted, words) in known.items():
        value = members.get(key)
        if value is None:
            continue
        where = f"{path}.{key}" if path else key
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            notes.error(where, f"must be {words}, not {shown(value)}")
        elif key == "percentageOfNodesToScore":
            notes.warn(where, "has no effect: all nodes are scored, always")
        else:
            notes.warn(where, "has no effect here")


class _Reading(msgspec.Struct, frozen=True):
    """What every step needs."""

    registry: Registry
    gates: Gates
    notes: Notes


def _read_profile(value: object, path: str, reading: _Reading, count: int) -> ProfileSpec:
    notes, registry = reading.notes, reading.registry
    members = notes.mapping(value, path)
    own = ("schedulerName", "aliases", "plugins", "pluginConfig", "shadow", "percentageOfNodesToScore")
    notes.known(members, path, own)
    name = DEFAULT_NAME
    if members.get("schedulerName") is not None or count > 1:
        name = notes.text(members.get("schedulerName"), f"{path}.schedulerName")
    if name == KUBERNETES_NAME:
        notes.warn(
            f"{path}.schedulerName", f"{name} is what pods get that name no scheduler; kube-scheduler must not run beside it"
        )
    _read_without_effect(members, path, {"percentageOfNodesToScore": _INT}, notes)
    aliases = tuple(
        text
        for index, alias in enumerate(notes.sequence(members.get("aliases"), f"{path}.aliases", ALIASES_MAX))
        if (text := notes.text(alias, f"{path}.aliases[{index}]"))
    )
    is_shadow = notes.boolean(members.get("shadow"), f"{path}.shadow")
    sets = read_sets(members.get("plugins"), f"{path}.plugins", registry, notes)
    lists = resolve(_defaults(registry), sets)
    given = read_plugin_config(members.get("pluginConfig"), f"{path}.pluginConfig", registry, notes)
    args = _args(lists, sets, given, path, reading)
    _check_points(lists, path, reading)
    return ProfileSpec(name, aliases, lists.plugins, lists.points, lists.weights, args, is_shadow)


def _defaults(registry: Registry) -> list[Choice]:
    return [choice for choice in DEFAULT_PLUGINS if choice.name in registry]


def _args(
    lists: Lists, sets: Mapping[str, PluginSet], given: dict[str, GivenArgs], path: str, reading: _Reading
) -> dict[str, msgspec.Struct]:
    notes = reading.notes
    strategies = [strategy for one in sets.values() for strategy in one.strategies]
    given = with_strategy(given, strategies, path, notes)
    for name, one in given.items():
        if name not in lists.plugins:
            notes.warn(one.path, f"{name} is not enabled, so its arguments have no effect")
    decoded: dict[str, msgspec.Struct] = {}
    for name in dict.fromkeys((*lists.plugins, *given)):
        one = given.get(name) or GivenArgs(DEFAULT_ARGS.get(name, {}), f"{path}.pluginConfig: {name}")
        args = decode_args(name, one, reading.registry[name].Args, reading.gates, notes)
        if args is not None and name in lists.plugins:
            decoded[name] = args
    return decoded


def _check_points(lists: Lists, path: str, reading: _Reading) -> None:
    registry, gates, notes = reading.registry, reading.gates, reading.notes
    total = sum(lists.weights[name] for name in lists.points["score"] if takes_part(registry[name], "score"))
    if total * 100 >= SCORE_TOTAL_MAX:
        most = (SCORE_TOTAL_MAX - 1) // 100
        notes.error(f"{path}.plugins.score", f"the weights add up to {total}; up to {most} is possible")
    for point, names in lists.points.items():
        gate = gates.missing_for_point(point)
        for name in names if gate is not None else ():
            if gate is not None and takes_part(registry[name], point):
                key = next(key for key, ours in KEYS.items() if point in ours)
                notes.error(
                    f"{path}.plugins.{key}",
                    f"{name} takes part in {point}, which needs the feature gate {gate.name}; "
                    f"set featureGates.{gate.name}: true, or disable the plugin at {key}",
                )


def _named_once(profiles: list[ProfileSpec], given: Sequence[Any], notes: Notes) -> list[ProfileSpec]:
    """Say which names two profiles claim; give the names that others' pods carry to the profile that Muster's own pods name."""
    owners: dict[str, str] = {}
    for index, spec in enumerate(profiles):
        places = [f"profiles[{index}].schedulerName", *(f"profiles[{index}].aliases[{n}]" for n in range(len(spec.aliases)))]
        for name, place in zip((spec.name, *spec.aliases), places, strict=True):
            if name and name in owners:
                notes.error(place, f"{name} is taken by {owners[name]} already; each name belongs to one profile")
            owners.setdefault(name, place)
    unclaimed = tuple(name for name in DEFAULT_ALIASES if name not in owners)
    return [
        msgspec.structs.replace(spec, aliases=unclaimed) if spec.name == DEFAULT_NAME and _leaves_aliases(one) else spec
        for spec, one in zip(profiles, given, strict=True)
    ]


def _leaves_aliases(profile: object) -> bool:
    return not (isinstance(profile, Mapping) and profile.get("aliases") is not None)


def _written(spec: ProfileSpec) -> dict[str, Any]:
    plugins: dict[str, Any] = {"multiPoint": {"disabled": [{"name": "*"}]}}
    for key, ours in KEYS.items():
        names = spec.points[ours[0]] if ours else ()
        if names:
            plugins[key] = {
                "enabled": [
                    {"name": name, "weight": spec.weights[name]} if key == "score" else {"name": name} for name in names
                ]
            }
    return {
        "schedulerName": spec.name,
        "aliases": list(spec.aliases),
        "shadow": spec.is_shadow,
        "plugins": plugins,
        "pluginConfig": [{"name": name, "args": msgspec.to_builtins(args)} for name, args in spec.args.items()],
    }
