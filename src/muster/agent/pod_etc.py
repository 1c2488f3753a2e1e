"""`/etc/hosts`, `/etc/hostname` and `/etc/resolv.conf` of a pod, as they are before its first container starts.

The hosts file is kept up to date afterwards by `names`, in place: containers have it mounted. Blocking, small.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from muster.agent.contracts import Mount, Sandbox
from muster.agent.layout import Layout
from muster.objects.kinds.pods import PodSpec

HOST_RESOLV_CONF = Path("/etc/resolv.conf")
_RESOLV_BYTES_MAX = 64 * 1024


def write_etc(layout: Layout, sandbox: Sandbox, spec: PodSpec, host_ip: str) -> None:
    top = layout.etc(sandbox.uid)
    top.mkdir(exist_ok=True)
    top.chmod(0o755)
    hosts = top / "hosts"
    if not hosts.exists():
        _write(hosts, hosts_text(sandbox, spec, host_ip))
    _write(top / "hostname", f"{sandbox.hostname}\n")
    _write(top / "resolv.conf", resolv_text(spec))


def hosts_text(sandbox: Sandbox, spec: PodSpec, host_ip: str) -> str:
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    names = [sandbox.hostname]
    if spec.subdomain:
        full = f"{sandbox.hostname}.{spec.subdomain}.{sandbox.namespace}.svc"
        names = [f"{full}.cluster.local", full, *names]
    lines.append(f"{sandbox.ip or host_ip or '127.0.0.1'}\t{' '.join(names)}")
    lines += [
        f"{alias.ip}\t{' '.join(alias.hostnames)}"
        for alias in spec.host_aliases
        if alias.ip and alias.hostnames and not any(c.isspace() for c in alias.ip + "".join(alias.hostnames))
    ]
    return "\n".join(lines) + "\n"


def resolv_text(spec: PodSpec) -> str:
    """The host's resolvers, unless the pod has its own (`dnsPolicy: None`)."""
    text = ""
    if spec.dns_policy != "None":
        with contextlib.suppress(OSError):
            text = HOST_RESOLV_CONF.read_bytes()[:_RESOLV_BYTES_MAX].decode("utf-8", "replace")
    config = spec.dns_config
    if config is not None:
        own = [f"nameserver {server}" for server in config.nameservers if server.strip() == server and server]
        if config.searches:
            own.append("search " + " ".join(s for s in config.searches if not any(c.isspace() for c in s)))
        options = [o.name + (f":{o.value}" if o.value else "") for o in config.options if o.name]
        if options:
            own.append("options " + " ".join(o for o in options if not any(c.isspace() for c in o)))
        text = "\n".join([*own, text]) if text else "\n".join(own)
    return text if text.endswith("\n") or not text else text + "\n"


def etc_mounts(layout: Layout, uid: str) -> list[Mount]:
    """Read-only for containers: only the agent writes these."""
    top = layout.etc(uid)
    return [
        Mount(target=f"/etc/{name}", source=str(top / name), read_only=True) for name in ("hosts", "hostname", "resolv.conf")
    ]


def _write(path: Path, text: str) -> None:
    """In place, so that those who have it mounted see the change."""
    data = text.encode("utf-8", "replace")
    if not path.exists() or path.read_bytes() != data:
        path.write_bytes(data)
    path.chmod(0o644)
