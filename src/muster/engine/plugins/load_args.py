"""Arguments of LoadAwareScheduling, and the thresholds that a node's own annotation puts in their place. Pure.

Names, defaults and ranges are Koordinator's. What is wrong with an argument is said with its name; an annotation that can't be
read is as if it were not there.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal

import msgspec

RESOURCES_MAX: Final = 8
"""So many different resources may be weighed or limited."""
AggregationType = Literal["", "avg", "p50", "p90", "p95", "p99"]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
Percents = dict[str, Percent]
Share = Annotated[int, msgspec.Meta(ge=1, le=100)]
Seconds = Annotated[int, msgspec.Meta(ge=0, le=30 * 86400)]

DEFAULT_THRESHOLDS: Final[Mapping[str, int]] = {"cpu": 65, "memory": 95}
DEFAULT_WEIGHTS: Final[Mapping[str, int]] = {"cpu": 1, "memory": 1}
DEFAULT_FACTORS: Final[Mapping[str, int]] = {"cpu": 85, "memory": 70}
ESTIMATORS: Final = ("", "defaultEstimator")

_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)", re.ASCII)
_TEXT_LEN_MAX: Final = 64


def parse_duration(text: str) -> float:
    """Seconds of a time as Go writes it: `90s`, `1h30m`, `0`. "" is 0. ValueError says what to write."""
    if text in ("", "0"):
        return 0.0
    parts = _PART.findall(text) if len(text) <= _TEXT_LEN_MAX else []
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text[:_TEXT_LEN_MAX]!r} is not a duration; write it like 90s, 5m or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


class AggregatedArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Percentiles over a window instead of the last report. A window of 0 is the longest there is."""

    usage_thresholds: Percents = {}
    usage_aggregation_type: AggregationType = ""
    usage_aggregated_duration: str = ""
    score_aggregation_type: AggregationType = ""
    score_aggregated_duration: str = ""

    def __post_init__(self) -> None:
        for member, text in (
            ("usageAggregatedDuration", self.usage_aggregated_duration),
            ("scoreAggregatedDuration", self.score_aggregated_duration),
        ):
            try:
                parse_duration(text)
            except ValueError as error:
                raise ValueError(f"aggregated.{member}: {error}") from None


class LoadAwareArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    filter_expired_node_metrics: bool = True
    """False: the last report goes on counting, however old it is."""
    node_metric_expiration_seconds: Annotated[int, msgspec.Meta(ge=1, le=86400)] = 180
    enable_schedule_when_node_metrics_expired: bool = False
    """With the one above: nodes without a fresh report are taken as they are, instead of refused."""
    resource_weights: dict[str, Share] | None = None
    dominant_resource_weight: Percent = 0
    """The weight of the scarcest resource, beside those of the resources themselves."""
    usage_thresholds: Percents | None = None
    prod_usage_thresholds: Percents = {}
    prod_usage_include_sys: bool = False
    score_according_prod_usage: bool = False
    estimator: str = ""
    estimated_scaling_factors: dict[str, Share] = {}
    estimated_seconds_after_pod_scheduled: Seconds | None = None
    estimated_seconds_after_initialized: Seconds | None = None
    allow_customize_estimation: bool = False
    aggregated: AggregatedArgs | None = None
    supported_resources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.estimator not in ESTIMATORS:
            raise ValueError(f"estimator: there is no estimator {self.estimator!r}; leave it out or write defaultEstimator")
        if len(self.resources) > RESOURCES_MAX:
            raise ValueError(
                f"resourceWeights, thresholds and supportedResources name {len(self.resources)} different resources; "
                f"name at most {RESOURCES_MAX}"
            )

    @property
    def resources(self) -> tuple[str, ...]:
        """Every resource that is weighed, limited or named; CPU and memory always."""
        named: Iterable[Iterable[str]] = (
            ("cpu", "memory"),
            self.weights,
            self.usage_thresholds or (),
            self.prod_usage_thresholds,
            self.aggregated.usage_thresholds if self.aggregated else (),
            self.supported_resources,
        )
        return tuple(sorted({name for names in named for name in names}))

    @property
    def weights(self) -> Mapping[str, int]:
        """For scoring. With the scarcest resource weighed and nothing else said, only that one counts."""
        if self.resource_weights:
            return self.resource_weights
        return DEFAULT_WEIGHTS if not self.dominant_resource_weight else dict.fromkeys(DEFAULT_WEIGHTS, 0)

    @property
    def factors(self) -> Mapping[str, int]:
        return {**DEFAULT_FACTORS, **self.estimated_scaling_factors}


class Thresholds(msgspec.Struct, frozen=True):
    """What holds for one node. `aggregation` "": `usage` is about the last report."""

    usage: Mapping[str, int]
    prod: Mapping[str, int]
    aggregation: str = ""
    window_s: float = 0.0


class _NodeAggregated(msgspec.Struct, frozen=True, rename="camel"):
    usage_thresholds: Percents = {}
    usage_aggregation_type: AggregationType = ""
    usage_aggregated_duration: str = ""


class _NodeThresholds(msgspec.Struct, frozen=True, rename="camel"):
    """The annotation `scheduling.koordinator.sh/usage-thresholds`."""

    usage_thresholds: Percents = {}
    prod_usage_thresholds: Percents = {}
    aggregated_usage: _NodeAggregated | None = None


_decoder = msgspec.json.Decoder(_NodeThresholds)


def thresholds_of(args: LoadAwareArgs, annotation: str | None) -> Thresholds:
    """The arguments' thresholds, each kind replaced by what the node's annotation says of it."""
    own = _read(annotation) if annotation else None
    usage = DEFAULT_THRESHOLDS if args.usage_thresholds is None else args.usage_thresholds
    prod: Mapping[str, int] = args.prod_usage_thresholds
    aggregated: _NodeAggregated | AggregatedArgs | None = args.aggregated
    if own is not None:
        usage = own.usage_thresholds or usage
        prod = own.prod_usage_thresholds or prod
        aggregated = own.aggregated_usage or aggregated
    if aggregated is not None and aggregated.usage_thresholds and aggregated.usage_aggregation_type:
        window_s = parse_duration(aggregated.usage_aggregated_duration)
        return Thresholds(aggregated.usage_thresholds, prod, aggregated.usage_aggregation_type, window_s)
    return Thresholds(usage, prod)


@functools.lru_cache(maxsize=1024)
def _read(annotation: str) -> _NodeThresholds | None:
    try:
        found = _decoder.decode(annotation)
        if found.aggregated_usage is not None:
            parse_duration(found.aggregated_usage.usage_aggregated_duration)
    except (msgspec.MsgspecError, ValueError):
        return None
    return found
