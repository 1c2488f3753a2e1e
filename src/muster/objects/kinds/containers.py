"""Containers: what runs in a pod, with its environment, probes, resources and rights. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

from muster.objects.kinds.base import (
    ATOMIC_MAP,
    Count,
    Native,
    Port,
    Protocol,
    PullPolicy,
    Strings,
    between,
    default,
    keyed_merge,
    one_of,
)
from muster.objects.view import ATOMIC, SET, Int32, IntOrString, Quantities, QuantityValue, keyed


class ConfigMapKeySelector(Native):
    """One key of a ConfigMap."""

    __schema_extra__ = ATOMIC_MAP

    key: Annotated[str, "The key whose value is used."]
    name: Annotated[str, "The ConfigMap's name."] = ""
    optional: Annotated[bool | None, "Go on when the ConfigMap or the key is missing."] = None


class SecretKeySelector(Native):
    """One key of a Secret."""

    __schema_extra__ = ATOMIC_MAP

    key: Annotated[str, "The key whose value is used."]
    name: Annotated[str, "The Secret's name."] = ""
    optional: Annotated[bool | None, "Go on when the Secret or the key is missing."] = None


class ObjectFieldSelector(Native):
    """A field of the pod itself."""

    __schema_extra__ = ATOMIC_MAP

    field_path: Annotated[str, "Such as `metadata.name`, `metadata.labels['app']`, `spec.nodeName` or `status.podIP`."]
    api_version: Annotated[str, "Schema version that the path is written for."] = "v1"


class ResourceFieldSelector(Native):
    """A request or limit of a container."""

    __schema_extra__ = ATOMIC_MAP

    resource: Annotated[str, "Such as `limits.cpu` or `requests.memory`."]
    container_name: Annotated[str, "Whose; needed in volumes, and this container's own in its environment."] = ""
    divisor: Annotated[QuantityValue | None, default("0"), "Unit of the result; 1 when absent or 0."] = None


class FileKeySelector(Native):
    """One key of a file that an init container has written."""

    __schema_extra__ = ATOMIC_MAP

    key: Annotated[str, "The variable in the file."]
    path: Annotated[str, "The file, relative to the volume."]
    volume_name: Annotated[str, "The volume with the file."]
    optional: Annotated[bool | None, default(False), "Go on when the file or the key is missing."] = None


class EnvVarSource(Native):
    """Where an environment variable's value comes from; exactly one is set."""

    field_ref: Annotated[ObjectFieldSelector | None, "A field of the pod."] = None
    resource_field_ref: Annotated[ResourceFieldSelector | None, "A request or limit."] = None
    config_map_key_ref: Annotated[ConfigMapKeySelector | None, "A key of a ConfigMap."] = None
    secret_key_ref: Annotated[SecretKeySelector | None, "A key of a Secret."] = None
    file_key_ref: Annotated[FileKeySelector | None, "A key of a file in a volume."] = None


class EnvVar(Native):
    """One environment variable."""

    name: Annotated[str, "Its name."]
    value: Annotated[str, "Its value; `$(OTHER)` is replaced by a variable set before it, `$$(OTHER)` is not."] = ""
    value_from: Annotated[EnvVarSource | None, "Where the value comes from, instead of `value`."] = None


class ConfigMapEnvSource(Native):
    """All keys of a ConfigMap as variables."""

    name: Annotated[str, "The ConfigMap's name."] = ""
    optional: Annotated[bool | None, "Go on when it is missing."] = None


class SecretEnvSource(Native):
    """All keys of a Secret as variables."""

    name: Annotated[str, "The Secret's name."] = ""
    optional: Annotated[bool | None, "Go on when it is missing."] = None


class EnvFromSource(Native):
    """Many environment variables at once."""

    prefix: Annotated[str, "Put before each name."] = ""
    config_map_ref: Annotated[ConfigMapEnvSource | None, "From a ConfigMap."] = None
    secret_ref: Annotated[SecretEnvSource | None, "From a Secret."] = None


class ContainerPort(Native):
    """A port that the container listens on."""

    container_port: Annotated[Port, "Number on the pod's address."]
    name: Annotated[str, "Name that services can use instead of the number; unique in the pod."] = ""
    host_port: Annotated[int, between(0, 65535), "Number on the node's address, when the node shall forward it."] = 0
    host_ip: Annotated[str, "Address of the node to bind `hostPort` to."] = ""
    protocol: Annotated[Protocol, "TCP, UDP or SCTP."] = "TCP"


class VolumeMount(Native):
    """Puts a volume of the pod into the container's file system."""

    name: Annotated[str, "The volume's name in the pod."]
    mount_path: Annotated[str, "Where it appears; without `:`."]
    read_only: Annotated[bool, "The container can't write to it."] = False
    recursive_read_only: Annotated[
        str | None, one_of("Disabled", "IfPossible", "Enabled"), "Whether mounts below it are read-only too."
    ] = None
    sub_path: Annotated[str, "The part of the volume to mount instead of its root."] = ""
    sub_path_expr: Annotated[str, "The same, with `$(VARIABLE)` replaced from the environment."] = ""
    mount_propagation: Annotated[
        str | None, one_of("None", "HostToContainer", "Bidirectional"), "Whether later mounts pass between node and container."
    ] = None
    bind_mount_options: Annotated[list[str], SET, "Further options of the bind mount."] = []


class VolumeDevice(Native):
    """Gives the container a block volume as a device."""

    name: Annotated[str, "The volume's name in the pod."]
    device_path: Annotated[str, "Where the device appears."]


class ResourceClaim(Native):
    """Uses a device claim of the pod."""

    name: Annotated[str, "The claim's name in `spec.resourceClaims`."]
    request: Annotated[str, "One request of the claim; absent means all of it."] = ""


class ResourceRequirements(Native):
    """How much of each resource is reserved, and how much may be used."""

    limits: Annotated[Quantities, "The most that may be used."] = {}
    requests: Annotated[Quantities, "What is reserved; where absent, the limit."] = {}
    claims: Annotated[list[ResourceClaim], keyed("name"), "Device claims that are used."] = []


class ContainerResizePolicy(Native):
    """What changing a resource in place takes."""

    resource_name: Annotated[str, "cpu or memory."]
    restart_policy: Annotated[str, one_of("NotRequired", "RestartContainer"), "Whether the container has to restart."]


class ContainerRestartRuleOnExitCodes(Native):
    """A set of exit codes."""

    operator: Annotated[str, one_of("In", "NotIn"), "Whether the code has to be among the values."]
    values: Annotated[list[Int32], SET, "Exit codes, 0 to 255."] = []


class ContainerRestartRule(Native):
    """What to do when the container ends in a certain way."""

    action: Annotated[str, one_of("Restart", "RestartAllContainers"), "What to do."]
    exit_codes: Annotated[ContainerRestartRuleOnExitCodes | None, "When the exit code is among these."] = None


class ExecAction(Native):
    """Runs a command in the container."""

    command: Annotated[Strings, "Program and arguments; no shell around it. Exit code 0 is success."] = []


class HTTPHeader(Native):
    """A header of a request."""

    name: Annotated[str, "Its name."]
    value: Annotated[str, "Its value."]


class HTTPGetAction(Native):
    """Asks a URL; any answer from 200 to 399 is success."""

    port: Annotated[IntOrString, "Number, or name of a container port."]
    path: Annotated[str, "Path of the URL."] = "/"
    host: Annotated[str, "Host to connect to instead of the pod's address."] = ""
    scheme: Annotated[str, one_of("HTTP", "HTTPS"), "HTTP or HTTPS; certificates are not checked."] = "HTTP"
    http_headers: Annotated[list[HTTPHeader], ATOMIC, "Further headers."] = []
    protocol: Annotated[str, "Version of HTTP to speak."] = ""


class TCPSocketAction(Native):
    """Opens a connection; that it opens is success."""

    port: Annotated[IntOrString, "Number, or name of a container port."]
    host: Annotated[str, "Host to connect to instead of the pod's address."] = ""


class GRPCAction(Native):
    """Asks the gRPC health service."""

    port: Annotated[Port, "Its port."]
    service: Annotated[str | None, default(""), "The service to ask about."] = None
    mode: Annotated[str, "How to connect."] = ""


class SleepAction(Native):
    """Waits."""

    seconds: Annotated[int, "How long."]


class Probe(Native):
    """A check that is repeated while the container runs."""

    exec: Annotated[ExecAction | None, "By a command."] = None
    http_get: Annotated[HTTPGetAction | None, "By an HTTP request."] = None
    tcp_socket: Annotated[TCPSocketAction | None, "By opening a connection."] = None
    grpc: Annotated[GRPCAction | None, "By the gRPC health service."] = None
    initial_delay_seconds: Annotated[Count, "Wait this long after the start."] = 0
    timeout_seconds: Annotated[int, between(1), "A check that takes longer has failed."] = 1
    period_seconds: Annotated[int, between(1), "Time between checks."] = 10
    success_threshold: Annotated[int, between(1), "Successes in a row that end a failure; 1 for liveness and startup."] = 1
    failure_threshold: Annotated[int, between(1), "Failures in a row that count."] = 3
    termination_grace_period_seconds: Annotated[int | None, "Time to end after this probe failed, instead of the pod's."] = None


class LifecycleHandler(Native):
    """Something to do at a moment of the container's life; exactly one is set."""

    exec: Annotated[ExecAction | None, "Run a command."] = None
    http_get: Annotated[HTTPGetAction | None, "Send a request."] = None
    tcp_socket: Annotated[TCPSocketAction | None, "Kept for old manifests; does nothing."] = None
    sleep: Annotated[SleepAction | None, "Wait."] = None


class Lifecycle(Native):
    """What to do around the container's start and end."""

    post_start: Annotated[LifecycleHandler | None, "Right after the start; a failure ends the container."] = None
    pre_stop: Annotated[LifecycleHandler | None, "Before it is told to end; counts into its grace period."] = None
    stop_signal: Annotated[str | None, "Signal that tells it to end, such as SIGTERM; needs `spec.os.name`."] = None


class Capabilities(Native):
    """Linux capabilities."""

    add: Annotated[Strings, "Given besides the runtime's own set."] = []
    drop: Annotated[Strings, "Taken away; `ALL` for all."] = []


class SELinuxOptions(Native):
    """SELinux label."""

    user: Annotated[str, "User part."] = ""
    role: Annotated[str, "Role part."] = ""
    type: Annotated[str, "Type part."] = ""
    level: Annotated[str, "Level part."] = ""


class WindowsSecurityContextOptions(Native):
    """Rights on Windows nodes."""

    gmsa_credential_spec_name: Annotated[str | None, "Name of the group managed service account to use."] = None
    gmsa_credential_spec: Annotated[str | None, "Its contents, filled in by admission."] = None
    run_as_user_name: Annotated[str | None, "User that runs the program."] = None
    host_process: Annotated[bool | None, "Run as a process of the host; the same for all containers of a pod."] = None


class SeccompProfile(Native):
    """Which system calls are allowed."""

    type: Annotated[str, one_of("Localhost", "RuntimeDefault", "Unconfined"), "Where the profile comes from."]
    localhost_profile: Annotated[str | None, "File on the node, for Localhost."] = None


class AppArmorProfile(Native):
    """Which AppArmor rules hold."""

    type: Annotated[str, one_of("Localhost", "RuntimeDefault", "Unconfined"), "Where the profile comes from."]
    localhost_profile: Annotated[str | None, "Profile loaded on the node, for Localhost."] = None


class SecurityContext(Native):
    """Rights of one container; what is set here wins over the pod's."""

    capabilities: Annotated[Capabilities | None, "Linux capabilities to add and drop."] = None
    privileged: Annotated[bool | None, "As good as root on the node."] = None
    se_linux_options: Annotated[SELinuxOptions | None, "SELinux label."] = None
    windows_options: Annotated[WindowsSecurityContextOptions | None, "Rights on Windows nodes."] = None
    run_as_user: Annotated[int | None, between(0, None, "int64"), "User id of the program."] = None
    run_as_group: Annotated[int | None, between(0, None, "int64"), "Group id of the program."] = None
    run_as_non_root: Annotated[bool | None, "Refuse to start it as user 0."] = None
    read_only_root_filesystem: Annotated[bool | None, "The container can't write outside its volumes."] = None
    allow_privilege_escalation: Annotated[bool | None, "Whether it may gain rights that its parent lacks (setuid)."] = None
    proc_mount: Annotated[str | None, one_of("Default", "Unmasked"), "How much of /proc is hidden."] = None
    seccomp_profile: Annotated[SeccompProfile | None, "System calls that are allowed."] = None
    app_armor_profile: Annotated[AppArmorProfile | None, "AppArmor rules."] = None


class Container(Native):
    """One program in a pod, with its image, environment, mounts and resources."""

    name: Annotated[str, "Unique in the pod; a DNS label. Can't be changed."]
    image: Annotated[str, "The image to run."] = ""
    command: Annotated[Strings, "Program instead of the image's entry point; `$(VARIABLE)` is replaced."] = []
    args: Annotated[Strings, "Arguments instead of the image's own; `$(VARIABLE)` is replaced."] = []
    working_dir: Annotated[str, "Directory to start in instead of the image's."] = ""
    ports: Annotated[
        list[ContainerPort],
        keyed_merge("containerPort", "protocol"),
        "Ports it listens on. For information, and for names; others can be reached too.",
    ] = []
    env_from: Annotated[list[EnvFromSource], ATOMIC, "Many variables at once; later ones win, and `env` wins over all."] = []
    env: Annotated[list[EnvVar], keyed_merge("name"), "Environment variables."] = []
    resources: Annotated[ResourceRequirements | None, default({}), "What it reserves and what it may use."] = None
    resize_policy: Annotated[list[ContainerResizePolicy], ATOMIC, "What changing its resources in place takes."] = []
    restart_policy: Annotated[
        str | None,
        one_of("Always", "OnFailure", "Never"),
        "For init containers `Always` makes a sidecar; else overrides the pod's.",
    ] = None
    restart_policy_rules: Annotated[
        list[ContainerRestartRule], ATOMIC, "Exceptions from the restart policy, first match wins."
    ] = []
    volume_mounts: Annotated[list[VolumeMount], keyed_merge("mountPath"), "Volumes in its file system."] = []
    volume_devices: Annotated[list[VolumeDevice], keyed_merge("devicePath"), "Block volumes as devices."] = []
    liveness_probe: Annotated[Probe | None, "While it fails, the container is restarted."] = None
    readiness_probe: Annotated[Probe | None, "While it fails, services send nothing here."] = None
    startup_probe: Annotated[Probe | None, "Until it succeeds, the other probes wait."] = None
    lifecycle: Annotated[Lifecycle | None, "What to do around start and end."] = None
    termination_message_path: Annotated[str, "File with the container's last words."] = "/dev/termination-log"
    termination_message_policy: Annotated[
        str, one_of("File", "FallbackToLogsOnError"), "Whether the end of the log may stand in for an empty file."
    ] = "File"
    image_pull_policy: Annotated[PullPolicy, "Always for `:latest` or no tag, IfNotPresent otherwise, unless set."] = ""
    security_context: Annotated[SecurityContext | None, "Rights of this container."] = None
    stdin: Annotated[bool, "Keep standard input open."] = False
    stdin_once: Annotated[bool, "Close it after the first session that attached to it."] = False
    tty: Annotated[bool, "Give it a terminal; needs `stdin`."] = False


class EphemeralContainer(Container):
    """A container put into a running pod to look into it; it has no ports, probes or resources and is never restarted."""

    target_container_name: Annotated[str, "Container whose processes it shall see."] = ""
