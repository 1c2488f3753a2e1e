"""`muster node`: what an administrator does with nodes. Those around joining and leaving are in `node_admin`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from muster.cli.errors import CliError, ExitCode, UsageError
from muster.cli.framework import Entry, LazyGroup, State, command, common_options, state_of
from muster.cli.options import Target, target_options

if TYPE_CHECKING:
    from muster.cli.session import Session
    from muster.objects.bandwidth import Directions, NodeBandwidth
    from muster.objects.resources import Resource
    from muster.objects.status import Raw

PODS_PAGE_LEN = 500
_ADMIN = "muster.cli.commands.node_admin"


@click.group(
    "node",
    cls=LazyGroup,
    entries={
        "list": Entry(_ADMIN, "list_nodes", "List the nodes: whose they are, how they are, what runs there."),
        "set-bandwidth": Entry(__name__, "set_bandwidth", "Say how much network bandwidth a node has."),
        "forget": Entry(_ADMIN, "forget", "Take a node out for good: revoke its certificates, let its work start elsewhere."),
        "token": Entry(_ADMIN, "token", "Tokens with which nodes of no party join."),
    },
    short_help="Nodes: list them, let them join, set what they have, forget them.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def node() -> None:
    """Nodes: list them, make tokens with which they join, set what no agent can find out, and take them out for good."""


node.params.extend(common_options())


def changes_of(amount: str | None, egress: str | None, ingress: str | None, reserve: str | None) -> dict[str, str | None]:
    """The annotations to write; None removes one. UsageError names what can't be read."""
    from muster.objects.bandwidth import format_bandwidth, parse_bandwidth
    from muster.objects.labels import Muster

    changes: dict[str, str | None] = {}
    if amount is not None:
        # One figure is for both directions: what was set for a single one before goes.
        changes = {Muster.BANDWIDTH_EGRESS: None, Muster.BANDWIDTH_INGRESS: None}
    named = (
        ("AMOUNT", Muster.BANDWIDTH, amount),
        ("--egress", Muster.BANDWIDTH_EGRESS, egress),
        ("--ingress", Muster.BANDWIDTH_INGRESS, ingress),
        ("--reserve", Muster.BANDWIDTH_RESERVED, reserve),
    )
    for word, key, value in named:
        if value is not None:
            try:
                changes[key] = format_bandwidth(parse_bandwidth(value))
            except ValueError as error:
                raise UsageError(f"{word}: {error}") from None
    return changes


def changed(raw: Raw, changes: dict[str, str | None], *, unset: bool = False) -> tuple[NodeBandwidth, NodeBandwidth]:
    """What the node has before and after. The published resource counts only for nodes that have no other figure."""
    from muster.objects.bandwidth import node_bandwidth

    annotations: dict[str, Any] = dict((raw.get("metadata") or {}).get("annotations") or {})
    status = raw.get("status") or {}
    allocatable, capacity = status.get("allocatable") or {}, status.get("capacity") or {}
    before = node_bandwidth(annotations, allocatable, capacity)
    for key, value in changes.items():
        annotations.pop(key, None)
        if value is not None:
            annotations[key] = value
    after = node_bandwidth(annotations, None)
    if after.total is None and not unset:
        after = node_bandwidth(annotations, allocatable, capacity)
    return before, after


def _check(name: str, after: NodeBandwidth) -> None:
    from muster.objects.bandwidth import format_bandwidth

    if after.total is None or after.usable is None:
        raise UsageError(f"node {name} has no capacity that --reserve could be held back from; give one, as in 10Gbps")
    for direction, bps in (("egress", after.total.egress_bps), ("ingress", after.total.ingress_bps)):
        if after.reserved_bps > bps > 0:
            raise UsageError(
                f"the reserve {format_bandwidth(after.reserved_bps)} of node {name} is more than its {direction} capacity "
                f"{format_bandwidth(bps)}; set another with --reserve"
            )


def _check_directions(name: str, raw: Raw, changes: dict[str, str | None]) -> None:
    """One direction alone would leave the other at nothing, which nobody means by leaving it out."""
    from muster.objects.labels import Muster

    annotations = {**((raw.get("metadata") or {}).get("annotations") or {}), **changes}
    common = annotations.get(Muster.BANDWIDTH) or annotations.get(Muster.AGENT_BANDWIDTH)
    for word, own, agent in (
        ("--egress", Muster.BANDWIDTH_EGRESS, Muster.AGENT_BANDWIDTH_EGRESS),
        ("--ingress", Muster.BANDWIDTH_INGRESS, Muster.AGENT_BANDWIDTH_INGRESS),
    ):
        if not common and not annotations.get(own) and not annotations.get(agent):
            raise UsageError(f"node {name} has no figure for the other direction; give {word} too, or one AMOUNT for both")


async def _held(s: Session, name: str) -> Directions:
    """What the pods on the node have been promised."""
    from muster.objects.bandwidth import NOTHING, raw_pod_bandwidth

    pods = await s.client.resource("", "Pod")
    held, token = NOTHING, ""
    while True:
        page = await s.client.list(pods, field_selector=f"spec.nodeName={name}", limit=PODS_PAGE_LEN, continue_token=token)
        for pod in page.items:
            if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
                held += raw_pod_bandwidth(pod).request
        token = page.continue_token
        if not token:
            return held


async def _publish(s: Session, nodes: Resource, name: str, after: NodeBandwidth, dry_run: bool) -> None:
    """The same as an extended resource in whole Mbps of the smaller direction, for tools that know nothing else."""
    from muster.objects.bandwidth import bps_to_mbps
    from muster.objects.labels import Kuscia
    from muster.objects.requests import WriteOptions
    from muster.objects.status import ApiError

    total = None if after.total is None else str(bps_to_mbps(after.total.smaller_bps()))
    usable = None if after.usable is None else str(bps_to_mbps(after.usable.smaller_bps()))
    status = {"capacity": {Kuscia.RESOURCE_BANDWIDTH: total}, "allocatable": {Kuscia.RESOURCE_BANDWIDTH: usable}}
    try:
        await s.client.patch(nodes, name, {"status": status}, None, WriteOptions(dry_run=dry_run), subresource="status")
    except ApiError as error:
        raise CliError(
            f"node {name}: the capacity is set, but {Kuscia.RESOURCE_BANDWIDTH} could not be published in its status: "
            f"{error.message}; run the command again",
            ExitCode.FORBIDDEN if error.code == 403 else ExitCode.FAILURE,
        ) from error


async def _set(target: Target, state: State, name: str, changes: dict[str, str | None], *, unset: bool, dry_run: bool) -> None:
    from muster.cli.output import emit
    from muster.cli.session import session, warn
    from muster.objects.bandwidth import Directions, format_bandwidth
    from muster.objects.requests import WriteOptions

    async with session(target, state) as s:
        nodes = await s.client.resource("", "Node")
        raw = await s.client.get(nodes, name)
        before, after = changed(raw, changes, unset=unset)
        is_published = after.source != "resource"
        if not unset:
            _check(name, after)
            if is_published:
                _check_directions(name, raw, changes)
        for problem in before.problems:
            warn(str(problem))
        await s.client.patch(nodes, name, {"metadata": {"annotations": changes}}, None, WriteOptions(dry_run=dry_run))
        if is_published:
            await _publish(s, nodes, name, after, dry_run)
        emit(_shown(name, before, after) + (" (dry run: nothing was written)" if dry_run else ""))
        held, usable = await _held(s, name), after.usable or Directions()
    for direction, has, offers in (
        ("egress", held.egress_bps, usable.egress_bps),
        ("ingress", held.ingress_bps, usable.ingress_bps),
    ):
        if has > offers:
            warn(
                f"what runs on {name} holds {format_bandwidth(has)} {direction}, {format_bandwidth(has - offers)} more than "
                "the node now offers; nothing is stopped, and nothing more that asks for bandwidth fits until enough has ended"
            )


def _shown(name: str, before: NodeBandwidth, after: NodeBandwidth) -> str:
    from muster.objects.bandwidth import format_bandwidth

    def figures(found: NodeBandwidth) -> tuple[str, str, str]:
        if found.total is None:
            return "none", "none", "0bps"
        total = found.total
        held = format_bandwidth(found.reserved_bps)
        return format_bandwidth(total.egress_bps), format_bandwidth(total.ingress_bps), held

    words = ("egress", "ingress", "held back")
    parts = (f"{word} {old} -> {new}" for word, old, new in zip(words, figures(before), figures(after), strict=True))
    return f"node/{name} bandwidth: {', '.join(parts)}"


@command("set-bandwidth", "Say how much network bandwidth a node has.")
@click.argument("name", metavar="NODE")
@click.argument("amount", metavar="[AMOUNT]", required=False)
@click.option("--egress", metavar="AMOUNT", help="What it can send, where that differs.")
@click.option("--ingress", metavar="AMOUNT", help="What it can receive, where that differs.")
@click.option("--reserve", metavar="AMOUNT", help="Held back in each direction, for the node itself; 0 for nothing.")
@click.option("--unset", is_flag=True, help="Remove all of it; what the node's agent found holds again.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@target_options(namespace=False)
@click.pass_context
def set_bandwidth(
    ctx: click.Context,
    *,
    target: Target,
    name: str,
    amount: str | None,
    egress: str | None,
    ingress: str | None,
    reserve: str | None,
    unset: bool,
    dry_run: bool,
) -> None:
    """Say how much network bandwidth NODE has: AMOUNT in both directions (10Gbps, 500Mbps, 10G), or each by itself.

    It holds from the next decision of the scheduler on, and wins over what the node's agent found. A smaller figure stops
    nothing that runs.
    """
    from muster.cli.session import run
    from muster.objects.labels import Muster

    given = [value for value in (amount, egress, ingress, reserve) if value is not None]
    if unset and given:
        raise UsageError("--unset removes everything that was set; give no amount with it")
    if not unset and not given:
        raise UsageError("say how much: muster node set-bandwidth NODE 10Gbps, or --egress, --ingress, --reserve, --unset")
    keys = (Muster.BANDWIDTH, Muster.BANDWIDTH_EGRESS, Muster.BANDWIDTH_INGRESS, Muster.BANDWIDTH_RESERVED)
    changes = dict.fromkeys(keys) if unset else changes_of(amount, egress, ingress, reserve)
    run(_set(target, state_of(ctx), name, changes, unset=unset, dry_run=dry_run))
