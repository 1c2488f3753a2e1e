"""Evictions against budgets through storms: however late the controller's view, a budget is never broken."""

from __future__ import annotations

import asyncio
import os

import pytest
from tests.controllers.helpers import Replicas, replica_set
from tests.sim.test_convergence import budget

from muster.controllers.disruption import Disruption
from muster.objects.meta import is_deleting, labels_of, name_of
from muster.objects.status import ApiError, Raw, TooManyRequests
from muster.sim.agent import is_ready
from muster.sim.faults import STORMY
from muster.sim.machine import PodScript
from muster.sim.world import Chaos, World, simulate
from muster.store.contract import Store

SEEDS = range(100 if os.environ.get("MUSTER_SOAK") else 3)
CHAOS = Chaos(kill_every_s=60, partition_every_s=60, partition_s=(1, 20), lease_loss_every_s=200)
FOREVER = PodScript(run_s=None, stop_s=0.5)


def healthy(pods: list[Raw]) -> int:
    return sum(1 for pod in pods if labels_of(pod).get("app") == "web" and is_ready(pod) and not is_deleting(pod))


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("spec", "least"),
    [
        pytest.param({"minAvailable": 3}, 3, id="at least 3"),
        pytest.param({"maxUnavailable": "40%"}, 3, id="at most 40%"),
    ],
)
def test_a_budget_is_never_broken(spec: Raw, least: int, seed: int) -> None:
    async def scenario(world: World) -> tuple[int, int]:
        evicted = refused = 0
        await world.create(replica_set("web", 5))
        await world.create(budget("web", spec))
        world.add_manager("controllers", lambda: [Disruption(), Replicas()], replicas=2)
        world.add_machines(2, script_for=lambda _pod: FOREVER)

        async def all_up() -> bool:
            return healthy(await world.objects("", "Pod", "default")) == 5

        await world.run_until(all_up, timeout_s=600, what="five pods")

        async def enough_are_left(world: World) -> None:
            left = healthy(await world.objects("", "Pod", "default"))
            assert left >= least, f"only {left} healthy pods are left"

        world.invariant("the budget", enough_are_left)

        async def evict_greedily(store: Store, run_name: str) -> None:
            nonlocal evicted, refused
            chance = world.loop.entropy.stream("evict", run_name)
            while True:
                await asyncio.sleep(chance.uniform(0.1, 3.0))
                try:
                    pods = (await store.list(await store.resource("", "Pod"), "default")).items
                    await store.evict(name_of(chance.choice(pods)), "default", grace_period_s=2)
                    evicted += 1
                except TooManyRequests:
                    refused += 1
                except (ApiError, IndexError):
                    continue

        for n in range(2):
            world.add_component(f"evictor-{n}", evict_greedily)
        await world.run_for(600)
        return evicted, refused

    (evicted, refused), _ = simulate(scenario, seed=seed, faults=STORMY, chaos=CHAOS)
    assert evicted > 0, "nothing was tried"
    assert refused > 0, "the budget never had to say no"
