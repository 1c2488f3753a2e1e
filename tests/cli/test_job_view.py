from __future__ import annotations

import pytest

from muster.cli.job_following import Lines, Terminal, cut, fitted
from muster.cli.job_view import Style, bar, change_lines, diff_text, list_row, shown_bytes, task_table, tree_lines
from muster.client.job_diff import diff
from muster.client.job_tree import JobTree, build_tree
from muster.objects.time import parse_time
from tests.client.job_objects import kuscia_job, own_job, pod, task

NOW = parse_time("2026-01-01T00:02:00Z")


@pytest.mark.parametrize(
    ("progress", "shown"),
    [
        (0.0, "[----------]   0%"),
        (0.35, "[###-------]  35%"),
        (0.999, "[#########-]  99%"),
        (1.0, "[##########] 100%"),
    ],
)
def test_a_bar_is_full_only_at_the_end(progress: float, shown: str) -> None:
    assert bar(progress, 10) == shown


def running() -> JobTree:
    job = kuscia_job(
        phase="Running",
        status={
            "startTime": "2026-01-01T00:00:00Z",
            "reason": "CPUInsufficient",
            "message": "0 of 2 tasks have ended",
            "approveStatus": {"bob": "JobAccepted"},
            "tasks": [{"alias": "then", "phase": "Waiting", "reason": "DependencyPending", "message": "waits for task first"}],
        },
    )
    pods = {
        "alice/p-0": {"podName": "p-0", "namespace": "alice", "podPhase": "Running", "nodeName": "n1"},
        "bob/p-0": {
            "podName": "p-0",
            "namespace": "bob",
            "podPhase": "Pending",
            "reason": "CPUInsufficient",
            "message": "2 short",
        },
    }
    first = task("first", phase="Running", progress=0.5, attempts=2, podStatuses=pods, startTime="2026-01-01T00:01:00Z")
    return build_tree(job, [first])


def test_the_tree_says_phase_reason_progress_attempt_and_node() -> None:
    assert tree_lines(running(), NOW) == [
        "KusciaJob cross-domain/train  Running  [#####---------------]  25%  2m",
        "  CPUInsufficient: 0 of 2 tasks have ended",
        "  approval of bob: Accepted",
        "├─ first  Running  [##########----------]  50%  60s  attempt 2",
        "│  ├─ alice",
        "│  │  └─ p-0  Running  n1",
        "│  └─ bob",
        "│     └─ p-0  Pending  CPUInsufficient: 2 short",
        "└─ then   Waiting  DependencyPending: waits for task first",
        "   ├─ alice",
        "   └─ bob",
    ]


def test_the_brief_tree_leaves_out_what_has_not_begun() -> None:
    lines = tree_lines(running(), NOW, is_brief=True)
    assert lines[-1] == "└─ then   Waiting  DependencyPending: waits for task first"


def test_pods_of_a_job_hang_on_its_roles() -> None:
    job = own_job(phase="Running", status={"roles": [{"name": "worker", "running": 1}], "place": {"position": 0}})
    made = pod(
        "fit-worker-0",
        "team",
        phase="Running",
        node="n1",
        labels={"muster.dev/role": "worker"},
        annotations={"muster.dev/progress": "0.5"},
    )
    assert tree_lines(build_tree(job, pods=[made]), NOW)[1:] == [
        "└─ worker  Running  [##########----------]  50%",
        "   └─ fit-worker-0  Running  n1  [#####-----]  50%",
    ]


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0B"), (999, "999B"), (1_000, "1.0kB"), (1_440_000, "1.4MB"), (3 * 10**9, "3.0GB")]
)
def test_amounts_of_data(count: int, shown: str) -> None:
    assert shown_bytes(count) == shown


def test_what_a_pod_moved_and_reported_is_on_its_line() -> None:
    told = {"muster.dev/traffic": '{"sentBytes": 2000, "receivedBytes": 10}', "muster.dev/records": '{"rows": 12}'}
    tree = build_tree(kuscia_job(), [task("first")], [pod("p", "alice", task_uid="uid-of-train-first", annotations=told)])
    assert any("sent 2.0kB, received 10B  rows=12" in line for line in tree_lines(tree, NOW))


def test_nothing_that_a_server_sends_moves_the_cursor() -> None:
    tree = build_tree(kuscia_job(phase="Failed", status={"message": "\x1b[2Jboo\nbar", "reason": "\x07X"}))
    text = "\n".join(tree_lines(tree, NOW))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "boo bar" in text


def test_a_code_is_not_said_twice() -> None:
    job = kuscia_job(phase="Failed", status={"reason": "OOMKilled", "message": "OOMKilled: too much"})
    assert tree_lines(build_tree(job), NOW)[1] == "  OOMKilled: too much"


def test_changes_are_said_once() -> None:
    tree = running()
    assert list(change_lines(None, tree)) == [
        "KusciaJob cross-domain/train Running",
        "  first Running (attempt 2) on n1",
    ]
    assert list(change_lines(tree, tree)) == []
    ended = build_tree(kuscia_job(phase="Failed"), [task("first", phase="Failed", reason="OOMKilled", message="too much")])
    assert list(change_lines(tree, ended)) == [
        "KusciaJob cross-domain/train Failed",
        "  first Failed OOMKilled: too much",
    ]


def test_a_task_that_waits_for_something_missing_is_news() -> None:
    entry = {"alias": "first", "phase": "Waiting", "reason": "AppImageNotFound", "message": "there is no AppImage x; create it"}
    tree = build_tree(kuscia_job(phase="Running", status={"tasks": [entry]}))
    assert list(change_lines(None, tree))[1:] == ["  first Waiting AppImageNotFound: there is no AppImage x; create it"]
    assert list(change_lines(tree, tree)) == []


def test_what_a_task_waits_for_is_said_once() -> None:
    short = "CPUInsufficient: cpu: wants 6, n1 has 2, 4 short"
    pods = {
        f"{party}/p-0": {
            "podName": "p-0",
            "namespace": party,
            "podPhase": "Pending",
            "reason": "CPUInsufficient",
            "message": short,
        }
        for party in ("alice", "bob")
    }
    parties = [
        {"domainID": "alice", "phase": "Pending", "message": f"pod alice/p-0: {short}"},
        {"domainID": "bob", "phase": "Pending", "message": "something else"},
    ]
    waiting = task("first", phase="Pending", reason="CPUInsufficient", message=short, podStatuses=pods, partyTaskStatus=parties)
    lines = tree_lines(build_tree(kuscia_job(phase="Running"), [waiting]), NOW)
    assert lines[1:6] == [
        f"├─ first  Pending  {short}",
        "│  ├─ alice  Pending",
        "│  │  └─ p-0  Pending",
        "│  └─ bob  Pending  something else",
        "│     └─ p-0  Pending",
    ]


def test_while_a_job_waits_its_reason_is_news() -> None:
    waiting = build_tree(own_job(phase="Queued", status={"reason": "CPUInsufficient", "message": "2 short"}))
    assert list(change_lines(build_tree(own_job(phase="Queued", status={"reason": "Queued"})), waiting)) == [
        "Job team/fit Queued CPUInsufficient: 2 short"
    ]


def test_rows() -> None:
    row = list_row(running(), NOW, is_wide=True)
    assert row[:6] == ["train", "KusciaJob", "Running", "0/2", "25%", "CPUInsufficient"]
    assert row[7:10] == ["cross-domain", "alice", "alice,bob"]
    assert "first" in task_table(running(), NOW, is_wide=True)


def test_two_runs_side_by_side() -> None:
    old, new = kuscia_job("a", phase="Failed"), kuscia_job("b", phase="Succeeded", maxParallelism=9)
    old_tree = build_tree(old, [task("first", phase="Failed", reason="OOMKilled", attempts=2)])
    new_tree = build_tree(new, [task("first", phase="Succeeded", attempts=1)])
    text = diff_text(diff((old, old_tree), (new, new_tree)))
    assert "KusciaJob cross-domain/a  ->  KusciaJob cross-domain/b" in text
    assert "spec.maxParallelism: 2 -> 9" in text
    assert "Failed (OOMKilled) -> Succeeded" in text
    assert "2 -> 1" in text
    assert "Spec: the same" in diff_text(diff((old, old_tree), (old, old_tree)))


class TestScreens:
    def test_lines_carry_their_time(self, capfd: pytest.CaptureFixture[str]) -> None:
        screen = Lines(clock=lambda: NOW)
        screen.show(running())
        screen.show(running())
        screen.tick()
        screen.close()
        assert capfd.readouterr().out.splitlines() == [
            "2026-01-01T00:02:00Z KusciaJob cross-domain/train Running",
            "2026-01-01T00:02:00Z   first Running (attempt 2) on n1",
        ]

    def test_a_terminal_is_repainted_in_place(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "60")
        monkeypatch.setenv("LINES", "6")
        screen = Terminal(style=Style(is_colored=True), clock=lambda: NOW)
        screen.show(running())
        first = capsys.readouterr().out
        assert first.count("\n") == 5
        assert "more lines" in first
        screen.tick()
        assert capsys.readouterr().out.startswith("\x1b[5A\r\x1b[J")
        screen.close()
        last = capsys.readouterr().out
        assert "DependencyPending" in last
        assert "more lines" not in last


@pytest.mark.parametrize(
    ("line", "width", "shown"),
    [
        ("short", 10, "short"),
        ("0123456789", 5, "0123…"),
        ("隐私计算", 5, "隐私…"),
        ("\x1b[31mred\x1b[0m", 10, "\x1b[31mred\x1b[0m"),
        ("\x1b[31mredder\x1b[0m", 3, "\x1b[31mred\x1b[0m"),
    ],
)
def test_cut(line: str, width: int, shown: str) -> None:
    assert cut(line, width) == shown


def test_fitted_says_what_is_missing() -> None:
    assert fitted(["a", "b", "c"], 3) == ["a", "b", "c"]
    assert fitted(["a", "b", "c", "d"], 3) == ["a", "b", "… and 2 more lines; see 'muster job tree'"]
