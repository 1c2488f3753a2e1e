"""Acting as somebody else, and roles that are sums of others: by table, as kube-apiserver decides it."""

from __future__ import annotations

from typing import Any

import pytest

from muster.objects.status import BadRequest, Forbidden, Raw
from muster.server.authentication import impersonated
from muster.server.authorization import Authorizer, RbacIndex
from muster.store.embedded.admission import Actor
from tests.server.running import RunningServer

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_MERGE = {"content-type": "application/merge-patch+json"}
ADMIN = Actor("admin", groups=("system:masters",))
OPERATOR = Actor("op", groups=("system:authenticated",))


def _authorizer(*rules: Raw) -> Authorizer:
    """What the operator may do."""
    index = RbacIndex()
    index.apply("ClusterRole", {"metadata": {"name": "r"}, "rules": list(rules)})
    ref = {"kind": "ClusterRole", "name": "r"}
    index.apply("ClusterRoleBinding", {"metadata": {"name": "b"}, "roleRef": ref, "subjects": [{"kind": "User", "name": "op"}]})
    return Authorizer(index)


def _may(resources: str, *names: str, group: str = "") -> Raw:
    rule: Raw = {"apiGroups": [group], "resources": [resources], "verbs": ["impersonate"]}
    return {**rule, "resourceNames": list(names)} if names else rule


def _headers(*pairs: str) -> list[tuple[str, str]]:
    """`user=ann`, as ASGI gives them: names in lower case."""
    return [(f"impersonate-{name.lower()}", value) for name, _, value in (pair.partition("=") for pair in pairs)]


@pytest.mark.parametrize(
    ("asked", "user", "groups"),
    [
        pytest.param(["user=ann"], "ann", ("system:authenticated",), id="a user"),
        pytest.param(["user=ann", "group=a", "group=b"], "ann", ("a", "b", "system:authenticated"), id="groups in order"),
        pytest.param(["user=ann", "user=eve"], "ann", ("system:authenticated",), id="the first name counts"),
        pytest.param(["user=ann", "group=system:authenticated"], "ann", ("system:authenticated",), id="no group twice"),
        pytest.param(["user=ann", "group=system:unauthenticated"], "ann", ("system:unauthenticated",), id="unauthenticated"),
        pytest.param(["user=system:anonymous"], "system:anonymous", ("system:unauthenticated",), id="nobody"),
        pytest.param(
            ["user=system:serviceaccount:ns:bot"],
            "system:serviceaccount:ns:bot",
            ("system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"),
            id="a service account has its groups",
        ),
        pytest.param(
            ["user=system:serviceaccount:ns:bot", "group=a"],
            "system:serviceaccount:ns:bot",
            ("a", "system:authenticated"),
            id="unless others are asked for",
        ),
    ],
)
def test_who_one_becomes(asked: list[str], user: str, groups: tuple[str, ...]) -> None:
    actor = impersonated(ADMIN, _headers(*asked), _authorizer())
    assert (actor.user, actor.groups) == (user, groups)


def test_uid_and_extras() -> None:
    asked = _headers("user=ann", "uid=7", "extra-scopes=view", "extra-scopes=edit", "extra-acme.com%2fproject=x")
    actor = impersonated(ADMIN, asked, _authorizer())
    assert (actor.uid, actor.extra) == ("7", {"scopes": ("view", "edit"), "acme.com/project": ("x",)})
    assert impersonated(OPERATOR, [("accept", "*/*")], _authorizer()) is OPERATOR


_AUTHENTICATION = "authentication.k8s.io"


@pytest.mark.parametrize(
    ("rules", "asked", "refused"),
    [
        pytest.param([], ["user=ann"], "users", id="nothing is allowed by itself"),
        pytest.param([_may("users")], ["user=ann"], "", id="any user"),
        pytest.param([_may("users", "ann")], ["user=ann"], "", id="this user"),
        pytest.param([_may("users", "ann")], ["user=bob"], "users", id="another user"),
        pytest.param([_may("users")], ["user=ann", "group=a"], "groups", id="a group is asked for, too"),
        pytest.param([_may("users"), _may("groups", "a")], ["user=ann", "group=a", "group=b"], "groups", id="every group is"),
        pytest.param([_may("users"), _may("groups", "a")], ["user=ann", "group=a"], "", id="this group"),
        pytest.param([_may("users")], ["user=ann", "uid=7"], "uids", id="a uid"),
        pytest.param([_may("users"), _may("uids", "7", group=_AUTHENTICATION)], ["user=ann", "uid=7"], "", id="this uid"),
        pytest.param([_may("users"), _may("uids", "7")], ["user=ann", "uid=7"], "uids", id="uids of another API group"),
        pytest.param([_may("users")], ["user=ann", "extra-a=x"], "userextras", id="an extra"),
        pytest.param(
            [_may("users"), _may("userextras/a", "x", group=_AUTHENTICATION)], ["user=ann", "extra-a=x"], "", id="this value"
        ),
        pytest.param(
            [_may("users"), _may("userextras/a", "x", group=_AUTHENTICATION)],
            ["user=ann", "extra-a=x", "extra-a=y"],
            "userextras",
            id="another value",
        ),
        pytest.param(
            [_may("users"), _may("userextras/b", group=_AUTHENTICATION)],
            ["user=ann", "extra-a=x"],
            "userextras",
            id="another key",
        ),
        pytest.param([_may("users")], ["user=system:serviceaccount:ns:bot"], "serviceaccounts", id="accounts are no users"),
        pytest.param([_may("serviceaccounts", "bot")], ["user=system:serviceaccount:ns:bot"], "", id="this account"),
        pytest.param([_may("serviceaccounts", "bot")], ["user=system:serviceaccount:ns:x"], "serviceaccounts", id="another"),
        pytest.param([_may("serviceaccounts")], ["user=system:serviceaccount:ns"], "users", id="not the name of an account"),
    ],
)
def test_what_must_be_allowed(rules: list[Raw], asked: list[str], refused: str) -> None:
    authorizer = _authorizer(*rules)
    if not refused:
        impersonated(OPERATOR, _headers(*asked), authorizer)
        return
    with pytest.raises(Forbidden, match=f'cannot impersonate resource "{refused}'):
        impersonated(OPERATOR, _headers(*asked), authorizer)


@pytest.mark.parametrize("asked", [["group=a"], ["uid=7"], ["extra-a=x"], ["user=", "group=a"]])
def test_a_name_is_needed(asked: list[str]) -> None:
    with pytest.raises(BadRequest, match="Impersonate-User"):
        impersonated(ADMIN, _headers(*asked), _authorizer())


# --- aggregation


@pytest.mark.parametrize(
    ("selectors", "labels", "fits"),
    [
        pytest.param([{"matchLabels": {"a": "1"}}], {"a": "1"}, True, id="label"),
        pytest.param([{"matchLabels": {"a": "1"}}], {"a": "2"}, False, id="another value"),
        pytest.param([{"matchLabels": {"a": "1", "b": "1"}}], {"a": "1"}, False, id="both are needed"),
        pytest.param([{"matchLabels": {"a": "1"}}, {"matchLabels": {"b": "1"}}], {"b": "1"}, True, id="one selector is enough"),
        pytest.param([{"matchExpressions": [{"key": "a", "operator": "Exists"}]}], {"a": "x"}, True, id="expression"),
        pytest.param(
            [{"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["x"]}]}], {"a": "x"}, False, id="negated"
        ),
        pytest.param([{}], {}, True, id="an empty selector selects all"),
        pytest.param([], {"a": "1"}, False, id="no selector selects none"),
        pytest.param([{"matchExpressions": [{"key": "a", "operator": "Odd"}]}], {"a": "x"}, False, id="unreadable"),
    ],
)
def test_what_an_aggregated_role_takes_in(selectors: list[Raw], labels: dict[str, str], fits: bool) -> None:
    index = RbacIndex()
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
    index.apply("ClusterRole", {"metadata": {"name": "part", "labels": labels}, "rules": [rule]})
    whole: Any = {"metadata": {"name": "whole"}, "aggregationRule": {"clusterRoleSelectors": selectors}}
    index.apply("ClusterRole", {**whole, "rules": [{**rule, "verbs": ["*"]}]})
    assert bool(index.aggregated()["whole"]) == fits, "and its own rules count for nothing"


def test_a_label_that_goes_takes_the_permission_with_it(server: RunningServer, namespace: str) -> None:
    roles = f"{_RBAC}/clusterroles"
    label = f"aggregate-{namespace}"
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}
    server.create(roles, {"metadata": {"name": f"part-{namespace}", "labels": {label: "yes"}}, "rules": [rule]})
    selectors = [{"matchLabels": {label: "yes"}}]
    server.create(
        roles, {"metadata": {"name": f"whole-{namespace}"}, "aggregationRule": {"clusterRoleSelectors": selectors}, "rules": []}
    )
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"whole-{namespace}"}
    binding = {"metadata": {"name": "b"}, "roleRef": ref, "subjects": [{"kind": "User", "name": "ivy"}]}
    server.create(f"{_RBAC}/namespaces/{namespace}/rolebindings", binding)
    token, path = server.user("ivy"), f"/api/v1/namespaces/{namespace}/configmaps"
    assert server.request("GET", path, token=token).code == 200
    for value, code in ((None, 403), ("yes", 200), ("no", 403)):
        patch = {"metadata": {"labels": {label: value}}}
        assert server.request("PATCH", f"{roles}/part-{namespace}", patch, headers=_MERGE).code == 200
        assert server.request("GET", path, token=token).code == code
