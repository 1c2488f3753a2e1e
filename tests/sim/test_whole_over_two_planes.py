"""Tasks of two control planes begin, begin again and end as a whole, whoever disturbs them and wherever.

At every moment: no pod of an attempt is on a node before all parties had a place in that attempt; nothing runs twice; no
node is over its capacity (`joined_planes.Watcher`). In the end: nothing is left that nobody looks after.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.controllers.scheduling import pod
from tests.sim.joined_planes import (
    NAMES,
    are,
    assemble,
    command,
    delete,
    is_quiet,
    job_of,
    nothing_is_left,
    phase_of,
    run_everywhere,
    task_of,
)

from muster.objects.labels import KusciaLabel, Muster
from muster.objects.meta import annotations_of, labels_of, name_of, uid_of
from muster.objects.names import NAMESPACE_CROSS_DOMAIN
from muster.objects.status import NotFound, Raw
from muster.sim.faults import CALM, STORMY, Faults, Moment
from muster.sim.planes import Planes, simulate_planes
from muster.sim.workloads import GROUP, job_task, kuscia_job
from muster.sim.world import NO_CHAOS, Chaos, World

pytestmark = pytest.mark.slow
SOAK = bool(os.environ.get("MUSTER_SOAK"))
CHAOS = Chaos(kill_every_s=60, partition_every_s=60, partition_s=(1, 30))


def one_task(cpu: str = "2", **fields: Any) -> Raw:
    made = kuscia_job("j", [job_task("first", NAMES, cpu=cpu, **fields)])
    made["metadata"]["annotations"] = {Muster.PREEMPTIBLE: "true"}
    return made


async def started(planes: Planes, job: Raw | None = None, **how: Any) -> tuple[World, World]:
    """A job of alice, running at both."""
    await assemble(planes, **how)
    alice, bob = planes.worlds["alice"], planes.worlds["bob"]
    await alice.create(job if job is not None else one_task())
    await planes.run_until(run_everywhere(planes), timeout_s=120, what="the job runs at both")
    return alice, bob


async def uids(planes: Planes) -> dict[str, str]:
    """Of the tasks' pods, by party."""
    return {name: uid_of(one) for name, world in planes.worlds.items() for one in await world.objects("", "Pod", name)}


async def again(planes: Planes, before: dict[str, str], *, attempts: int = 2, preemptions: int = 1) -> None:
    """The job ends well, with new pods at both."""
    await planes.run_until(are(planes, "Succeeded"), timeout_s=900, what="the job succeeded at both")
    status = await task_of(planes.worlds["alice"])
    assert (status["attempts"], status.get("preemptions", 0)) == (attempts, preemptions), status
    assert {one["phase"] for one in status["partyTaskStatus"]} == {"Succeeded"}
    after = await uids(planes)
    assert all(after[name] != before[name] for name in NAMES), "all pods were made anew"
    assert (await task_of(planes.worlds["bob"]))["phase"] == "Succeeded"


# -- attempts ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", NAMES)
def test_what_is_preempted_at_one_party_gives_way_at_all(where: str) -> None:
    async def scenario(planes: Planes) -> None:
        await started(planes)
        before = await uids(planes)
        world = planes.worlds[where]
        await world.create(pod("urgent", "4", namespace=where, priorityClassName="urgent"))

        async def gave_way() -> bool:
            status = await task_of(planes.worlds["alice"])
            return (status.get("phase"), status.get("preemptions"), status.get("reason")) == ("Pending", 1, "Preempted")

        await planes.run_until(gave_way, timeout_s=60, every_s=0.05, what="the task gives way")
        await again(planes, before)

    simulate_planes(scenario, NAMES)


@pytest.mark.parametrize("where", NAMES)
def test_what_fails_at_one_party_is_tried_again_at_all(where: str) -> None:
    async def scenario(planes: Planes) -> None:
        job = one_task(retry={"limit": 1, "backoffSeconds": 5})
        await started(planes, job, failures=1, failing=where)
        await again(planes, await uids(planes), preemptions=0)

    simulate_planes(scenario, NAMES)


def test_a_member_that_fails_too_often_fails_the_job_with_its_reason() -> None:
    async def scenario(planes: Planes) -> None:
        await started(planes, one_task(retry={"limit": 1, "backoffSeconds": 5}), failures=9)
        await planes.run_until(are(planes, "Failed"), timeout_s=300, what="the job failed at both")
        status = await task_of(planes.worlds["alice"])
        assert (status["reason"], status["attempts"]) == ("RetriesExhausted", 2)
        assert "party bob" in status["message"]
        said = {one["domainID"]: (one["phase"], one.get("reason")) for one in status["partyTaskStatus"]}
        assert said["bob"] == ("Failed", "ContainerFailed")
        await planes.run_until(is_quiet(planes), timeout_s=60, what="nothing runs")

    simulate_planes(scenario, NAMES)


def test_work_on_a_lost_machine_of_a_member_begins_again_at_all() -> None:
    async def scenario(planes: Planes) -> None:
        _, bob = await started(planes, machines=2, run_s=400)
        before = await uids(planes)
        [lost] = [one["spec"]["nodeName"] for one in await bob.objects("", "Pod", "bob")]
        bob.switch_off(bob.machines[lost])
        await planes.run_for(60)
        await delete(bob, "", "Node", lost)
        await again(planes, before)

    simulate_planes(scenario, NAMES)


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        pytest.param("bob", "Pod", id="the member's pod"),
        pytest.param("alice", "Pod", id="the initiator's pod"),
        pytest.param("bob", "KusciaTask", id="the member's task"),
        pytest.param("bob", "TaskResourceGroup", id="the member's group"),
        pytest.param("alice", "TaskResourceGroup", id="the initiator's group"),
        pytest.param("alice", "KusciaTaskSummary", id="what they agree by"),
        pytest.param("bob", "KusciaJob", id="the member's copy of the job"),
    ],
)
def test_whatever_is_deleted_the_task_begins_again_at_all(where: str, kind: str) -> None:
    async def scenario(planes: Planes) -> None:
        await started(planes)
        before = await uids(planes)
        world, group = planes.worlds[where], "" if kind == "Pod" else GROUP
        namespace = {"Pod": where, "KusciaTaskSummary": "bob"}.get(kind, NAMESPACE_CROSS_DOMAIN)
        [found] = await world.objects(group, kind, None if kind == "TaskResourceGroup" else namespace)
        await delete(world, group, kind, name_of(found), None if kind == "TaskResourceGroup" else namespace)
        await again(planes, before)

    simulate_planes(scenario, NAMES)


def test_a_party_that_is_not_needed_only_fails_itself() -> None:
    async def scenario(planes: Planes) -> None:
        job = one_task(scheduleConfig={"minReservedMembers": 1})
        alice, bob = await started(planes, job, least=1)
        before = await uids(planes)
        [lost] = await bob.objects("", "Pod", "bob")
        await delete(bob, "", "Pod", name_of(lost), "bob")
        await planes.run_until(are(planes, "Succeeded"), timeout_s=300, what="the job succeeded at both")
        status = await task_of(alice)
        assert (status["attempts"], status.get("preemptions", 0)) == (1, 0)
        said = {one["domainID"]: (one["phase"], one.get("reason")) for one in status["partyTaskStatus"]}
        assert said == {"alice": ("Succeeded", None), "bob": ("Failed", "EvictedByAdmin")}
        assert (await uids(planes))["alice"] == before["alice"]
        assert not await bob.objects("", "Pod", "bob"), "it was not started again"

    simulate_planes(scenario, NAMES)


def test_a_member_that_is_cut_off_ends_its_attempt_when_it_hears_of_it() -> None:
    async def scenario(planes: Planes) -> None:
        alice, _ = await started(planes, run_s=600)
        before = await uids(planes)
        planes.cut(120)
        [lost] = await alice.objects("", "Pod", "alice")
        await delete(alice, "", "Pod", name_of(lost), "alice")
        await planes.run_for(100)
        assert (await uids(planes))["bob"] == before["bob"], "it goes on until it hears"
        assert not [one for one in await alice.objects("", "Pod", "alice") if one["spec"].get("nodeName")], (
            "nothing begins alone"
        )
        await again(planes, before)

    simulate_planes(scenario, NAMES)


# -- commands ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stage", "phase", "reason"), [("Stop", "Failed", "Stopped"), ("Cancel", "Cancelled", "Cancelled")])
@pytest.mark.parametrize("where", NAMES)
def test_a_command_of_either_side_ends_the_job_at_both(where: str, stage: str, phase: str, reason: str) -> None:
    async def scenario(planes: Planes) -> None:
        alice, bob = await started(planes)
        await command(planes.worlds[where], stage, where, 1)
        await planes.run_until(are(planes, phase), timeout_s=60, what=f"the job is {phase} at both")
        await planes.run_until(is_quiet(planes), timeout_s=60, what="nothing runs")
        for world in (alice, bob):
            job = await job_of(world)
            assert (labels_of(job)[KusciaLabel.JOB_STAGE], labels_of(job)[KusciaLabel.JOB_STAGE_TRIGGER]) == (stage, where)
            assert job["status"]["reason"] == reason
            assert (await task_of(world))["phase"] == "Failed"
        assert f"by {where}" in (await job_of(alice))["status"]["message"]

    simulate_planes(scenario, NAMES)


@pytest.mark.parametrize("where", NAMES)
def test_suspended_and_restarted_from_either_side(where: str) -> None:
    async def scenario(planes: Planes) -> None:
        await started(planes)
        before = await uids(planes)
        world = planes.worlds[where]
        await command(world, "Suspend", where, 1)
        await planes.run_until(are(planes, "Suspended"), timeout_s=60, what="suspended at both")
        await planes.run_until(is_quiet(planes), timeout_s=60, what="nothing runs")
        await command(world, "Restart", where, 2)
        await again(planes, before, attempts=1, preemptions=0)
        for one in planes.worlds.values():
            labels = labels_of(await job_of(one))
            assert (labels[KusciaLabel.JOB_STAGE], labels[KusciaLabel.JOB_STAGE_VERSION]) == ("Start", "3")

    simulate_planes(scenario, NAMES)


def test_of_two_commands_the_one_with_the_higher_version_counts() -> None:
    async def scenario(planes: Planes) -> None:
        alice, bob = await started(planes)
        planes.cut(30)
        await command(alice, "Suspend", "alice", 1)
        await command(bob, "Cancel", "bob", 2)
        await planes.run_until(are(planes, "Cancelled"), timeout_s=120, what="cancelled at both")
        await planes.run_until(is_quiet(planes), timeout_s=60, what="nothing runs")

    simulate_planes(scenario, NAMES)


# -- the end -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_s", [0.0, 0.5, 1.0, 3.0, 10.0, 40.0])
def test_deleting_the_job_leaves_nothing_anywhere(after_s: float) -> None:
    async def scenario(planes: Planes) -> None:
        await assemble(planes)
        alice, bob = planes.worlds.values()
        await alice.create(one_task())
        await planes.run_for(after_s, every_s=0.1)
        await delete(alice, GROUP, "KusciaJob", "j", NAMESPACE_CROSS_DOMAIN)
        await planes.run_for(90)
        await nothing_is_left(alice, bob)

    simulate_planes(scenario, NAMES)


def test_without_its_initiator_the_member_goes_on_until_it_is_told_to_end() -> None:
    """alice is gone for good."""

    async def scenario(planes: Planes) -> None:
        _, bob = await started(planes, run_s=100_000)
        planes.cut(1e9)
        before = await uids(planes)
        await planes.run_for(300)
        assert (await uids(planes))["bob"] == before["bob"], "nobody has said that it is over"
        assert await phase_of(bob) == "Running"
        await delete(bob, GROUP, "Domain", "alice")

        async def is_over() -> bool:
            return await phase_of(bob) == "Failed" and not await bob.objects("", "Pod", "bob")

        await planes.run_until(is_over, timeout_s=60, what="it ends at bob")
        assert "alice" in (await job_of(bob))["status"]["message"]
        await delete(bob, GROUP, "KusciaJob", "j", NAMESPACE_CROSS_DOMAIN)
        await planes.run_for(60)
        await nothing_is_left(bob)

    simulate_planes(scenario, NAMES)


def test_a_job_that_is_over_and_cleaned_up_at_the_member_does_not_come_back() -> None:
    async def scenario(planes: Planes) -> None:
        alice, bob = await started(planes)
        await planes.run_until(are(planes, "Succeeded"), timeout_s=120, what="the job succeeded")
        await delete(bob, GROUP, "KusciaJob", "j", NAMESPACE_CROSS_DOMAIN)
        await planes.run_for(60)
        await nothing_is_left(bob)
        assert await phase_of(alice) == "Succeeded"

    simulate_planes(scenario, NAMES)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("write", range(1, 31) if SOAK else (2, 7))
@pytest.mark.parametrize("who", ["alice-manager", "bob-manager", "bob-interconn"])
def test_a_crash_between_any_two_writes_while_a_member_gives_way(who: str, write: int, moment: Moment) -> None:
    async def scenario(planes: Planes) -> None:
        _, bob = await started(planes)
        before = await uids(planes)
        for world in planes.worlds.values():
            component = world.components.get(who)
            if component is not None and component.store is not None:
                at = component.store.writes + write
                component.store.faults = Faults(latency_s=CALM.latency_s, crash_at=(at, moment))
        [lost] = await bob.objects("", "Pod", "bob")
        await delete(bob, "", "Pod", name_of(lost), "bob")
        await again(planes, before)

    simulate_planes(scenario, NAMES, seed=write)


# -- storms --------------------------------------------------------------------------------------------------------------------


async def disturb(planes: Planes, chance: Any) -> None:
    """One thing that people or machines do."""
    world = planes.worlds[chance.choice(NAMES)]
    what = chance.choice(["Pod", "Pod", "Pod", "KusciaTask", "TaskResourceGroup", "KusciaTaskSummary", "cut"])
    if what == "cut":
        planes.cut(chance.uniform(1, 40))
        return
    found = await world.objects("" if what == "Pod" else GROUP, what)
    # The initiator's task is deleted by its job only: it would be made again, as another task.
    found = [one for one in found if what != "KusciaTask" or Muster.SUMMARY_UID in annotations_of(one)]
    if found:
        one = chance.choice(found)
        meta = one["metadata"]
        try:
            await delete(world, "" if what == "Pod" else GROUP, what, meta["name"], meta.get("namespace"))
        except NotFound:
            return
        world.note("people", f"delete {what} {meta['name']}")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200 if SOAK else 4))
def test_storms(seed: int) -> None:
    async def scenario(planes: Planes) -> None:
        chance = planes.worlds["alice"].loop.entropy.stream("people")
        await assemble(planes, failures=seed % 2, failing=chance.choice(NAMES))
        for number, (name, world) in enumerate(planes.worlds.items()):
            other = NAMES[1 - NAMES.index(name)]
            tasks = [
                job_task("first", [name, other], cpu=str(chance.randint(1, 4)), retry={"limit": 9, "backoffSeconds": 2}),
                job_task("second", [name, other], cpu="2", dependencies=["first"], retry={"limit": 9, "backoffSeconds": 2}),
            ]
            await world.create(kuscia_job(f"j{number}", tasks))
        for _ in range(chance.randint(2, 8)):
            await planes.run_for(chance.uniform(0, 25))
            await disturb(planes, chance)
        ends = ["Succeeded", "Succeeded"]
        if chance.random() < 0.5:
            number = chance.randint(0, 1)
            await planes.run_until(are_there(planes, f"j{number}"), timeout_s=600, what="the job is known at both")
            if await phase_of(planes.worlds[NAMES[number]], f"j{number}") in ("Running", "Pending"):
                await command(planes.worlds[chance.choice(NAMES)], "Cancel", NAMES[0], 1, f"j{number}")
                ends[number] = "Cancelled"
        await planes.run_for(chance.uniform(0, 60))
        planes.calm_down()

        async def have_ended() -> bool:
            for number, end in enumerate(ends):
                phases = {await phase_of(world, f"j{number}") for world in planes.worlds.values()}
                # One that succeeds while the command is on its way stays so.
                if phases not in ({end}, {"Succeeded"}):
                    return False
            return True

        await planes.run_until(have_ended, timeout_s=3_000, every_s=5, what="both jobs ended at both")
        await planes.run_until(is_quiet(planes), timeout_s=120, what="nothing runs")
        for number, world in enumerate(planes.worlds.values()):
            await delete(world, GROUP, "KusciaJob", f"j{number}", NAMESPACE_CROSS_DOMAIN)
        await planes.run_for(120)
        await nothing_is_left(*planes.worlds.values())

    faults, chaos = (STORMY, CHAOS) if seed % 4 >= 2 else (CALM, NO_CHAOS)
    simulate_planes(scenario, NAMES, seed=seed, faults=faults, chaos=chaos)


def are_there(planes: Planes, name: str) -> Any:
    async def check() -> bool:
        return all([await phase_of(world, name) not in ("", "AwaitingApproval") for world in planes.worlds.values()])

    return check
