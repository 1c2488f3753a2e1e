"""Where a server is and how to talk to it: plain values that `kubeconfig` makes and `transport` uses.

Pure, and free of any HTTP library. Secrets stay out of every `repr`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

Pem = bytes | Path
"""Certificates or a key: inline, or a file that is read again when it changes (rotated certificates)."""

InteractiveMode = Literal["Never", "IfAvailable", "Always"]


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """`ca` None means the system's trust store; `server_name` replaces the URL's host in SNI and in the check of the name."""

    ca: Pem | None = None
    verify: bool = True
    server_name: str = ""
    client_certificate: Pem | None = None
    client_key: Pem | None = None

    def __repr__(self) -> str:
        has_certificate = self.client_certificate is not None
        return f"Tls(verify={self.verify}, server_name={self.server_name!r}, client_certificate={has_certificate})"


class ExecPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """A program that prints an ExecCredential. A `command` with a slash is already resolved against its kubeconfig."""

    api_version: str
    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: InteractiveMode = "IfAvailable"
    cluster_config: Any = None
    """The cluster's extension `client.authentication.k8s.io/exec`, passed on when `provide_cluster_info` is set."""

    def __repr__(self) -> str:
        return f"ExecPlugin({self.command!r})"


class Auth(msgspec.Struct, frozen=True, kw_only=True):
    """At most one way, as kubectl demands; none at all is an anonymous request (or a client certificate, in `Tls`)."""

    token: str = ""
    token_file: Path | None = None
    username: str = ""
    password: str = ""
    exec_plugin: ExecPlugin | None = None

    def __repr__(self) -> str:
        ways = [("token", self.token), ("token_file", self.token_file), ("basic", self.username), ("exec", self.exec_plugin)]
        return f"Auth({', '.join(name for name, value in ways if value) or 'anonymous'})"


class Impersonation(msgspec.Struct, frozen=True, kw_only=True):
    """Act as somebody else, if RBAC allows `impersonate`."""

    user: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class ClientConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One server, one identity. `source` says where this came from, for messages."""

    server: str
    """`https://host:port`, perhaps with a path prefix; no trailing slash."""
    namespace: str = "default"
    """What a command uses when the user names none; the client's own methods never assume it."""
    tls: Tls = Tls()
    auth: Auth = Auth()
    impersonate: Impersonation = Impersonation()
    proxy_url: str = ""
    """Wins over HTTPS_PROXY and HTTP_PROXY of the environment."""
    compression: bool = True
    source: str = "explicit configuration"
    context: str = ""
