"""RBAC: what rules allow, what covers what, and who has which rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.objects.status import Forbidden, Raw
from muster.server.authorization import RBAC_GROUP, Authorizer, RbacIndex, RoleRef
from muster.server.paths import request_info
from muster.server.rbac import Attributes, Rule, rule_of, rule_raw, rules_of, uncovered
from tests.counts import examples


def _rule(verbs: str, groups: str = "", resources: str = "", names: str = "", urls: str = "") -> Rule:
    """Words separated by blanks; the core group is written `core`."""

    def words(text: str) -> frozenset[str]:
        return frozenset("" if word == "core" else word for word in text.split())

    return Rule(words(verbs), words(groups), words(resources), words(names), words(urls))


def _ask(verb: str, resource: str, *, group: str = "", name: str = "", namespace: str = "ns") -> Attributes:
    plural, _, sub = resource.partition("/")
    return Attributes(verb=verb, group=group, resource=plural, subresource=sub, name=name, namespace=namespace)


@pytest.mark.parametrize(
    ("rule", "asked", "allowed"),
    [
        pytest.param(_rule("get", "core", "pods"), _ask("get", "pods"), True, id="plain"),
        pytest.param(_rule("get", "core", "pods"), _ask("list", "pods"), False, id="other verb"),
        pytest.param(_rule("get", "core", "pods"), _ask("get", "secrets"), False, id="other resource"),
        pytest.param(_rule("get", "core", "pods"), _ask("get", "pods", group="apps"), False, id="other group"),
        pytest.param(_rule("*", "core", "pods"), _ask("brew", "pods"), True, id="any verb"),
        pytest.param(_rule("get", "*", "pods"), _ask("get", "pods", group="apps"), True, id="any group"),
        pytest.param(_rule("get", "core", "*"), _ask("get", "secrets"), True, id="any resource"),
        pytest.param(_rule("get", "core", "*"), _ask("get", "pods/log"), True, id="any resource has subresources too"),
        pytest.param(_rule("get", "core", "pods"), _ask("get", "pods/log"), False, id="a resource without its subresource"),
        pytest.param(_rule("get", "core", "pods/log"), _ask("get", "pods/log"), True, id="subresource"),
        pytest.param(_rule("get", "core", "pods/log"), _ask("get", "pods"), False, id="subresource without its resource"),
        pytest.param(_rule("get", "core", "*/log"), _ask("get", "pods/log"), True, id="subresource of any"),
        pytest.param(_rule("get", "core", "pods/*"), _ask("get", "pods/log"), False, id="no such wildcard"),
        pytest.param(_rule("get", "core", "pods", "a"), _ask("get", "pods", name="a"), True, id="named"),
        pytest.param(_rule("get", "core", "pods", "a"), _ask("get", "pods", name="b"), False, id="otherwise named"),
        pytest.param(_rule("list", "core", "pods", "a"), _ask("list", "pods"), False, id="a list has no name"),
        pytest.param(_rule("get", urls="/metrics"), Attributes(verb="get", path="/metrics"), True, id="path"),
        pytest.param(_rule("get", urls="/metrics"), Attributes(verb="get", path="/metricsx"), False, id="other path"),
        pytest.param(_rule("get", urls="/apis/*"), Attributes(verb="get", path="/apis/apps/v1"), True, id="path prefix"),
        pytest.param(_rule("get", urls="/apis/*"), Attributes(verb="get", path="/apis"), False, id="shorter than the prefix"),
        pytest.param(_rule("get", urls="*"), Attributes(verb="get", path="/anything"), True, id="any path"),
        pytest.param(_rule("*", "*", "*"), Attributes(verb="get", path="/metrics"), False, id="resources are no paths"),
        pytest.param(_rule("*", urls="*"), _ask("get", "pods"), False, id="paths are no resources"),
    ],
)
def test_allows(rule: Rule, asked: Attributes, allowed: bool) -> None:
    assert rule.allows(asked) is allowed


@pytest.mark.parametrize(
    ("owned", "wanted", "missing"),
    [
        pytest.param([_rule("get list", "core", "pods")], [_rule("get", "core", "pods")], 0, id="less"),
        pytest.param(
            [_rule("get", "core", "pods"), _rule("list", "core", "pods")],
            [_rule("get list", "core", "pods")],
            0,
            id="two together",
        ),
        pytest.param([_rule("get", "core", "pods")], [_rule("get list", "core", "pods secrets")], 3, id="partly"),
        pytest.param([_rule("get", "core", "pods", "a")], [_rule("get", "core", "pods")], 1, id="a name is less than all"),
        pytest.param([_rule("get", "core", "pods")], [_rule("get", "core", "pods", "a b")], 0, id="all is more than names"),
        pytest.param([_rule("get", "core", "pods", "a")], [_rule("get", "core", "pods", "a b")], 1, id="one name of two"),
        pytest.param([_rule("get", "core", "*/log")], [_rule("get", "core", "pods/log")], 0, id="subresource of any"),
        pytest.param([_rule("get", "core", "pods")], [_rule("*", "core", "pods")], 1, id="wildcard wanted"),
        pytest.param([_rule("get", urls="/a/*")], [_rule("get", urls="/a/b /c")], 1, id="paths"),
        pytest.param([_rule("*", "*", "*")], [_rule("get", urls="/a")], 1, id="everything but paths"),
        pytest.param([], [], 0, id="nothing of nothing"),
    ],
)
def test_uncovered(owned: list[Rule], wanted: list[Rule], missing: int) -> None:
    assert len(uncovered(owned, wanted)) == missing


def test_uncovered_is_bounded() -> None:
    many = Rule(frozenset(map(str, range(100))), frozenset(map(str, range(100))), frozenset(map(str, range(100))))
    with pytest.raises(ValueError, match="use wildcards"):
        uncovered([], [many])


def test_comparing_long_roles_is_bounded() -> None:
    owned = [_rule("get", "core", "pods", f"p{n}") for n in range(2000)]
    verbs = Rule(frozenset(map(str, range(2000))), frozenset(("",)), frozenset(("nothing",)))
    with pytest.raises(ValueError, match="pairs to compare"):
        uncovered(owned, [verbs])
    with pytest.raises(ValueError, match="pairs to compare"):
        uncovered(owned, [_rule("get", "core", "secrets", f"p{n}") for n in range(2000)])


_WORDS = {
    "verbs": ["get", "list", "*"],
    "apiGroups": ["", "apps", "*"],
    "resources": ["pods", "pods/log", "*/log", "*"],
    "resourceNames": ["a", "b"],
    "nonResourceURLs": ["/x", "/x/*", "*"],
}
_RULES = st.fixed_dictionaries(
    {key: st.lists(st.sampled_from(words), max_size=2, unique=True) for key, words in _WORDS.items()}
).map(rule_of)
_ASKED = st.one_of(
    st.builds(
        Attributes,
        verb=st.sampled_from(["get", "list", "watch"]),
        group=st.sampled_from(["", "apps", "batch"]),
        resource=st.sampled_from(["pods", "jobs"]),
        subresource=st.sampled_from(["", "log", "status"]),
        name=st.sampled_from(["", "a", "b", "c"]),
    ),
    st.builds(Attributes, verb=st.sampled_from(["get", "list"]), path=st.sampled_from(["/x", "/x/y", "/z"])),
)


@given(st.lists(_RULES, max_size=3), st.lists(_RULES, max_size=2), st.lists(_ASKED, min_size=1, max_size=8))
@settings(max_examples=examples(100))
def test_what_is_covered_is_allowed(owned: list[Rule], wanted: list[Rule], asked: list[Attributes]) -> None:
    """No escalation: if nothing is missing, the new rules allow nothing that the old ones did not."""
    if uncovered(owned, wanted):
        return
    for question in asked:
        if any(rule.allows(question) for rule in wanted):
            assert any(rule.allows(question) for rule in owned)


@given(_RULES)
def test_rules_cover_themselves_and_survive_a_round_trip(rule: Rule) -> None:
    assert uncovered([rule], [rule]) == []
    assert rule_of(rule_raw(rule)) == rule


_SCALARS = st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers() | st.text(max_size=3), max_size=3)


@given(st.dictionaries(st.sampled_from([*_WORDS, "x"]), _SCALARS, max_size=5), _ASKED)
def test_malformed_roles_only_allow_less(raw: dict[str, Any], asked: Attributes) -> None:
    for rule in rules_of({"rules": [raw, "x", 3]}):
        rule.allows(asked)
    assert rules_of({"rules": "x"}) == ()


# --- the index


def _role(kind: str, name: str, *rules: Rule, namespace: str = "", **more: Any) -> tuple[str, Raw]:
    meta: Raw = {"name": name, **({"namespace": namespace} if namespace else {}), **more.pop("meta", {})}
    return kind, {"kind": kind, "metadata": meta, "rules": [rule_raw(rule) for rule in rules], **more}


def _bind(kind: str, role_kind: str, role: str, *subjects: Raw, namespace: str = "", name: str = "b") -> tuple[str, Raw]:
    meta: Raw = {"name": name, **({"namespace": namespace} if namespace else {})}
    return kind, {
        "metadata": meta,
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": role_kind, "name": role},
        "subjects": list(subjects),
    }


def _authorizer(*objects: tuple[str, Raw]) -> Authorizer:
    index = RbacIndex()
    for kind, raw in objects:
        index.apply(kind, raw)
    return Authorizer(index)


_ALICE = {"kind": "User", "name": "alice"}
_DEVS = {"kind": "Group", "name": "devs"}
_BOT = {"kind": "ServiceAccount", "name": "bot", "namespace": "ns"}
_READ = _rule("get list watch", "core", "pods")


@pytest.mark.parametrize(
    ("user", "groups", "namespace", "allowed"),
    [
        pytest.param("alice", (), "ns", True, id="user by RoleBinding"),
        pytest.param("alice", (), "other", False, id="not in another namespace"),
        pytest.param("alice", (), "", False, id="not cluster-wide"),
        pytest.param("bob", ("devs",), "other", True, id="group by ClusterRoleBinding, any namespace"),
        pytest.param("bob", ("devs",), "", True, id="group, cluster-wide"),
        pytest.param("system:serviceaccount:ns:bot", (), "ns", True, id="service account"),
        pytest.param("system:serviceaccount:other:bot", (), "ns", False, id="service account of another namespace"),
        pytest.param("bob", (), "ns", False, id="nobody"),
        pytest.param("devs", (), "ns", False, id="a user called like a group"),
        pytest.param("x", ("alice",), "ns", False, id="a group called like a user"),
        pytest.param("root", ("system:masters",), "", True, id="masters"),
    ],
)
def test_bindings(user: str, groups: tuple[str, ...], namespace: str, allowed: bool) -> None:
    authorizer = _authorizer(
        _role("Role", "reader", _READ, namespace="ns"),
        _role("ClusterRole", "reader", _READ),
        _bind("RoleBinding", "Role", "reader", _ALICE, _BOT, namespace="ns"),
        _bind("ClusterRoleBinding", "ClusterRole", "reader", _DEVS),
    )
    assert authorizer.decide(user, groups, _ask("get", "pods", namespace=namespace)).allowed is allowed


def test_a_role_binding_to_a_cluster_role_stays_in_its_namespace() -> None:
    authorizer = _authorizer(
        _role("ClusterRole", "reader", _READ, _rule("get", urls="/metrics")),
        _bind("RoleBinding", "ClusterRole", "reader", _ALICE, namespace="ns"),
    )
    assert authorizer.decide("alice", (), _ask("get", "pods")).allowed
    assert not authorizer.decide("alice", (), _ask("get", "pods", namespace="other")).allowed
    assert not authorizer.decide("alice", (), Attributes(verb="get", path="/metrics")).allowed


def test_changes_take_effect_at_once() -> None:
    authorizer = _authorizer(_bind("ClusterRoleBinding", "ClusterRole", "reader", _ALICE))
    question = _ask("get", "pods")
    assert not authorizer.decide("alice", (), question).allowed  # the role is not there yet
    authorizer.index.apply(*_role("ClusterRole", "reader", _READ))
    assert authorizer.decide("alice", (), question).allowed
    authorizer.index.apply(*_role("ClusterRole", "reader"))
    assert not authorizer.decide("alice", (), question).allowed
    authorizer.index.apply(*_role("ClusterRole", "reader", _READ))
    authorizer.index.apply(*_bind("ClusterRoleBinding", "ClusterRole", "reader", _DEVS))
    assert not authorizer.decide("alice", (), question).allowed
    assert authorizer.decide("x", ("devs",), question).allowed
    kind, raw = _bind("ClusterRoleBinding", "ClusterRole", "reader", _DEVS)
    authorizer.index.apply(kind, raw, deleted=True)
    assert not authorizer.decide("x", ("devs",), question).allowed


def test_aggregation_follows_labels_however_deep() -> None:
    def aggregated(name: str, **labels: str) -> tuple[str, Raw]:
        rule = {"clusterRoleSelectors": [{"matchLabels": {f"into-{name}": "true"}}]}
        return _role("ClusterRole", name, meta={"labels": labels}, aggregationRule=rule)

    authorizer = _authorizer(
        aggregated("edit"),
        aggregated("view", **{"into-edit": "true", "into-view": "true"}),
        _role("ClusterRole", "pods", _READ, meta={"labels": {"into-view": "true"}}),
        _bind("ClusterRoleBinding", "ClusterRole", "edit", _ALICE),
    )
    assert authorizer.decide("alice", (), _ask("get", "pods")).allowed
    assert authorizer.index.aggregated() == {"edit": (_READ,), "view": (_READ,)}
    assert authorizer.index.role_rules(RoleRef("ClusterRole", "nothing"), "") is None


def test_a_role_that_is_bound_often_counts_once() -> None:
    bindings = [_bind("RoleBinding", "Role", "reader", _ALICE, _DEVS, namespace="ns") for _ in range(50)]
    for number, (_, raw) in enumerate(bindings):
        raw["metadata"]["name"] = f"b{number:02}"
    authorizer = _authorizer(_role("Role", "reader", _READ, namespace="ns"), *bindings)
    assert authorizer.rules("alice", ("devs",), "ns") == [_READ]
    assert authorizer.rules_len("alice", ("devs",), "ns") == 1
    assert authorizer.rules_len("alice", ("devs",), "other") == 0
    assert 'RoleBinding "ns/b00"' in authorizer.decide("alice", ("devs",), _ask("get", "pods", namespace="ns")).reason
    index = authorizer.index
    of_alice, of_group = index.grants("alice", (), "ns"), index.grants("x", ("devs",), "ns")
    assert of_alice[0].rules is of_group[0].rules, "the rules of a role are kept once, for all who have it"


def test_reason_names_the_binding() -> None:
    authorizer = _authorizer(_role("ClusterRole", "reader", _READ), _bind("ClusterRoleBinding", "ClusterRole", "reader", _DEVS))
    decision = authorizer.decide("bob", ("devs",), _ask("get", "pods"))
    assert decision.reason == 'RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "reader" to Group "devs"'


@pytest.mark.parametrize(
    ("method", "path", "message"),
    [
        (
            "GET",
            "/api/v1/namespaces/y/pods",
            'pods is forbidden: User "x" cannot list resource "pods" in API group "" in the namespace "y"',
        ),
        (
            "DELETE",
            "/apis/apps/v1/namespaces/y/deployments/d",
            'deployments.apps "d" is forbidden: User "x" cannot delete resource "deployments" in API group "apps" '
            'in the namespace "y"',
        ),
        (
            "GET",
            "/api/v1/nodes",
            'nodes is forbidden: User "x" cannot list resource "nodes" in API group "" at the cluster scope',
        ),
        (
            "GET",
            "/api/v1/namespaces/y/pods/p/log",
            'pods "p" is forbidden: User "x" cannot get resource "pods/log" in API group "" in the namespace "y"',
        ),
        ("GET", "/metrics", 'forbidden: User "x" cannot get path "/metrics"'),
    ],
    ids=["list", "delete", "cluster scope", "subresource", "path"],
)
def test_forbidden_is_worded_as_kubernetes_words_it(method: str, path: str, message: str) -> None:
    with pytest.raises(Forbidden) as caught:
        _authorizer().require("x", (), request_info(method, path.encode()))
    assert caught.value.message == message
