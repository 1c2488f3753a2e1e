"""`muster crds`: the CustomResourceDefinitions, generated from the typed views, for any cluster to take."""

from __future__ import annotations

import click

from muster.cli.completions import complete_kinds
from muster.cli.errors import CliError, ExitCode
from muster.cli.framework import command


@command("crds", "Print the CustomResourceDefinitions of Muster's kinds.")
@click.argument("kinds", metavar="[KIND]...", nargs=-1, shell_complete=complete_kinds)
@click.option("-o", "--output", type=click.Choice(["yaml", "json", "name"]), default="yaml", show_default=True, help="Format.")
@click.option("--selectable-fields", is_flag=True, help="Also publish the fields for --field-selector; needs Kubernetes 1.30.")
def crds(kinds: tuple[str, ...], output: str, selectable_fields: bool) -> None:
    """Print the CustomResourceDefinitions of Muster's kinds, or of the KINDs named (kind, plural or short name).

    They work on Kubernetes 1.20 and newer: `muster crds | kubectl apply --server-side -f -`.
    """
    from muster.cli import output as out
    from muster.objects import yaml_text
    from muster.objects.catalog import CATALOG, Catalog
    from muster.objects.crd import crds_for

    chosen = list(CATALOG.custom)
    if kinds:
        # Among these alone: `job` means batch's everywhere else, but that one has no definition to print.
        custom = Catalog(CATALOG.custom)
        chosen = []
        for word in kinds:
            found = custom.find(word)
            if found is None:
                known = ", ".join(sorted(r.kind for r in CATALOG.custom))
                raise CliError(f'no CustomResourceDefinition for kind "{word}"; there are: {known}', ExitCode.NOT_FOUND)
            if found not in chosen:
                chosen.append(found)
    made = crds_for(chosen, selectable_fields=selectable_fields)
    if output == "name":
        out.emit("\n".join(crd["metadata"]["name"] for crd in made))
    elif output == "json":
        out.emit(out.to_json(made[0] if len(made) == 1 else out.as_list(made)))
    else:
        out.emit("---\n".join(yaml_text.dump(crd) for crd in made))
