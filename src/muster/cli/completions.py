"""What the shell offers after TAB. Kinds come from the catalog, without asking a server, so that TAB is never slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from muster.objects.resources import Resource


def _words(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}" if "." in resource.group else resource.plural


def complete_kinds(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Kinds of Muster's own CustomResourceDefinitions."""
    from click.shell_completion import CompletionItem

    from muster.objects.catalog import CATALOG

    return [CompletionItem(_words(r), help=r.kind) for r in CATALOG.custom if _words(r).startswith(incomplete)]


def complete_references(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Kinds for the first word, also after a comma; names are not asked for."""
    from click.shell_completion import CompletionItem

    from muster.objects.catalog import CATALOG

    if ctx.params.get(param.name or ""):
        return []
    before, comma, last = incomplete.rpartition(",")
    offered = [_words(r) for r in CATALOG if "list" in r.verbs]
    return [CompletionItem(f"{before}{comma}{word}") for word in dict.fromkeys(offered) if word.startswith(last)]
