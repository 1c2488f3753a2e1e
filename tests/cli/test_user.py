"""`muster user` against a real server: tokens that let in and no longer do, who one is, whom one sees, and one's own use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.bench.kubernetes import ControlPlane
from muster.cli.accounts_view import budget_text, group_row, me_lines, note_text, use_of_limits, user_row
from muster.cli.errors import ExitCode
from tests.cli.conftest import Run
from tests.cli.support import Up, environment
from tests.waiting import blocked_until

PEOPLE = """
apiVersion: muster.dev/v1alpha1
kind: UserGroup
metadata: {name: inst}
spec: {admins: [dean], limits: {concurrent: {cpu: 8}}, prices: [{resource: cpu, amount: 2}]}
---
apiVersion: muster.dev/v1alpha1
kind: UserGroup
metadata: {name: vision}
spec: {parent: inst}
---
apiVersion: muster.dev/v1alpha1
kind: User
metadata: {name: dean}
spec: {group: inst}
---
apiVersion: muster.dev/v1alpha1
kind: User
metadata: {name: vic}
spec: {group: vision, usernames: [vic@example.org], limits: {concurrent: {cpu: 4}}, budget: {amount: 50, period: Day}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: people}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "muster:submitter"}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: vic@example.org}
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: dean}
"""

FIVE_CORES = """
apiVersion: muster.dev/v1alpha1
kind: Job
metadata: {name: five}
spec: {roles: [{name: main, command: [x], resources: {requests: {cpu: 5}}}]}
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    home = tmp_path_factory.mktemp("users")
    with Up(home / "data", "--simulated-nodes", "default=1", env=environment(home)) as made:
        yield made


@pytest.fixture
def admin(run: Run, up: Up, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("KUBECONFIG", str(up.kubeconfig))
    assert run("apply", "-f", "-", stdin=PEOPLE).code == 0
    return run


def _login(admin: Run, name: str, tmp_path: Path) -> str:
    path = str(tmp_path / name)
    made = admin("user", "token", "create", name, "--write", path)
    assert (made.code, made.out) == (0, ""), made.err
    return path


def test_a_token_lets_in_until_it_is_revoked(admin: Run, tmp_path: Path) -> None:
    vic = _login(admin, "vic", tmp_path)
    me = admin("user", "whoami", "--kubeconfig", vic)
    assert me.out.splitlines() == ["Login:        vic@example.org", "User:         vic", "Groups:       vision < inst"]
    listed = json.loads(admin("user", "token", "list", "vic", "-o", "json").out)["items"]
    assert [(one["user"], one["login"], one["state"]) for one in listed] == [("vic", "vic@example.org", "good")]
    assert admin("user", "token", "revoke", listed[0]["token"]).code == 0
    assert admin("user", "whoami", "--kubeconfig", vic).code == ExitCode.FORBIDDEN
    again = admin("user", "token", "revoke", listed[0]["token"])
    assert (again.code, "muster user token list" in again.err) == (ExitCode.NOT_FOUND, True)
    printed = admin("user", "token", "create", "dean", "--expires", "1h")
    assert printed.out.startswith("muster-")
    assert printed.out.strip() not in admin("user", "token", "list").out
    assert admin("user", "token", "revoke", printed.out.strip()).code == 0, "the token names itself, too"


def test_a_token_that_can_not_be_written_is_not_left_behind(admin: Run, tmp_path: Path) -> None:
    before = admin("user", "token", "list", "-o", "json").out
    file = tmp_path / "a file"
    file.touch()
    made = admin("user", "token", "create", "dean", "--write", str(file / "kubeconfig"))
    assert (made.code, "--write" in made.err) == (ExitCode.FAILURE, True)
    assert admin("user", "token", "list", "-o", "json").out == before


def test_a_token_replaces_no_file(admin: Run, tmp_path: Path) -> None:
    vic = _login(admin, "vic", tmp_path)
    before = Path(vic).read_text(), admin("user", "token", "list", "-o", "json").out
    again = admin("user", "token", "create", "dean", "--write", vic)
    assert (again.code, f"--write {vic}: exists already" in again.err) == (ExitCode.CONFLICT, True)
    assert (Path(vic).read_text(), admin("user", "token", "list", "-o", "json").out) == before


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param(["token", "create", "nobody"], ExitCode.NOT_FOUND, "there is no User nobody", id="no such user"),
        pytest.param(["token", "create", "vic", "--expires", "soon"], ExitCode.USAGE, "'soon' is no length of time", id="time"),
        pytest.param(["token", "revoke", "0" * 12], ExitCode.NOT_FOUND, "there is no token", id="no such token"),
        pytest.param(["lst"], ExitCode.USAGE, "there is: list", id="misspelled"),
    ],
)
def test_what_is_refused(admin: Run, words: list[str], code: ExitCode, said: str) -> None:
    answer = admin("user", *words)
    assert answer.code == code
    assert said in answer.err


def test_what_users_and_admins_of_groups_see(admin: Run, tmp_path: Path) -> None:
    vic, dean = _login(admin, "vic", tmp_path), _login(admin, "dean", tmp_path)
    sent = admin("run", "--detach", "--name", "hers", "--cpu", "1", "--kubeconfig", vic, "--", "true")
    assert sent.code == 0, sent.err
    for who in (vic, dean):
        jobs = admin("job", "list", "--kubeconfig", who, "-o", "name")
        assert (jobs.code, jobs.out) == (0, "job.muster.dev/hers\n"), jobs.err
    assert [line.split()[0] for line in admin("user", "list", "--kubeconfig", vic).out.splitlines()[1:]] == ["vic"]
    assert [line.split()[0] for line in admin("user", "list", "--kubeconfig", dean).out.splitlines()[1:]] == ["dean", "vic"]
    groups = admin("user", "list", "--groups", "--kubeconfig", vic)
    assert [line.split()[0] for line in groups.out.splitlines()[1:]] == ["inst", "vision"]
    asked = admin("eta", "-f", "-", "--kubeconfig", vic, stdin=FIVE_CORES)
    assert (asked.code, "of User vic: limit 4" in asked.err) == (ExitCode.FORBIDDEN, True), (
        "the job would be hers, by her login"
    )
    asked = admin("eta", "-f", "-", "--kubeconfig", vic, stdin=FIVE_CORES.replace("cpu: 5", "cpu: 1"))
    assert (asked.code, "if it were sent now" in asked.out) == (0, True), asked.err
    refused = admin("get", "jobs.muster.dev", "--kubeconfig", vic)
    assert (refused.code, "-l 'muster.dev/user=vic'" in refused.err) == (ExitCode.FORBIDDEN, True)
    own = admin("usage", "--kubeconfig", vic)
    assert own.code == 0, own.err
    assert own.out.startswith("User vic: ")
    assert "Budget: 0.00/50.00 Day" in own.out
    assert admin("usage", "user", "dean", "--kubeconfig", vic).code == ExitCode.FORBIDDEN
    admins = json.loads(admin("user", "whoami", "--kubeconfig", dean, "-o", "json").out)["administers"]
    assert admins == {"users": ["dean", "vic"], "groups": ["vision"]}


def test_ones_own_job_is_followed_read_and_run_again(admin: Run, tmp_path: Path) -> None:
    """All that a user needs to work, by somebody who may list nothing but what is their own."""
    vic = _login(admin, "vic", tmp_path)
    done = admin(
        "run", "--name", "mine", "--cpu", "1", "--env", "MUSTER_SIMULATED_SECONDS=1", "--kubeconfig", vic, "--", "true"
    )
    assert (done.code, "simulated: would run true" in done.out) == (0, True), done.err
    tree = admin("job", "tree", "mine", "--kubeconfig", vic).out
    assert "mine-main-0  Succeeded" in tree
    logs = admin("job", "logs", "mine", "--kubeconfig", vic)
    assert (logs.code, "simulated: ended with exit code 0" in logs.out) == (0, True), logs.err
    again = admin("job", "rerun", "mine", "--wait", "--kubeconfig", vic)
    assert (again.code, "mine-rerun-1" in again.out + again.err) == (0, True), again.err


def test_users_see_pools_before_they_submit(admin: Run, tmp_path: Path) -> None:
    vic = _login(admin, "vic", tmp_path)
    pool = "{apiVersion: muster.dev/v1alpha1, kind: NodePool, metadata: {name: all}, spec: {selector: {}}}"
    assert admin("apply", "-f", "-", stdin=pool).code == 0
    blocked_until(lambda: "/" in admin("pool", "--kubeconfig", vic).out)
    seen = admin("pool", "--kubeconfig", vic)
    assert seen.code == 0, seen.err
    whole = admin("pool")
    assert [line.split()[:3] for line in seen.out.splitlines()] == [line.split()[:3] for line in whole.out.splitlines()]
    assert admin("pool", "all", "--kubeconfig", vic).out == seen.out
    assert admin("pool", "oops", "--kubeconfig", vic).code == ExitCode.NOT_FOUND


def test_one_sees_oneself_in_line_and_not_the_others(admin: Run, tmp_path: Path) -> None:
    vic, dean = _login(admin, "vic", tmp_path), _login(admin, "dean", tmp_path)
    for name, who in (("of-vic", vic), ("of-dean", dean)):
        sent = admin(
            "run", "--detach", "--name", name, "--cpu", "3", "--node-selector", "no=node", "--kubeconfig", who, "--", "true"
        )
        assert sent.code == 0, sent.err
    blocked_until(lambda: admin("queue", "default").out.count("default/of-") == 2)
    line = admin("queue", "default", "--kubeconfig", vic).out
    assert ("default/of-vic" in line, "default/of-dean" in line, line.count("(not yours to see)")) == (True, False, 1)
    assert admin("queue", "default", "--kubeconfig", dean).out.count("default/of-") == 2, "who administers sees them all"


def test_the_admin_of_everything_is_no_user(admin: Run) -> None:
    assert "no User object has this login" in admin("user", "whoami").out


def test_words_for_accounts() -> None:
    spec = {
        "group": "lab",
        "limits": {"concurrent": {"cpu": 8, "bandwidth": "1Gbps"}, "jobsRunning": 3},
        "budget": {"amount": 20, "period": "Week"},
    }
    usage = {"concurrent": {"cpu": "2", "bandwidth-egress": "10Mbps"}, "jobsRunning": 1, "jobsWaiting": 4, "spent": 12.345}
    raw = {"metadata": {"name": "ann"}, "spec": spec, "status": {"usage": usage, "standing": {"stopped": "BudgetSpent"}}}
    in_use = "jobs 1/3, bandwidth 10Mbps out 0 in/1Gbps, cpu 2/8"
    assert use_of_limits(spec, usage) == in_use
    assert budget_text(spec, usage) == "12.35/20.00 Week"
    assert user_row(raw) == ["ann", "lab", "ann", "0", "1", "4", in_use, "12.35/20.00 Week", "BudgetSpent"]
    assert note_text({**raw, "spec": {**spec, "suspended": True}}) == "suspended"
    spent = {"status": {"standing": {"limits": {"concurrent": {"cpu": 1}, "jobsRunning": 2}}}}
    assert note_text(spent) == "the budget is spent: jobs at most 2, cpu at most 1"
    group = {"metadata": {"name": "lab"}, "spec": {"admins": ["gil", "ann"]}}
    assert group_row(group) == ["lab", "", "gil, ann", "0", "0", "0", "", "", ""]
    assert me_lines("ann", None)[1].startswith("User:         not told")
    assert me_lines("", None)[0] == "Login:        not told by this server"


def test_the_example_of_a_shared_cluster(admin: Run, tmp_path: Path) -> None:
    """`examples/queues` goes in whole, and its rules hold: whose jobs a queue takes, what one user may have."""
    files = Path(__file__).parents[2] / "examples" / "queues"
    for name in ("people.yaml", "queues.yaml", "from-slurm.yaml", "jobs.yaml"):
        made = admin("apply", "-f", str(files / name))
        assert made.code == 0, made.err
    tree = admin("queue").out
    assert [line.split()[0] for line in tree.splitlines()[1:]] == ["default", "institute", "production", "research", "scavenge"]
    vic = _login(admin, "vic", tmp_path)
    refused = admin("run", "--detach", "--queue", "production", "--estimate", "5m", "--kubeconfig", vic, "--", "true")
    assert (refused.code, "QueueAdmissionDenied" in refused.err) == (ExitCode.FORBIDDEN, True)
    refused = admin("run", "--detach", "--queue", "research", "--gpu", "5", "--kubeconfig", vic, "--", "true")
    assert "spec.limits.perJob[nvidia.com/gpu] of User vic: limit 4, requested 5" in refused.err


@pytest.mark.kubernetes
def test_on_a_cluster_people_log_in_as_it_has_it(run: Run, kubernetes: ControlPlane) -> None:
    refused = run("user", "token", "create", "ann", "--kubeconfig", str(kubernetes.kubeconfig_path))
    assert (refused.code, "spec.usernames" in refused.err) == (ExitCode.USAGE, True)
    assert "User:         not told" in run("user", "whoami", "--kubeconfig", str(kubernetes.kubeconfig_path)).out
