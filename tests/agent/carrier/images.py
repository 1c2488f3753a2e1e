"""A small image with busybox in it, made from this machine's own binary."""

from __future__ import annotations

import atexit
import functools
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path


@functools.cache
def busybox_archive() -> Path | None:
    """An OCI archive; None where there is no busybox that runs without libraries."""
    binary = shutil.which("busybox")
    if binary is None or b"statically linked" not in _kind(binary):
        return None
    applets = subprocess.run([binary, "--list"], capture_output=True, text=True, check=True).stdout.split()
    layer = _layer(Path(binary), applets)
    top = Path(tempfile.mkdtemp(prefix="muster-images-"))
    atexit.register(shutil.rmtree, top, ignore_errors=True)
    archive = top / "busybox.tar"
    blobs: dict[str, bytes] = {}

    def blob(data: bytes, media: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": f"application/vnd.oci.image.{media}", "digest": f"sha256:{digest}", "size": len(data)}

    layer_entry = blob(layer, "layer.v1.tar")
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin", "FROM_IMAGE=yes"], "Cmd": ["sh", "-c", "echo from the image"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [layer_entry["digest"]]},
    }
    config_entry = blob(json.dumps(config).encode(), "config.v1+json")
    manifest = {"schemaVersion": 2, "config": config_entry, "layers": [layer_entry]}
    entry = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    index = {"schemaVersion": 2, "manifests": [{**entry, "annotations": {"org.opencontainers.image.ref.name": "latest"}}]}
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(index).encode(), **blobs}
    with tarfile.open(archive, "w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return archive


def _kind(binary: str) -> bytes:
    """Without a program interpreter it needs no libraries."""
    data = Path(binary).read_bytes()
    return b"dynamic" if b"/lib64/ld-linux" in data[:4096] else b"statically linked"


def _layer(binary: Path, applets: list[str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("bin", "etc", "tmp", "proc", "sys", "dev", "var"):
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(info)
        info = tarfile.TarInfo("bin/busybox")
        info.size, info.mode = binary.stat().st_size, 0o755
        with binary.open("rb") as file:
            tar.addfile(info, file)
        for applet in applets:
            if applet not in ("busybox", "") and "/" not in applet:
                info = tarfile.TarInfo(f"bin/{applet}")
                info.type, info.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(info)
    return out.getvalue()
