"""`muster completion`: the script that teaches a shell to complete `muster`."""

from __future__ import annotations

import click

from muster.cli.framework import command

COMPLETE_VARIABLE = "_MUSTER_COMPLETE"
"""Set by the scripts when they ask this program for completions."""


@command("completion", "Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL; load it from the shell's start-up file.

    \b
    bash:  eval "$(muster completion bash)"        in ~/.bashrc
    zsh:   eval "$(muster completion zsh)"         in ~/.zshrc
    fish:  muster completion fish | source         in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    cls = get_completion_class(shell)
    assert cls is not None
    script = cls(ctx.find_root().command, {}, "muster", COMPLETE_VARIABLE)
    # The template alone: source() would first start bash to ask for its version, on whatever machine prints this.
    click.echo(script.source_template % script.source_vars(), nl=False)
