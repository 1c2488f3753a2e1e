"""`muster image`: the images that this machine's agents have. Works on their directories, with or without an agent running."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from muster.cli.errors import CliError, ExitCode
from muster.cli.framework import Entry, LazyGroup, command, common_options

if TYPE_CHECKING:
    from muster.agent.contracts import AgentError
    from muster.agent.images import ImageStore, Listed


@click.group(
    "image",
    cls=LazyGroup,
    entries={
        "load": Entry(__name__, "load", "Give this machine's agents an image from a file or directory."),
        "list": Entry(__name__, "list_images", "Show the images that this machine's agents have."),
        "rm": Entry(__name__, "remove", "Take an image away."),
    },
    short_help="Load, list and remove the images of this machine's agents.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def image() -> None:
    """Load, list and remove the images of this machine's agents.

    A pod's image is found by the name that it was given here before any registry is asked.
    """


image.params.extend(common_options())


def agent_directories(given: Sequence[str]) -> list[Path]:
    """Those named; else every one of this machine's default place; else the one that `muster agent` would use."""
    from muster.cli.datadir import default_data_dir

    if given:
        return [Path(text).expanduser().absolute() for text in given]
    data = default_data_dir(os.environ).absolute()
    found = [path for path in (data / "agent", *sorted((data / "agents").glob("*"))) if path.is_dir()]
    return found or [data / "agent"]


def _stores(given: Sequence[str]) -> list[tuple[Path, ImageStore]]:
    from muster.agent.images import ImageStore
    from muster.agent.layout import Layout

    layouts = [Layout(path) for path in agent_directories(given)]
    return [(layout.data, ImageStore(layout.images, layout.pods)) for layout in layouts]


def _failed(directory: Path, error: AgentError) -> CliError:
    codes = {"NotFound": ExitCode.NOT_FOUND, "ImageInUse": ExitCode.CONFLICT, "InvalidImageName": ExitCode.USAGE}
    return CliError(f"{error.message} (agent directory {directory})", codes.get(error.reason, ExitCode.FAILURE))


def _dirs_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--data-dir",
        "data_dirs",
        metavar="DIR",
        multiple=True,
        type=click.Path(),
        help="Data directory of an agent; may be repeated.  [default: all agents of `muster up` and `muster agent` here]",
    )(function)


def _each(given: Sequence[str], work: Callable[[Path, ImageStore], None]) -> None:
    """On every agent's directory. A directory that this user may not write to is said so."""
    from muster.agent.contracts import AgentError

    for directory, store in _stores(given):
        try:
            work(directory, store)
        except AgentError as error:
            raise _failed(directory, error) from error
        except PermissionError as error:
            raise CliError(
                f"agent directory {directory}: {error.filename}: permission denied; run this as the agent's user",
                ExitCode.FORBIDDEN,
            ) from error


@command("load", "Give this machine's agents an image from a file or directory.")
@click.argument("path", metavar="PATH")
@click.option("--name", metavar="NAME", default="", help="Of the image, as pods write it.  [default: what PATH itself says]")
@_dirs_option
def load(*, path: str, name: str, data_dirs: tuple[str, ...]) -> None:
    """Give this machine's agents the image at PATH.

    PATH is an OCI archive or layout, what `docker save` wrote, or a directory with a root file system; what it is, is found
    out, or said before it: oci-archive:PATH, oci:PATH[:TAG], docker-archive:PATH[:TAG], dir:PATH.
    """
    from muster.cli.output import emit

    def work(directory: Path, store: ImageStore) -> None:
        is_new = not directory.is_dir()
        listed = store.load(path, name)
        emit(f"{', '.join(listed.names)} {listed.id} loaded into {directory}")
        if is_new:
            click.echo(
                f"warning: no agent has used {directory} yet; if yours keeps its data elsewhere, name it with --data-dir",
                err=True,
            )

    _each(data_dirs, work)


@command("list", "Show the images that this machine's agents have.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", help="Format.")
@_dirs_option
def list_images(*, output: str, data_dirs: tuple[str, ...]) -> None:
    """Show the images that this machine's agents have: names, size, where they came from, and whether a container uses them."""
    from muster.cli.output import Layout, Table, TableColumn, emit, render_value

    found: list[tuple[Path, Listed]] = []

    def work(directory: Path, store: ImageStore) -> None:
        found.extend((directory, listed) for listed in store.list())

    _each(data_dirs, work)
    if output != "table":
        import msgspec

        items = [{"agent": str(directory), **msgspec.to_builtins(listed)} for directory, listed in found]
        emit(render_value({"images": items}, output))
        return
    columns = [TableColumn(name) for name in ("name", "id", "size", "origin", "used", "agent")]
    rows = [
        [
            name,
            listed.id[7:19],
            f"{listed.bytes / 2**20:.1f}Mi",
            listed.origin,
            "yes" if listed.is_used else "no",
            str(directory),
        ]
        for directory, listed in found
        for name in listed.names or ("",)
    ]
    emit("\n".join(Layout().lines(Table(columns, rows))) if rows else "no images")


@command("rm", "Take an image away.")
@click.argument("name", metavar="NAME|ID")
@_dirs_option
def remove(*, name: str, data_dirs: tuple[str, ...]) -> None:
    """Take the name of an image away, and the image itself with its last name. An ID (sha256:...) takes all its names.

    An image that a container uses stays. Agents that do not have it are passed over, as long as one has.
    """
    from muster.agent.contracts import AgentError
    from muster.cli.output import emit

    missing: list[CliError] = []
    removed = 0

    def work(directory: Path, store: ImageStore) -> None:
        nonlocal removed
        try:
            found = store.remove(name)
        except AgentError as error:
            if error.reason != "NotFound":
                raise
            missing.append(_failed(directory, error))
            return
        removed += 1
        emit(f"{name} {found} removed from {directory}")

    _each(data_dirs, work)
    if not removed and missing:
        raise missing[0]
