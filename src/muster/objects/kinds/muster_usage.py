"""UsageRecord: pages of the ledger. What ran, for whom, on how much, from when to when. Pure.

A page is never changed. It holds runs as they ended, or sums that took the place of older pages (`replaces`): a page counts
unless another page that is there replaces it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import field

from muster.objects.kinds.base import AGE, Object
from muster.objects.kinds.muster_base import muster_resource
from muster.objects.resources import Column
from muster.objects.view import View

RUNS_MAX = 500
ROWS_MAX = 4_000
REPLACED_MAX = 256


class RunRecord(View, kw_only=True):
    """One attempt of one pod, from its start on a node to its end. Times are milliseconds since 1970."""

    uid: Annotated[str, "Of the pod: a run counts once."]
    pod: Annotated[str, "`namespace/name`."] = ""
    work: Annotated[str, "What it was part of: `Job/namespace/name`."] = ""
    user: str = ""
    group: Annotated[str, "Of the user, at that time."] = ""
    queue: str = ""
    start_ms: int
    end_ms: int
    amounts: Annotated[
        dict[str, int], "What it asked for: thousandths of a core, bytes, devices, bits per second in each direction."
    ] = field(default_factory=dict)
    moved: Annotated[dict[str, int], "Bytes measured in each direction, where its agent measured them."] = field(
        default_factory=dict
    )


class UsageSum(View, kw_only=True):
    """What was used on one day (UTC); on the first of a month, for days that are long past, in the whole month."""

    day: Annotated[str, "`2026-11-16`.", msgspec.Meta(extra_json_schema={"pattern": r"^\d{4}-\d\d-\d\d$"})]
    user: str = ""
    group: str = ""
    queue: str = ""
    amounts: Annotated[dict[str, str], "Amounts times milliseconds, as whole numbers in text: they may be very large."] = field(
        default_factory=dict
    )


class UsageRecordSpec(View):
    runs: Annotated[list[RunRecord], msgspec.Meta(max_length=RUNS_MAX)] = field(default_factory=list)
    sums: Annotated[list[UsageSum], msgspec.Meta(max_length=ROWS_MAX)] = field(default_factory=list)
    replaces: Annotated[list[str], "Pages whose runs and sums are in `sums`.", msgspec.Meta(max_length=REPLACED_MAX)] = field(
        default_factory=list
    )


class UsageRecord(Object):
    """A page of the ledger of what was used."""

    spec: UsageRecordSpec = field(default_factory=UsageRecordSpec)


USAGE_RECORD = muster_resource(
    UsageRecord,
    "usagerecords",
    short_names=("ur",),
    has_status=False,
    columns=(
        Column(name="First", path=".spec.runs[0].pod"),
        Column(name="User", path=".spec.runs[0].user"),
        AGE,
    ),
)
