"""What the commands around joining share: the command that a machine joins with, and the tokens of nodes of no party."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from muster.cli.errors import CliError, ExitCode

if TYPE_CHECKING:
    from muster.cli.session import Session
    from muster.objects.status import Raw

WRITE_TRIES_MAX = 5
TOKEN_HEADERS = ["TOKEN", "STATE", "USES", "CREATED", "EXPIRES"]


def ca_hash(pem: bytes) -> str:
    """As `muster agent --ca-hash` takes it: of the certificate itself, whatever its PEM looks like."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    der = x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
    return f"sha256:{hashlib.sha256(der).hexdigest()}"


def join_command(server: str, token: str, domain: str, hashed: str) -> str:
    words = ["muster", "agent", "--join", server, "--token", token, "--ca-hash", hashed]
    if domain:
        words += ["--domain", domain]
    return shlex.join(words)


async def say_how_to_join(s: Session, token: str, domain: str) -> None:
    """On stderr: stdout has the token alone, for scripts."""
    from muster.client.urls import is_loopback, split_server
    from muster.objects.status import ApiError

    try:
        pem = await s.client.join_ca()
        command = join_command(s.client.transport.config.server, token, domain, ca_hash(pem))
    except (ApiError, ValueError):
        click.echo(
            "this server takes no nodes by token (a Kubernetes cluster?); there, start: muster agent --kubeconfig FILE",
            err=True,
        )
        return
    click.echo(f"on the machine that is to join:\n\n  {command}\n", err=True)
    if is_loopback(split_server(s.client.transport.config.server)[1]):
        click.echo(
            "only this machine reaches that address; for others, start the control plane with --listen HOST:PORT", err=True
        )


def token_rows(listed: object) -> list[list[str]]:
    from muster.controllers.domain_tokens import entries, masked, state_of
    from muster.objects.rules.report import number, text
    from muster.objects.time import wall_clock

    now = wall_clock()
    return [
        [
            # Masked again: another system may have left a token here in clear.
            masked(text(entry, "token")),
            state_of(entry, now),
            f"{number(entry, 'uses')}/{number(entry, 'maxUses') or 1}",
            text(entry, "creationTime"),
            text(entry, "expirationTime"),
        ]
        for entry in entries(listed)
    ]


async def node_tokens(s: Session) -> list[Raw]:
    from muster.controllers import node_tokens as kept
    from muster.objects.status import NotFound

    try:
        return kept.tokens_in(await s.client.get(await s.client.resource("", "Secret"), kept.SECRET, kept.NAMESPACE))
    except NotFound:
        return []


async def change_node_tokens(s: Session, change: Callable[[object], list[Raw]]) -> None:
    """Write the tokens that `change` makes of those that are there; again from the new ones if somebody was quicker."""
    from muster.controllers import node_tokens as kept
    from muster.controllers.domain_tokens import TokenProblem
    from muster.objects.meta import resource_version_of, uid_of
    from muster.objects.status import AlreadyExists, Conflict, NotFound

    secrets = await s.client.resource("", "Secret")
    for attempt in range(WRITE_TRIES_MAX):
        try:
            raw: Raw | None = await s.client.get(secrets, kept.SECRET, kept.NAMESPACE)
        except NotFound:
            raw = None
        try:
            tokens = change(kept.tokens_in(raw))
        except TokenProblem as problem:
            raise CliError(str(problem), ExitCode.FAILURE) from None
        try:
            if raw is None:
                await s.client.create(secrets, kept.secret_with(tokens), kept.NAMESPACE)
            else:
                fixed = {"uid": uid_of(raw), "resourceVersion": resource_version_of(raw)}
                patch = {"metadata": fixed, "data": kept.data_with(tokens)}
                await s.client.patch(secrets, kept.SECRET, patch, kept.NAMESPACE)
            return
        except (AlreadyExists, Conflict):
            if attempt == WRITE_TRIES_MAX - 1:
                raise
