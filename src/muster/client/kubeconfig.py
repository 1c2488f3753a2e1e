"""kubeconfig files, read and merged by kubectl's rules, and written for the users of our own server.

Which file: the one that is named; else those in `KUBECONFIG`; else `~/.kube/config`; else the service account of the pod that
this process runs in. Of several files the first to define a name wins, whole entries at a time. Paths in a file are relative
to its directory.

Blocking file reads, no shared state, no HTTP library: a CLI can import this for `config` commands at no cost. Every error is a
`KubeconfigError` naming the file, the context and the field.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from muster.client.config import Auth, ClientConfig, Tls
from muster.client.kubeconfig_entries import Where, auth_of, impersonation_of, proxy_of, server_of, tls_of
from muster.client.kubeconfig_file import Cluster, Context, KubeconfigError, User, read_kubeconfig, write_kubeconfig
from muster.client.urls import is_loopback, split_server

__all__ = ["Kubeconfig", "KubeconfigError", "find_files", "in_cluster", "load", "write_kubeconfig"]

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Kubeconfig:
    """Several files merged. `contexts`, `clusters` and `users` map a name to its entry and the file that defined it."""

    def __init__(self, files: Sequence[Path] = ()) -> None:
        self.files = tuple(files)
        self.current_context = ""
        self.contexts: dict[str, tuple[Context, Path]] = {}
        self.clusters: dict[str, tuple[Cluster, Path]] = {}
        self.users: dict[str, tuple[User, Path]] = {}
        for path in files:
            parsed = read_kubeconfig(path)
            self.current_context = self.current_context or parsed.current_context
            for context in parsed.contexts:
                self.contexts.setdefault(context.name, (context.context, path))
            for cluster in parsed.clusters:
                self.clusters.setdefault(cluster.name, (cluster.cluster, path))
            for user in parsed.users:
                self.users.setdefault(user.name, (user.user, path))

    @property
    def is_empty(self) -> bool:
        return not (self.contexts or self.clusters or self.users or self.current_context)

    def config(self, context: str = "", *, cluster: str = "", user: str = "", namespace: str = "") -> ClientConfig:
        """The connection of `context` (default: the current one), any part of it replaced by name."""
        name = context or self.current_context
        where = ", ".join(map(str, self.files)) or "kubeconfig"
        if not name and not cluster:
            raise KubeconfigError(f"{where}: no current-context is set; {_choose('context', self.contexts, '--context')}")
        chosen = Context()
        if name:
            if name not in self.contexts:
                field = "context" if context else "current-context"
                raise KubeconfigError(
                    f'{where}: {field} "{name}" does not exist; {_choose("context", self.contexts, "--context")}'
                )
            chosen, path = self.contexts[name]
            where = f'{path}: context "{name}"'
        cluster, user = cluster or chosen.cluster, user or chosen.user
        if not cluster:
            raise KubeconfigError(f"{where}: names no cluster; {_choose('cluster', self.clusters, 'context.cluster')}")
        if cluster not in self.clusters:
            raise KubeconfigError(
                f'{where}: cluster "{cluster}" does not exist; {_choose("cluster", self.clusters, "context.cluster")}'
            )
        if user and user not in self.users:
            raise KubeconfigError(f'{where}: user "{user}" does not exist; {_choose("user", self.users, "context.user")}')
        cluster_entry, cluster_path = self.clusters[cluster]
        user_entry, user_path = self.users.get(user, (User(), cluster_path))
        shown = f'context "{name}": ' if name else ""
        at_cluster = Where(cluster_path, f'{cluster_path}: {shown}cluster "{cluster}"')
        at_user = Where(user_path, f'{user_path}: {shown}user "{user}"')
        tls = tls_of(cluster_entry, at_cluster, user_entry, at_user)
        server = server_of(cluster_entry, at_cluster, has_tls=tls != Tls())
        return ClientConfig(
            server=server,
            namespace=namespace or chosen.namespace or "default",
            tls=tls,
            auth=auth_of(user_entry, at_user, cluster_entry),
            impersonate=impersonation_of(user_entry, at_user),
            proxy_url=proxy_of(cluster_entry, at_cluster),
            # On loopback compressing costs both sides time and saves nothing.
            compression=not (cluster_entry.disable_compression or is_loopback(split_server(server)[1])),
            source=f'{shown or "no context, "}cluster "{cluster}" of {cluster_path}',
            context=name,
        )


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    context: str = "",
    cluster: str = "",
    user: str = "",
    namespace: str = "",
    environ: Mapping[str, str] = os.environ,
    home: Path | None = None,
    service_account_dir: Path = SERVICE_ACCOUNT_DIR,
) -> ClientConfig:
    """The connection that kubectl would use with the same flags and environment."""
    files = find_files(path, environ=environ, home=home)
    merged = Kubeconfig(files)
    if path is None and merged.is_empty:
        if not (context or cluster or user) and environ.get("KUBERNETES_SERVICE_HOST"):
            return in_cluster(environ=environ, service_account_dir=service_account_dir, namespace=namespace)
        looked = environ.get("KUBECONFIG") or str((home or Path.home()) / ".kube" / "config")
        raise KubeconfigError(
            f"no kubeconfig: {looked} {'is empty' if files else 'does not exist'} and this process is not in a cluster; "
            "set KUBECONFIG or name a file with --kubeconfig"
        )
    return merged.config(context, cluster=cluster, user=user, namespace=namespace)


def find_files(
    path: str | os.PathLike[str] | None = None, *, environ: Mapping[str, str] = os.environ, home: Path | None = None
) -> list[Path]:
    """The files to merge, in order. A file named explicitly must exist; those of KUBECONFIG may be missing."""
    if path is not None:
        explicit = Path(path).expanduser().absolute()
        if not explicit.exists():
            raise KubeconfigError(f"{explicit}: no such kubeconfig")
        return [explicit]
    listed = environ.get("KUBECONFIG", "")
    if listed:
        found = [Path(item).absolute() for item in listed.split(os.pathsep) if item]
    else:
        found = [(home or Path.home()) / ".kube" / "config"]
    return [item for item in dict.fromkeys(found) if item.exists()]


def in_cluster(
    *, environ: Mapping[str, str] = os.environ, service_account_dir: Path = SERVICE_ACCOUNT_DIR, namespace: str = ""
) -> ClientConfig:
    """The service account of the pod that this process runs in. Its token is read again as the kubelet rotates it."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    token, ca = service_account_dir / "token", service_account_dir / "ca.crt"
    if not host or not port:
        raise KubeconfigError("not in a cluster: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
    for file in (token, ca):
        if not file.is_file():
            raise KubeconfigError(
                f"in-cluster configuration: {file} does not exist; does the pod set automountServiceAccountToken: false?"
            )
    own = service_account_dir / "namespace"
    return ClientConfig(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=namespace or (own.read_text().strip() if own.is_file() else "") or "default",
        tls=Tls(ca=ca),
        auth=Auth(token_file=token),
        source=f"service account in {service_account_dir}",
    )


def _choose(what: str, known: Mapping[str, object], how: str) -> str:
    if not known:
        return f"no {what} is defined"
    names = sorted(known)
    return f"choose with {how} one of: {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
