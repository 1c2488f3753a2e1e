"""`muster job` on a real server without controllers: what a controller would write, the test writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from muster.cli.errors import ExitCode
from muster.client import SyncClient
from muster.client.job_kinds import Outcome
from muster.objects.status import Raw
from tests.cli.conftest import Run
from tests.cli.support import Up, environment
from tests.client.job_objects import kuscia_job, own_job


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    home = tmp_path_factory.mktemp("home")
    with Up(home / "data", "--without", "controllers", env=environment(home)) as up:
        yield up


@pytest.fixture(scope="module")
def still(quiet: Up) -> Iterator[SyncClient]:
    with SyncClient.from_kubeconfig(quiet.kubeconfig) as client:
        yield client


@pytest.fixture
def job(run: Run, quiet: Up, still: SyncClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """`job("list", ...)`: `muster job list ...` on that server, which has no jobs afterwards."""
    monkeypatch.setenv("KUBECONFIG", str(quiet.kubeconfig))

    def invoke(*args: str, stdin: str = "") -> Any:
        return run("job", *args, stdin=stdin)

    yield invoke
    still.delete_collection(still.resource("kuscia.secretflow", "KusciaJob"), "cross-domain")
    still.delete_collection(still.resource("muster.dev", "Job"), "default")


def manifest(name: str, **spec: Any) -> str:
    made = kuscia_job(name, **spec)
    return json.dumps({k: made[k] for k in ("apiVersion", "kind", "spec")} | {"metadata": {"name": name}})


def own_manifest(name: str) -> str:
    made = own_job(name)
    return json.dumps({k: made[k] for k in ("apiVersion", "kind", "spec")} | {"metadata": {"name": name}})


def report(client: SyncClient, name: str, kind: str = "KusciaJob", **status: Any) -> None:
    group, namespace = ("kuscia.secretflow", "cross-domain") if kind == "KusciaJob" else ("muster.dev", "default")
    client.patch(client.resource(group, kind), name, {"status": status}, namespace, subresource="status")


def stored(client: SyncClient, name: str) -> Raw:
    return client.jobs.get(name)


def test_submit_list_get_tree_delete(job: Run, still: SyncClient) -> None:
    done = job("submit", "-f", "-", stdin=f"{manifest('train')}\n---\n{own_manifest('fit')}")
    assert done.code == 0, done.err
    assert done.out == "kusciajob.kuscia.secretflow/train submitted\njob.muster.dev/fit submitted\n"
    report(still, "train", phase="Running", reason="Started")
    rows = [line.split()[:4] for line in job("list", "--no-headers").out.splitlines()]
    assert sorted(rows) == [["fit", "Job", "Waiting", "1"], ["train", "KusciaJob", "Running", "0/2"]]
    assert job("list", "--phase", "running", "-o", "name").out == "kusciajob.kuscia.secretflow/train\n"
    assert json.loads(job("list", "--party", "bob", "-o", "json").out)["items"][0]["name"] == "train"
    assert job("list", "--older-than", "1d").err == "no jobs found\n"
    assert "Phase:      Running" in job("get", "train").out
    assert json.loads(job("get", "fit", "-o", "json").out)["kind"] == "Job"
    assert job("get", "train", "fit", "-o", "name").out.splitlines() == [
        "kusciajob.kuscia.secretflow/train",
        "job.muster.dev/fit",
    ]
    assert job("tree", "train").out.splitlines()[-1] == "   └─ bob"
    assert json.loads(job("tree", "train", "-o", "json").out)["tasks"][0]["alias"] == "first"
    deleted = job("delete", "train", "fit")
    assert (deleted.code, deleted.out.count("deleted")) == (0, 2)
    missing = job("delete", "train")
    assert missing.code == ExitCode.NOT_FOUND
    assert job("delete", "train", "--ignore-not-found").code == 0


def test_the_newest_first_and_no_more_than_asked_for(job: Run) -> None:
    job("submit", "-f", "-", stdin="\n---\n".join(manifest(f"j{n}") for n in range(3)))
    shown = job("list", "--limit", "1", "-o", "name")
    assert shown.out == "kusciajob.kuscia.secretflow/j2\n"
    assert "2 older jobs are not shown" in shown.err


@pytest.mark.parametrize(
    ("phase", "reason", "code"),
    [
        ("Succeeded", "", ExitCode.OK),
        ("Failed", "ContainerFailed", ExitCode.FAILURE),
        ("Failed", "Stopped", ExitCode.JOB_ENDED),
        ("Cancelled", "", ExitCode.JOB_ENDED),
        ("ApprovalReject", "", ExitCode.JOB_ENDED),
    ],
)
def test_the_exit_code_says_how_it_ended(job: Run, still: SyncClient, phase: str, reason: str, code: ExitCode) -> None:
    job("submit", "-f", "-", stdin=manifest("train"))
    ending = threading.Timer(0.3, report, (still, "train"), {"phase": phase, "reason": reason})
    ending.start()
    done = job("watch", "train", "--timeout", "60")
    ending.join()
    assert done.code == code, done.err
    assert done.out.splitlines()[-1].split()[1:3] == ["KusciaJob", "cross-domain/train"]


def test_time_out(job: Run) -> None:
    done = job("submit", "-f", "-", "--wait", "--timeout", "0.3", stdin=manifest("train"))
    assert done.code == ExitCode.NOT_ENDED
    assert "not ended within 0.3 s, its phase is Waiting; it goes on" in done.err


def test_time_out_says_what_it_waits_for(job: Run, still: SyncClient) -> None:
    job("submit", "-f", "-", stdin=manifest("train"))
    report(still, "train", phase="Running", reason="AppImageNotFound", message="task a waits: there is no AppImage x")
    done = job("watch", "train", "--timeout", "0.3")
    assert done.code == ExitCode.NOT_ENDED
    assert "its phase is Running (AppImageNotFound: task a waits: there is no AppImage x); it goes on" in done.err


def test_waiting_for_a_suspension_ends_with_it(job: Run, still: SyncClient) -> None:
    job("submit", "-f", "-", stdin=manifest("train"))
    report(still, "train", phase="Running")
    following = threading.Timer(0.3, report, (still, "train"), {"phase": "Suspended", "reason": "Suspended"})
    following.start()
    done = job("suspend", "train", "--wait", "--timeout", "60")
    following.join()
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1].split()[1:] == ["KusciaJob", "cross-domain/train", "Suspended"]


def test_a_warning_is_said_once(job: Run) -> None:
    done = job("submit", "-f", "-", stdin=manifest("train", maxParalelism=2))
    assert done.code == 0, done.err
    assert done.err.count("maxParalelism") == 1


def test_the_client_and_the_program_have_the_same_codes() -> None:
    assert {outcome.exit_code for outcome in Outcome} == {ExitCode.OK, ExitCode.FAILURE, ExitCode.JOB_ENDED}


def test_submit_with_output_prints_the_object_alone(job: Run, still: SyncClient) -> None:
    ending = threading.Timer(0.5, report, (still, "train"), {"phase": "Failed"})
    ending.start()
    done = job("submit", "-f", "-", "--wait", "--timeout", "60", "-o", "json", stdin=manifest("train"))
    ending.join()
    assert done.code == ExitCode.FAILURE
    assert json.loads(done.out)["status"]["phase"] == "Failed"


def test_commands(job: Run, still: SyncClient) -> None:
    job("submit", "-f", "-", stdin=f"{manifest('train')}\n---\n{own_manifest('fit')}")
    report(still, "train", phase="Running")
    report(still, "fit", "Job", phase="Running")
    done = job("suspend", "train", "fit")
    assert (done.code, done.out) == (0, "kusciajob/train suspending\njob/fit suspending\n")
    assert stored(still, "fit")["spec"]["state"] == "Suspended"
    assert stored(still, "train")["metadata"]["labels"]["kuscia.secretflow/job-stage"] == "Suspend"
    report(still, "train", phase="Suspended")
    assert job("resume", "train", "--party", "bob").code == 0
    assert stored(still, "train")["metadata"]["labels"]["kuscia.secretflow/job-stage-trigger"] == "bob"
    refused = job("restart", "fit")
    assert refused.code == ExitCode.CONFLICT
    assert "stop or suspend it first" in refused.err
    assert job("cancel", "fit").code == 0
    assert job("stop", "train").code == 0


def test_rerun_and_diff(job: Run, still: SyncClient) -> None:
    job("submit", "-f", "-", stdin=manifest("train"))
    report(still, "train", phase="Failed", reason="OOMKilled")
    assert job("rerun", "train").out == "kusciajob/train-rerun-1 submitted\n"
    compared = job("diff", "train", "train-rerun-1")
    assert "Spec: the same" in compared.out
    assert "Failed (OOMKilled) -> Waiting" in compared.out
    assert json.loads(job("diff", "train", "train-rerun-1", "-o", "json").out)["spec"] == []
    assert job("rerun", "train", "--from", "then").out == "kusciajob/train rerunning from then\n"
    wrong = job("rerun", "train", "--from", "nowhere")
    assert wrong.code == ExitCode.FAILURE
    assert "its tasks are: first, then" in wrong.err


def test_approvals(job: Run, still: SyncClient) -> None:
    job("submit", "-f", "-", stdin=manifest("train"))
    report(still, "train", phase="AwaitingApproval")
    assert job("approve", "train", "--party", "bob").out == "kusciajob/train approved by bob\n"
    assert job("reject", "train", "--party", "alice").code == 0
    assert stored(still, "train")["status"]["approveStatus"] == {"alice": "JobRejected", "bob": "JobAccepted"}
    assert "takes no part" in job("approve", "train", "--party", "carol").err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("list", "--phase", "Gone"), "there is no such phase; there are: initialized"),
        (("list", "--newer-than", "soon"), "'soon' is no duration"),
        (("submit", "-f", "-", "--timeout", "3"), "--timeout bounds --wait"),
        (("stop", "x", "--timeout", "3"), "--timeout bounds --wait"),
        (("rerun", "x", "--party", "bob"), "--party is for --from"),
        (("get",), "Missing argument"),
        (("approve", "x"), "Missing option '--party'"),
        (("logs", "x", "--tail", "-1"), "--tail"),
    ],
)
def test_wrong_command_lines(job: Run, args: tuple[str, ...], says: str) -> None:
    done = job(*args, stdin=manifest("x"))
    assert done.code == ExitCode.USAGE
    assert says in done.err


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("get", "ghost"), ExitCode.NOT_FOUND, "see 'muster job list'"),
        (("get", "pod/ghost"), ExitCode.FAILURE, "write kusciajob/ghost or job/ghost"),
        (("watch", "ghost"), ExitCode.NOT_FOUND, "does not exist"),
        (("logs", "ghost"), ExitCode.NOT_FOUND, "does not exist"),
        (("diff", "a", "b"), ExitCode.NOT_FOUND, "job a does not exist"),
    ],
)
def test_jobs_that_are_not_there(job: Run, args: tuple[str, ...], code: ExitCode, says: str) -> None:
    done = job(*args)
    assert (done.code, done.out) == (code, "")
    assert says in done.err


def test_a_file_that_cant_be_read_whole_submits_nothing(job: Run, still: SyncClient) -> None:
    done = job("submit", "-f", "-", stdin=f"{manifest('train')}\n---\nkind: [")
    assert done.code == ExitCode.FAILURE
    assert "nothing was submitted" in done.err
    assert still.jobs.list().items == []


def test_logs_say_what_cant_be_read(job: Run) -> None:
    job("submit", "-f", "-", stdin=manifest("train"))
    done = job("logs", "train")
    assert done.code == ExitCode.NOT_FOUND
    assert "has no pods" in done.err


def test_completion_offers_kinds_and_commands() -> None:
    import click

    from muster.cli.commands.job import job as group
    from muster.cli.job_options import complete_job, complete_phase

    ctx = click.Context(group)
    assert [item.value for item in group.shell_complete(ctx, "re")] == ["resume", "restart", "rerun", "reject"]
    param = click.Argument(["name"])
    assert [item.value for item in complete_job(ctx, param, "k")] == ["kusciajob/"]
    assert [item.value for item in complete_phase(ctx, param, "s")] == ["Starting", "Suspended", "Succeeded", "Stopped"]
