"""What stands around `examples/psi/psi.py`: data, manifests, the file system of an image, and that all of it is taken."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.cli.support import Up, environment, muster
from tests.examples.psi_support import FOLDER, Pair, ends, load

prepare = load("prepare")
image = load("image")
psi = load("psi")


def test_data_has_as_many_common_items_as_it_says(tmp_path: Path) -> None:
    prepare.write_data(tmp_path, items=500, common=120)
    alice, bob = (psi.read_items(tmp_path / f"{name}.csv", "id") for name in ("alice", "bob"))
    assert (len(alice), len(bob), len(set(alice) & set(bob))) == (500, 500, 120)
    assert alice != sorted(alice)
    for name in ("alice", "bob"):
        prepare.write_data(tmp_path / "again", items=200, common=60)
        assert (FOLDER / "data" / f"{name}.csv").read_bytes() == (tmp_path / "again" / f"{name}.csv").read_bytes()


def test_manifests_for_this_machine(tmp_path: Path) -> None:
    parts = ("parties", "app", "job", "wide-job")
    made = prepare.manifests(tmp_path, bandwidth="5Mbps", wide="70Mbps", python=tmp_path / "py", parts=parts)
    assert [one["kind"] for one in made] == ["Domain", "Domain", "AppImage", "KusciaJob", "KusciaJob"]
    [container] = made[2]["spec"]["deployTemplates"][0]["spec"]["containers"]
    python = tmp_path / "py"
    assert container["command"] == [f"{python}/usr/local/bin/python", f"{python}/psi/psi.py"]
    assert "configVolumeMounts" not in container
    assert container["env"] == [{"name": "LD_LIBRARY_PATH", "value": f"{python}/usr/lib"}]
    for job, asked in ((made[3], "5Mbps"), (made[4], "70Mbps")):
        [task] = job["spec"]["tasks"]
        assert json.loads(task["taskInputConfig"])["inputs"]["bob"] == str(tmp_path / "bob.csv")
        assert {party["resources"]["requests"]["bandwidth"] for party in task["parties"]} == {asked}
    assert made[3]["spec"]["tasks"][0]["parties"][0]["resources"]["limits"]["bandwidth"] == "5Mbps"


def test_tasks_that_share_a_network_are_told_where() -> None:
    [job] = prepare.manifests(FOLDER / "data", host="127.0.0.1", parts=("job",))
    assert json.loads(job["spec"]["tasks"][0]["taskInputConfig"])["hosts"] == {"alice": "127.0.0.1", "bob": "127.0.0.1"}


@pytest.mark.slow
def test_the_image_has_all_that_the_program_needs(tmp_path: Path) -> None:
    """Run by the Python of the image with nothing of this environment."""
    root = tmp_path / "root"
    image.make(root)
    image.make(root)
    pair = Pair(tmp_path, ["a", "b"], ["b", "c"])
    python = {"executable": str(root / "usr/local/bin/python"), "env": {"LD_LIBRARY_PATH": str(root / "usr/lib")}}
    started = []
    for party in ("alice", "bob"):
        task = tmp_path / f"{party}.json"
        task.write_text(json.dumps(pair.told(party)))
        command = ["python", "-I", str(root / "psi/psi.py"), str(task)]
        started.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **python)  # type: ignore[call-overload]
        )
    for process in started:
        code, output, errors = ends(process)
        assert code == 0, errors
        assert "done: 1 items are common" in output
    outside = {path for file in root.rglob("*.so*") for path in image.libraries(file)}
    missing = [
        path for path in outside if not (root / str(path).lstrip("/")).exists() and not (root / "usr/lib" / path.name).exists()
    ]
    assert missing == [], "the loader would not find these inside"


@pytest.mark.slow
def test_the_manifests_run_as_jobs(tmp_path: Path) -> None:
    """On simulated nodes: every manifest is accepted, the wide job waits for bandwidth, and ends after the first."""
    path = tmp_path / "all.yaml"
    made = prepare.manifests(FOLDER / "data", parts=("parties", "app", "job", "wide-job"))
    path.write_text(yaml.safe_dump_all(made))
    with Up(tmp_path / "data", "--simulated-nodes", "alice=1,bob=1", env=environment(tmp_path)) as up:
        env = environment(tmp_path, KUBECONFIG=str(up.kubeconfig))
        applied = muster("apply", "-f", str(path), env=env)
        assert applied.returncode == 0, applied.stderr
        for job in ("psi", "psi-wide"):
            done = muster("job", "watch", job, env=env)
            assert done.returncode == 0, done.stdout + done.stderr
        shown = json.loads(muster("get", "kusciatasks", "-n", "cross-domain", "-o", "json", env=env).stdout)
        assert {task["status"]["phase"] for task in shown["items"]} == {"Succeeded"}
