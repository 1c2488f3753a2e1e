"""`muster restore`: a data directory as a backup holds it."""

from __future__ import annotations

from pathlib import Path

import click

from muster.cli.errors import CliError, ExitCode
from muster.cli.framework import command
from muster.cli.options import data_dir_option


@command("restore", "Bring a data directory back from a backup.")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@data_dir_option
@click.option("--force", is_flag=True, help="Also into a directory that is not empty; what is replaced is moved aside.")
@click.option("--check", is_flag=True, help="Only read the backup and verify it.")
def restore(file: Path, data_dir: Path, force: bool, check: bool) -> None:
    """Bring a data directory back from a backup; the server on it must be stopped.

    The backup is verified before anything is touched, and what it holds is built beside what is there and then put in place;
    killed at any moment, the next 'muster restore' or 'muster up' finds the old state, or carries on to the new one. With
    --force the store, and with keys in the backup pki and kubeconfig, are replaced; the old ones are moved to replaced-TIME,
    never deleted. Logs of decisions and audit stay.

    Resource versions go on far beyond all that were given out, so every watch is answered 410 and lists anew.
    """
    from muster.cli.commands.backup import said
    from muster.cli.datadir import Claim
    from muster.objects.time import wall_clock
    from muster.store.embedded.archive import ArchiveError, read
    from muster.store.embedded.errors import StoreError
    from muster.store.embedded.restoring import RestoreError
    from muster.store.embedded.restoring import restore as restore_to

    try:
        if check:
            with file.open("rb") as archive:
                click.echo(f"{file}: {said(read(archive).manifest)}; verified")
            return
        done = restore_to(file, data_dir, now=wall_clock(), force=force, hold=lambda: Claim(data_dir))
    except ArchiveError as error:
        raise CliError(f"{file}: {error}") from error
    except (RestoreError, StoreError) as error:
        raise CliError(str(error)) from error
    except FileNotFoundError as error:
        raise CliError(f"{error.filename}: there is no such file; name the right one", ExitCode.NOT_FOUND) from error
    except OSError as error:
        raise CliError(f"{error.filename or data_dir}: {error.strerror}; the restore did not happen") from error
    click.echo(f"{data_dir}: {said(done.manifest)}; versions go on from {done.first_version}")
    if done.replaced is not None:
        click.echo(f"what was there before is in {done.replaced}")
    if not (data_dir / "pki" / "ca.key").exists():
        click.echo(
            "the backup has no keys: the next start makes new ones, so other machines need the new kubeconfig, and nodes have "
            "to join again",
            err=True,
        )
