"""One kubeconfig file: its entries as typed values, and how it is read and written.

Blocking file access, no shared state. A file that is broken anywhere is refused whole, as kubectl does, with the file and the
field named.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec

from muster.client.config import InteractiveMode, Pem
from muster.client.files import replace_file
from muster.objects.view import without_nulls

FILE_BYTES_MAX = 16 * 1024 * 1024
DEPTH_MAX = 100
NODES_MAX = 200_000
"""Far more than the largest of them has; so references to references cannot blow up."""


class KubeconfigError(ValueError):
    """The configuration cannot be used; the message names file, context and field, and the way out."""


class _Entry(msgspec.Struct, rename="kebab", kw_only=True):
    pass


class Extension(_Entry):
    name: str = ""
    extension: Any = None


class Cluster(_Entry):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    disable_compression: bool = False
    extensions: list[Extension] = []


class EnvVar(_Entry):
    name: str = ""
    value: str = ""


class Exec(_Entry):
    api_version: str = msgspec.field(name="apiVersion", default="")
    command: str = ""
    args: list[str] = []
    env: list[EnvVar] = []
    install_hint: str = msgspec.field(name="installHint", default="")
    provide_cluster_info: bool = msgspec.field(name="provideClusterInfo", default=False)
    interactive_mode: InteractiveMode | None = msgspec.field(name="interactiveMode", default=None)


class User(_Entry):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    username: str = ""
    password: str = ""
    as_user: str = msgspec.field(name="as", default="")
    as_uid: str = ""
    as_groups: list[str] = []
    as_user_extra: dict[str, list[str]] = {}
    exec: Exec | None = None
    auth_provider: dict[str, Any] | None = None


class Context(_Entry):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(_Entry):
    name: str
    cluster: Cluster = msgspec.field(default_factory=Cluster)


class _NamedUser(_Entry):
    name: str
    user: User = msgspec.field(default_factory=User)


class _NamedContext(_Entry):
    name: str
    context: Context = msgspec.field(default_factory=Context)


class File(_Entry):
    current_context: str = ""
    clusters: list[_NamedCluster] = []
    users: list[_NamedUser] = []
    contexts: list[_NamedContext] = []


def read_kubeconfig(path: Path) -> File:
    from muster.objects import yaml_text  # a client made from values never needs it

    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise KubeconfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(content) > FILE_BYTES_MAX:
        raise KubeconfigError(f"{path}: larger than {FILE_BYTES_MAX >> 20} MiB, which no kubeconfig is")
    try:
        # kubectl takes the last of two values for one key, so such files are about.
        raw = yaml_text.load(content, depth_max=DEPTH_MAX, nodes_max=NODES_MAX, unique_keys=False)
    except yaml_text.YamlError as error:
        at = f"line {error.line}: " if error.line else ""
        raise KubeconfigError(f"{path}: {at}not YAML that a kubeconfig may hold: {error}") from error
    if raw is None:
        return File()
    if not isinstance(raw, dict):
        raise KubeconfigError(
            f"{path}: a kubeconfig is a mapping with clusters, users and contexts, not a {type(raw).__name__}"
        )
    kind, version = raw.get("kind", "Config"), raw.get("apiVersion", "v1")
    if kind != "Config" or version != "v1":
        raise KubeconfigError(f"{path}: kind {kind!r}, apiVersion {version!r}: a kubeconfig has kind Config, apiVersion v1")
    try:
        return msgspec.convert(without_nulls(raw), File)  # kubectl writes `users: null` into a fresh file
    except msgspec.ValidationError as error:
        what, _, field = str(error).partition(" - at `$")
        raise KubeconfigError(
            f"{path}: {field.strip('.`') or 'the file'}: {what[:1].lower() + what[1:]}{_hint(what)}"
        ) from error


def _hint(problem: str) -> str:
    return "; put it in quotes" if problem.startswith("Expected `str`, got `") and "array" not in problem else ""


def write_kubeconfig(
    path: Path,
    *,
    server: str,
    ca: Pem | None = None,
    token: str = "",
    client_certificate: Pem | None = None,
    client_key: Pem | None = None,
    name: str = "muster",
    user: str = "admin",
    namespace: str = "default",
) -> None:
    """Write a kubeconfig with one context called `name`, readable by its owner only, in one step: whole or not at all.

    PEM data given as bytes is written inline; a path is written as it is.
    """
    cluster_entry: dict[str, str] = {"server": server}
    cluster_entry |= _pem_entry("certificate-authority", ca)
    user_entry: dict[str, str] = {"token": token} if token else {}
    user_entry |= _pem_entry("client-certificate", client_certificate) | _pem_entry("client-key", client_key)
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": cluster_entry}],
        "users": [{"name": user, "user": user_entry}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user, "namespace": namespace}}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, msgspec.yaml.encode(content))


def _pem_entry(field: str, pem: Pem | None) -> dict[str, str]:
    if pem is None:
        return {}
    if isinstance(pem, bytes):
        return {f"{field}-data": base64.b64encode(pem).decode("ascii")}
    return {field: str(pem)}
