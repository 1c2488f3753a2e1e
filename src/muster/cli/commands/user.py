"""`muster user`: who there is and what they have in use, who one is, and tokens with which users log in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.errors import CliError, ExitCode
from muster.cli.framework import Entry, LazyGroup, State, command, common_options, state_of
from muster.cli.options import Target, machine_output, target_options

if TYPE_CHECKING:
    from muster.cli.session import Session
    from muster.objects.status import Raw

TOKEN_HEADERS = ["TOKEN", "USER", "LOGIN", "STATE", "CREATED", "EXPIRES"]
_HELP = {"help_option_names": ["-h", "--help"]}


@click.group(
    "user",
    cls=LazyGroup,
    entries={
        "list": Entry(__name__, "list_users", "List users, or groups, with what they have in use and have spent."),
        "whoami": Entry(__name__, "whoami", "Say as whom you are logged in, and whom you administer."),
        "token": Entry(__name__, "token", "Tokens with which users log in."),
    },
    short_help="Users and groups: who there is, who you are, tokens to log in with.",
    context_settings=_HELP,
)
def user() -> None:
    """Users and groups: who there is, who you are, and tokens to log in with."""


user.params.extend(common_options())


@click.group(
    "token",
    cls=LazyGroup,
    entries={
        "create": Entry(__name__, "create_token", "Make a token for a user and show it, this once."),
        "list": Entry(__name__, "list_tokens", "List users' tokens; they themselves are not shown."),
        "revoke": Entry(__name__, "revoke_token", "Make a token useless for good."),
    },
    short_help="Tokens with which users log in.",
    context_settings=_HELP,
)
def token() -> None:
    """Make, list and revoke the tokens with which users log in to the server of `muster up`."""


token.params.extend(common_options())


# -- who there is -------------------------------------------------------------------------------------------------------------


async def _accounts(s: Session, kind: str) -> list[Raw]:
    """All of them; for those who may not list them, oneself and whom one administers."""
    from muster.cli.commands.top import _all
    from muster.cli.people import who_am_i
    from muster.objects.status import Forbidden, NotFound

    try:
        return await _all(s, "muster.dev", kind)
    except Forbidden:
        me = await who_am_i(s.client)
        if me is None or not me.get("user"):
            raise
    below = me.get("administers") or {}
    if kind == "User":
        names = sorted({me["user"], *(below.get("users") or ())})
    else:
        names = sorted({*(me.get("groups") or ()), *(below.get("groups") or ())})
    resource, found = await s.client.resource("muster.dev", kind), []
    for name in names:
        try:
            found.append(await s.client.get(resource, name))
        except (NotFound, Forbidden):  # changed in between
            continue
    click.echo(f"what you may see as user {me['user']}: yourself, the groups that you are in, whom you administer", err=True)
    return found


async def _list(target: Target, state: State, is_groups: bool, output: str | None) -> None:
    from muster.cli.accounts_view import GROUP_HEADERS, USER_HEADERS, group_row, user_row
    from muster.cli.output import emit, render_value, simple_table
    from muster.cli.session import session

    kind = "UserGroup" if is_groups else "User"
    async with session(target, state) as s:
        found = await _accounts(s, kind)
    if output:
        emit(render_value({"items": found}, output))
    elif not found:
        click.echo(f"there is no {kind}; docs/users.md shows how to make one", err=True)
    elif is_groups:
        emit(simple_table(GROUP_HEADERS, [group_row(raw) for raw in found]))
    else:
        emit(simple_table(USER_HEADERS, [user_row(raw) for raw in found]))


async def _whoami(target: Target, state: State, output: str | None) -> None:
    from muster.cli.accounts_view import me_lines
    from muster.cli.output import emit, render_value
    from muster.cli.people import login_of, who_am_i
    from muster.cli.session import session

    async with session(target, state) as s:
        login, me = await login_of(s.client), await who_am_i(s.client)
    emit(render_value(me or {"login": login}, output) if output else "\n".join(me_lines(login, me)))


# -- tokens -------------------------------------------------------------------------------------------------------------------


async def _create(target: Target, state: State, name: str, expires: str, path: str) -> None:
    from muster.cli import people
    from muster.cli.commands.domain import lifetime_s
    from muster.cli.output import emit
    from muster.cli.session import session
    from muster.client.kubeconfig_file import write_kubeconfig
    from muster.objects.time import format_time, wall_clock

    ends = wall_clock() + lifetime_s(expires)
    async with session(target, state) as s:
        await people.require_own_server(s)
        login = await people.login_for(s, name)
        clear = await people.create_token(s, name, login, ends)
        server, ca = s.client.transport.config.server, await s.client.join_ca()
    if path:
        try:
            write_kubeconfig(Path(path), server=server, ca=ca, token=clear, user=login)
        except OSError as error:
            # A token that nobody has is no use to anybody: it goes again.
            async with session(target, state) as s:
                await people.revoke_token(s, clear)
            raise CliError(f"--write {path}: {error.strerror}; name a file that can be written") from error
        click.echo(f"wrote {path}; {name} uses it so: export KUBECONFIG={path}", err=True)
    else:
        emit(clear)
        click.echo("it is not shown again; --write FILE makes a kubeconfig of one instead", err=True)
    click.echo(f"good as {login} until {format_time(ends)}", err=True)


async def _tokens(target: Target, state: State, name: str, output: str | None) -> None:
    from muster.cli import people
    from muster.cli.output import emit, render_value, simple_table
    from muster.cli.session import session
    from muster.objects.time import wall_clock

    async with session(target, state) as s:
        await people.require_own_server(s)
        now = wall_clock()
        rows = [people.token_row(raw, now) for raw in await people.token_secrets(s, name)]
    if output:
        keys = [header.lower() for header in TOKEN_HEADERS]
        emit(render_value({"items": [dict(zip(keys, row, strict=True)) for row in rows]}, output))
    elif not rows:
        click.echo(f"there are no tokens; make one with: muster user token create {name or 'USER'}", err=True)
    else:
        emit(simple_table(TOKEN_HEADERS, rows))


async def _revoke(target: Target, state: State, which: str) -> None:
    from muster.cli import people
    from muster.cli.output import emit
    from muster.cli.session import session

    async with session(target, state) as s:
        found = await people.revoke_token(s, which)
    emit(f"token {found} is revoked; what was sent with it stays and goes on")


# -- commands -----------------------------------------------------------------------------------------------------------------


@command("list", "List users, or groups, with what they have in use and have spent.")
@click.option("--groups", "is_groups", is_flag=True, help="Groups instead of users.")
@machine_output
@target_options(namespace=False)
@click.pass_context
def list_users(ctx: click.Context, *, target: Target, is_groups: bool, output: str | None) -> None:
    """List users, or with --groups groups: what runs and waits, what is in use of each limit, what is spent of a budget.

    Who may not list all sees themselves, their groups, and whom they administer.
    """
    from muster.cli.session import run

    run(_list(target, state_of(ctx), is_groups, output))


@command("whoami", "Say as whom you are logged in, and whom you administer.")
@machine_output
@target_options(namespace=False)
@click.pass_context
def whoami(ctx: click.Context, *, target: Target, output: str | None) -> None:
    """Say as whom you are logged in, which User that is, in which groups, and whom you administer."""
    from muster.cli.session import run

    run(_whoami(target, state_of(ctx), output))


@command("create", "Make a token for a user and show it, this once.")
@click.argument("name", metavar="USER")
@click.option("--expires", metavar="TIME", default="30d", show_default=True, help="How long it is good: 12h, 30d.")
@click.option(
    "--write", "path", metavar="FILE", default="", help="Write a kubeconfig with the token there, and do not print it."
)
@target_options(namespace=False)
@click.pass_context
def create_token(ctx: click.Context, *, target: Target, name: str, expires: str, path: str) -> None:
    """Make a token with which USER logs in, under the first of its logins, and print it.

    Only its hash is kept: it can't be shown again, only revoked. What the user may do follows from the groups and roles that
    there are: bind muster:submitter, so that they can submit.
    """
    from muster.cli.session import run

    if path and os.path.lexists(path):
        # It may be the kubeconfig of an administrator, or hold a token that is good and that nobody would have any more.
        raise CliError(f"--write {path}: exists already, and is not replaced; name another, or remove it", ExitCode.CONFLICT)
    run(_create(target, state_of(ctx), name, expires, path))


@command("list", "List users' tokens; they themselves are not shown.")
@click.argument("name", metavar="[USER]", default="")
@machine_output
@target_options(namespace=False)
@click.pass_context
def list_tokens(ctx: click.Context, *, target: Target, name: str, output: str | None) -> None:
    """List the tokens of all users, or of USER: whose they are, and until when they are good."""
    from muster.cli.session import run

    run(_tokens(target, state_of(ctx), name, output))


@command("revoke", "Make a token useless for good.")
@click.argument("which", metavar="TOKEN")
@target_options(namespace=False)
@click.pass_context
def revoke_token(ctx: click.Context, *, target: Target, which: str) -> None:
    """Make a token useless for good. TOKEN is its id, as `list` shows it, or the whole token."""
    from muster.cli.session import run

    if not which or len(which) > 200:
        raise CliError("TOKEN: give the id that 'muster user token list' shows, or the token", ExitCode.USAGE)
    run(_revoke(target, state_of(ctx), which))
