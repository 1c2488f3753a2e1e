"""Pods that attack the agent through what it reads, keeps and takes away for them: it goes on, and so do the others."""

from __future__ import annotations

import os

import pytest

from tests.agent.carrier.conftest import World, restarts, status, terminated
from tests.agent.carrier.test_hostile import neighbour_is_well, with_neighbour

DEEP = "p=$(printf 'd/%.0s' $(seq 1040)); for i in 1 2; do mkdir -p $p && cd -P ./$p || exit 9; done; echo deep;"
"""Deeper than a path may be long, in a few steps."""


@pytest.mark.needs("records")
async def test_one_that_nests_directories_without_end(world: World) -> None:
    script = f"cd /v; {DEEP} cd /tmp; {DEEP}"
    container = world.container(script, volumeMounts=[{"name": "v", "mountPath": "/v"}])
    await world.create(containers=[container], volumes=[{"name": "v", "emptyDir": {}}])
    assert status(await world.ended())["phase"] == "Succeeded"
    await world.delete()
    await world.gone()  # and the world looks for what is left


@pytest.mark.needs("disk", "python")
async def test_one_that_hides_files_from_being_counted(world: World) -> None:
    script = (
        "import os\n"
        "os.chdir('/v')\n"
        "for _ in range(30): os.mkdir('d' * 200); os.chdir('d' * 200)\n"
        "open('big', 'wb').write(bytes(8 << 20))\n"
        "import time; time.sleep(1000)"
    )
    container = world.container(volumeMounts=[{"name": "v", "mountPath": "/v"}], command=["/usr/bin/python3", "-c", script])
    await world.create(containers=[container], volumes=[{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}])
    pod = await world.ended()
    assert status(pod)["reason"] == "Evicted"
    assert "nested too deeply" in status(pod)["message"]


@pytest.mark.needs("reports")
async def test_one_whose_numbers_no_float_can_hold(world: World) -> None:
    await with_neighbour(world)
    nines = "9" * 400
    nested = "[" * 980 + "]" * 980
    script = (
        f'echo \'{{"progress": {nines}}}\' >> $MUSTER_REPORT; echo \'{{"records": {{"a": {nested}}}}}\' >> $MUSTER_REPORT;'
        "sleep 1; echo '{\"progress\": 0.5}' >> $MUSTER_REPORT; sleep 1000"
    )
    await world.create(script, terminationGracePeriodSeconds=0)
    pod = await world.when(lambda pod: (pod["metadata"].get("annotations") or {}).get("muster.dev/progress") == "0.5")
    assert status(pod)["phase"] == "Running", "what came before is no reason to end it"
    await neighbour_is_well(world)


@pytest.mark.needs("events")
async def test_variables_that_grow_without_end(world: World) -> None:
    await with_neighbour(world)
    env = [{"name": "A", "value": "x" * 1000}]
    env += [{"name": name, "value": f"$({before})" * 1000} for name, before in zip("BCDE", "ABCD", strict=True)]
    await world.create(containers=[world.container("true", env=env)])
    await world.create(containers=[world.container("true", env=env[:2], args=["$(B)" * 10_000])], name="q")
    for name in ("p", "q"):
        pod = await world.when(lambda pod: "more than" in str(status(pod).get("containerStatuses")), name)
        assert status(pod)["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    await neighbour_is_well(world)


@pytest.mark.needs("events")
async def test_a_secret_that_is_named_thousands_of_times(world: World) -> None:
    await with_neighbour(world)
    await world.make("ConfigMap", "large", data={"k": "x" * 700_000})
    volumes = [{"name": f"v{n}", "configMap": {"name": "large"}} for n in range(200)]
    await world.create("true", volumes=volumes)
    pod = await world.when(lambda pod: "at most" in str(status(pod)))
    assert status(pod)["phase"] == "Pending"
    assert not terminated(pod), "nothing of it was started"
    await neighbour_is_well(world)


@pytest.mark.parametrize("is_probe", [True, False], ids=["probe", "hook"])
@pytest.mark.needs("python")
async def test_commands_beside_it_that_never_stop_printing(world: World, is_probe: bool) -> None:
    """What an exec leaves behind writes to its output for ever: the one who waits for it does not."""
    flood = ["sh", "-c", "for i in 1 2 3 4; do setsid sh -c 'exec yes' & done; sleep 0.2; exit 0"]
    more = (
        {"readinessProbe": {"exec": {"command": flood}, "periodSeconds": 1, "timeoutSeconds": 3}}
        if is_probe
        else {"lifecycle": {"postStart": {"exec": {"command": flood}}}}
    )
    limits = {"limits": {"cpu": "1500m"}}
    await world.create(containers=[world.container("sleep 1000", resources=limits, **more)], terminationGracePeriodSeconds=0)
    pod = await world.when(lambda pod: (status(pod).get("containerStatuses") or [{}])[0].get("ready"))
    assert (status(pod)["phase"], restarts(pod)) == ("Running", 0), "it counts as done although its output goes on"
    await world.delete()
    await world.gone()


@pytest.mark.needs("records", "python", "hostpath")
async def test_a_report_that_becomes_a_link_while_an_agent_comes_back(world: World) -> None:
    """The agent makes the file again; meanwhile the task puts a link to a file of root's in its place."""
    victim = world.carrier.tmp_path / "victim"
    victim.write_text("root's")
    victim.chmod(0o600)
    script = (
        "import os, sys\n"
        "top = '/muster/report'; path = top + '/report.jsonl'\n"
        "os.unlink(path); print('ready', flush=True)\n"
        "while True:\n"
        "    try:\n"
        f"        os.stat(path); os.symlink({str(victim)!r}, top + '/l'); os.rename(top + '/l', path); os.unlink(path)\n"
        "    except OSError: pass\n"
    )
    container = world.container(command=["/usr/bin/python3", "-c", script])
    await world.create(containers=[container], terminationGracePeriodSeconds=0)
    await world.printed("ready")
    for _ in range(5):
        await world.carrier.stop()
        await world.carrier.start()
        await world.create("true", name="after")
        assert status(await world.ended("after"))["phase"] == "Succeeded"
        await world.delete("after")
        await world.gone("after")
        assert victim.stat().st_mode & 0o777 == 0o600
        assert victim.stat().st_uid == os.getuid()
