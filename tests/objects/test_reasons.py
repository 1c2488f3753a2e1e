"""The reason codes: well formed, documented, found again by what users see; and the values that carry them."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.objects.reference_pages import FOLDER, REMAKE, reasons_page

from muster.objects.reasons import (
    ApiReason,
    Category,
    Holder,
    Reason,
    Shortfall,
    Unit,
    Verdict,
    format_amount,
    shortfall,
)
from muster.objects.status import ApiError

CAMEL_CASE = re.compile(r"[A-Z][A-Za-z]+")


@pytest.mark.parametrize("reason", Reason, ids=lambda r: r.value)
def test_reason_is_well_formed(reason: Reason) -> None:
    assert CAMEL_CASE.fullmatch(reason.value)
    assert Reason(reason.value) is reason
    assert isinstance(reason.category, Category)
    for text in (reason.meaning, reason.remedy):
        assert text[0].isupper()
        assert text.endswith(".")
        assert "\n" not in text


def test_no_code_twice() -> None:
    # Python makes a second member with the same value an alias of the first, and so hides it from iteration.
    assert [name for name, member in Reason.__members__.items() if name != member.name] == []
    assert [name for name, member in ApiReason.__members__.items() if name != member.name] == []


def test_no_two_reasons_mean_the_same() -> None:
    meanings = [reason.meaning for reason in Reason]
    assert len(set(meanings)) == len(meanings)


def test_every_category_is_used() -> None:
    assert {reason.category for reason in Reason} == set(Category)


@pytest.mark.parametrize(
    ("code", "category"),
    [
        ("BandwidthInsufficient", Category.WAITING),
        ("CPUInsufficient", Category.WAITING),
        ("MemoryInsufficient", Category.WAITING),
        ("GPUInsufficient", Category.WAITING),
        ("NodeSelectorMismatch", Category.WAITING),
        ("TaintNotTolerated", Category.WAITING),
        ("PortConflict", Category.WAITING),
        ("QuotaExceeded", Category.WAITING),
        ("QueueBlocked", Category.WAITING),
        ("PartyNotReserved", Category.WAITING),
        ("GangIncomplete", Category.WAITING),
        ("PluginError", Category.WAITING),
        ("NotFound", Category.WAITING),
        ("Impossible", Category.IMPOSSIBLE),
        ("Preempted", Category.EVICTED),
        ("NodeLost", Category.FAILED),
        ("SubmitLimitReached", Category.REFUSED),
    ],
)
def test_codes_that_others_rely_on(code: str, category: Category) -> None:
    assert Reason(code).category is category


def test_unknown_code_is_refused() -> None:
    with pytest.raises(ValueError, match="Nonsense"):
        Reason("Nonsense")


def test_api_reasons_are_those_of_the_errors() -> None:
    api = {error.reason for error in ApiError.__subclasses__() if error.__module__ == ApiError.__module__}
    assert {reason.value for reason in ApiReason} == api


def test_page_of_reasons_is_up_to_date() -> None:
    assert (FOLDER / "reasons.md").read_text(encoding="utf-8") == reasons_page(), REMAKE


def test_page_documents_every_code_and_no_other() -> None:
    page = (FOLDER / "reasons.md").read_text(encoding="utf-8")
    reasons, _, api = page.partition("## Refused API requests")
    assert sorted(re.findall(r"^\| `(\w+)` \|", reasons, re.MULTILINE)) == sorted(r.value for r in Reason)
    assert sorted(re.findall(r"^\| `(\w+)` \|", api, re.MULTILINE)) == sorted(r.value for r in ApiReason)


class ArrayScalar:
    """Stands for a number out of an array, which is no int and no float."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return self.value


def test_shortfall_says_what_is_missing() -> None:
    lack = shortfall(
        Reason.BANDWIDTH_INSUFFICIENT,
        want=ArrayScalar(500e6),
        best=200_000_000,
        unit="bps",
        resource="bandwidth",
        where="n1",
        holders=(Holder(kind="KusciaTask", name="cross-domain/psi", amount=300_000_000),),
    )
    assert lack.missing == 300_000_000
    assert str(lack) == "bandwidth: wants 500Mbps, n1 has 200Mbps, 300Mbps short"
    assert type(lack.want) is int


def test_shortfall_without_a_place() -> None:
    lack = shortfall(Reason.GPU_INSUFFICIENT, want=8, best=6, unit="count")
    assert str(lack) == "wants 8, the best offer is 6, 2 short"
    assert shortfall(Reason.GPU_INSUFFICIENT, want=2, best=6).missing == 0


@pytest.mark.parametrize(
    ("amount", "unit", "text"),
    [
        (0, "bps", "0bps"),
        (999, "bps", "999bps"),
        (1_000_000_000, "bps", "1Gbps"),
        (2_500_000, "bps", "2.5Mbps"),
        (5e18, "bps", "5000000Tbps"),
        (1500, "milli", "1500m"),
        (2000, "milli", "2"),
        (1536, "bytes", "1.5Ki"),
        (4 * 1024**3, "bytes", "4Gi"),
        (12, "count", "12"),
        (0.25, "", "0.25"),
    ],
)
def test_amounts_as_people_write_them(amount: float, unit: Unit, text: str) -> None:
    assert format_amount(amount, unit) == text


@given(st.integers(0, 10**17), st.sampled_from(["bps", "bytes"]))
def test_formatted_amount_is_close_to_the_amount(amount: int, unit: Unit) -> None:
    match = re.fullmatch(r"([\d.]+)(K|M|G|T)?i?(?:bps)?", format_amount(amount, unit))
    assert match
    step = 1000 if unit == "bps" else 1024
    power = ["", "K", "M", "G", "T"].index(match[2] or "")
    assert float(match[1]) * step**power == pytest.approx(amount, rel=1e-3, abs=1e-3)


def verdict() -> Verdict:
    near = Verdict(
        reason=Reason.CPU_INSUFFICIENT,
        subject="n2",
        plugin="ResourceFit",
        shortfalls=(Shortfall(reason=Reason.CPU_INSUFFICIENT, resource="cpu", want=4000, best=1500, unit="milli", where="n2"),),
    )
    return Verdict(
        reason=Reason.CPU_INSUFFICIENT,
        subject="Job/vision/resnet-50",
        shortfalls=near.shortfalls,
        nodes_by_reason={Reason.CPU_INSUFFICIENT: 3, Reason.TAINT_NOT_TOLERATED: 1},
        nearest=(near,),
        helps=("ask for 1500m CPU",),
    )


def test_verdict_reads_as_a_sentence() -> None:
    assert str(verdict()) == "CPUInsufficient: cpu: wants 4, n2 has 1500m, 2500m short"
    assert str(Verdict(reason=Reason.QUEUED)) == "Queued: In line behind other work, not tried yet."
    assert str(Verdict(reason=Reason.PLUGIN_ERROR, message="Mine raised KeyError")) == "PluginError: Mine raised KeyError"


@pytest.mark.parametrize(
    ("reason", "is_retried"),
    [(Reason.QUEUED, True), (Reason.SEARCH_GAVE_UP, True), (Reason.IMPOSSIBLE, False), (Reason.SUSPENDED, False)],
)
def test_only_waiting_is_retried(reason: Reason, is_retried: bool) -> None:
    assert Verdict(reason=reason).is_retried is is_retried


def test_verdict_survives_json() -> None:
    encoded = msgspec.json.encode(verdict())
    assert msgspec.json.decode(encoded, type=Verdict) == verdict()
    raw = msgspec.json.decode(encoded)
    assert raw["reason"] == "CPUInsufficient"
    assert raw["nodesByReason"] == {"CPUInsufficient": 3, "TaintNotTolerated": 1}
    assert raw["nearest"][0]["shortfalls"][0]["want"] == 4000
