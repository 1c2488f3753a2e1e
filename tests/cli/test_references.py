from __future__ import annotations

import pytest

from muster.cli.errors import ExitCode, UsageError
from muster.cli.references import Reference, parse_references


@pytest.mark.parametrize(
    ("args", "found"),
    [
        pytest.param(["pods"], [Reference("pods")], id="a kind"),
        pytest.param(["pods,svc"], [Reference("pods"), Reference("svc")], id="kinds"),
        pytest.param(["pods,pods"], [Reference("pods")], id="the same kind twice"),
        pytest.param(["pod", "a", "b", "a"], [Reference("pod", ("a", "b"))], id="names"),
        pytest.param(["pod,svc", "a"], [Reference("pod", ("a",)), Reference("svc", ("a",))], id="a name of two kinds"),
        pytest.param(["pod/a", "job/b", "pod/c"], [Reference("pod", ("a", "c")), Reference("job", ("b",))], id="slashes"),
        pytest.param(["kj.kuscia.secretflow/a"], [Reference("kj.kuscia.secretflow", ("a",))], id="with a group"),
    ],
)
def test_parse(args: list[str], found: list[Reference]) -> None:
    assert parse_references(args, example="x") == found


@pytest.mark.parametrize(
    "args",
    [[], [""], ["pods,"], [",pods"], ["pod/"], ["/a"], ["pod/a", "b"], ["pod", "a/b"], ["pod/a/b"], ["pod,svc/a"], ["pod", ""]],
)
def test_refused(args: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_references(args, example="muster get pods")
    assert caught.value.code is ExitCode.USAGE
