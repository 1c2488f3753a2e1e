"""`muster domain`: the parties, and the tokens with which their nodes join."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from muster.cli.errors import CliError, ExitCode, UsageError
from muster.cli.framework import Entry, LazyGroup, State, command, common_options, state_of
from muster.cli.join_tokens import TOKEN_HEADERS, WRITE_TRIES_MAX, say_how_to_join, token_rows
from muster.cli.options import Target, machine_output, target_options

if TYPE_CHECKING:
    from muster.cli.session import Session
    from muster.objects.resources import Resource
    from muster.objects.status import Raw

PAGE_LEN = 500
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@click.group(
    "domain",
    cls=LazyGroup,
    entries={
        "list": Entry(__name__, "list_domains", "List the parties with their nodes and quotas."),
        "get": Entry(__name__, "get_domain", "Show one party: nodes, quota, tokens, conditions."),
        "token": Entry(__name__, "token", "Make, list and revoke the tokens with which nodes join."),
    },
    short_help="Parties, and the tokens with which their nodes join.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def domain() -> None:
    """Parties, and the tokens with which their nodes join."""


@click.group(
    "token",
    cls=LazyGroup,
    entries={
        "create": Entry(__name__, "create_token", "Make a token and show it, this once."),
        "list": Entry(__name__, "list_tokens", "List a party's tokens, masked."),
        "revoke": Entry(__name__, "revoke_token", "Make a token useless for good."),
    },
    short_help="Make, list and revoke the tokens with which nodes join.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def token() -> None:
    """Make, list and revoke the tokens with which a party's nodes join."""


domain.params.extend(common_options())
token.params.extend(common_options())


# -- parties ------------------------------------------------------------------------------------------------------------------


async def _resource(s: Session) -> Resource:
    return await s.client.resource("kuscia.secretflow", "Domain")


async def _list(target: Target, state: State, output: str | None) -> None:
    from muster.cli.output import emit, print_objects, simple_table
    from muster.cli.session import session

    found: list[Raw] = []
    async with session(target, state) as s:
        resource, after = await _resource(s), ""
        while True:
            page = await s.client.list(resource, limit=PAGE_LEN, continue_token=after)
            found += page.items
            after = page.continue_token
            if not after:
                break
    if output:
        items = [{"apiVersion": resource.api_version, "kind": resource.kind, **item} for item in found]
        print_objects(items, output, single=False)
    elif not found:
        click.echo("there are no parties; create objects of kind Domain", err=True)
    else:
        emit(simple_table(["NAME", "ROLE", "READY", "NODES", "QUOTA", "AGE"], map(_row, found)))


def _row(raw: Raw) -> list[str]:
    from muster.objects.ages import since
    from muster.objects.conditions import find_condition
    from muster.objects.meta import metadata_of, name_of
    from muster.objects.rules.report import obj, text
    from muster.objects.time import wall_clock

    status = obj(raw, "status")
    nodes = _entries(status.get("nodeStatuses"))
    up = sum(1 for node in nodes if node.get("status") == "Ready")
    ready = find_condition(status.get("conditions"), "Ready") or {}
    age = since(metadata_of(raw).get("creationTimestamp"), wall_clock())
    shown = "True" if ready.get("status") == "True" else str(ready.get("reason") or "Unknown")
    return [name_of(raw), text(obj(raw, "spec"), "role") or "own", shown, f"{up}/{len(nodes)}", _quota(status), age]


def _quota(status: Raw) -> str:
    """`cpu 2/4, pods 1/3`: used of allowed."""
    from muster.objects.rules.report import obj

    figures = obj(status, "resourceQuota")
    used = obj(figures, "used")
    return ", ".join(f"{name} {used.get(name, 0)}/{cap}" for name, cap in sorted(obj(figures, "hard").items()))


def _entries(value: object) -> list[Raw]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


async def _get(target: Target, state: State, name: str, output: str | None) -> None:
    from muster.cli.output import emit, print_objects
    from muster.cli.session import session

    async with session(target, state) as s:
        raw = await s.client.get(await _resource(s), name)
    if output:
        print_objects([raw], output, single=True)
    else:
        emit("\n".join(_described(raw)))


def _described(raw: Raw) -> list[str]:
    from muster.cli.output import simple_table
    from muster.objects.meta import name_of
    from muster.objects.rules.report import obj, text, texts

    spec, status = obj(raw, "spec"), obj(raw, "status")
    lines = [
        f"Name:       {name_of(raw)}",
        f"Role:       {text(spec, 'role') or 'own'}",
        f"Master:     {text(spec, 'master') or name_of(raw)}",
        f"Protocols:  {', '.join(texts(spec, 'interConnProtocols')) or 'none'}",
        f"Quota:      {_quota(status) or 'none'}",
    ]
    conditions = _entries(status.get("conditions"))
    if conditions:
        rows = [[c.get("type"), c.get("status"), c.get("reason"), c.get("message")] for c in conditions]
        lines += ["", simple_table(["CONDITION", "STATUS", "REASON", "MESSAGE"], rows)]
    nodes = _entries(status.get("nodeStatuses"))
    if nodes:
        rows = [[n.get("name"), n.get("status"), n.get("version"), n.get("lastHeartbeatTime")] for n in nodes]
        lines += ["", simple_table(["NODE", "STATUS", "VERSION", "LAST HEARTBEAT"], rows)]
    tokens = token_rows(status.get("deployTokenStatuses"))
    if tokens:
        lines += ["", simple_table(TOKEN_HEADERS, tokens)]
    return lines


# -- tokens -------------------------------------------------------------------------------------------------------------------


def lifetime_s(text: str) -> int:
    """`30m`, `24h`, `7d`. UsageError for anything else."""
    figure, unit = text[:-1], text[-1:]
    if not (figure.isascii() and figure.isdecimal() and len(figure) <= 9 and unit in _UNITS_S):
        raise UsageError(f"--expires: {text[:40]!r} is no length of time; write it like 30m, 24h or 7d")
    return int(figure) * _UNITS_S[unit]


async def _change_tokens(s: Session, name: str, change: Callable[[object], list[Raw]]) -> None:
    """Write the tokens that `change` makes of those that are there; again from the new ones if somebody was quicker."""
    from muster.controllers.domain_tokens import TokenProblem
    from muster.objects.meta import resource_version_of, uid_of
    from muster.objects.rules.report import obj
    from muster.objects.status import Conflict, NotFound

    resource = await _resource(s)
    for attempt in range(WRITE_TRIES_MAX):
        try:
            raw = await s.client.get(resource, name)
        except NotFound:
            hint = f"there is no party {name}; create the Domain {name} first, or see 'muster domain list'"
            raise CliError(hint, ExitCode.NOT_FOUND) from None
        try:
            tokens = change(obj(raw, "status").get("deployTokenStatuses"))
        except TokenProblem as problem:
            raise CliError(f"domain {name}: {problem}", ExitCode.FAILURE) from None
        fixed = {"uid": uid_of(raw), "resourceVersion": resource_version_of(raw)}
        patch = {"metadata": fixed, "status": {"deployTokenStatuses": tokens}}
        try:
            await s.client.patch(resource, name, patch, None, subresource="status")
            return
        except Conflict:
            if attempt == WRITE_TRIES_MAX - 1:
                raise


async def _create_token(target: Target, state: State, name: str, lives_s: int, uses: int) -> None:
    from muster.cli.output import emit
    from muster.cli.session import session
    from muster.controllers.domain_tokens import ENTROPY_BYTES, mint, new_join_token
    from muster.objects.time import format_time, wall_clock

    clear, now = new_join_token(os.urandom(ENTROPY_BYTES)), wall_clock()
    async with session(target, state) as s:
        await _change_tokens(s, name, lambda tokens: mint(tokens, clear, now, lifetime_s=lives_s, max_uses=uses))
        emit(clear)
        await say_how_to_join(s, clear, name)
    what = "one node" if uses == 1 else f"{uses} nodes"
    click.echo(f"good for {what} of {name} until {format_time(now + lives_s)}; it is not shown again", err=True)


async def _list_tokens(target: Target, state: State, name: str, output: str | None) -> None:
    from muster.cli.output import emit, render_value, simple_table
    from muster.cli.session import session
    from muster.objects.rules.report import obj

    async with session(target, state) as s:
        raw = await s.client.get(await _resource(s), name)
    rows = token_rows(obj(raw, "status").get("deployTokenStatuses"))
    if output:
        keys = [header.lower() for header in TOKEN_HEADERS]
        emit(render_value({"items": [dict(zip(keys, row, strict=True)) for row in rows]}, output))
    elif not rows:
        click.echo(f"{name} has no tokens; make one with: muster domain token create {name}", err=True)
    else:
        emit(simple_table(TOKEN_HEADERS, rows))


async def _revoke_token(target: Target, state: State, name: str, which: str) -> None:
    from muster.cli.output import emit
    from muster.cli.session import session
    from muster.controllers.domain_tokens import revoke, token_id_of
    from muster.objects.time import wall_clock

    async with session(target, state) as s:
        await _change_tokens(s, name, lambda tokens: revoke(tokens, which, wall_clock()))
    emit(f"token {token_id_of(which)} of {name} is revoked; nodes that joined with it stay (muster node forget takes one out)")


# -- commands -----------------------------------------------------------------------------------------------------------------


@command("list", "List the parties with their nodes and quotas.")
@machine_output
@target_options(namespace=False)
@click.pass_context
def list_domains(ctx: click.Context, *, target: Target, output: str | None) -> None:
    """List the parties: whether each is ready, how many of its nodes are, and what it uses of its quota."""
    from muster.cli.session import run

    run(_list(target, state_of(ctx), output))


@command("get", "Show one party: nodes, quota, tokens, conditions.")
@click.argument("name", metavar="DOMAIN")
@machine_output
@target_options(namespace=False)
@click.pass_context
def get_domain(ctx: click.Context, *, target: Target, name: str, output: str | None) -> None:
    """Show the party DOMAIN: its nodes, its quota and what it uses of it, its tokens (masked) and its conditions."""
    from muster.cli.session import run

    run(_get(target, state_of(ctx), name, output))


@command("create", "Make a token and show it, this once.")
@click.argument("name", metavar="DOMAIN")
@click.option("--expires", metavar="TIME", default="24h", show_default=True, help="How long it can be used: 30m, 24h, 7d.")
@click.option("--uses", metavar="N", type=int, default=1, show_default=True, help="How many nodes may join with it.")
@target_options(namespace=False)
@click.pass_context
def create_token(ctx: click.Context, *, target: Target, name: str, expires: str, uses: int) -> None:
    """Make a token with which a node of DOMAIN can join, print it, and say how to use it.

    Only its hash is kept: it can't be shown again, only revoked.
    """
    from muster.cli.session import run

    run(_create_token(target, state_of(ctx), name, lifetime_s(expires), uses))


@command("list", "List a party's tokens, masked.")
@click.argument("name", metavar="DOMAIN")
@machine_output
@target_options(namespace=False)
@click.pass_context
def list_tokens(ctx: click.Context, *, target: Target, name: str, output: str | None) -> None:
    """List the tokens of DOMAIN: unused, used, revoked or expired. Only the part that names a token is shown."""
    from muster.cli.session import run

    run(_list_tokens(target, state_of(ctx), name, output))


@command("revoke", "Make a token useless for good.")
@click.argument("name", metavar="DOMAIN")
@click.argument("which", metavar="TOKEN")
@target_options(namespace=False)
@click.pass_context
def revoke_token(ctx: click.Context, *, target: Target, name: str, which: str) -> None:
    """Make a token of DOMAIN useless for good. TOKEN is its id, as `list` shows it, or the whole token."""
    from muster.cli.session import run

    run(_revoke_token(target, state_of(ctx), name, which))
