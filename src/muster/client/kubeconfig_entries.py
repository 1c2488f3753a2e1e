"""From the entries of a kubeconfig to one connection: checks that name the field, paths resolved, secrets decoded.

Reads certificate files once, to refuse a broken configuration before the first request; otherwise pure.
"""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path

import msgspec

from muster.client.config import Auth, ExecPlugin, Impersonation, Pem, Tls
from muster.client.kubeconfig_file import Cluster, Exec, KubeconfigError, User
from muster.client.urls import UrlError, check_proxy_url, split_server

EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
EXEC_EXTENSION = "client.authentication.k8s.io/exec"


class Where(msgspec.Struct, frozen=True):
    """Where an entry stands, for resolving paths and for messages."""

    file: Path
    label: str

    def fail(self, field: str, problem: str) -> KubeconfigError:
        return KubeconfigError(f"{self.label}: {field}: {problem}")

    def path(self, text: str) -> Path:
        return self.file.parent / Path(text)

    def pem(self, field: str, path: str, data: str) -> Pem | None:
        """Inline data wins over a file, as in kubectl. The file must be readable now; it is read again when it changes."""
        if data:
            try:
                decoded = base64.b64decode("".join(data.split()), validate=True)
            except (binascii.Error, ValueError) as error:
                raise self.fail(f"{field}-data", f"is not base64: {error}") from error
            if b"-----BEGIN" not in decoded:
                raise self.fail(f"{field}-data", "decodes to something that is not PEM; encode the whole PEM file with base64")
            return decoded
        if not path:
            return None
        resolved = self.path(path)
        try:
            content = resolved.read_bytes()
        except OSError as error:
            raise self.fail(field, f"cannot read {resolved}: {error.strerror or error}") from error
        if b"-----BEGIN" not in content:
            raise self.fail(field, f"{resolved} is not PEM")
        return resolved


def server_of(cluster: Cluster, at: Where, *, has_tls: bool) -> str:
    if not cluster.server:
        raise at.fail("server", "is empty; it must be a URL like https://host:6443")
    try:
        url, _ = split_server(cluster.server, default_scheme="https" if has_tls else "http")
    except UrlError as error:
        raise at.fail("server", str(error)) from error
    return url


def proxy_of(cluster: Cluster, at: Where) -> str:
    if cluster.proxy_url:
        try:
            check_proxy_url(cluster.proxy_url)
        except UrlError as error:
            raise at.fail("proxy-url", str(error)) from error
    return cluster.proxy_url


def tls_of(cluster: Cluster, at_cluster: Where, user: User, at_user: Where) -> Tls:
    ca = at_cluster.pem("certificate-authority", cluster.certificate_authority, cluster.certificate_authority_data)
    if ca is not None and cluster.insecure_skip_tls_verify:
        raise at_cluster.fail(
            "insecure-skip-tls-verify", "is set beside certificate-authority; take one away, they contradict each other"
        )
    certificate = at_user.pem("client-certificate", user.client_certificate, user.client_certificate_data)
    key = at_user.pem("client-key", user.client_key, user.client_key_data)
    if (certificate is None) != (key is None):
        missing = "client-key" if key is None else "client-certificate"
        raise at_user.fail(missing, f"is missing; a client certificate needs {missing} or {missing}-data too")
    return Tls(
        ca=ca,
        verify=not cluster.insecure_skip_tls_verify,
        server_name=cluster.tls_server_name,
        client_certificate=certificate,
        client_key=key,
    )


def auth_of(user: User, at: Where, cluster: Cluster) -> Auth:
    if user.auth_provider is not None:
        name = user.auth_provider.get("name", "")
        raise at.fail("auth-provider", f'"{name}": kubectl no longer has these; use an exec plugin instead')
    has_token, has_password = bool(user.token or user.token_file), bool(user.username or user.password)
    if has_token and has_password:
        raise at.fail("token and username", "only one way to authenticate may be given; take the other away")
    if user.password and not user.username:
        raise at.fail("username", "is empty although there is a password")
    token_file = at.path(user.token_file) if user.token_file else None
    if token_file is not None and not user.token and not token_file.is_file():
        raise at.fail("tokenFile", f"{token_file} does not exist")
    if any(ord(char) < 33 or ord(char) > 126 for char in user.token):
        raise at.fail("token", "holds white space or characters that an HTTP header cannot carry")
    # As in kubectl: credentials that are there already make the plugin unnecessary.
    plugin = _exec(user.exec, at, cluster) if user.exec is not None and not (has_token or has_password) else None
    return Auth(token=user.token, token_file=token_file, username=user.username, password=user.password, exec_plugin=plugin)


def _exec(entry: Exec, at: Where, cluster: Cluster) -> ExecPlugin:
    if entry.api_version not in EXEC_VERSIONS:
        raise at.fail("exec.apiVersion", f'"{entry.api_version}" is not supported; use {EXEC_VERSIONS[0]}')
    if not entry.command:
        raise at.fail("exec.command", "is empty; name the program that prints the credential")
    mode = entry.interactive_mode
    if mode is None:
        if entry.api_version == EXEC_VERSIONS[0]:
            raise at.fail(
                "exec.interactiveMode", "is required with client.authentication.k8s.io/v1: Never, IfAvailable or Always"
            )
        mode = "IfAvailable"
    if any(not variable.name for variable in entry.env):
        raise at.fail("exec.env", "has an entry without a name")
    # A name without a slash is looked up in PATH when it is run; anything else is relative to the file.
    command = str(at.path(entry.command)) if "/" in entry.command or os.sep in entry.command else entry.command
    return ExecPlugin(
        api_version=entry.api_version,
        command=command,
        args=tuple(entry.args),
        env=tuple((variable.name, variable.value) for variable in entry.env),
        install_hint=entry.install_hint,
        provide_cluster_info=entry.provide_cluster_info,
        interactive_mode=mode,
        cluster_config=next((e.extension for e in cluster.extensions if e.name == EXEC_EXTENSION), None),
    )


def impersonation_of(user: User, at: Where) -> Impersonation:
    extra = tuple((key, tuple(values)) for key, values in user.as_user_extra.items())
    if (user.as_uid or user.as_groups or extra) and not user.as_user:
        raise at.fail("as", "is empty, but as-uid, as-groups or as-user-extra is set; they need a user to go with")
    return Impersonation(user=user.as_user, uid=user.as_uid, groups=tuple(user.as_groups), extra=extra)
