"""Jobs through the client, on a real server that has no controllers: what a controller would write, the test writes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.client import ApiClient, JobFilter, Jobs, LogQuery, SyncClient
from muster.client.job_kinds import KUSCIA_JOB
from muster.client.jobs import JobTree
from muster.objects.labels import Muster
from muster.objects.requests import WriteOptions
from muster.objects.status import AlreadyExists, BadRequest, Conflict, Forbidden, Invalid, NotFound, Raw, Timeout
from tests.cli.support import Up, environment
from tests.client.job_objects import kuscia_job, own_job, pod, task


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of a server on which nothing happens by itself."""
    home = tmp_path_factory.mktemp("home")
    with Up(home / "data", "--without", "controllers", env=environment(home)) as up:
        yield up.kubeconfig


@pytest.fixture
async def client(still: Path) -> AsyncIterator[ApiClient]:
    async with await ApiClient.from_kubeconfig(still) as client:
        yield client
        for group, kind in (("kuscia.secretflow", "KusciaJob"), ("kuscia.secretflow", "KusciaTask")):
            await client.delete_collection(await client.resource(group, kind), "cross-domain")
        await client.delete_collection(await client.resource("muster.dev", "Job"), "default")


@pytest.fixture
def jobs(client: ApiClient) -> Jobs:
    return Jobs(client)


def manifest(name: str = "train", **spec: Any) -> Raw:
    made = kuscia_job(name, **spec)
    return {"apiVersion": made["apiVersion"], "kind": made["kind"], "metadata": {"name": name}, "spec": made["spec"]}


def own_manifest(name: str = "fit") -> Raw:
    made = own_job(name)
    return {"apiVersion": made["apiVersion"], "kind": made["kind"], "metadata": {"name": name}, "spec": made["spec"]}


async def report(client: ApiClient, tree: JobTree, **status: Any) -> None:
    """Write the status, as the controller of the kind would."""
    group = "muster.dev" if tree.kind == "Job" else "kuscia.secretflow"
    resource = await client.resource(group, tree.kind)
    await client.patch(resource, tree.name, {"status": status}, tree.namespace, subresource="status")


class TestSubmit:
    async def test_creates_where_jobs_live(self, jobs: Jobs) -> None:
        [several, own] = await jobs.submit([manifest(), own_manifest()])
        assert (several.namespace, several.name, several.outcome) == ("cross-domain", "train", "")
        assert (own.kind, own.namespace) == ("Job", "default")

    async def test_names_that_the_server_makes_up(self, jobs: Jobs) -> None:
        made = manifest()
        made["metadata"] = {"generateName": "night-"}
        [tree] = await jobs.submit([made])
        assert tree.name.startswith("night-")
        assert len(tree.name) > len("night-")

    async def test_what_a_job_refers_to_is_applied_first(self, jobs: Jobs, client: ApiClient) -> None:
        image = {
            "apiVersion": "kuscia.secretflow/v1alpha1",
            "kind": "AppImage",
            "metadata": {"name": "with-job"},
            "spec": {
                "image": {"name": "x", "tag": "1"},
                "deployTemplates": [{"name": "a", "replicas": 1, "spec": {"containers": [{"name": "c", "command": ["x"]}]}}],
            },
        }
        await jobs.submit([manifest(), image])
        assert await client.get(await client.resource("kuscia.secretflow", "AppImage"), "with-job")
        with pytest.raises(AlreadyExists):
            await jobs.submit([manifest(), image])

    @pytest.mark.parametrize(
        ("name", "change", "refusal"),
        [
            pytest.param("bad", {"maxParallelism": 1000}, Invalid, id="wrong"),
            pytest.param("taken", {}, AlreadyExists, id="name taken"),
        ],
    )
    async def test_a_wrong_job_leaves_what_it_refers_to_as_it_was(
        self, jobs: Jobs, client: ApiClient, name: str, change: Raw, refusal: type[Exception]
    ) -> None:
        def image(tag: str) -> Raw:
            template = {"name": "a", "spec": {"containers": [{"name": "c", "command": ["x"]}]}}
            return {
                "apiVersion": "kuscia.secretflow/v1alpha1",
                "kind": "AppImage",
                "metadata": {"name": "kept"},
                "spec": {"image": {"name": "x", "tag": tag}, "deployTemplates": [template]},
            }

        await jobs.submit([manifest("taken"), image("1")])
        with pytest.raises(refusal):
            await jobs.submit([image("2"), manifest(name, **change)])
        kept = await client.get(await client.resource("kuscia.secretflow", "AppImage"), "kept")
        assert kept["spec"]["image"]["tag"] == "1"

    async def test_one_wrong_job_and_none_is_created(self, jobs: Jobs) -> None:
        with pytest.raises(Invalid, match="maxParallelism"):
            await jobs.submit([manifest("good"), manifest("bad", maxParallelism=1000)])
        with pytest.raises(NotFound):
            await jobs.get("good")

    async def test_a_dry_run_stores_nothing(self, jobs: Jobs) -> None:
        [tree] = await jobs.submit([manifest()], options=WriteOptions(dry_run=True))
        assert tree.name == "train"
        with pytest.raises(NotFound, match="no KusciaJob in namespace cross-domain and no Job in namespace default"):
            await jobs.get("train")

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            pytest.param({"metadata": {"name": "x", "namespace": "elsewhere"}}, 'live in "cross-domain"', id="namespace"),
            pytest.param({"kind": "Pod", "apiVersion": "v1"}, "no job among the manifests", id="no job"),
        ],
    )
    async def test_refused(self, jobs: Jobs, change: Raw, says: str) -> None:
        with pytest.raises(BadRequest, match=says):
            await jobs.submit([{**manifest(), **change}])

    async def test_a_name_that_is_taken_says_what_to_do(self, jobs: Jobs) -> None:
        await jobs.submit([manifest()])
        with pytest.raises(AlreadyExists, match="run it again with 'muster job rerun train'"):
            await jobs.submit([manifest()])

    async def test_waits_until_all_have_ended(self, jobs: Jobs, client: ApiClient) -> None:
        async with asyncio.timeout(30):
            waiting = asyncio.create_task(jobs.submit([manifest("one"), own_manifest("two")], wait=True))
            for name, phase in (("one", "Succeeded"), ("two", "Failed")):
                while True:
                    try:
                        tree = await jobs.tree(name)
                        break
                    except NotFound:
                        await asyncio.sleep(0.01)
                await report(client, tree, phase=phase)
            ended = await waiting
        assert [tree.outcome for tree in ended] == ["Succeeded", "Failed"]

    async def test_a_wait_that_is_too_short(self, jobs: Jobs) -> None:
        with pytest.raises(
            Timeout, match=r"has not ended within 0\.2 s: (status\.phase is empty|it could not be read); it goes on"
        ):
            await jobs.submit([manifest()], wait=True, timeout_s=0.2)


class TestNames:
    async def test_two_jobs_of_one_name(self, jobs: Jobs) -> None:
        await jobs.submit([manifest("same"), own_manifest("same")])
        with pytest.raises(BadRequest, match="write kusciajob/same or job/same"):
            await jobs.get("same")
        assert (await jobs.get("job/same"))["kind"] == "Job"
        assert (await jobs.get("KusciaJob/same"))["kind"] == "KusciaJob"


class TestPermissions:
    @pytest.fixture
    def unprivileged(self, client: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
        """Somebody who may not read what several parties share."""
        get, listed = client.get, client.list

        async def guarded(resource: Any, *args: Any, **kwargs: Any) -> Any:
            if resource.kind == "KusciaJob":
                raise Forbidden("kusciajobs is forbidden")
            return await get(resource, *args, **kwargs)

        async def guarded_list(resource: Any, *args: Any, **kwargs: Any) -> Any:
            if resource.kind == "KusciaJob":
                raise Forbidden("kusciajobs is forbidden")
            return await listed(resource, *args, **kwargs)

        monkeypatch.setattr(client, "get", guarded)
        monkeypatch.setattr(client, "list", guarded_list)

    async def test_own_jobs_are_found_and_listed(self, jobs: Jobs, unprivileged: None) -> None:
        await jobs.submit([own_manifest()])
        assert (await jobs.get("fit"))["kind"] == "Job"
        assert [tree.name for tree in (await jobs.list()).items] == ["fit"]

    async def test_what_is_not_yours_says_so(self, jobs: Jobs, unprivileged: None) -> None:
        with pytest.raises(Forbidden):
            await jobs.get("train")
        with pytest.raises(Forbidden):
            await jobs.list(JobFilter(kinds=[KUSCIA_JOB]))


class TestList:
    async def test_filters(self, jobs: Jobs, client: ApiClient) -> None:
        labelled = manifest("night")
        labelled["metadata"]["labels"] = {"team": "blue"}
        labelled["spec"]["tasks"] = [{**labelled["spec"]["tasks"][0], "parties": [{"domainID": "carol"}]}]
        labelled["spec"]["initiator"] = "carol"
        [day, night, fit] = await jobs.submit([manifest("day"), labelled, own_manifest("fit")])
        await report(client, day, phase="Failed", reason="Stopped")
        await report(client, fit, phase="Running")

        async def found(**where: Any) -> list[str]:
            return [tree.name for tree in (await jobs.list(JobFilter(**where), now=4e9)).items]

        assert await found() == ["day", "night", "fit"]
        assert await found(phases=["stopped"]) == ["day"]
        assert await found(phases=["failed", "running"]) == ["day", "fit"]
        assert await found(phases=["pending"]) == ["night"]
        assert await found(parties=["carol"]) == ["night"]
        assert await found(initiator="alice") == ["day"]
        assert await found(label_selector="team=blue") == ["night"]
        assert await found(kinds=[KUSCIA_JOB]) == ["day", "night"]
        assert await found(newer_than_s=60.0) == []
        assert await found(older_than_s=60.0) == ["day", "night", "fit"]
        with pytest.raises(BadRequest, match="pass now="):
            await jobs.list(JobFilter(newer_than_s=1.0))
        assert night.parties == ["carol"]

    async def test_pages_cover_everything_once(self, jobs: Jobs) -> None:
        await jobs.submit([*(manifest(f"k{n}") for n in range(5)), *(own_manifest(f"o{n}") for n in range(3))])
        names: list[str] = []
        token, pages = "", 0
        while True:
            page = await jobs.list(limit=3, continue_token=token)
            assert len(page.items) <= 3
            names += [tree.name for tree in page.items]
            token, pages = page.continue_token, pages + 1
            if not token:
                break
        assert names == [f"k{n}" for n in range(5)] + [f"o{n}" for n in range(3)]
        assert pages == 3

    @pytest.mark.parametrize("token", ["x", "9:", ":", "-1:a"])
    async def test_a_token_from_elsewhere(self, jobs: Jobs, token: str) -> None:
        with pytest.raises(BadRequest, match="begin again without it"):
            await jobs.list(continue_token=token)


class TestFollowing:
    async def test_tree_and_watch_show_what_happens(self, jobs: Jobs, client: ApiClient) -> None:
        [submitted] = await jobs.submit([manifest()])
        seen: list[tuple[str, list[str]]] = []

        async def watch() -> None:
            async for tree in jobs.watch("train", pause_s=0.01):
                seen.append((tree.phase, [node.phase for node in tree.tasks]))  # noqa: PERF401 - others read it meanwhile

        async def until(phase: str, phases: list[str]) -> None:
            while not seen or seen[-1] != (phase, phases):
                await asyncio.sleep(0.01)

        async with asyncio.timeout(30):
            watching = asyncio.create_task(watch())
            await until("", ["Waiting", "Waiting"])
            await report(client, submitted, phase="Running")
            await until("Running", ["Waiting", "Waiting"])
            tasks = await client.resource("kuscia.secretflow", "KusciaTask")
            made = task("first", job_uid=submitted.uid)
            made.pop("status")
            await client.create(tasks, made)
            await until("Running", ["Pending", "Waiting"])
            await client.patch(tasks, "train-first", {"status": {"phase": "Failed"}}, "cross-domain", subresource="status")
            await until("Running", ["Failed", "Waiting"])
            await report(client, submitted, phase="Failed")
            await watching
        assert seen[-1] == ("Failed", ["Failed", "Waiting"])

    async def test_a_job_that_is_deleted_meanwhile(self, jobs: Jobs) -> None:
        await jobs.submit([manifest()])
        async with asyncio.timeout(30):
            waiting = asyncio.create_task(jobs.wait("train"))
            await asyncio.sleep(0)
            await jobs.delete("train")
            with pytest.raises(NotFound):
                await waiting

    async def test_pods_that_may_not_be_read_are_left_out(
        self, jobs: Jobs, client: ApiClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        [submitted] = await jobs.submit([manifest()])
        made = task("first", job_uid=submitted.uid)
        await client.create(await client.resource("kuscia.secretflow", "KusciaTask"), made)
        listed = client.items

        def refuse(resource: Any, *args: Any, **kwargs: Any) -> Any:
            if resource.kind == "Pod":
                raise Forbidden("pods are not yours")
            return listed(resource, *args, **kwargs)

        monkeypatch.setattr(client, "items", refuse)
        assert (await jobs.tree("train")).tasks[0].task_id == "train-first"


@pytest.mark.slow
async def test_a_server_that_is_away_for_a_while(tmp_path: Path) -> None:
    """A wait goes on over a restart of the server, as people's terminals do."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ("--without", "controllers", "--listen", f"127.0.0.1:{port}")
    first = Up(tmp_path / "data", *options, env=environment(tmp_path))
    with first:
        async with await ApiClient.from_kubeconfig(first.kubeconfig) as client, asyncio.timeout(120):
            jobs = Jobs(client)
            [tree] = await jobs.submit([manifest()])
            waiting = asyncio.create_task(jobs.wait("train"))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(first.stop)
            with Up(tmp_path / "data", *options, env=environment(tmp_path)):
                await report(client, tree, phase="Succeeded")
                assert (await waiting).outcome == "Succeeded"


class TestCommands:
    async def test_stage_commands_count_up(self, jobs: Jobs, client: ApiClient) -> None:
        [tree] = await jobs.submit([manifest()])
        await report(client, tree, phase="Running")
        await jobs.suspend("train")
        await report(client, tree, phase="Suspended")
        await jobs.resume("train", party="bob")
        labels = (await jobs.get("train"))["metadata"]["labels"]
        assert labels == {
            "kuscia.secretflow/job-stage": "Restart",
            "kuscia.secretflow/job-stage-trigger": "bob",
            "kuscia.secretflow/job-stage-version": "2",
        }

    async def test_states(self, jobs: Jobs, client: ApiClient) -> None:
        [tree] = await jobs.submit([own_manifest()])
        await report(client, tree, phase="Running")
        for verb, state in (
            (jobs.suspend, "Suspended"),
            (jobs.resume, "Running"),
            (jobs.stop, "Stopped"),
            (jobs.cancel, "Cancelled"),
        ):
            await verb("fit")
            assert (await jobs.get("fit"))["spec"]["state"] == state

    async def test_a_command_is_decided_again_when_the_job_changed(
        self, jobs: Jobs, client: ApiClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        [tree] = await jobs.submit([manifest()])
        await report(client, tree, phase="Running")
        patch, hindrances = client.patch, ["once", "twice"]

        async def slow(*args: Any, **kwargs: Any) -> Raw:
            if hindrances:
                await patch(args[0], args[1], {"metadata": {"annotations": {"by": hindrances.pop()}}}, args[3])
            return await patch(*args, **kwargs)

        monkeypatch.setattr(client, "patch", slow)
        await jobs.stop("train")
        metadata = (await jobs.get("train"))["metadata"]
        assert metadata["labels"]["kuscia.secretflow/job-stage-version"] == "1"
        assert metadata["annotations"] == {"by": "once"}

    async def test_approvals(self, jobs: Jobs, client: ApiClient) -> None:
        [tree] = await jobs.submit([manifest()])
        await report(client, tree, phase="AwaitingApproval")
        approved = await jobs.approve("train", "bob")
        assert approved.approvals == {"bob": "JobAccepted"}
        rejected = await jobs.reject("train", "alice")
        assert rejected.approvals == {"alice": "JobRejected", "bob": "JobAccepted"}

    async def test_rerun_makes_a_new_job_and_from_stays_in_place(self, jobs: Jobs, client: ApiClient) -> None:
        [tree] = await jobs.submit([manifest()])
        with pytest.raises(Conflict, match="stop it first"):
            await jobs.rerun("train")
        await report(client, tree, phase="Failed")
        first = await jobs.rerun("train")
        assert first.name == "train-rerun-1"
        await report(client, first, phase="Succeeded")
        assert (await jobs.rerun("train-rerun-1")).name == "train-rerun-2"
        assert (await jobs.get("train-rerun-2"))["metadata"]["annotations"][Muster.RERUN_OF] == "train-rerun-1"
        again = await jobs.rerun("train", from_="then")
        assert (again.name, again.stage, again.outcome) == ("train", "Restart", "")
        assert (await jobs.get("train"))["metadata"]["annotations"][Muster.RERUN_FROM] == "then"

    async def test_diff(self, jobs: Jobs, client: ApiClient) -> None:
        [old, new] = await jobs.submit([manifest("a"), manifest("b", maxParallelism=1)])
        await report(client, old, phase="Failed")
        await report(client, new, phase="Succeeded")
        found = await jobs.diff("a", "b")
        assert [(c.path, c.before, c.after) for c in found.spec] == [("spec.maxParallelism", 2, 1)]


class TestLogs:
    async def test_nobody_can_be_asked(self, jobs: Jobs, client: ApiClient) -> None:
        """The way to the pods is right; that no agent answers is said once per pod, and does not end the others."""
        await jobs.submit([own_manifest()])
        pods = await client.resource("", "Pod")
        for n in (0, 1, 2):  # the last one has no node, so no log either
            made = pod(
                f"fit-worker-{n}",
                "default",
                node=f"n{n}" if n < 2 else "",
                labels={"muster.dev/job": "fit", "muster.dev/role": "worker"},
            )
            made.pop("status")
            await client.create(pods, made)
        lines = [line async for line in jobs.logs("fit")]
        assert [(line.pod, line.container, line.error) for line in lines] == [
            ("fit-worker-0", "main", True),
            ("fit-worker-1", "main", True),
        ]
        assert "which is gone: its Node was deleted" in lines[0].text
        assert [line.pod async for line in jobs.logs("fit", LogQuery(pod="fit-worker-1"))] == ["fit-worker-1"]
        [waits] = [line async for line in jobs.logs("fit", LogQuery(pod="fit-worker-2"))]
        assert "has no node yet" in waits.text
        await client.delete_collection(pods, "default")

    @pytest.mark.parametrize(
        ("query", "says"),
        [
            (LogQuery(task="x"), "no task 'x'; its tasks are: first, then"),
            (LogQuery(party="x"), "its parties are: alice, bob"),
            (LogQuery(), "has no pods"),
        ],
    )
    async def test_nothing_there(self, jobs: Jobs, query: LogQuery, says: str) -> None:
        await jobs.submit([manifest()])
        with pytest.raises(NotFound, match=says):
            _ = [line async for line in jobs.logs("train", query)]


def test_the_same_without_an_event_loop(still: Path) -> None:
    with SyncClient.from_kubeconfig(still) as client:
        [tree] = client.jobs.submit([manifest("blocking")])
        resource = client.resource("kuscia.secretflow", "KusciaJob")
        client.patch(resource, "blocking", {"status": {"phase": "Succeeded"}}, "cross-domain", subresource="status")
        assert [seen.outcome for seen in client.jobs.watch("blocking")] == ["Succeeded"]
        assert client.jobs.wait("blocking").uid == tree.uid
        assert client.jobs.within("elsewhere").namespace == "elsewhere"
        client.jobs.delete("blocking")


def test_every_method_is_there_and_means_the_same() -> None:
    from muster.client.sync_jobs import SyncJobs

    for name in (n for n in vars(Jobs) if not n.startswith("_")):
        blocking = getattr(SyncJobs, name)
        assert name == "within" or blocking.__doc__ == getattr(Jobs, name).__doc__
