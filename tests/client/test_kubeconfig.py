from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.client.config import Auth, ClientConfig, Impersonation, Tls
from muster.client.kubeconfig import Kubeconfig, KubeconfigError, find_files, in_cluster, load, write_kubeconfig

PEM = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
KEY = b"-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n"
V1 = "client.authentication.k8s.io/v1"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def sample(
    *, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, context: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "ctx",
        "clusters": [{"name": "c", "cluster": {"server": "https://example:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "ctx", "context": {"cluster": "c", "user": "u", **(context or {})}}],
    }


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def loaded(tmp_path: Path, content: Any, **options: Any) -> ClientConfig:
    return load(write(tmp_path / "config", content), environ={}, home=tmp_path, **options)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(sample(user={"token": "t"}), {"auth": Auth(token="t")}, id="token"),
        pytest.param(
            sample(user={"username": "me", "password": "pw"}), {"auth": Auth(username="me", password="pw")}, id="basic"
        ),
        pytest.param(sample(), {"auth": Auth(), "namespace": "default"}, id="anonymous"),
        pytest.param(sample(context={"namespace": "team"}), {"namespace": "team"}, id="namespace"),
        pytest.param(
            sample(cluster={"server": "https://h/k8s/clusters/x/"}), {"server": "https://h/k8s/clusters/x"}, id="path"
        ),
        pytest.param(sample(cluster={"server": "example:80"}), {"server": "http://example:80"}, id="no scheme"),
        pytest.param(
            sample(cluster={"server": "example:443", "certificate-authority-data": b64(PEM)}),
            {"server": "https://example:443", "tls": Tls(ca=PEM)},
            id="no scheme with a CA",
        ),
        pytest.param(sample(cluster={"insecure-skip-tls-verify": True}), {"tls": Tls(verify=False)}, id="insecure"),
        pytest.param(sample(cluster={"tls-server-name": "inner"}), {"tls": Tls(server_name="inner")}, id="server name"),
        pytest.param(
            sample(user={"client-certificate-data": b64(PEM), "client-key-data": b64(KEY)}),
            {"tls": Tls(client_certificate=PEM, client_key=KEY)},
            id="inline certificate",
        ),
        pytest.param(sample(cluster={"proxy-url": "http://p:3128"}), {"proxy_url": "http://p:3128"}, id="proxy"),
        pytest.param(sample(cluster={"disable-compression": True}), {"compression": False}, id="no compression"),
        pytest.param(sample(), {"compression": True}, id="compression over the network"),
        pytest.param(sample(cluster={"server": "https://127.0.0.1:1"}), {"compression": False}, id="none on loopback"),
        pytest.param(
            sample(user={"as": "eve", "as-uid": "7", "as-groups": ["a", "b"], "as-user-extra": {"why": ["x"]}}),
            {"impersonate": Impersonation(user="eve", uid="7", groups=("a", "b"), extra=(("why", ("x",)),))},
            id="impersonation",
        ),
        pytest.param(
            {**sample(), "users": None, "contexts": [{"name": "ctx", "context": {"cluster": "c"}}], "preferences": {}},
            {"auth": Auth()},
            id="nulls as kubectl writes them",
        ),
        pytest.param(
            sample(user={"token": "t", "exec": {"apiVersion": V1, "command": "never-run", "interactiveMode": "Never"}}),
            {"auth": Auth(token="t")},
            id="a token makes the plugin unnecessary",
        ),
    ],
)
def test_samples(tmp_path: Path, content: Any, expected: dict[str, Any]) -> None:
    config = loaded(tmp_path, content)
    assert {name: getattr(config, name) for name in expected} == expected
    assert config.context == "ctx"


BROKEN = [
    pytest.param("{", ["not YAML", "line 2"], id="not YAML"),
    pytest.param("- a\n- b\n", ["mapping", "list"], id="a list"),
    pytest.param("just text", ["mapping", "str"], id="text"),
    pytest.param({**sample(), "kind": "Pod"}, ["kind 'Pod'"], id="another kind"),
    pytest.param({**sample(), "apiVersion": "v9"}, ["apiVersion 'v9'"], id="another version"),
    pytest.param(sample(user={"token": 12345}), ["users[0].user.token", "quotes"], id="number as token"),
    pytest.param({**sample(), "clusters": {"c": {}}}, ["clusters", "array"], id="clusters is no list"),
    pytest.param({**sample(), "contexts": [{"context": {}}]}, ["contexts[0]", "name"], id="entry without a name"),
    pytest.param({**sample(), "current-context": ""}, ["no current-context", "--context", "ctx"], id="no current context"),
    pytest.param({**sample(), "current-context": "x"}, ['current-context "x" does not exist', "ctx"], id="unknown context"),
    pytest.param(sample(context={"cluster": ""}), ['context "ctx"', "names no cluster"], id="no cluster named"),
    pytest.param(sample(context={"cluster": "z"}), ['context "ctx"', 'cluster "z" does not exist'], id="unknown cluster"),
    pytest.param(sample(context={"user": "z"}), ['context "ctx"', 'user "z" does not exist'], id="unknown user"),
    pytest.param(sample(cluster={"server": ""}), ['context "ctx"', "server", "empty"], id="no server"),
    pytest.param(sample(cluster={"server": "ftp://x"}), ["server", "https://"], id="wrong scheme"),
    pytest.param(sample(cluster={"server": "https://"}), ["server", "host"], id="no host"),
    pytest.param(sample(cluster={"server": "https://a:b@x"}), ["server", "no user"], id="user in the URL"),
    pytest.param(sample(cluster={"server": "https://x:99999"}), ["server", "99999"], id="impossible port"),
    pytest.param(sample(cluster={"proxy-url": "socks5://x:1"}), ["proxy-url", "socks5"], id="socks proxy"),
    pytest.param(sample(cluster={"certificate-authority": "none.crt"}), ["certificate-authority", "none.crt"], id="no CA file"),
    pytest.param(
        sample(cluster={"certificate-authority-data": "%%%"}), ["certificate-authority-data", "base64"], id="no base64"
    ),
    pytest.param(
        sample(cluster={"certificate-authority-data": b64(b"hello")}), ["certificate-authority-data", "PEM"], id="no PEM"
    ),
    pytest.param(
        sample(cluster={"certificate-authority-data": b64(PEM), "insecure-skip-tls-verify": True}),
        ["insecure-skip-tls-verify", "contradict"],
        id="CA and insecure",
    ),
    pytest.param(
        sample(user={"client-certificate-data": b64(PEM)}), ['user "u"', "client-key", "missing"], id="certificate without key"
    ),
    pytest.param(sample(user={"client-key-data": b64(KEY)}), ["client-certificate", "missing"], id="key without certificate"),
    pytest.param(sample(user={"token": "t", "username": "u"}), ["token and username", "only one"], id="two ways"),
    pytest.param(sample(user={"password": "p"}), ["username", "empty"], id="password alone"),
    pytest.param(sample(user={"token": "a b"}), ["token", "white space"], id="token with a space"),
    pytest.param(sample(user={"tokenFile": "gone"}), ["tokenFile", "gone"], id="no token file"),
    pytest.param(sample(user={"as-groups": ["g"]}), ["as", "as-groups"], id="groups without a user"),
    pytest.param(sample(user={"auth-provider": {"name": "gcp"}}), ["auth-provider", "gcp", "exec"], id="auth provider"),
    pytest.param(sample(user={"exec": {"command": "x"}}), ["exec.apiVersion", V1], id="exec without version"),
    pytest.param(
        sample(user={"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}}),
        ["exec.apiVersion", "v1alpha1"],
        id="exec too old",
    ),
    pytest.param(sample(user={"exec": {"apiVersion": V1, "interactiveMode": "Never"}}), ["exec.command"], id="no command"),
    pytest.param(sample(user={"exec": {"apiVersion": V1, "command": "x"}}), ["exec.interactiveMode"], id="no mode"),
    pytest.param(
        sample(user={"exec": {"apiVersion": V1, "command": "x", "interactiveMode": "Sometimes"}}),
        ["users[0].user.exec.interactiveMode", "Sometimes"],
        id="wrong mode",
    ),
    pytest.param("a: " + "[" * 100_000 + "]" * 100_000, ["line 1", "nested"], id="too deep"),
    pytest.param("a: &a [" + "x, " * 999 + "]\nb: &b [" + "*a, " * 999 + "]", ["line 2", "aliases"], id="aliases blow up"),
    pytest.param("a: &a {b: *a}", ["contains it"], id="an alias of itself"),
    pytest.param("a: \x00", ["not YAML"], id="control character"),
]


@pytest.mark.parametrize(("content", "words"), BROKEN)
def test_broken_files_name_file_and_field(tmp_path: Path, content: Any, words: list[str]) -> None:
    with pytest.raises(KubeconfigError) as caught:
        loaded(tmp_path, content)
    message = str(caught.value)
    assert str(tmp_path / "config") in message
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    there = tmp_path / "there"
    write(there / "ca.crt", PEM.decode())
    write(there / "secret" / "me.crt", PEM.decode())
    write(there / "secret" / "me.key", KEY.decode())
    write(there / "token", "t")
    content = sample(
        cluster={"certificate-authority": "ca.crt"},
        user={"client-certificate": "secret/me.crt", "client-key": "./secret/me.key", "tokenFile": "token"},
    )
    config = load(write(there / "config", content), environ={})
    assert config.tls.ca == there / "ca.crt"
    assert config.tls.client_certificate == there / "secret" / "me.crt"
    assert config.tls.client_key == there / "secret" / "me.key"
    assert config.auth.token_file == there / "token"


@pytest.mark.parametrize(
    ("command", "resolved"),
    [
        pytest.param("aws", lambda base: "aws", id="by PATH"),
        pytest.param("./bin/login", lambda base: str(base / "bin/login"), id="relative"),
        pytest.param("/usr/bin/login", lambda base: "/usr/bin/login", id="absolute"),
    ],
)
def test_exec_command(tmp_path: Path, command: str, resolved: Callable[[Path], str]) -> None:
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    plugin = {
        "apiVersion": V1,
        "command": command,
        "args": ["a"],
        "env": [{"name": "K", "value": "v"}],
        "interactiveMode": "Never",
    }
    config = loaded(tmp_path, sample(cluster={"extensions": [extension]}, user={"exec": plugin}))
    found = config.auth.exec_plugin
    assert found is not None
    assert found.command == resolved(tmp_path)
    assert (found.args, found.env, found.interactive_mode) == (("a",), (("K", "v"),), "Never")
    assert found.cluster_config == {"audience": "x"}


def test_inline_data_wins_over_a_file(tmp_path: Path) -> None:
    config = loaded(tmp_path, sample(cluster={"certificate-authority": "gone.crt", "certificate-authority-data": b64(PEM)}))
    assert config.tls.ca == PEM


def test_merge_first_definition_wins_whole(tmp_path: Path) -> None:
    one = sample(user={"token": "first"})
    two = sample(cluster={"server": "https://other"}, user={"token": "second", "as": "eve"}, context={"namespace": "two"})
    two["current-context"] = "late"
    two["contexts"].append({"name": "late", "context": {"cluster": "c", "user": "extra", "namespace": "late"}})
    two["users"].append({"name": "extra", "user": {"token": "extra"}})
    files = os.pathsep.join(
        [
            "",
            str(write(tmp_path / "one", one)),
            str(tmp_path / "missing"),
            str(write(tmp_path / "two", two)),
            str(tmp_path / "one"),
        ]
    )
    environ = {"KUBECONFIG": files}
    config = load(environ=environ, home=tmp_path)
    assert (config.context, config.server, config.namespace) == ("ctx", "https://example:6443", "default")
    assert config.auth == Auth(token="first")
    assert config.impersonate == Impersonation()
    late = load(environ=environ, home=tmp_path, context="late")
    assert (late.server, late.auth, late.namespace) == ("https://example:6443", Auth(token="extra"), "late")
    assert [path.name for path in Kubeconfig(find_files(environ=environ)).files] == ["one", "two"]


def test_parts_can_be_replaced_by_name(tmp_path: Path) -> None:
    content = sample()
    content["clusters"].append({"name": "c2", "cluster": {"server": "https://two"}})
    content["users"].append({"name": "u2", "user": {"token": "two"}})
    config = loaded(tmp_path, content, cluster="c2", user="u2", namespace="n2")
    assert (config.server, config.auth, config.namespace) == ("https://two", Auth(token="two"), "n2")


def test_explicit_file_is_the_only_one_and_must_exist(tmp_path: Path) -> None:
    write(tmp_path / ".kube" / "config", sample(user={"token": "home"}))
    other = write(tmp_path / "other", sample(user={"token": "other"}))
    environ = {"KUBECONFIG": str(tmp_path / ".kube" / "config")}
    assert load(other, environ=environ, home=tmp_path).auth == Auth(token="other")
    assert load(environ={}, home=tmp_path).auth == Auth(token="home")
    with pytest.raises(KubeconfigError, match="nowhere: no such kubeconfig"):
        load(tmp_path / "nowhere", environ=environ, home=tmp_path)


def test_in_cluster_only_when_there_is_no_file(tmp_path: Path) -> None:
    account = tmp_path / "account"
    write(account / "token", "t")
    write(account / "ca.crt", PEM.decode())
    write(account / "namespace", "team\n")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    config = load(environ=environ, home=tmp_path, service_account_dir=account)
    assert (config.server, config.namespace) == ("https://[fd00::1]:443", "team")
    assert (config.tls.ca, config.auth.token_file) == (account / "ca.crt", account / "token")
    write(tmp_path / ".kube" / "config", sample(user={"token": "home"}))
    assert load(environ=environ, home=tmp_path, service_account_dir=account).auth == Auth(token="home")


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_in_cluster_names_what_is_missing(tmp_path: Path, missing: str) -> None:
    for name in {"token", "ca.crt"} - {missing}:
        write(tmp_path / name, PEM.decode())
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(KubeconfigError, match=missing):
        in_cluster(environ=environ, service_account_dir=tmp_path)


def test_nothing_at_all_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=r"\.kube/config does not exist.*KUBECONFIG"):
        load(environ={}, home=tmp_path)


def test_an_unreadable_directory_in_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="cannot be read"):
        load(tmp_path, environ={})


def test_secrets_stay_out_of_repr(tmp_path: Path) -> None:
    user = {"token": "sesame", "client-certificate-data": b64(PEM), "client-key-data": b64(KEY)}
    shown = repr(loaded(tmp_path, sample(user=user)))
    assert "sesame" not in shown
    assert "PRIVATE" not in shown
    plugin = {"apiVersion": V1, "command": "x", "interactiveMode": "Never", "env": [{"name": "K", "value": "sesame"}]}
    assert "sesame" not in repr(loaded(tmp_path, sample(user={"exec": plugin})))


def test_write_kubeconfig_is_private_and_loads(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "kubeconfig"
    write_kubeconfig(target, server="https://127.0.0.1:6443", ca=PEM, token="sesame", namespace="team")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    config = load(target, environ={})
    assert (config.server, config.auth, config.namespace) == ("https://127.0.0.1:6443", Auth(token="sesame"), "team")
    assert config.tls.ca == PEM
    write_kubeconfig(target, server="https://127.0.0.1:1", client_certificate=PEM, client_key=KEY)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert load(target, environ={}).tls == Tls(client_certificate=PEM, client_key=KEY)
    assert [path.name for path in target.parent.iterdir()] == ["kubeconfig"]


def test_write_kubeconfig_leaves_no_half_file(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").mkdir()
    with pytest.raises(OSError, match="kubeconfig"):
        write_kubeconfig(tmp_path / "kubeconfig", server="https://x", token="sesame")
    assert [path.name for path in tmp_path.iterdir()] == ["kubeconfig"]


def kubectl_view(*arguments: str, environ: dict[str, str]) -> dict[str, Any]:
    """What kubectl makes of the same files."""
    program = Path(sys.executable).with_name("kubectl")
    command = [str(program), "config", "view", "--minify", "--raw", "-o", "json", *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    view: dict[str, Any] = json.loads(done.stdout)
    return view


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one"), ("two",), ("three", "one", "two")], ids=str)
@pytest.mark.parametrize("context", ["", "late", "ctx"])
def test_kubectl_agrees(tmp_path: Path, order: tuple[str, ...], context: str) -> None:
    one = sample(cluster={"certificate-authority": "ca.crt"}, user={"token": "first"})
    two = sample(
        cluster={"server": "https://other", "tls-server-name": "x"}, user={"token": "second"}, context={"namespace": "two"}
    )
    two["current-context"] = "late"
    two["contexts"].append({"name": "late", "context": {"cluster": "c2", "user": "u", "namespace": "late"}})
    two["clusters"].append({"name": "c2", "cluster": {"server": "https://two/prefix"}})
    three = {"apiVersion": "v1", "kind": "Config", "clusters": None, "contexts": None, "users": None}
    for name, content in (("one", one), ("two", two), ("three", three)):
        write(tmp_path / name / "config", content)
        write(tmp_path / name / "ca.crt", PEM.decode())
    files = os.pathsep.join(str(tmp_path / name / "config") for name in order)
    environ = {"KUBECONFIG": files, "HOME": str(tmp_path)}
    config = load(environ=environ, home=tmp_path, context=context)
    view = kubectl_view(*(["--context", context] if context else []), environ=environ)
    cluster, user, chosen = view["clusters"][0]["cluster"], view["users"][0]["user"], view["contexts"][0]
    assert config.context == chosen["name"]
    assert config.server == cluster["server"]
    assert config.namespace == chosen["context"].get("namespace", "default")
    assert config.auth.token == user["token"]
    assert config.tls.server_name == cluster.get("tls-server-name", "")
    # kubectl shows a path as it is written; where it leads is in `test_paths_are_relative_to_the_file`.
    assert Path(str(config.tls.ca or "")).name == cluster.get("certificate-authority", "")


def test_kubectl_reads_what_we_write(tmp_path: Path) -> None:
    target = tmp_path / "kubeconfig"
    write_kubeconfig(target, server="https://127.0.0.1:6443", ca=PEM, token="sesame", namespace="team", name="here", user="me")
    view = kubectl_view("--kubeconfig", str(target), environ={"HOME": str(tmp_path)})
    assert view["current-context"] == "here"
    assert view["clusters"] == [
        {"name": "here", "cluster": {"server": "https://127.0.0.1:6443", "certificate-authority-data": b64(PEM)}}
    ]
    assert view["users"] == [{"name": "me", "user": {"token": "sesame"}}]
    assert view["contexts"] == [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "team"}}]
