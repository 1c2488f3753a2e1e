"""Makes the file system of an image for the example, out of the Python that runs this: no registry and no builder is needed.

    image.py DIR       DIR has /usr/local/bin/python, /psi/psi.py, /psi/data, and the libraries that they need

Nodes with runtime runc take it as the image `dir:DIR`. On nodes with runtime process, DIR/usr/local/bin/python is a Python that
every user of this machine can run, wherever the original lies, with DIR/usr/lib as LD_LIBRARY_PATH. Only what psi.py needs is
copied: about 90 MB.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import cryptography

HERE = Path(__file__).parent.resolve()
PACKAGES = ("cryptography", "cffi", "_cffi_backend*")
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_LEFT_OUT = shutil.ignore_patterns(
    "site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib", "tkinter", "ensurepip", "config-*", "*.a"
)


def make(root: Path) -> None:
    """The file system, readable by everybody. Does nothing where it is complete already."""
    done = root / ".complete"
    if done.exists():
        return
    usr = root / "usr" / "local"
    library = usr / "lib" / _VERSION
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=_LEFT_OUT, dirs_exist_ok=True)
    packages = library / "site-packages"
    packages.mkdir(exist_ok=True)
    (library / "dist-packages").symlink_to(packages.name)  # where Debian's Python looks
    source = Path(cryptography.__file__).parents[1]
    for path in (path for pattern in PACKAGES for path in source.glob(pattern)):
        copy = shutil.copytree if path.is_dir() else shutil.copy2
        copy(path, packages / path.name)
    (usr / "bin").mkdir(exist_ok=True)
    python = usr / "bin" / "python"
    shutil.copy2(Path(sys.executable).resolve(), python)
    for path in {path for file in (python, *root.rglob("*.so")) for path in libraries(file)}:
        target = root / str(path).lstrip("/") if _is_common(path) else root / "usr" / "lib" / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    shutil.copytree(HERE, root / "psi", ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    for name in ("tmp", "etc", "dev", "proc", "sys"):
        (root / name).mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    done.touch()


def libraries(file: Path) -> list[Path]:
    """What it is linked with, the loader included."""
    command = [shutil.which("ldd") or "ldd", str(file)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603 (files of this Python)
    words = [word for line in said.splitlines() for word in line.split() if word.startswith("/")]
    return [Path(word) for word in words]


def _is_common(path: Path) -> bool:
    """Whether the loader looks there by itself. What lies elsewhere goes to /usr/lib, where it looks inside the image."""
    return str(path).startswith(("/lib", "/usr/lib"))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
