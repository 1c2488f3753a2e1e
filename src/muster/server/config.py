"""Every setting and every limit of the server, with its default and why it is what it is.

Pure values. A limit that a client can reach is answered with a 4xx that names it; all of them are exported as the metric
`muster_server_limit`, so that a dashboard can draw usage beside its bound.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from muster.objects.time import Clock, wall_clock
from muster.server.oidc_settings import AuthenticationSettings

KIB = 1024
MIB = 1024 * KIB


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one server takes on. Zero is never "unlimited": every bound is a number."""

    # --- one request
    body_bytes_max: int = 3 * MIB
    """Kubernetes' own bound on a request body."""
    json_depth_max: int = 128
    """Levels of nesting in a body. Deep documents exhaust the stack of everything that walks them."""
    yaml_nodes_max: int = 100_000
    """Nodes of a YAML body after its aliases are expanded: stops "billion laughs"."""
    head_bytes_max: int = 64 * KIB
    """Request line and headers together."""
    headers_max: int = 128
    query_bytes_max: int = 16 * KIB
    pipelined_max: int = 16
    """Requests that a client may send ahead on one connection."""
    head_timeout_s: float = 15.0
    """From the first byte (or the end of the TLS handshake) to the end of the headers; against slow-drip clients."""
    body_timeout_s: float = 60.0
    request_timeout_s: float = 60.0
    """A write is answered within this, or ends with 504. Reads take turns instead, and end with their client."""
    send_timeout_s: float = 60.0
    """How long the other side may refuse to take bytes before the connection is cut."""
    sending_bytes_max: int = 256 * MIB
    """Bodies of large answers on their way out, all together: clients that ask for long lists and do not read them."""
    sending_per_user_bytes_max: int = 64 * MIB
    """Of them, one user's; a single answer may be larger."""
    body_held_bytes_max: int = 64 * MIB
    """Bodies of requests that arrive, wait or are worked on, all together."""
    body_held_per_user_bytes_max: int = 16 * MIB
    bodies_per_user_max: int = 256
    """Bodies of one user that are on their way at the same time."""

    # --- the whole server
    connections_max: int = 4096
    connections_per_address_max: int = 3072
    handshakes_max: int = 1024
    """Connections that are accepted and not through their TLS handshake; more wait in the kernel."""
    handshakes_per_address_max: int = 512
    tls_handshake_timeout_s: float = 15.0
    keep_alive_timeout_s: float = 180.0
    """Longer than the 90 s after which Go clients drop an idle connection, so that they close first and never race us."""
    in_flight_read_max: int = 400
    in_flight_write_max: int = 200
    in_flight_reserved: int = 32
    """On top, for system:masters only: an overloaded server can still be inspected and repaired."""
    in_flight_per_user_max: int = 100
    """Reads, and as many writes, of one user that are served at the same time; the rest waits."""
    queue_len_max: int = 2000
    """Requests of one priority level that wait to be served."""
    queue_per_user_len_max: int = 500
    queue_wait_max_s: float = 15.0
    """A quarter of the time that a request has: whoever waits longer is better told to come back."""
    watches_max: int = 10_000
    watches_per_user_max: int = 5_000
    watch_unread_bytes_max: int = 64 * MIB
    """Events that were sent to watchers which do not read them, all together; whoever comes on top is cut and resumes."""
    watch_unread_per_user_bytes_max: int = 16 * MIB
    watch_timeout_min_s: float = 1800.0
    """A watch without timeoutSeconds lasts this long to twice as long, spread by its id so that not all end at once."""
    watch_timeout_max_s: float = 24 * 3600.0

    # --- answers
    gzip_bytes_min: int = 128 * KIB
    list_chunk_max: int = 100_000
    """`limit` above this is cut to it."""
    warnings_max: int = 32
    """Warning headers on one answer."""
    warning_chars_max: int = 256

    # --- credentials
    token_lifetime_min_s: int = 600
    token_lifetime_default_s: int = 3600
    token_lifetime_max_s: int = 365 * 24 * 3600
    token_cache_max: int = 4096
    """Verified service-account tokens that are remembered (by hash) until they expire."""

    # --- nodes that join
    join_body_bytes_max: int = 64 * KIB
    join_at_once_max: int = 16
    join_per_minute_max: int = 600
    """Requests to join or to renew a certificate, from all addresses together; so many may also come at once."""
    join_per_address_minute_max: int = 60

    # --- logs of nodes, and connections into pods
    node_logs_max: int = 200
    """Logs that are being read from agents at the same time."""
    node_streams_max: int = 200
    """Connections into pods (exec, port-forward) that are open at the same time."""
    node_streams_per_user_max: int = 50
    node_connect_timeout_s: float = 5.0
    """How long an agent has to take a connection."""
    node_silence_timeout_s: float = 4 * 3600.0
    """A log that is followed, or a connection into a pod, in which nothing happens for so long, ends; as with kubelets. In a
    connection heartbeats pass, which are not told from other bytes here: the agent tells them, and ends it after 4 hours."""

    # --- admission webhooks
    webhook_calls_at_once_max: int = 32
    """Calls of one webhook; further ones wait."""
    webhook_calls_per_hook_max: int = 96
    """Calls of one webhook that are under way or wait. Beyond that 429: a webhook that hangs shall not take every slot."""
    webhook_writes_max: int = 160
    """Writes that are being asked about. Less than `in_flight_write_max`, so that writes that concern none go on."""
    webhook_phase_timeout_s: float = 30.0
    """All mutating webhooks of a write together, and all validating ones: as long as a single one may take."""
    webhook_answer_bytes_max: int = 3 * MIB

    # --- files
    audit_file_bytes_max: int = 100 * MIB
    audit_files_max: int = 5
    audit_buffer_lines_max: int = 20_000
    audit_buffer_bytes_max: int = 64 * MIB
    audit_event_bytes_max: int = 100 * KIB
    """An event with bodies larger than this is written without them, and says so; as in Kubernetes."""


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How to run one server. Only `data_dir` has no default."""

    data_dir: Path
    host: str = "127.0.0.1"
    """Loopback unless told otherwise."""
    port: int = 6443
    """0 takes any free port."""
    advertise_host: str = ""
    """What the kubeconfig names; by default the host, or loopback when that is a wildcard address."""
    certificate_names: tuple[str, ...] = ()
    """Further host names and addresses for the server certificate, beside loopback, `host` and `advertise_host`."""
    limits: ServerLimits = ServerLimits()
    audit_enabled: bool = True
    certificate_check_interval_s: float = 3600.0
    """How often a running server looks whether its certificates are to be renewed."""
    stop_grace_s: float = 10.0
    """On stop: time for requests in flight to finish before they are cut."""
    authentication: AuthenticationSettings = AuthenticationSettings()
    """Which issuers of OpenID Connect tokens are trusted."""
    audit_policy_path: Path | None = None
    """Which requests the audit log tells how much about; of all of them their metadata without it."""
    settings_check_interval_s: float = 10.0
    """How often a running server looks whether its issuers or the keys of its tokens have changed on disk."""
    clock: Clock = wall_clock

    @property
    def store_dir(self) -> Path:
        return self.data_dir / "store"

    @property
    def pki_dir(self) -> Path:
        return self.data_dir / "pki"

    @property
    def kubeconfig_path(self) -> Path:
        return self.data_dir / "kubeconfig"

    @property
    def audit_path(self) -> Path:
        return self.data_dir / "audit" / "audit.jsonl"

    @property
    def reachable_host(self) -> str:
        """A host that a client on this machine can connect to."""
        if self.advertise_host:
            return self.advertise_host
        return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104 - compared, not bound


def check(config: ServerConfig) -> None:
    """Raise ValueError naming the first setting that makes no sense."""
    if not 0 <= config.port <= 65535:
        raise ValueError(f"port {config.port} is not between 0 and 65535")
    for name in config.limits.__struct_fields__:
        value = getattr(config.limits, name)
        if value <= 0 and name != "in_flight_reserved":
            raise ValueError(f"limit {name}={value} must be positive; leave it out for its default")
