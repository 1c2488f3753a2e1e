"""Programs that Muster can use when they are there: container runtimes, image tools, kubectl."""

from __future__ import annotations

import re
import shutil
import subprocess

from muster.cli.doctor.model import Finding, ok, warning

VERSION_TIMEOUT_S = 10.0
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?(?:[-+~.\w]*)?")


def version_of(program: str, *args: str) -> str | None:
    """The version that `program` prints; "" when it prints none, None when it is not there or does not start."""
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    if path is None:
        return None
    try:
        done = subprocess.run([path, *args], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(done.stdout or done.stderr)
    return found.group(0) if found else ""


def judge_runtime(runc: str | None, crun: str | None, cgroup_mode: str) -> Finding:
    facts = {"runc": runc, "crun": crun}
    have = [f"{name} {version}".strip() for name, version in facts.items() if version is not None]
    usable = runc is not None or (crun is not None and cgroup_mode != "hybrid")
    if usable:
        return ok("runtime", ", ".join(have), **facts)
    if have:
        return warning(
            "runtime",
            f"{', '.join(have)}, which refuses the hybrid cgroups of this machine",
            "tasks run as plain processes, not as containers",
            "install runc (apt-get install runc)",
            **facts,
        )
    return warning(
        "runtime",
        "neither runc nor crun",
        "tasks run as plain processes: an AppImage's container image cannot be started",
        "install runc (apt-get install runc)",
        **facts,
    )


def judge_images(skopeo: str | None, umoci: str | None) -> Finding:
    facts = {"skopeo": skopeo, "umoci": umoci}
    missing = [name for name, version in facts.items() if version is None]
    if not missing:
        return ok("images", f"skopeo {skopeo}, umoci {umoci}", **facts)
    return warning(
        "images",
        f"missing: {', '.join(missing)}",
        "container images cannot be fetched from a registry and unpacked",
        f"install them (apt-get install {' '.join(missing)})",
        **facts,
    )


def judge_kubectl(version: str | None) -> Finding:
    if version is None:
        return warning(
            "kubectl",
            "not on PATH",
            "'muster get', 'apply', 'describe' and 'delete' do the daily work; edit, logs, exec and the rest need kubectl",
            "install kubectl, for instance the Debian package kubernetes-client",
        )
    return ok("kubectl", version or "found", version=version)


def probe_tools(cgroup_mode: str) -> list[Finding]:
    return [
        judge_runtime(version_of("runc", "--version"), version_of("crun", "--version"), cgroup_mode),
        judge_images(version_of("skopeo", "--version"), version_of("umoci", "--version")),
        judge_kubectl(version_of("kubectl", "version", "--client")),
    ]
