"""`muster node list`, `muster node forget` and `muster node token`: which machines are nodes, and which no longer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import click

from muster.cli.errors import CliError, ExitCode
from muster.cli.framework import Entry, LazyGroup, State, command, common_options, state_of
from muster.cli.join_tokens import TOKEN_HEADERS
from muster.cli.options import Target, machine_output, target_options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from muster.cli.session import Session
    from muster.objects.status import Raw

PAGE_LEN = 500
LEASE_S_DEFAULT = 40
HEADERS = ["NAME", "PARTY", "READY", "LAST HEARD", "PODS", "FENCE", "AGENT"]


@click.group(
    "token",
    cls=LazyGroup,
    entries={
        "create": Entry(__name__, "create_token", "Make a token and show it, this once."),
        "list": Entry(__name__, "list_tokens", "List the tokens for nodes of no party, masked."),
        "revoke": Entry(__name__, "revoke_token", "Make a token useless for good."),
    },
    short_help="Tokens with which nodes of no party join.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def token() -> None:
    """Make, list and revoke the tokens with which nodes of no party join. Those of a party: muster domain token."""


token.params.extend(common_options())


# -- nodes --------------------------------------------------------------------------------------------------------------------


class Heard(NamedTuple):
    """How long ago an agent renewed its lease; None when it has none."""

    ago_s: float | None
    is_alive: bool


async def _pages(s: Session, group: str, kind: str, namespace: str | None = None, field_selector: str = "") -> list[Raw]:
    resource = await s.client.resource(group, kind)
    found: list[Raw] = []
    continue_token = ""
    while True:
        page = await s.client.list(
            resource, namespace, limit=PAGE_LEN, continue_token=continue_token, field_selector=field_selector
        )
        found += page.items
        continue_token = page.continue_token
        if not continue_token:
            return found


def heard(lease: Raw | None, now: float) -> Heard:
    from muster.objects.rules.report import number, obj
    from muster.objects.time import time_or

    spec = obj(lease, "spec")
    renewed = time_or(spec.get("renewTime"), None)
    if renewed is None:
        return Heard(None, False)
    ago_s = max(0.0, now - renewed)
    return Heard(ago_s, ago_s < (number(spec, "leaseDurationSeconds") or LEASE_S_DEFAULT))


def _unfinished(pods: Iterable[Raw]) -> int:
    return sum(1 for pod in pods if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"))


def node_row(node: Raw, lease: Raw | None, pods_len: int, now: float) -> list[str]:
    from muster.objects.ages import human_duration
    from muster.objects.conditions import find_condition
    from muster.objects.labels import KusciaLabel, Muster
    from muster.objects.meta import annotations_of, labels_of, name_of
    from muster.objects.rules.report import obj

    ready = find_condition(obj(node, "status").get("conditions"), "Ready") or {}
    status = str(ready.get("status") or "Unknown")
    ago_s = heard(lease, now).ago_s
    fence = annotations_of(node).get(Muster.FENCE_SECONDS, "")
    return [
        name_of(node),
        labels_of(node).get(KusciaLabel.NODE_DOMAIN, "-"),
        status if status == "True" else f"{status}: {ready.get('reason') or 'not reported'}",
        "never" if ago_s is None else f"{human_duration(ago_s)} ago",
        str(pods_len),
        f"{fence}s" if fence else "none",
        labels_of(node).get(Muster.AGENT, "-"),
    ]


async def _list(target: Target, state: State, output: str | None) -> None:
    from muster.cli.output import emit, render_value, simple_table
    from muster.cli.session import session
    from muster.objects.meta import name_of
    from muster.objects.names import NAMESPACE_NODE_LEASE
    from muster.objects.time import wall_clock

    async with session(target, state) as s:
        nodes = await _pages(s, "", "Node")
        leases = {name_of(one): one for one in await _pages(s, "coordination.k8s.io", "Lease", NAMESPACE_NODE_LEASE)}
        counts: dict[str, int] = {}
        for pod in await _pages(s, "", "Pod"):
            where = str((pod.get("spec") or {}).get("nodeName") or "")
            counts[where] = counts.get(where, 0) + _unfinished([pod])
    now = wall_clock()
    rows = [node_row(node, leases.get(name_of(node)), counts.get(name_of(node), 0), now) for node in nodes]
    if output:
        keys = ["name", "party", "ready", "lastHeard", "pods", "fence", "agent"]
        emit(render_value({"items": [dict(zip(keys, row, strict=True)) for row in rows]}, output))
    elif not rows:
        click.echo("there are no nodes; let one join: muster node token create, or muster domain token create DOMAIN", err=True)
    else:
        emit(simple_table(HEADERS, rows))


async def _forget(target: Target, state: State, name: str, *, is_forced: bool) -> None:
    from muster.cli.output import emit
    from muster.cli.session import session
    from muster.objects.ages import human_duration
    from muster.objects.names import NAMESPACE_NODE_LEASE
    from muster.objects.status import NotFound
    from muster.objects.time import wall_clock

    async with session(target, state, show_warnings=False) as s:
        nodes, leases = await s.client.resource("", "Node"), await s.client.resource("coordination.k8s.io", "Lease")
        await s.client.get(nodes, name)
        try:
            lease: Raw | None = await s.client.get(leases, name, NAMESPACE_NODE_LEASE)
        except NotFound:
            lease = None
        count = _unfinished(await _pages(s, "", "Pod", field_selector=f"spec.nodeName={name}"))
        last = heard(lease, wall_clock())
        if last.is_alive and not is_forced:
            assert last.ago_s is not None
            raise CliError(
                f"node {name} is alive: it was heard {human_duration(last.ago_s)} ago, with {count} unfinished pods. "
                "What runs there would go on while it is started again elsewhere. Let its agent leave first (on that "
                "machine: muster agent --leave), or forget it all the same with --force",
                ExitCode.FAILURE,
            )
        await s.client.delete(nodes, name)
        if lease is not None:
            try:
                await s.client.delete(leases, name, NAMESPACE_NODE_LEASE)
            except NotFound:
                state.note(f"the lease of {name} was gone already")
    emit(f"node {name} is forgotten; its certificates are not good any more")
    if count:
        what = "its one unfinished pod counts" if count == 1 else f"its {count} unfinished pods count"
        click.echo(f"{what} as ended and may start elsewhere; make sure that the machine is off or its tasks ended", err=True)


# -- tokens -------------------------------------------------------------------------------------------------------------------


async def _create_token(target: Target, state: State, lives_s: int, uses: int) -> None:
    from muster.cli.join_tokens import change_node_tokens, say_how_to_join
    from muster.cli.output import emit
    from muster.cli.session import session
    from muster.controllers.domain_tokens import ENTROPY_BYTES, mint, new_join_token
    from muster.objects.time import format_time, wall_clock

    clear, now = new_join_token(os.urandom(ENTROPY_BYTES)), wall_clock()
    async with session(target, state) as s:
        await change_node_tokens(s, lambda tokens: mint(tokens, clear, now, lifetime_s=lives_s, max_uses=uses))
        emit(clear)
        await say_how_to_join(s, clear, "")
    what = "one node" if uses == 1 else f"{uses} nodes"
    click.echo(f"good for {what} of no party until {format_time(now + lives_s)}; it is not shown again", err=True)


async def _list_tokens(target: Target, state: State, output: str | None) -> None:
    from muster.cli.join_tokens import node_tokens, token_rows
    from muster.cli.output import emit, render_value, simple_table
    from muster.cli.session import session

    async with session(target, state) as s:
        rows = token_rows(await node_tokens(s))
    if output:
        keys = [header.lower() for header in TOKEN_HEADERS]
        emit(render_value({"items": [dict(zip(keys, row, strict=True)) for row in rows]}, output))
    elif not rows:
        click.echo("there are no tokens for nodes of no party; make one with: muster node token create", err=True)
    else:
        emit(simple_table(TOKEN_HEADERS, rows))


async def _revoke_token(target: Target, state: State, which: str) -> None:
    from muster.cli.join_tokens import change_node_tokens
    from muster.cli.output import emit
    from muster.cli.session import session
    from muster.controllers.domain_tokens import revoke, token_id_of
    from muster.objects.time import wall_clock

    async with session(target, state) as s:
        await change_node_tokens(s, lambda tokens: revoke(tokens, which, wall_clock()))
    emit(f"token {token_id_of(which)} is revoked; nodes that joined with it stay (muster node forget takes one out)")


# -- commands -----------------------------------------------------------------------------------------------------------------


@command("list", "List the nodes: whose they are, how they are, what runs there.")
@machine_output
@target_options(namespace=False)
@click.pass_context
def list_nodes(ctx: click.Context, *, target: Target, output: str | None) -> None:
    """List the nodes: their party, whether they are ready, when their agent was last heard, and how many pods have not ended.

    FENCE is how long after losing the control plane the agent kills its tasks; without one, the work of a silent node is not
    started elsewhere until the node is back or forgotten.
    """
    from muster.cli.session import run

    run(_list(target, state_of(ctx), output))


@command("forget", "Take a node out for good: revoke its certificates, let its work start elsewhere.")
@click.argument("name", metavar="NODE")
@click.option("--force", is_flag=True, help="Also when its agent is alive, and may run its tasks on.")
@target_options(namespace=False)
@click.pass_context
def forget(ctx: click.Context, *, target: Target, name: str, force: bool) -> None:
    """Take NODE out for good: its Node and Lease are deleted, and its certificates are not good any more.

    Pods that were bound to it count as ended and may start elsewhere, so the machine must be off, or its tasks ended. It can
    come back only with a new token.
    """
    from muster.cli.session import run

    run(_forget(target, state_of(ctx), name, is_forced=force))


@command("create", "Make a token and show it, this once.")
@click.option("--expires", metavar="TIME", default="24h", show_default=True, help="How long it can be used: 30m, 24h, 7d.")
@click.option("--uses", metavar="N", type=int, default=1, show_default=True, help="How many nodes may join with it.")
@target_options(namespace=False)
@click.pass_context
def create_token(ctx: click.Context, *, target: Target, expires: str, uses: int) -> None:
    """Make a token with which a node of no party can join, print it, and say how to use it.

    Such a node may be given the work of any party. Only the token's hash is kept: it can't be shown again, only revoked.
    """
    from muster.cli.commands.domain import lifetime_s
    from muster.cli.session import run

    run(_create_token(target, state_of(ctx), lifetime_s(expires), uses))


@command("list", "List the tokens for nodes of no party, masked.")
@machine_output
@target_options(namespace=False)
@click.pass_context
def list_tokens(ctx: click.Context, *, target: Target, output: str | None) -> None:
    """List the tokens for nodes of no party: unused, used, revoked or expired."""
    from muster.cli.session import run

    run(_list_tokens(target, state_of(ctx), output))


@command("revoke", "Make a token useless for good.")
@click.argument("which", metavar="TOKEN")
@target_options(namespace=False)
@click.pass_context
def revoke_token(ctx: click.Context, *, target: Target, which: str) -> None:
    """Make a token useless for good. TOKEN is its id, as `list` shows it, or the whole token."""
    from muster.cli.session import run

    run(_revoke_token(target, state_of(ctx), which))
