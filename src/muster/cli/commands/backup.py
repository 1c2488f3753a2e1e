"""`muster backup`: everything that the server holds, in one file, while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from muster.cli.errors import CliError, ExitCode, UsageError
from muster.cli.framework import command, state_of
from muster.cli.options import Target, data_dir_option, machine_output, target_options

if TYPE_CHECKING:
    from muster.cli.backing_up import Source
    from muster.store.embedded.archive import Manifest


def said(manifest: Manifest) -> str:
    """A backup in a few words."""
    from muster.objects.words import counted

    keys = ", with keys" if manifest.keys else ""
    return (
        f"{counted(manifest.objects, 'object')} at resource version {manifest.resource_version}, taken {manifest.taken_at} "
        f"by Muster {manifest.muster_version}{keys}"
    )


@command("backup", "Save everything that the server holds into one file.")
@click.argument("file", metavar="[FILE]", type=click.Path(path_type=Path), required=False)
@click.option(
    "--to", metavar="DIR", type=click.Path(path_type=Path), help="Write into this directory, under a name with the time in it."
)
@click.option("--keep", metavar="N", type=click.IntRange(1, 100_000), help="With --to: remove older backups there but for N.")
@click.option(
    "--with-keys",
    is_flag=True,
    help="Add the data directory's keys and kubeconfig. Whoever has the file is then the cluster's administrator.",
)
@data_dir_option
@machine_output
@target_options(namespace=False)
@click.pass_context
def backup(
    ctx: click.Context,
    *,
    target: Target,
    file: Path | None,
    to: Path | None,
    keep: int | None,
    with_keys: bool,
    data_dir: Path,
    output: str | None,
) -> None:
    """Save everything that the server holds into one file, while it runs and without keeping anyone waiting.

    The file holds every object at one resource version, Secrets included, so it is readable by its owner only. It is read back
    and verified before it gets its name; when the command fails or is killed, no file of that name appears.

    The server is the one of the kubeconfig, as for other commands. With --data-dir or --with-keys it is the one that runs on
    that directory; when none does, the store there is read instead. With --with-keys alone it is the usual directory, and the
    command refuses when the kubeconfig names another server than that one's. Bring it back with 'muster restore'.
    """
    from muster.cli.backing_up import Source, exists_already, refuse_another
    from muster.cli.session import run
    from muster.objects.time import wall_clock

    if (file is None) == (to is None):
        raise UsageError("name either a FILE or a directory with --to")
    if keep is not None and to is None:
        raise UsageError("--keep goes with --to")
    if file is not None and file.exists():
        raise exists_already(file)
    is_named = ctx.get_parameter_source("data_dir") is ParameterSource.COMMANDLINE
    if with_keys and not is_named:
        refuse_another(target, state_of(ctx), data_dir)
    is_local = with_keys or is_named
    source = Source(target, state_of(ctx), data_dir if is_local else None, with_keys=with_keys, now=wall_clock())
    path, manifest, size_bytes = run(_taken(source, file, to))
    removed = _removed(to, keep, path.name)
    if output is not None:
        click.echo(_for_programs(output, path, manifest, size_bytes, removed))
        return
    click.echo(f"{path}: {said(manifest)}; {size_bytes} bytes, verified")
    for name in removed:
        click.echo(f"removed {name}")


async def _taken(source: Source, file: Path | None, to: Path | None) -> tuple[Path, Manifest, int]:
    from muster.cli.backing_up import Draft, remove_left_over
    from muster.objects.time import format_time

    directory = to if to is not None else file.parent if file is not None else Path()
    if to is not None:
        _make(to)
    elif not directory.is_dir():
        raise CliError(f"{directory}: there is no such directory; make it first, or name another", ExitCode.NOT_FOUND)
    remove_left_over(directory)
    draft = Draft(directory)
    try:
        contents = await source.take(draft)
        manifest = contents.manifest
        stamp = format_time(manifest.taken_at_s).replace("-", "").replace(":", "")
        if file is None:
            return draft.publish_as(f"muster-{stamp}-{manifest.resource_version}"), manifest, draft.size_bytes
        draft.publish(file)
        return file, manifest, draft.size_bytes
    finally:
        draft.close()


def _make(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(f"--to {directory}: can't be made ({error.strerror}); name another directory") from error


def _removed(to: Path | None, keep: int | None, last: str) -> list[str]:
    from muster.cli.backing_up import keep_newest

    if to is None or keep is None:
        return []
    try:
        return keep_newest(to, keep, last)
    except OSError as error:
        raise CliError(f"--to {to}: the backup is there, but older ones can't be removed ({error.strerror})") from error


def _for_programs(output: str, path: Path, manifest: Manifest, size_bytes: int, removed: list[str]) -> str:
    from muster.cli.output import render_value

    value = {
        "file": str(path),
        "bytes": size_bytes,
        "takenAt": manifest.taken_at,
        "resourceVersion": str(manifest.resource_version),
        "objects": manifest.objects,
        "keys": manifest.keys,
        "removed": removed,
    }
    return render_value(value, output)
