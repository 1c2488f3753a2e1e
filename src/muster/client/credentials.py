"""What proves who we are, fresh for every request: a fixed token, a token file, a password, or an exec plugin.

One `Credentials` belongs to one client on one event loop. A token file is read again after `TOKEN_FILE_S`. A plugin runs once
for all requests that wait for it, its answer is kept until it expires or the server refuses it, and neither a good nor a bad
run is repeated within `PLUGIN_SPACING_S`. A plugin has a bounded run time and a bounded output.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from muster.client.config import Auth, ClientConfig, ExecPlugin, Tls
from muster.client.errors import CredentialError, snippet
from muster.objects.time import Clock, parse_time

TOKEN_FILE_S = 10.0
PLUGIN_TIMEOUT_S = 60.0
PLUGIN_INTERACTIVE_TIMEOUT_S = 300.0
PLUGIN_SPACING_S = 5.0
PLUGIN_OUTPUT_BYTES_MAX = 1024 * 1024
EXPIRY_MARGIN_S = 10.0
"""A credential is renewed this long before it expires, so that it does not expire on its way."""


class Credential(msgspec.Struct, frozen=True):
    """`authorization` is the header's value ("" for none); `certificate` a PEM certificate and key from a plugin."""

    authorization: str = ""
    certificate: tuple[bytes, bytes] | None = None

    def __repr__(self) -> str:
        return f"Credential(authorization={bool(self.authorization)}, certificate={self.certificate is not None})"


class _Status(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    status: _Status | None = None


class Credentials:
    """`current()` gives what to send now; `refused()` says that the server did not accept it."""

    def __init__(
        self,
        config: ClientConfig,
        clock: Clock,
        *,
        environ: Mapping[str, str] = os.environ,
        plugin_timeout_s: float = PLUGIN_TIMEOUT_S,
    ) -> None:
        self._config = config
        self._auth: Auth = config.auth
        self._clock = clock
        self._environ = environ
        self._plugin_timeout_s = plugin_timeout_s
        self._lock = asyncio.Lock()
        self._fixed = _fixed(config.auth)
        self._cached: Credential | None = None
        self._failure: CredentialError | None = None
        self._fresh_until = float("-inf")
        """By the clock: while it lasts, `_cached` or `_failure` stands."""
        self._renewed_at = float("-inf")

    async def current(self) -> Credential:
        """Raises CredentialError when there is nothing to send."""
        if self._fixed is not None:
            return self._fixed
        if not self._is_fresh():
            async with self._lock:
                if not self._is_fresh():
                    await self._renew()
        if self._failure is not None:
            raise self._failure
        assert self._cached is not None
        return self._cached

    def refused(self, credential: Credential) -> bool:
        """The server answered 401 to `credential`. True when another try may go better, because a new one can be had."""
        if self._fixed is not None:
            return False
        if credential is self._cached:
            self._fresh_until = float("-inf")
        return True

    def _is_fresh(self) -> bool:
        """A clock that was set back makes nothing fresh for longer: what was had in its future is had anew."""
        is_known = self._cached is not None or self._failure is not None
        return is_known and self._renewed_at <= self._clock() < self._fresh_until

    async def _renew(self) -> None:
        try:
            await self._try_to_renew()
        finally:
            self._renewed_at = self._clock()

    async def _try_to_renew(self) -> None:
        try:
            if self._auth.exec_plugin is not None:
                self._cached, expires_at = await self._run_plugin(self._auth.exec_plugin)
                soonest = self._clock() + PLUGIN_SPACING_S
                self._fresh_until = max(soonest, expires_at - EXPIRY_MARGIN_S)
            else:
                self._cached = self._read_token_file()
                self._fresh_until = self._clock() + TOKEN_FILE_S
            self._failure = None
        except CredentialError as error:
            # Hundreds of requests may be waiting: they share this failure instead of each starting the plugin anew.
            self._failure = error
            self._fresh_until = self._clock() + PLUGIN_SPACING_S

    def _read_token_file(self) -> Credential:
        path = self._auth.token_file
        assert path is not None
        try:
            token = path.read_text(encoding="ascii").strip()
            problem = "is empty" if not token else ""
        except (OSError, UnicodeDecodeError) as error:
            token, problem = "", f"cannot be read: {error}"
        if token:
            same = self._cached is not None and self._cached.authorization == f"Bearer {token}"
            return self._cached if same and self._cached is not None else Credential(f"Bearer {token}")
        if self._cached is not None:
            return self._cached  # being rotated: the last one read is still the best one
        if self._auth.token:
            return Credential(f"Bearer {self._auth.token}")
        raise CredentialError(f"tokenFile {path} {problem}; {self._config.source}")

    async def _run_plugin(self, plugin: ExecPlugin) -> tuple[Credential, float]:
        """The credential, and the instant at which it expires."""
        is_interactive = plugin.interactive_mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
        if plugin.interactive_mode == "Always" and not is_interactive:
            raise CredentialError(f"exec plugin {plugin.command} must talk to a user, and there is no terminal; log in first")
        info = await asyncio.to_thread(exec_info, plugin, self._config, is_interactive)
        environ = {**self._environ, **dict(plugin.env), "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
        timeout_s = PLUGIN_INTERACTIVE_TIMEOUT_S if is_interactive else self._plugin_timeout_s
        output, complaint = await _run(plugin, environ, is_interactive=is_interactive, timeout_s=timeout_s)
        try:
            return read_exec_credential(plugin, output)
        except CredentialError as error:
            if said := snippet(complaint):
                raise CredentialError(f"{error}; it said: {said}") from error
            raise


def _fixed(auth: Auth) -> Credential | None:
    """The credential that never changes, or None when there is a file or a plugin to ask."""
    if auth.token_file is not None:
        return None
    if auth.token:
        return Credential(f"Bearer {auth.token}")
    if auth.username:
        pair = base64.b64encode(f"{auth.username}:{auth.password}".encode()).decode()
        return Credential(f"Basic {pair}")
    return None if auth.exec_plugin is not None else Credential()


def exec_info(plugin: ExecPlugin, config: ClientConfig, is_interactive: bool) -> dict[str, Any]:
    """What the plugin finds in KUBERNETES_EXEC_INFO. Reads the CA file, if there is one."""
    spec: dict[str, Any] = {"interactive": is_interactive}
    if plugin.provide_cluster_info:
        tls: Tls = config.tls
        cluster: dict[str, Any] = {"server": config.server}
        if tls.server_name:
            cluster["tls-server-name"] = tls.server_name
        if not tls.verify:
            cluster["insecure-skip-tls-verify"] = True
        if tls.ca is not None:
            ca = tls.ca if isinstance(tls.ca, bytes) else tls.ca.read_bytes()
            cluster["certificate-authority-data"] = base64.b64encode(ca).decode("ascii")
        if config.proxy_url:
            cluster["proxy-url"] = config.proxy_url
        if plugin.cluster_config is not None:
            cluster["config"] = plugin.cluster_config
        spec["cluster"] = cluster
    return {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}


def read_exec_credential(plugin: ExecPlugin, output: bytes) -> tuple[Credential, float]:
    """What the plugin printed, checked, and when it expires (infinity when it does not say)."""
    label = f"exec plugin {plugin.command}"
    try:
        answer = msgspec.json.decode(output, type=_ExecCredential)
    except msgspec.DecodeError as error:
        # Never quote the output: a token may be in it.
        raise CredentialError(f"{label} printed no ExecCredential: {error}") from error
    if answer.kind != "ExecCredential" or answer.api_version != plugin.api_version:
        raise CredentialError(
            f"{label} answered with {answer.kind} {answer.api_version}; the kubeconfig asks for {plugin.api_version}"
        )
    status = answer.status or _Status()
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise CredentialError(f"{label} gave only one of clientCertificateData and clientKeyData; it must give both")
    if not status.token and not status.client_certificate_data:
        raise CredentialError(f"{label} gave neither status.token nor a client certificate")
    if any(ord(char) < 33 or ord(char) > 126 for char in status.token):
        raise CredentialError(f"{label} gave a token with characters that an HTTP header cannot carry")
    expires_at = float("inf")
    if status.expiration_timestamp:
        try:
            expires_at = parse_time(status.expiration_timestamp)
        except ValueError as error:
            raise CredentialError(f"{label}: status.expirationTimestamp: {error}") from error
    certificate = (status.client_certificate_data.encode(), status.client_key_data.encode())
    return (
        Credential(f"Bearer {status.token}" if status.token else "", certificate if status.client_key_data else None),
        expires_at,
    )


async def _run(
    plugin: ExecPlugin, environ: Mapping[str, str], *, is_interactive: bool, timeout_s: float
) -> tuple[bytes, bytes]:
    """What the plugin printed, and what it said on standard error unless a user saw that.

    It is killed, with what it started, when it takes too long or prints too much.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.args,
            stdin=None if is_interactive else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=None if is_interactive else asyncio.subprocess.PIPE,
            env=dict(environ),
            # Its own group, so that all of it can be ended; a plugin that talks to the user must keep the terminal.
            start_new_session=not is_interactive,
        )
    except OSError as error:
        hint = f"; {plugin.install_hint.strip()}" if plugin.install_hint else "; is it installed and in PATH?"
        raise CredentialError(f"exec plugin {plugin.command} cannot be started: {error.strerror or error}{hint}") from error
    try:
        async with asyncio.timeout(timeout_s):
            output, complaint = await asyncio.gather(_read(process.stdout), _read(process.stderr))
            code = await process.wait()
    except TimeoutError:
        raise CredentialError(f"exec plugin {plugin.command} did not finish within {timeout_s:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                if is_interactive:
                    process.kill()
                else:
                    os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if code != 0:
        raise CredentialError(
            f"exec plugin {plugin.command} failed with exit code {code}: {snippet(complaint) or 'no message'}"
        )
    if len(output) > PLUGIN_OUTPUT_BYTES_MAX:
        raise CredentialError(f"exec plugin {plugin.command} printed more than {PLUGIN_OUTPUT_BYTES_MAX >> 20} MiB")
    return output, complaint


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    """Up to one byte over the limit; the rest is read and dropped, so that the program is not blocked on a full pipe."""
    kept = bytearray()
    while stream is not None and (chunk := await stream.read(65536)):
        kept += chunk[: PLUGIN_OUTPUT_BYTES_MAX + 1 - len(kept)]
    return bytes(kept)
