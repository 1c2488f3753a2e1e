"""Small images, made from nothing but the standard library and a static busybox of this machine."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from muster.agent.images_sources import machine_architecture

APPLETS = """
sh cat echo env id ls sleep true false touch stat mkdir rm dd ps kill hostname grep head tail yes mount umount nc ping unshare
chroot mknod wc printf test pwd chown ln readlink
"""
PASSWD = b"root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001:app:/home:/bin/sh\n"
GROUP = b"root:x:0:\nstaff:x:50:app\nwheel:x:10:\napp:x:1001:\n"


def busybox() -> Path | None:
    found = shutil.which("busybox", path=os.environ.get("PATH", "") + ":/bin:/usr/bin")
    return Path(found) if found else None


class LayerTar:
    """A layer, entry by entry."""

    def __init__(self) -> None:
        self._out = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._out, mode="w", format=tarfile.PAX_FORMAT)

    def entry(self, name: str, kind: bytes, *, data: bytes = b"", link: str = "", **more: Any) -> LayerTar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, link, len(data)
        info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
        for key, value in more.items():
            setattr(info, key, value)
        self._tar.addfile(info, io.BytesIO(data))
        return self

    def file(self, name: str, data: bytes = b"", **more: Any) -> LayerTar:
        return self.entry(name, tarfile.REGTYPE, data=data, **more)

    def directory(self, name: str, **more: Any) -> LayerTar:
        return self.entry(name, tarfile.DIRTYPE, **more)

    def link(self, name: str, target: str, **more: Any) -> LayerTar:
        return self.entry(name, tarfile.SYMTYPE, link=target, **more)

    def hard_link(self, name: str, target: str) -> LayerTar:
        return self.entry(name, tarfile.LNKTYPE, link=target)

    def bytes(self) -> bytes:
        self._tar.close()
        return self._out.getvalue()


@functools.cache
def busybox_layer() -> bytes:
    program = busybox()
    assert program is not None
    layer = LayerTar()
    for name in ("bin", "etc", "root", "home", "var"):
        layer.directory(name)
    layer.directory("tmp", mode=0o1777).file("bin/busybox", program.read_bytes(), mode=0o755)
    for applet in APPLETS.split():
        layer.link(f"bin/{applet}", "busybox")
    return layer.file("etc/passwd", PASSWD).file("etc/group", GROUP).bytes()


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def config_of(layers: Sequence[bytes], settings: Mapping[str, Any] | None = None, **more: Any) -> bytes:
    config: dict[str, Any] = {"architecture": machine_architecture(), "os": "linux", "config": dict(settings or {})}
    config["rootfs"] = {"type": "layers", "diff_ids": [digest(layer) for layer in layers]}
    return json.dumps(config | more).encode()


def oci_files(
    layers: Sequence[bytes], settings: Mapping[str, Any] | None = None, *, tag: str = "example/app:1", compressed: bool = True
) -> dict[str, bytes]:
    """An OCI layout: path -> bytes."""
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}

    def blob(data: bytes, kind: str) -> dict[str, Any]:
        files["blobs/sha256/" + digest(data).removeprefix("sha256:")] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest(data), "size": len(data)}

    config = blob(config_of(layers, settings), "config.v1+json")
    packed = [gzip.compress(layer, 1, mtime=0) if compressed else layer for layer in layers]
    suffix = "layer.v1.tar+gzip" if compressed else "layer.v1.tar"
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": [blob(layer, suffix) for layer in packed],
    }
    described = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    described["annotations"] = {"org.opencontainers.image.ref.name": tag}
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [described]}).encode()
    return files


def docker_files(
    layers: Sequence[bytes], settings: Mapping[str, Any] | None = None, tag: str = "example/app:1"
) -> dict[str, bytes]:
    """What `docker save` puts into its archive."""
    config = config_of(layers, settings)
    names = [f"{digest(layer).removeprefix('sha256:')}/layer.tar" for layer in layers]
    entry = {"Config": digest(config).removeprefix("sha256:") + ".json", "RepoTags": [tag], "Layers": names}
    return {entry["Config"]: config, **dict(zip(names, layers, strict=True)), "manifest.json": json.dumps([entry]).encode()}  # type: ignore[dict-item]


def write_directory(files: Mapping[str, bytes], path: Path) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def write_archive(files: Mapping[str, bytes], path: Path, mode: Literal["w", "w:gz"] = "w") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path
