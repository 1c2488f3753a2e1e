"""The policies that come with Muster: right, readable, and each does what its comments say."""

from __future__ import annotations

import copy
import importlib.resources

import msgspec
import numpy as np
import pytest

from muster.engine.work import Work
from muster.objects.kinds.muster_queues import SCHEDULING_POLICY, SchedulingPolicySpec
from muster.objects.validation import validate_object
from muster.objects.view import view_of
from muster.policy.builtin import DEFAULT, NAMES, builtin_policies, builtin_spec, builtin_text, digest
from muster.policy.policies import make_policy
from muster.policy.table import Lateness, Row, Table
from tests.policy.building import World
from tests.policy.test_factors import view

NOW = 1_000_000.0
HOUR, DAY = 3_600.0, 86_400.0
LATENESS = {"": Lateness(40 * DAY), "99": Lateness(30 * DAY)}


def order(policy: str, **works: Work) -> list[str]:
    """Names in the order of the policy; GPUs and users are read off `attributes`."""
    made = Table(6)
    made.use_total(view().total)
    for name in ("ann", "bob", "cyd"):
        made.users.take(name)
    for name, work in works.items():
        gpus = int(work.attributes.get("gpus", "1"))
        made.put(name, work, Row(request=np.array([1_000, 0, 0, 0, gpus, 0]), user=work.user))
        if work.attributes.get("running"):
            made.started[made.row_of[name]] = NOW - float(work.attributes["running"])
    rows = np.array([made.row_of[name] for name in works])
    total = make_policy(builtin_spec(policy)).scores(made, rows, NOW, view(lateness=LATENESS)).total
    assert np.isfinite(total).all()
    names = list(works)
    return [names[place] for place in np.lexsort((made.submitted[rows], -total))]


def test_what_there_is() -> None:
    files = {path.name.removesuffix(".yaml") for path in importlib.resources.files("muster.policy.builtin").iterdir()}
    assert set(NAMES) == {name for name in files if not name.startswith("__")}
    assert DEFAULT in NAMES
    with pytest.raises(KeyError, match="there are balanced"):
        builtin_text("oops")


@pytest.mark.parametrize("name", NAMES)
def test_each_is_a_right_and_readable_object(name: str) -> None:
    raw = builtin_policies()[name]
    assert (raw["apiVersion"], raw["kind"], raw["metadata"]) == ("muster.dev/v1alpha1", "SchedulingPolicy", {"name": name})
    assert validate_object(SCHEDULING_POLICY, raw) == []
    msgspec.convert(raw["spec"], SchedulingPolicySpec, strict=True)
    spec = builtin_spec(name)
    make_policy(spec)
    assert spec.description.endswith(".")
    assert spec.starvation_bound_seconds <= 70 * DAY
    text = builtin_text(name)
    assert "# Good at: " in text
    assert "# Bad at: " in text
    assert text.isascii()


def test_copies_are_the_callers_own() -> None:
    builtin_policies()["fifo"]["spec"].clear()
    assert builtin_policies()["fifo"]["spec"]["formula"] == "age"


def test_a_digest_does_not_care_how_a_spec_is_written() -> None:
    raw = builtin_policies()["fifo"]["spec"]
    written = copy.deepcopy(raw) | {"starvationBoundSeconds": 604_800, "preemption": {"enabled": False}}
    assert digest(view_of(SchedulingPolicySpec, written)) == digest(builtin_spec("fifo"))
    assert digest(view_of(SchedulingPolicySpec, raw | {"formula": "-age"})) != digest(builtin_spec("fifo"))


def test_fifo() -> None:
    found = order("fifo", b=Work(submitted=NOW - 5), a=Work(submitted=NOW - 50, level=-9), c=Work(submitted=NOW))
    assert found == ["a", "b", "c"]


def test_priority() -> None:
    works = {"low": Work(submitted=1), "high": Work(submitted=9, level=5), "higher": Work(submitted=10, level=6)}
    assert order("priority", **works, younger=Work(submitted=20, level=5)) == ["higher", "high", "younger", "low"]


def test_fair_share() -> None:
    """Shares of the test's view: ann has used nothing, bob exactly his share, cyd twice hers."""
    works = {"c": Work(submitted=1, user="cyd"), "b": Work(submitted=2, user="bob"), "a": Work(submitted=3, user="ann")}
    assert order("fair-share", **works, a2=Work(submitted=4, user="ann")) == ["a", "a2", "b", "c"]


def test_shortest_first() -> None:
    works = {
        "unknown": Work(submitted=1),
        "long": Work(submitted=2, estimate_s=2 * DAY),
        "short": Work(submitted=3, estimate_s=HOUR),
        "nearly done": Work(submitted=4, estimate_s=DAY, attained_s=DAY - 60),
    }
    assert order("shortest-first", **works) == ["nearly done", "short", "unknown", "long"]


def test_least_attained_service() -> None:
    """One GPU of the cluster's 16 for 64 s are 4 cluster-seconds."""
    works = {
        "much": Work(submitted=1, attained_s=DAY),
        "new": Work(submitted=3),
        "runs": Work(submitted=2, attributes={"running": "64"}),
        "a little": Work(submitted=4, attained_s=10),
        "wide": Work(submitted=5, attained_s=64, attributes={"gpus": "16"}),
    }
    assert order("least-attained-service", **works) == ["new", "a little", "runs", "wide", "much"]


def test_deadline() -> None:
    works = {
        "none": Work(submitted=1),
        "too late": Work(submitted=2, deadline=NOW + HOUR, estimate_s=2 * HOUR),
        "gone": Work(submitted=3, deadline=NOW - 10),
        "far": Work(submitted=4, deadline=NOW + 30 * DAY, estimate_s=HOUR),
        "soon": Work(submitted=5, deadline=NOW + 3 * HOUR, estimate_s=2 * HOUR),
    }
    assert order("deadline", **works) == ["soon", "far", "too late", "gone", "none"]


def test_balanced() -> None:
    """Short and narrow work first; waiting counts; what is later than the latest with first come, first served leads.
    Priority is a factor; a large one decides."""
    hour = NOW - HOUR
    works = {
        "long": Work(submitted=hour, estimate_s=DAY),
        "wide": Work(submitted=hour, estimate_s=HOUR, attributes={"gpus": "4"}),
        "short": Work(submitted=hour, estimate_s=HOUR),
        "unknown": Work(submitted=NOW - 60),
        "long, waited": Work(submitted=NOW - 3 * DAY, estimate_s=DAY),
        "late": Work(submitted=NOW - 10 * DAY, estimate_s=31 * DAY, attributes={"gpus": "16"}),
    }
    assert order("balanced", **works) == ["late", "long, waited", "short", "long", "unknown", "wide"]
    works |= {"wide": msgspec.structs.replace(works["wide"], level=40), "urgent": Work(submitted=NOW, level=1_000)}
    assert order("balanced", **works)[:3] == ["urgent", "late", "wide"]


def test_multifactor_has_nine_factors_within_their_bounds() -> None:
    policy = make_policy(builtin_spec("multifactor"))
    assert len(policy.factors) == 9
    assert policy.is_sum
    made = Table(6)
    made.use_total(view().total)
    crowd = Work(submitted=0, level=1e9, attributes={"nice": "1e99"})
    made.put("a", crowd, Row(request=np.full(6, 10**9), group_level=1e9, labels={"muster.dev/site-factor": "-1e99"}))
    values = dict(zip(policy.names, policy.scores(made, np.array([made.row_of["a"]]), NOW, view()).values[:, 0], strict=True))
    assert {name for name, value in values.items() if not 0 <= value <= 1} == {"nice", "site"}
    assert (values["nice"], values["site"]) == (10_000, -10_000)


def test_the_default_keeps_room_for_what_does_not_fit_where_nothing_is_preemptible() -> None:
    """Narrow work that comes later would otherwise pass the wide one, which scores best by now, again and again."""
    world = World(nodes=1, gpus=8, **msgspec.to_builtins(builtin_spec("balanced")))
    for place in range(8):
        world.submit(f"first{place}", 1, seconds=1_000.0 + place)
    world.submit("wide", 8, seconds=100.0, at=10.0)
    for place in range(8):
        world.end(f"first{place}", at=1_000.0 + place)
        world.submit(f"later{place}", 1, seconds=5_000.0, at=1_000.0 + place)
    assert "wide" in world.running
    assert not world.evicted
