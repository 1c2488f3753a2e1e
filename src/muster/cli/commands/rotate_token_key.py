"""`muster rotate-token-key`: a new key for service-account tokens; tokens that are out stay good until they expire."""

from __future__ import annotations

from pathlib import Path

import click

from muster.cli.errors import CliError, ExitCode
from muster.cli.framework import command
from muster.cli.options import data_dir_option


@command("rotate-token-key", "Sign service-account tokens with a new key from now on.")
@data_dir_option
def rotate_token_key(data_dir: Path) -> None:
    """Sign service-account tokens with a new key from now on. Tokens that are out stay good until they expire.

    A running server takes the new key up by itself, within seconds; nothing is to be restarted. The public half of the old key
    stays in the directory `pki`; to end its tokens at once, remove that file.
    """
    from muster.objects.time import wall_clock
    from muster.server.config import ServerLimits
    from muster.server.pki import PkiError
    from muster.server.token_keys import rotate

    if not data_dir.is_dir():
        raise CliError(f"data directory {data_dir}: does not exist; name the right one with --data-dir", ExitCode.NOT_FOUND)
    try:
        made, retired = rotate(data_dir / "pki", wall_clock, ServerLimits().token_lifetime_max_s)
    except PkiError as error:
        raise CliError(str(error)) from error
    click.echo(f"service-account tokens are signed with key {made} from now on")
    click.echo(f"tokens of the old key are good until they expire; to end them at once, remove {retired}", err=True)
