"""get, describe, apply and delete against a real server, and kubectl's opinion of the same objects."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muster.cli.errors import ExitCode
from muster.objects.time import format_time, wall_clock
from tests.cli.conftest import Run
from tests.cli.support import Up, environment

KUBECTL = str(Path(sys.executable).parent / "kubectl")
CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.test.example}
spec:
  group: test.example
  scope: Namespaced
  names: {plural: gadgets, kind: Gadget, shortNames: [gad], categories: [toys]}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, properties: {size: {type: integer, minimum: 1}}}}
    additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size}]
"""


def config_map(name: str, **data: str) -> str:
    return json.dumps(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"t": name}}, "data": data}
    )


def pod(name: str, extra: str = "") -> str:
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}{extra}}}\nspec: {{containers: [{{name: c, image: i}}]}}\n"


def kubectl(up: Up, *args: str) -> str:
    done = subprocess.run(
        [KUBECTL, f"--kubeconfig={up.kubeconfig}", *args], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_apply_says_created_unchanged_configured(muster: Run, namespace: str) -> None:
    for data, outcome in (("1", "created"), ("1", "unchanged"), ("2", "configured")):
        done = muster("apply", "-n", namespace, "-f", "-", stdin=config_map("a", x=data))
        assert (done.code, done.out, done.err) == (0, f"configmap/a {outcome}\n", "")


def test_apply_leaves_fields_of_others_alone_and_conflicts_over_them(muster: Run, namespace: str, local: Up) -> None:
    muster("apply", "-n", namespace, "-f", "-", stdin=config_map("a", x="1"))
    theirs = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"y": "theirs"}})
    subprocess.run(
        [KUBECTL, f"--kubeconfig={local.kubeconfig}", "apply", "--server-side", "-n", namespace, "-f", "-"],
        input=theirs, text=True, check=True, capture_output=True,
    )  # fmt: skip
    muster("apply", "-n", namespace, "-f", "-", stdin=config_map("a", x="2"))
    assert json.loads(muster("get", "cm", "a", "-n", namespace, "-o", "json").out)["data"] == {"x": "2", "y": "theirs"}
    clash = muster("apply", "-n", namespace, "-f", "-", stdin=config_map("a", x="2", y="ours"))
    assert clash.code == ExitCode.CONFLICT
    assert "<stdin>, document 1 (line 1): ConfigMap a: " in clash.err
    assert ".data.y" in clash.err
    assert "--force-conflicts" in clash.err
    assert clash.err.count("\n") == 1
    taken = muster("apply", "-n", namespace, "--force-conflicts", "-f", "-", stdin=config_map("a", x="2", y="ours"))
    assert taken.out == "configmap/a configured\n"


def test_apply_goes_on_after_a_failure(muster: Run, namespace: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        f"{pod('good')}---\n{pod('Bad_Name')}---\napiVersion: no.such/v1\nkind: Thing\nmetadata: {{name: t}}\n"
    )
    (tmp_path / "b.yaml").write_text("a: [")
    (tmp_path / "c.yaml").write_text(config_map("last"))
    done = muster("apply", "-n", namespace, "-f", str(tmp_path))
    assert done.code == ExitCode.FAILURE
    assert done.out == "pod/good created\nconfigmap/last created\n"
    errors = done.err.splitlines()
    assert len(errors) == 3
    assert errors[0].startswith(f"error: {tmp_path}/b.yaml, document 1")
    assert errors[1].startswith(f"error: {tmp_path}/a.yaml, document 2 (line 6): Pod Bad_Name: ")
    assert "metadata.name" in errors[1]
    assert 'Thing t: the server has no kind "Thing" in version "no.such/v1"' in errors[2]


@pytest.mark.parametrize(
    ("manifest", "code", "needle"),
    [
        pytest.param(pod("x").replace("image: i", "image: i, imagee: j"), ExitCode.FAILURE, "imagee", id="unknown field"),
        pytest.param(pod("x").replace("name: c", "name: 5"), ExitCode.FAILURE, "spec.containers", id="wrong type"),
        pytest.param(
            pod("x", ", namespace: elsewhere"), ExitCode.USAGE, 'is "elsewhere" while --namespace', id="two namespaces"
        ),
        pytest.param("apiVersion: v1\nkind: Pod\nmetadata: {}\n", ExitCode.FAILURE, "metadata.name: is missing", id="no name"),
        pytest.param(
            "apiVersion: v9\nkind: Pod\nmetadata: {name: x}\n", ExitCode.NOT_FOUND, "it has this kind in v1", id="version"
        ),
    ],
)
def test_apply_refuses(manifest: str, code: ExitCode, needle: str, muster: Run) -> None:
    done = muster("apply", "-n", "default", "-f", "-", stdin=manifest)
    assert (done.code, done.out) == (code, "")
    assert needle in done.err
    assert done.err.count("\n") == 1


def test_apply_into_a_namespace_that_is_not_there(muster: Run) -> None:
    done = muster("apply", "-n", "nowhere", "-f", "-", stdin=config_map("a"))
    assert done.code == ExitCode.NOT_FOUND
    assert '"nowhere" not found' in done.err


def test_dry_run_stores_nothing(muster: Run, namespace: str) -> None:
    done = muster("apply", "-n", namespace, "--dry-run", "-f", "-", stdin=config_map("a"))
    assert done.out == "configmap/a created (dry run)\n"
    assert muster("get", "cm", "a", "-n", namespace).code == ExitCode.NOT_FOUND


def test_a_namespace_and_a_kind_come_before_what_needs_them(muster: Run) -> None:
    gadget = "apiVersion: test.example/v1\nkind: Gadget\nmetadata: {name: g, namespace: gadgets}\nspec: {size: 3}\n"
    space = "apiVersion: v1\nkind: Namespace\nmetadata: {name: gadgets}\n"
    done = muster("apply", "-f", "-", stdin=f"{gadget}---\n{CRD}---\n{space}")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "gadget.test.example/g created"
    table = muster("get", "gad", "-n", "gadgets").out.splitlines()
    assert table[0].split() == ["NAME", "SIZE"] or table[0].split() == ["NAME", "SIZE", "AGE"]
    assert table[1].split()[:2] == ["g", "3"]
    assert muster("get", "toys", "-n", "gadgets", "-o", "name").out == "gadget.test.example/g\n"
    bad = muster("apply", "-f", "-", stdin=gadget.replace("3", "0"))
    assert bad.code == ExitCode.FAILURE
    assert "spec.size" in bad.err
    gone = muster("delete", "-f", "-", stdin=f"{gadget}---\n{CRD}---\n{space}")
    assert (gone.code, gone.err) == (0, "")
    assert muster("get", "gadgets", "-A").code == ExitCode.NOT_FOUND


def test_get_agrees_with_kubectl(muster: Run, namespace: str, local: Up) -> None:
    muster("apply", "-n", namespace, "-f", "-", stdin=f"{pod('b', ', labels: {x: z}')}---\n{pod('a')}---\n{config_map('c')}")
    for args in (
        ["pods"],
        ["pods", "-o", "wide"],
        ["pods", "--show-labels"],
        ["pods", "-l", "x=z"],
        ["pods,cm"],
        ["pod", "a", "b"],
    ):
        ours = [line.split() for line in muster("get", *args, "-n", namespace).out.splitlines()]
        theirs = [line.split() for line in kubectl(local, "get", *args, "-n", namespace).splitlines()]
        assert [_without_age(row) for row in ours] == [_without_age(row) for row in theirs], args
    assert muster("get", "pods", "-n", namespace, "-o", "name").out == kubectl(
        local, "get", "pods", "-n", namespace, "-o", "name"
    )
    ours_json = json.loads(muster("get", "pod", "a", "-n", namespace, "-o", "json").out)
    assert ours_json == json.loads(kubectl(local, "get", "pod", "a", "-n", namespace, "-o", "json"))
    listed = json.loads(muster("get", "pods", "-n", namespace, "-o", "json").out)
    assert [i["metadata"]["name"] for i in listed["items"]] == ["a", "b"]


def without_ages(text: str) -> str:
    """A second may pass between two commands, and it may make a column wider."""
    return re.sub(r" +", " ", re.sub(r"\b\d+s\b", "AGE", text))


def _without_age(row: list[str]) -> list[str]:
    return [cell for cell in row if not (cell[:1].isdigit() and cell[-1:] in "smh")]


def test_what_get_prints_can_be_applied(muster: Run, namespace: str) -> None:
    tricky = {"yes": "no", "number": "1e3", "date": "2026-11-15", "text": "a\nb\n", "zh": "任务", "quote": "\"'"}
    muster("apply", "-n", namespace, "-f", "-", stdin=config_map("a", **tricky))
    for output in ("yaml", "json"):
        printed = muster("get", "cm", "a", "-n", namespace, "-o", output).out
        assert muster("apply", "-f", "-", stdin=printed).out == "configmap/a unchanged\n"
    assert json.loads(muster("get", "cm", "a", "-n", namespace, "-o", "json").out)["data"] == tricky


def test_get_in_pages(muster: Run, namespace: str) -> None:
    muster("apply", "-n", namespace, "-f", "-", stdin="---\n".join(config_map(f"m{i:02}") + "\n" for i in range(12)))
    whole = muster("get", "cm", "-n", namespace, "--no-headers", "-l", "t").out
    assert len(whole.splitlines()) == 12
    paged = muster("get", "cm", "-n", namespace, "--no-headers", "-l", "t", "--chunk-size", "5").out
    assert without_ages(paged) == without_ages(whole)
    names = muster("get", "cm", "-n", namespace, "-o", "name", "-l", "t in (m01,m02)", "--chunk-size", "1").out
    assert names == "configmap/m01\nconfigmap/m02\n"


@pytest.mark.parametrize(
    ("args", "code", "needle"),
    [
        (["get"], ExitCode.USAGE, "name a kind"),
        (["get", "nonsense"], ExitCode.NOT_FOUND, 'no resource type "nonsense"'),
        (["get", "pod", "a", "-l", "x=y"], ExitCode.USAGE, "exclude each other"),
        (["get", "pod", "a", "-A"], ExitCode.USAGE, "--namespace"),
        (["get", "pods", "-l", "a=(b"], ExitCode.FAILURE, "a=(b"),
        (["get", "pods", "--field-selector", "spec.no=1"], ExitCode.FAILURE, "spec.no"),
        (["get", "pods,cm", "-w"], ExitCode.USAGE, "--watch"),
        (["get", "tokenreviews"], ExitCode.FAILURE, "cannot be listed"),
        (["get", "pod", "missing"], ExitCode.NOT_FOUND, '"missing" not found'),
        (["get", "pod/missing", "ns/default"], ExitCode.FAILURE, '"missing" not found'),
        (["get", "pod", "missing", "--ignore-not-found"], ExitCode.OK, ""),
        (["get", "pods", "-n", "nothing-here"], ExitCode.OK, "nothing found in namespace nothing-here"),
        (["get", "pods", "-n", "nothing-here", "-o", "name"], ExitCode.OK, ""),
        (["describe", "pod", "missing"], ExitCode.NOT_FOUND, '"missing" not found'),
        (["describe", "pod", "a", "-A"], ExitCode.USAGE, "names exclude"),
        (["delete"], ExitCode.USAGE, "name a kind"),
        (["delete", "pods"], ExitCode.USAGE, "--all"),
        (["delete", "pod", "a", "--all"], ExitCode.USAGE, "names exclude"),
        (["delete", "pod", "missing"], ExitCode.NOT_FOUND, '"missing" not found'),
        (["delete", "pod", "missing", "--ignore-not-found"], ExitCode.OK, ""),
        (["delete", "pods", "--all", "-n", "nothing-here"], ExitCode.OK, "nothing found"),
        (["delete", "-f", "/no/such/file"], ExitCode.NOT_FOUND, "/no/such/file"),
        (["delete", "pod", "a", "-f", "-"], ExitCode.USAGE, "-f excludes"),
        (["apply"], ExitCode.USAGE, "--filename"),
        (["apply", "-f", "/no/such/file"], ExitCode.NOT_FOUND, "/no/such/file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_exit_codes_and_messages(args: list[str], code: ExitCode, needle: str, muster: Run) -> None:
    done = muster(*args)
    assert done.code == code, done.err
    assert needle in done.err
    assert all(line.startswith("error: ") for line in done.err.splitlines()) or code == ExitCode.OK


def test_describe_shows_conditions_and_events(muster: Run, namespace: str, local: Up) -> None:
    held_back = pod("a").replace("spec: {", "spec: {schedulingGates: [{name: test}], ")  # so that nobody else writes about it
    muster("apply", "-n", namespace, "-f", "-", stdin=held_back)
    uid = json.loads(muster("get", "pod", "a", "-n", namespace, "-o", "json").out)["metadata"]["uid"]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "type": "Warning",
        "reason": "Waiting",
        "message": "for bandwidth",
        "involvedObject": {"kind": "Pod", "name": "a", "namespace": namespace, "uid": uid},
        "lastTimestamp": format_time(wall_clock()),
        "source": {"component": "test"},
    }
    assert muster("apply", "-n", namespace, "-f", "-", stdin=json.dumps(event)).code == 0
    status = {"conditions": [{"type": "Ready", "status": "False", "reason": "NotYet", "message": "wait"}]}
    patch = json.dumps({"status": status})
    kubectl(local, "patch", "pod", "a", "-n", namespace, "--subresource=status", "--type=merge", "-p", patch)
    text = muster("describe", "pod/a", "-n", namespace).out
    assert "Name:         a\n" in text
    assert "Ready   False" in text
    assert "Waiting   test   for bandwidth" in text
    assert without_ages(muster("describe", "pods", "-n", namespace).out) == without_ages(text)


def test_describe_hides_secrets(muster: Run, namespace: str) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"password": "hunter2"}}
    muster("apply", "-n", namespace, "-f", "-", stdin=json.dumps(secret))
    text = muster("describe", "secret", "s", "-n", namespace).out
    assert "password" in text
    assert "hunter2" not in text
    assert "aHVudGVyMg==" not in text


def test_delete_waits_for_finalizers_and_gives_up_in_time(muster: Run, namespace: str, local: Up) -> None:
    held = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "held", "finalizers": ["test.example/hold"]}}
    muster("apply", "-n", namespace, "-f", "-", stdin=json.dumps(held))
    late = muster("delete", "cm", "held", "-n", namespace, "--timeout", "0.3")
    assert late.code == ExitCode.TIMEOUT
    assert late.out == "configmap/held deleted\n"
    assert "finalizers" in late.err
    assert muster("delete", "cm", "held", "-n", namespace, "--no-wait").code == 0
    kubectl(local, "patch", "cm", "held", "-n", namespace, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    assert muster("get", "cm", "held", "-n", namespace).code == ExitCode.NOT_FOUND


def test_delete_by_selector_and_dry_run(muster: Run, namespace: str) -> None:
    muster("apply", "-n", namespace, "-f", "-", stdin=f"{config_map('a')}\n---\n{config_map('b')}")
    dry = muster("delete", "cm", "-l", "t", "-n", namespace, "--dry-run")
    assert dry.out == "configmap/a deleted (dry run)\nconfigmap/b deleted (dry run)\n"
    assert muster("delete", "cm", "-l", "t=a", "-n", namespace).out == "configmap/a deleted\n"
    assert muster("get", "cm", "-l", "t", "-n", namespace, "-o", "name").out == "configmap/b\n"
    assert muster("delete", "cm", "--all", "-n", namespace, "-o", "name").code == 0
    assert muster("get", "cm", "-l", "t", "-n", namespace, "-o", "name").out == ""


def test_forbidden_and_unauthorized(muster: Run, local: Up, namespace: str, tmp_path: Path) -> None:
    token = kubectl(local, "create", "token", "default", "-n", namespace).strip()
    for secret, code, needle in ((token, ExitCode.FORBIDDEN, "forbidden"), ("nonsense", ExitCode.FORBIDDEN, "credentials")):
        config = tmp_path / "kubeconfig"
        lines = local.kubeconfig.read_text().splitlines()
        indent = next(line for line in lines if line.strip().startswith("token:")).split("token")[0]
        config.write_text(
            "\n".join(f"{indent}token: {secret}" if line.strip().startswith("token:") else line for line in lines)
        )
        config.chmod(0o600)
        done = muster("get", "secrets", "-A", "--kubeconfig", str(config))
        assert done.code == code
        assert needle in done.err


def test_an_unreachable_server(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(
        '{"current-context": "c", "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],'
        ' "contexts": [{"name": "c", "context": {"cluster": "c"}}]}'
    )
    done = run("get", "pods", "--kubeconfig", str(config), "--request-timeout", "2")
    assert done.code == ExitCode.UNREACHABLE
    assert "https://127.0.0.1:1" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("output", ["table", "name", "json"])
def test_watch_prints_changes_until_interrupted(output: str, muster: Run, namespace: str, local: Up, tmp_path: Path) -> None:
    muster("apply", "-n", namespace, "-f", "-", stdin=config_map("first"))
    env = environment(tmp_path, KUBECONFIG=str(local.kubeconfig))
    command = [sys.executable, "-m", "muster.cli.main", "get", "cm", "-n", namespace, "-w", "-l", "t", "-o", output]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        _read_until(child.stdout, "first")
        muster("apply", "-n", namespace, "-f", "-", stdin=config_map("second"))
        _read_until(child.stdout, "second")
        muster("delete", "cm", "first", "-n", namespace)
        _read_until(child.stdout, "first")
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == ExitCode.INTERRUPTED
        assert "Traceback" not in child.stderr.read()


def _read_until(stream: object, word: str) -> None:
    for line in stream:  # type: ignore[attr-defined]
        if word in line:
            return
    raise AssertionError(f"the output ended before {word!r}")


def test_a_closed_pipe_is_quiet(muster: Run, namespace: str, local: Up, tmp_path: Path) -> None:
    big = "---\n".join(config_map(f"big{i}", text="x" * 200_000) + "\n" for i in range(10))
    assert muster("apply", "-n", namespace, "-f", "-", stdin=big).code == 0
    env = environment(tmp_path, KUBECONFIG=str(local.kubeconfig))
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m muster.cli.main get cm -n {namespace} -o json | head -c 10"],
        env=env, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (ExitCode.PIPE_CLOSED, "")


def test_options_before_the_command(run: Run, local: Up, tmp_path: Path) -> None:
    before = run("--kubeconfig", str(local.kubeconfig), "-n", "kube-system", "get", "sa", "default", "-o", "json")
    assert json.loads(before.out)["metadata"]["namespace"] == "kube-system"
    nearer = run(
        "--kubeconfig", "/nowhere", "-n", "x", "get", "sa", "default", f"--kubeconfig={local.kubeconfig}", "-n=default"
    )
    assert nearer.out.startswith("NAME")
    assert run("--context", "nope", "get", "ns", f"--kubeconfig={local.kubeconfig}").code == ExitCode.UNREACHABLE
    assert run("-n", "x", "install", "-o", "yaml").code == ExitCode.USAGE


def test_api_resources(muster: Run) -> None:
    table = muster("api-resources").out.splitlines()
    assert table[0].split() == ["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"]
    assert ["pods", "po", "v1", "true", "Pod"] in [line.split() for line in table]
    assert "queues.muster.dev" in muster("api-resources", "-o", "name", "--api-group", "muster.dev").out.split()
    kinds = {r["kind"]: r for r in json.loads(muster("api-resources", "-o", "json", "--api-group", "").out)}
    assert kinds["Namespace"]["namespaced"] is False
    assert "list" in kinds["Pod"]["verbs"]


def test_the_local_server_is_found_without_any_configuration(run: Run, local: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_DATA_DIR", str(local.data_dir))
    assert run("get", "ns", "default", "-o", "name").out == "namespace/default\n"
    assert "KUBECONFIG" not in os.environ
    assert "using that of the local server" in run("get", "ns", "default", "-v").err
