"""`muster install`: CRDs, permissions, webhooks and the controller deployment, into a real cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from muster.cli.errors import UsageError
from muster.cli.framework import State, command, state_of
from muster.cli.options import Target, target_options

if TYPE_CHECKING:
    from muster.cli.manifests import InstallOptions
    from muster.objects.requests import WriteOptions


async def _install(target: Target, state: State, options: InstallOptions, write: WriteOptions, timeout_s: float) -> None:
    from muster.cli.installing import Installer, custom_kinds
    from muster.cli.session import session
    from muster.controllers import cluster_controllers

    async with session(target, state) as s:
        installer = Installer(s, options, write, click.echo)
        await installer.run(custom_kinds(), [c.name for c in cluster_controllers()], timeout_s)
        if not write.dry_run:
            click.echo(f"Muster is installed in namespace {options.namespace} of {s.client.config.server}")


def _print_manifests(options: InstallOptions, output: str) -> None:
    from muster.cli import manifests
    from muster.cli import output as out
    from muster.cli.installing import custom_kinds
    from muster.controllers import cluster_controllers
    from muster.objects import yaml_text

    made = manifests.everything(options, custom_kinds(), [c.name for c in cluster_controllers()])
    out.emit(out.to_json(out.as_list(made)) if output == "json" else "---\n".join(yaml_text.dump(obj) for obj in made))


@command("install", "Put Muster into a Kubernetes cluster.")
@click.option("--namespace", metavar="NS", default="muster-system", show_default=True, help="Where the controllers run.")
@click.option("--image", metavar="IMAGE", help="Container image with this release.  [default: muster:VERSION]")
@click.option("--replicas", type=click.IntRange(0, 9), default=2, show_default=True, help="Controllers; one of them leads.")
@click.option(
    "--webhook-url",
    metavar="URL",
    default="",
    help="Where API servers reach the webhooks of a controller outside the cluster, instead of the Service in it.",
)
@click.option("--dry-run", is_flag=True, help="Let the server check everything, but store nothing.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), help="Print the manifests and do nothing else.")
@click.option("--force-conflicts", is_flag=True, help="Take over kinds, namespaces and fields that are somebody else's.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(1, 3600),
    default=60.0,
    show_default=True,
    help="How long to wait until the kinds are established.",
)
@target_options(namespace=False)
@click.pass_context
def install(
    ctx: click.Context,
    *,
    target: Target,
    namespace: str,
    image: str | None,
    replicas: int,
    webhook_url: str,
    dry_run: bool,
    output: str | None,
    force_conflicts: bool,
    timeout_s: float,
) -> None:
    """Put Muster into a Kubernetes cluster (1.20 or newer): its kinds, permissions, controllers and webhooks.

    Safe to repeat: what is there already and right is left unchanged. Kinds and namespaces that were there before and come
    from somebody else are used as they are. `muster uninstall` removes what this made.
    """
    from muster.cli.manifests import FIELD_MANAGER, InstallOptions
    from muster.objects.names import validate_label_name

    problems = validate_label_name(namespace)
    if problems:
        raise UsageError(f"--namespace '{namespace}': {problems[0]}")
    if webhook_url and not webhook_url.startswith("https://"):
        raise UsageError(f"--webhook-url '{webhook_url}': must begin with https://")
    options = InstallOptions(namespace=namespace, replicas=replicas, webhook_url=webhook_url)
    if image:
        import msgspec

        options = msgspec.structs.replace(options, image=image)
    if output:
        _print_manifests(options, output)
        return

    from muster.cli.session import run
    from muster.objects.requests import WriteOptions

    write = WriteOptions(dry_run=dry_run, field_manager=FIELD_MANAGER, force=force_conflicts)
    run(_install(target, state_of(ctx), options, write, timeout_s))
