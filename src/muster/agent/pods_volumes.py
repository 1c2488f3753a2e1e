"""The volumes of a pod: looked up, written, and brought up to date while it runs.

Concurrency: asks the store on the event loop; writes in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from muster.agent import pod_tokens, volumes, volumes_disk
from muster.agent.contracts import AgentError
from muster.agent.environment import Decoded, PodFields, Sources
from muster.agent.pods_local import LocalPod
from muster.agent.pods_machine import Machine
from muster.objects.kinds.volumes import Volume
from muster.objects.meta import namespace_of


async def write_volumes(machine: Machine, local: LocalPod, fields: PodFields) -> bool:
    """Have all volumes there and up to date; whether anything changed."""
    spec, uid, user = local.spec, local.uid, local.record.sandbox.user
    if not spec.volumes:
        return False
    namespace = namespace_of(local.record.pod)
    of_api = [volume for volume in spec.volumes if volumes.is_from_api(volume)]
    try:
        sources = await machine.sources.fetch(namespace, volumes.references(spec))
        tokens = await machine.tokens.fetch(local.record.pod, spec, pod_tokens.wanted(spec))
        fields = msgspec.structs.replace(fields, tokens=tokens)
    except AgentError:
        # The store can't say what they hold now. What was written before is better than nothing.
        if not all(volumes_disk.is_written(machine.layout.volume(uid, volume.name)) for volume in of_api):
            raise
        of_api, sources = [], {}
    files = _contents(of_api, fields, sources)

    def write() -> bool:
        is_changed = False
        (machine.layout.pod(uid) / "volumes").mkdir(exist_ok=True, mode=0o711)
        for volume in spec.volumes:
            top = machine.layout.volume(uid, volume.name)
            if volume.name in files:
                is_changed |= volumes_disk.write_files(top, files[volume.name], user)
            elif volume.host_path is not None:
                allowed = machine.config.allowed_host_paths
                local.host_paths[volume.name] = volumes_disk.host_path(volume.name, volume.host_path, allowed)
            elif volume.empty_dir is not None:
                mode = volume.empty_dir.mode if volume.empty_dir.mode is not None else 0o777
                if volume.empty_dir.medium == "Memory":
                    volumes_disk.make_tmpfs(top, user, volumes.size_limit(volume), mode)
                else:
                    volumes_disk.make_empty(top, user, mode)
        return is_changed

    return await asyncio.to_thread(write)


def _contents(of_api: Sequence[Volume], fields: PodFields, sources: Sources) -> dict[str, dict[str, volumes.File]]:
    known: Decoded = {}
    found: dict[str, dict[str, volumes.File]] = {}
    size = 0
    for volume in of_api:
        found[volume.name] = volumes.files_of(volume, fields, sources, known)
        size += sum(len(file.data) for file in found[volume.name].values())
        if size > volumes.POD_BYTES_MAX:
            raise volumes.failed_mount(
                f"volume {volume.name!r}: with it the pod's ConfigMaps, Secrets and fields hold {size} bytes; "
                f"at most {volumes.POD_BYTES_MAX} are possible"
            )
    return found
