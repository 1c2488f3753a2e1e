from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from muster.cli.errors import CliError, ExitCode
from muster.cli.framework import State
from muster.cli.options import Target
from muster.cli.session import Failures, resolve
from muster.objects.status import Conflict, NotFound

NOTHING = Target(kubeconfig=None, context=None, namespace=None, request_timeout_s=1.0)


def write(path: Path, server: str, namespace: str = "") -> Path:
    context = {"cluster": "c", "user": "u"} | ({"namespace": namespace} if namespace else {})
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "main",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "main", "context": context}, {"name": "other", "context": context | {"namespace": "elsewhere"}}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(config))
    path.chmod(0o600)
    return path


def found(home: Path, target: Target = NOTHING, **environ: str) -> tuple[str, str]:
    config = resolve(target, State(), environ={"HOME": str(home), **environ}, home=home)
    return config.server, config.namespace


def test_the_order_in_which_kubeconfigs_are_looked_for(tmp_path: Path) -> None:
    write(tmp_path / ".local/share/muster/kubeconfig", "https://127.0.0.1:1")
    assert found(tmp_path) == ("https://127.0.0.1:1", "default")
    write(tmp_path / ".kube/config", "https://127.0.0.1:2", "team")
    assert found(tmp_path) == ("https://127.0.0.1:2", "team")
    variable = str(write(tmp_path / "env", "https://127.0.0.1:3"))
    assert found(tmp_path, KUBECONFIG=variable)[0] == "https://127.0.0.1:3"
    option = str(write(tmp_path / "opt", "https://127.0.0.1:4"))
    target = Target(kubeconfig=option, context="other", namespace=None, request_timeout_s=1.0)
    assert found(tmp_path, target, KUBECONFIG=variable) == ("https://127.0.0.1:4", "elsewhere")
    target = Target(kubeconfig=option, context="other", namespace="mine", request_timeout_s=1.0)
    assert found(tmp_path, target)[1] == "mine"


def test_the_data_dir_is_the_users(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere/kubeconfig", "https://127.0.0.1:5")
    assert found(tmp_path, MUSTER_DATA_DIR=str(tmp_path / "elsewhere"))[0] == "https://127.0.0.1:5"


@pytest.mark.parametrize(
    ("environ", "target", "needle"),
    [
        pytest.param({}, NOTHING, "muster up", id="nothing at all"),
        pytest.param({"KUBECONFIG": "/does/not/exist"}, NOTHING, "/does/not/exist", id="variable leads nowhere"),
        pytest.param({}, Target("/does/not/exist", None, None, 1.0), "/does/not/exist", id="option leads nowhere"),
    ],
)
def test_no_kubeconfig_is_exit_code_3(environ: dict[str, str], target: Target, needle: str, tmp_path: Path) -> None:
    if environ or target.kubeconfig:
        # A server on this machine must not be taken in place of one that was asked for.
        write(tmp_path / ".local/share/muster/kubeconfig", "https://127.0.0.1:1")
    with pytest.raises(CliError) as caught:
        found(tmp_path, target, **environ)
    assert caught.value.code is ExitCode.UNREACHABLE
    assert needle in caught.value.message


def test_an_unknown_context_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "k", "https://127.0.0.1:1")
    with pytest.raises(CliError, match=r'"nope" does not exist.*main, other'):
        found(tmp_path, Target(str(path), "nope", None, 1.0))


def test_verbose_says_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / ".local/share/muster/kubeconfig", "https://127.0.0.1:1")
    resolve(NOTHING, State(), environ={"HOME": str(tmp_path)}, home=tmp_path)
    assert capsys.readouterr().err == ""
    resolve(NOTHING, State(verbose=True), environ={"HOME": str(tmp_path)}, home=tmp_path)
    assert f"using that of the local server, {path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("errors", "done", "code"),
    [
        ([], 3, ExitCode.OK),
        ([NotFound("x")], 0, ExitCode.NOT_FOUND),
        ([NotFound("x"), NotFound("y")], 0, ExitCode.NOT_FOUND),
        ([NotFound("x"), Conflict("y")], 0, ExitCode.FAILURE),
        ([Conflict("y")], 1, ExitCode.FAILURE),
    ],
)
def test_the_code_of_several(errors: list[Exception], done: int, code: ExitCode, capsys: pytest.CaptureFixture[str]) -> None:
    failures = Failures()
    for error in errors:
        failures.add(error, "file.yaml")
    for _ in range(done):
        failures.succeeded()
    assert failures.exit_code is code
    assert capsys.readouterr().err.count("error: file.yaml: ") == len(errors)
