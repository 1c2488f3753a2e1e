"""What the volumes of a pod hold and where containers see them. Pure, given the ConfigMaps and Secrets that they name.

`refusals` says what this node can't give a pod at all; `files_of` the contents of a volume that comes from the API;
`mounts_of` what a container sees. Writing is in `volumes_disk`.

Invariant: every path that comes from a manifest or from a key was checked by `inner_path`: relative, no `..`, no empty part.
AgentError `FailedMount` names the volume, the object and the way out.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from muster.agent.contracts import AgentError, Mount
from muster.agent.environment import Decoded, PodFields, SourceKey, Sources, data_once, expand, field_value, resource_value
from muster.agent.layout import Layout
from muster.agent.pod_tokens import API_ACCESS_PREFIX, LIFETIME_S
from muster.objects.kinds.containers import Container, VolumeMount
from muster.objects.kinds.pods import PodSpec
from muster.objects.kinds.volume_sources import HostPathVolumeSource
from muster.objects.kinds.volumes import DownwardAPIVolumeFile, KeyToPath, Volume, VolumeProjection
from muster.objects.quantity import Quantity

VOLUME_BYTES_MAX: Final = 8 << 20
"""Of one volume that comes from the API; a ConfigMap or Secret has at most 1 MiB."""
POD_BYTES_MAX: Final = 64 << 20
"""Of all such volumes of a pod together: it costs a manifest nothing to name one Secret a thousand times."""
PATH_LEN_MAX: Final = 4096
_SUPPORTED: Final = ("configMap", "secret", "projected", "downwardAPI", "emptyDir", "hostPath")


class File(msgspec.Struct, frozen=True):
    data: bytes
    mode: int


def failed_mount(message: str) -> AgentError:
    return AgentError("FailedMount", message)


# -- what is refused ----------------------------------------------------------------------------------------------------------


def refusals(spec: PodSpec, allowed_host_paths: Sequence[str]) -> Iterator[str]:
    """Why this node can't carry the pod's volumes, whatever happens later."""
    for volume in spec.volumes:
        kinds = [word for word in msgspec.to_builtins(volume) if word != "name"]
        for word in kinds:
            if word not in _SUPPORTED:
                way_out = "claims and storage drivers need a Kubernetes node" if "olume" in word or word == "csi" else ""
                yield (
                    f"spec.volumes {volume.name!r}: {word} is not offered by this node, only {', '.join(_SUPPORTED)}"
                    + (f"; {way_out}" if way_out else "")
                )
        if volume.empty_dir is not None and volume.empty_dir.medium not in ("", "Memory"):
            yield f'spec.volumes {volume.name!r}: emptyDir.medium {volume.empty_dir.medium!r}: this node has "" and Memory'
        if volume.host_path is not None and (why := host_path_refusal(volume.host_path, allowed_host_paths)):
            yield f"spec.volumes {volume.name!r}: hostPath.path {volume.host_path.path!r}: {why}"
    named = {volume.name for volume in spec.volumes}
    for container in (*spec.init_containers, *spec.containers):
        if container.volume_devices:
            yield f"container {container.name}: volumeDevices: this node offers no block volumes"
        for mount in container.volume_mounts:
            where = f"container {container.name}: volumeMounts {mount.mount_path!r}"
            if mount.name not in named:
                yield f"{where}: there is no volume {mount.name!r} in the pod"
            if mount.mount_propagation == "Bidirectional":
                yield f"{where}: mountPropagation Bidirectional is not offered by this node"
            if not _is_good_target(mount.mount_path):
                yield f"{where}: a mount path is absolute, without .. and not / or below /proc or /sys"
            try:
                if mount.sub_path:
                    inner_path(mount.sub_path)
            except ValueError as e:
                yield f"{where}: subPath {mount.sub_path!r}: {e}"


def host_path_refusal(source: HostPathVolumeSource, allowed: Sequence[str]) -> str:
    """Empty when the path may be shown. By the text alone; links are resolved when it is used."""
    path = source.path
    if not path.startswith("/") or ".." in PurePosixPath(path).parts or "\x00" in path:
        return "a host path is absolute and has no .."
    if not any(is_below(path, root) for root in allowed):
        return "not below a directory that this node's configuration lists in allowedHostPaths"
    return ""


def is_below(path: str, root: str) -> bool:
    """Whether `path` is `root` or something in it."""
    normal, top = posixpath.normpath(path), posixpath.normpath(root)
    return normal == top or normal.startswith(top.rstrip("/") + "/")


def inner_path(text: str) -> str:
    """`text`, if it stays inside of where it is put. ValueError otherwise."""
    parts = text.split("/")
    if not text or text.startswith("/") or len(text) > PATH_LEN_MAX or "\x00" in text:
        raise ValueError("a path in a volume is relative and not empty")
    if any(part in ("", ".", "..") or part.startswith("..") or len(part) > 255 for part in parts):
        raise ValueError("a path in a volume has no empty part and none that starts with ..")
    return text


def _is_good_target(target: str) -> bool:
    if not target.startswith("/") or "\x00" in target or ":" in target or ".." in target.split("/"):
        return False
    normal = posixpath.normpath(target)
    return normal != "/" and not any(is_below(normal, top) for top in ("/proc", "/sys"))


# -- what volumes hold --------------------------------------------------------------------------------------------------------


def references(spec: PodSpec) -> Iterator[SourceKey]:
    """The ConfigMaps and Secrets that its volumes name."""
    for volume in spec.volumes:
        if volume.config_map is not None:
            yield "ConfigMap", volume.config_map.name
        if volume.secret is not None:
            yield "Secret", volume.secret.secret_name
        for source in volume.projected.sources if volume.projected is not None else ():
            if source.config_map is not None:
                yield "ConfigMap", source.config_map.name
            if source.secret is not None:
                yield "Secret", source.secret.name


def is_from_api(volume: Volume) -> bool:
    sources = (volume.config_map, volume.secret, volume.projected, volume.downward_api)
    return any(source is not None for source in sources)


def files_of(volume: Volume, fields: PodFields, sources: Sources, known: Decoded | None = None) -> dict[str, File]:
    """Path in the volume to contents. For volumes for which `is_from_api` holds. `known` is shared by the volumes of a pod."""
    found: dict[str, File] = {}
    known = {} if known is None else known
    is_lenient = volume.name.startswith(API_ACCESS_PREFIX)
    if (map_ := volume.config_map) is not None:
        key = ("ConfigMap", map_.name)
        found |= _from_object(volume, key, map_.items, map_.default_mode, sources, known=known, is_optional=bool(map_.optional))
    elif (secret := volume.secret) is not None:
        key = ("Secret", secret.secret_name)
        mode = secret.default_mode
        found |= _from_object(volume, key, secret.items, mode, sources, known=known, is_optional=bool(secret.optional))
    elif (downward := volume.downward_api) is not None:
        found |= _downward(volume, downward.items, downward.default_mode, fields)
    elif (projected := volume.projected) is not None:
        for source in projected.sources:
            found |= _projected(volume, source, projected.default_mode, fields, sources, known=known, is_lenient=is_lenient)
    if (size := sum(len(file.data) for file in found.values())) > VOLUME_BYTES_MAX:
        raise failed_mount(f"volume {volume.name!r} would hold {size} bytes; at most {VOLUME_BYTES_MAX} are possible")
    return found


def _projected(
    volume: Volume,
    source: VolumeProjection,
    mode: int,
    fields: PodFields,
    sources: Sources,
    *,
    known: Decoded,
    is_lenient: bool,
) -> dict[str, File]:
    found: dict[str, File] = {}
    for kind, part in (("ConfigMap", source.config_map), ("Secret", source.secret)):
        if part is not None:
            is_optional = is_lenient or bool(part.optional)
            found |= _from_object(volume, (kind, part.name), part.items, mode, sources, known=known, is_optional=is_optional)
    if source.downward_api is not None:
        found |= _downward(volume, source.downward_api.items, mode, fields)
    if (told := source.service_account_token) is not None:
        token = fields.tokens.get((told.audience, told.expiration_seconds or LIFETIME_S), "this node has none")
        if isinstance(token, bytes):
            found[_inside(volume, told.path)] = File(token, mode)
        elif not is_lenient:
            raise failed_mount(f"volume {volume.name!r}: serviceAccountToken: {token}")
    others = {"clusterTrustBundle": source.cluster_trust_bundle, "podCertificate": source.pod_certificate}
    for word, other in others.items():
        if other is not None and not is_lenient:
            raise failed_mount(f"volume {volume.name!r}: this node offers no projected {word}; put what it holds into a Secret")
    return found


def _from_object(
    volume: Volume,
    key: SourceKey,
    items: Sequence[KeyToPath],
    mode: int,
    sources: Sources,
    *,
    known: Decoded,
    is_optional: bool,
) -> dict[str, File]:
    raw = sources.get(key)
    if raw is None:
        if is_optional:
            return {}
        raise failed_mount(
            f"volume {volume.name!r}: {key[0]} {key[1]!r} is not there; create it, or mark the volume as optional"
        )
    data = data_once(key, raw, known)
    if not items:
        return {_inside(volume, name): File(value, mode) for name, value in data.items()}
    found: dict[str, File] = {}
    for item in items:
        if item.key in data:
            found[_inside(volume, item.path)] = File(data[item.key], item.mode if item.mode is not None else mode)
        elif not is_optional:
            raise failed_mount(f"volume {volume.name!r}: {key[0]} {key[1]!r} has no key {item.key!r}")
    return found


def _downward(volume: Volume, items: Sequence[DownwardAPIVolumeFile], mode: int, fields: PodFields) -> dict[str, File]:
    found: dict[str, File] = {}
    for item in items:
        where = f"volume {volume.name!r}: {item.path}"
        text = ""
        if item.field_ref is not None:
            text = field_value(where, item.field_ref, fields)
        elif item.resource_field_ref is not None:
            text = resource_value(where, item.resource_field_ref, None, fields)
        data = text.encode("utf-8", "surrogateescape")
        found[_inside(volume, item.path)] = File(data, item.mode if item.mode is not None else mode)
    return found


def _inside(volume: Volume, path: str) -> str:
    try:
        return inner_path(path)
    except ValueError as e:
        raise failed_mount(f"volume {volume.name!r}: {path[:200]!r}: {e}") from e


# -- what a container sees ----------------------------------------------------------------------------------------------------


def size_limit(volume: Volume) -> int | None:
    if volume.empty_dir is None or volume.empty_dir.size_limit is None:
        return None
    try:
        return Quantity.parse(volume.empty_dir.size_limit).value() or None
    except ValueError as e:
        raise failed_mount(f"volume {volume.name!r}: emptyDir.sizeLimit {volume.empty_dir.size_limit!r}: {e}") from e


def mounts_of(
    spec: PodSpec,
    container: Container,
    uid: str,
    layout: Layout,
    *,
    variables: Mapping[str, str],
    host_paths: Mapping[str, str],
) -> list[tuple[Mount, str]]:
    """Its mounts in the order of their targets, outer ones first; beside each the path in the volume that must be there.

    `host_paths` are the hostPath volumes by name, resolved.
    """
    by_name = {volume.name: volume for volume in spec.volumes}
    found: list[tuple[Mount, str]] = []
    for mount in sorted(container.volume_mounts, key=lambda m: posixpath.normpath(m.mount_path)):
        volume = by_name.get(mount.name)
        if volume is None:
            raise failed_mount(f"container {container.name}: there is no volume {mount.name!r} in the pod")
        top = Path(host_paths[volume.name]) if volume.host_path is not None else layout.volume(uid, volume.name)
        inner = _sub_path(container, mount, variables)
        is_read_only = mount.read_only or is_from_api(volume)
        target = posixpath.normpath(mount.mount_path)
        found.append((Mount(target=target, source=str(top / inner if inner else top), read_only=is_read_only), inner))
    return found


def _sub_path(container: Container, mount: VolumeMount, variables: Mapping[str, str]) -> str:
    text = expand(mount.sub_path_expr, variables) if mount.sub_path_expr else mount.sub_path
    try:
        return inner_path(text.strip("/")) if text.strip("/") else ""
    except ValueError as e:
        raise failed_mount(f"container {container.name}: subPath {text[:200]!r} of {mount.mount_path}: {e}") from e
