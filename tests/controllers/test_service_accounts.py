"""What every namespace gets."""

from __future__ import annotations

import pytest

from muster.controllers.actions import Create, Patch, Target
from muster.controllers.service_accounts import plan
from muster.objects.status import Raw

ACCOUNT: Raw = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "shop"}}


def root_ca(data: dict[str, str] | None) -> Raw:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "kube-root-ca.crt", "namespace": "shop", "uid": "u2"},
        "data": data,
    }


def test_an_empty_namespace_gets_both() -> None:
    account, config = plan("shop", None, None, "PEM")
    assert account == Create(ACCOUNT)
    assert isinstance(config, Create)
    assert config.object["metadata"]["name"] == "kube-root-ca.crt"
    assert config.object["metadata"]["namespace"] == "shop"
    assert config.object["data"] == {"ca.crt": "PEM"}


@pytest.mark.parametrize(
    ("data", "patch"),
    [
        pytest.param({"ca.crt": "PEM"}, None, id="as it should be"),
        pytest.param({"ca.crt": "OLD"}, {"data": {"ca.crt": "PEM"}}, id="another certificate is put right"),
        pytest.param({}, {"data": {"ca.crt": "PEM"}}, id="emptied"),
        pytest.param(None, {"data": {"ca.crt": "PEM"}}, id="no data at all"),
        pytest.param({"ca.crt": "PEM", "x": "y"}, {"data": {"ca.crt": "PEM", "x": None}}, id="strays are taken out"),
    ],
)
def test_the_certificate_is_kept_right(data: dict[str, str] | None, patch: Raw | None) -> None:
    actions = plan("shop", ACCOUNT, root_ca(data), "PEM")
    target = Target("", "ConfigMap", "kube-root-ca.crt", "shop", "u2")
    assert actions == ([] if patch is None else [Patch(target, patch)])


def test_what_a_user_changed_on_the_account_stays() -> None:
    changed = {**ACCOUNT, "imagePullSecrets": [{"name": "registry"}]}
    assert plan("shop", changed, root_ca({"ca.crt": "PEM"}), "PEM") == []
