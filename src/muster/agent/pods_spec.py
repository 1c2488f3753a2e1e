"""Makes the `ContainerSpec` of a run: everything that its manifest only names is looked up and filled in.

Concurrency: one event loop; only asks for ConfigMaps and Secrets, and makes the directories that subPaths need.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Mapping
from pathlib import Path

from muster.agent import environment, reports, volumes, volumes_disk
from muster.agent.config import AgentConfig
from muster.agent.contracts import ContainerSpec, Image, Limits, LogLimits, Mount, Security
from muster.agent.environment import PodFields, config_error
from muster.agent.layout import Layout
from muster.agent.pod_etc import etc_mounts
from muster.agent.pod_resources import must_not_be_root, security_of
from muster.agent.pod_sources import PodSources
from muster.agent.pods_local import ContainerMemory, LocalPod
from muster.objects.kinds.containers import Container
from muster.objects.kinds.pods import PodSpec
from muster.objects.meta import namespace_of
from muster.objects.quantity import Quantity


class SpecMaker:
    def __init__(self, layout: Layout, config: AgentConfig, sources: PodSources) -> None:
        self._layout = layout
        self._sources = sources
        self._log = LogLimits(Quantity.parse(config.logs.bytes_max).value(), config.logs.files_max)

    async def make(
        self, local: LocalPod, memory: ContainerMemory, attempt: int, fields: PodFields, limits: Limits
    ) -> ContainerSpec:
        """AgentError `CreateContainerConfigError` or `FailedMount`."""
        container, spec, uid = memory.container, local.spec, local.uid
        sources = await self._sources.fetch(namespace_of(local.record.pod), environment.references(container))
        variables = environment.resolve(container, fields, sources)
        found = volumes.mounts_of(spec, container, uid, self._layout, variables=variables, host_paths=local.host_paths)
        if found:
            await asyncio.to_thread(self._make_sub_paths, local, container, found)
        mounts = [mount for mount, _ in found]
        mounts += self._own_mounts(uid, {mount.target for mount in mounts})
        security = security_of(spec, container)
        _check_user(spec, container, security, memory.image)
        own = {
            "HOSTNAME": local.record.sandbox.hostname,
            reports.VARIABLE: posixpath.join(reports.TARGET, reports.NAME),
        }
        image_env = dict(memory.image.env) if memory.image is not None else {}
        env: Mapping[str, str] = {**own, **image_env, **variables}
        return ContainerSpec(
            name=container.name,
            attempt=attempt,
            image=container.image,
            command=environment.expand_all(container.command, env),
            args=environment.expand_all(container.args, env),
            env=tuple(env.items()),
            cwd=container.working_dir,
            mounts=tuple(mounts),
            limits=limits,
            security=security,
            log=self._log,
            termination_message_path=container.termination_message_path or "/dev/termination-log",
            has_tty=container.tty,
        )

    def _own_mounts(self, uid: str, taken: set[str]) -> list[Mount]:
        """What every container has besides, unless its manifest puts something else there."""
        report = Mount(target=reports.TARGET, source=str(self._layout.report(uid)))
        return [mount for mount in (*etc_mounts(self._layout, uid), report) if mount.target not in taken]

    def _make_sub_paths(self, local: LocalPod, container: Container, found: list[tuple[Mount, str]]) -> None:
        for mount, inner in found:
            if inner and not mount.read_only:
                top = Path(mount.source.removesuffix("/" + inner))
                is_of_host = self._layout.pods not in top.parents
                volumes_disk.make_sub_path(top, inner, local.record.sandbox.user, is_of_host=is_of_host)
            elif not Path(mount.source).exists():
                raise volumes.failed_mount(
                    f"container {container.name}: {mount.target}: {inner or 'its source'!r} is not in the volume"
                )


def _check_user(spec: PodSpec, container: Container, security: Security, image: Image | None) -> None:
    if not must_not_be_root(spec, container):
        return
    by_image = image.user.partition(":")[0] if image is not None and image.id else "-"
    if security.user == 0 or (security.user is None and by_image in ("", "0", "root")):
        raise config_error(f"container {container.name}: runAsNonRoot is set, but it would run as root; set runAsUser")
