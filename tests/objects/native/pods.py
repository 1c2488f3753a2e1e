"""Pods that a server refuses, and some that it takes."""

from __future__ import annotations

from tests.objects.native.case import LABELS, MAIN, Case, container, env, node_affinity, pod, resources, spec

_SECCOMP = "securityContext.seccompProfile.localhostProfile"
_VOLUME = "spec.volumes[0]"
_HOST_PORT = {"containerPort": 1, "hostPort": 2}

PODS = [
    Case("least", "", "Pod", pod()),
    Case("no containers", "", "Pod", spec(containers=[]), "spec.containers"),
    Case("no image", "", "Pod", spec(containers=[{"name": "a"}]), "spec.containers[0].image"),
    Case("image with a space", "", "Pod", container(image=" x"), "spec.containers[0].image"),
    Case("container name", "", "Pod", container(name="A_b"), "spec.containers[0].name"),
    Case("container twice", "", "Pod", spec(containers=[MAIN, MAIN]), "spec.containers[1].name"),
    Case("init container of the same name", "", "Pod", pod(initContainers=[MAIN]), "spec.initContainers[0].name"),
    Case(
        "ephemeral on create",
        "",
        "Pod",
        pod(ephemeralContainers=[{"name": "e", "image": "x"}]),
        "spec.ephemeralContainers",
        "1.23",
    ),
    Case("restart policy", "", "Pod", pod(restartPolicy="Sometimes"), "spec.restartPolicy"),
    Case("pull policy", "", "Pod", container(imagePullPolicy="Maybe"), "spec.containers[0].imagePullPolicy"),
    Case("dns policy", "", "Pod", pod(dnsPolicy="x"), "spec.dnsPolicy"),
    Case("no spec", "", "Pod", {}, "spec.containers"),
    Case("dns policy None without settings", "", "Pod", pod(dnsPolicy="None"), "spec.dnsConfig"),
    Case(
        "dns policy None without servers",
        "",
        "Pod",
        pod(dnsPolicy="None", dnsConfig={"searches": ["a"]}),
        "spec.dnsConfig.nameservers",
    ),
    Case("name server", "", "Pod", pod(dnsConfig={"nameservers": ["10.0.0.1", "x"]}), "spec.dnsConfig.nameservers[1]"),
    Case("kernel parameter", "", "Pod", pod(securityContext={"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]})),
    Case(
        "kernel parameter misspelt",
        "",
        "Pod",
        pod(securityContext={"sysctls": [{"name": "kernel shm", "value": "1"}]}),
        "spec.securityContext.sysctls[0].name",
    ),
    *(
        Case(f"seccomp {why}", "", "Pod", make(securityContext={"seccompProfile": profile}), path + refused if refused else "")
        for make, path in ((pod, "spec."), (container, "spec.containers[0]."))
        for why, profile, refused in (
            ("of the runtime", {"type": "RuntimeDefault"}, ""),
            ("of the node", {"type": "Localhost", "localhostProfile": "a/b.json"}, ""),
            ("of the node without a name", {"type": "Localhost"}, _SECCOMP),
            ("of the runtime with a name", {"type": "RuntimeDefault", "localhostProfile": "a"}, _SECCOMP),
            ("from elsewhere", {"type": "Localhost", "localhostProfile": "../a"}, _SECCOMP),
        )
    ),
    *(
        Case(f"files of a {word} {why}", "", "Pod", pod(volumes=[{"name": "v", word: source}]), refused)
        for word, source, why, refused in (
            ("configMap", {"name": "m", "items": [{"key": "k", "path": "a/b"}]}, "inside", ""),
            (
                "configMap",
                {"name": "m", "items": [{"key": "k", "path": "../a"}]},
                "outside",
                f"{_VOLUME}.configMap.items[0].path",
            ),
            (
                "secret",
                {"secretName": "m", "items": [{"key": "k", "path": "/a"}]},
                "outside",
                f"{_VOLUME}.secret.items[0].path",
            ),
            (
                "downwardAPI",
                {"items": [{"path": "a/../../b", "fieldRef": {"fieldPath": "metadata.name"}}]},
                "outside",
                f"{_VOLUME}.downwardAPI.items[0].path",
            ),
            (
                "projected",
                {"sources": [{"secret": {"name": "m", "items": [{"key": "k", "path": ".."}]}}]},
                "outside",
                f"{_VOLUME}.projected.sources[0].secret.items[0].path",
            ),
        )
    ),
    Case(
        "empty directory below 0",
        "",
        "Pod",
        pod(volumes=[{"name": "v", "emptyDir": {"sizeLimit": "-1"}}]),
        f"{_VOLUME}.emptyDir.sizeLimit",
    ),
    *(
        Case(f"{word} at port {port}", "", "Pod", container(**{word: make(port)}), refused)
        for word, make, path in (
            ("livenessProbe", lambda port: {"tcpSocket": {"port": port}}, "livenessProbe.tcpSocket.port"),
            ("lifecycle", lambda port: {"preStop": {"httpGet": {"port": port, "path": "/"}}}, "lifecycle.preStop.httpGet.port"),
        )
        for port, refused in (
            (80, ""),
            ("http", ""),
            (0, f"spec.containers[0].{path}"),
            (65536, f"spec.containers[0].{path}"),
            ("a b", f"spec.containers[0].{path}"),
        )
    ),
    Case("variable from nowhere", "", "Pod", env(valueFrom={}), "spec.containers[0].env[0].valueFrom"),
    Case("variables from nowhere", "", "Pod", container(envFrom=[{}]), "spec.containers[0].envFrom[0]"),
    Case("grace period below 0", "", "Pod", pod(terminationGracePeriodSeconds=-1)),
    Case("deadline 0", "", "Pod", pod(activeDeadlineSeconds=0), "spec.activeDeadlineSeconds"),
    Case("hostname", "", "Pod", pod(hostname="a.b"), "spec.hostname"),
    Case("node selector", "", "Pod", pod(nodeSelector={"a b": "c"}), "spec.nodeSelector"),
    Case("host alias", "", "Pod", pod(hostAliases=[{"ip": "x", "hostnames": ["a"]}]), "spec.hostAliases[0].ip"),
    Case("shared and host pid", "", "Pod", pod(hostPID=True, shareProcessNamespace=True), "spec.shareProcessNamespace"),
    Case("service account", "", "Pod", pod(serviceAccountName="A"), "spec.serviceAccountName"),
    Case("gate and node", "", "Pod", pod(schedulingGates=[{"name": "a.b/c"}], nodeName="n"), "spec.nodeName", "1.26"),
    # ports
    Case("port", "", "Pod", container(ports=[{"containerPort": 80, "name": "http"}])),
    Case("port 0", "", "Pod", container(ports=[{"containerPort": 0}]), "spec.containers[0].ports[0].containerPort"),
    Case("port too high", "", "Pod", container(ports=[{"containerPort": 65536}]), "spec.containers[0].ports[0].containerPort"),
    Case("port name", "", "Pod", container(ports=[{"containerPort": 1, "name": "HTTP"}]), "spec.containers[0].ports[0].name"),
    Case(
        "port name twice",
        "",
        "Pod",
        container(ports=[{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]),
        "spec.containers[0].ports[1].name",
    ),
    Case("port twice", "", "Pod", container(ports=[{"containerPort": 1}, {"containerPort": 1}])),
    Case(
        "protocol",
        "",
        "Pod",
        container(ports=[{"containerPort": 1, "protocol": "ICMP"}]),
        "spec.containers[0].ports[0].protocol",
    ),
    Case(
        "host port on host network",
        "",
        "Pod",
        {"spec": {"hostNetwork": True, "containers": [{**MAIN, "ports": [{"containerPort": 1, "hostPort": 2}]}]}},
        "spec.containers[0].ports[0].hostPort",
    ),
    Case("host port twice", "", "Pod", container(ports=[_HOST_PORT, _HOST_PORT]), "spec.containers[0].ports[1].hostPort"),
    Case("host port by protocol", "", "Pod", container(ports=[_HOST_PORT, {**_HOST_PORT, "protocol": "UDP"}])),
    Case("host port by address", "", "Pod", container(ports=[_HOST_PORT, {**_HOST_PORT, "hostIP": "10.0.0.1"}])),
    Case(
        "host port of two containers",
        "",
        "Pod",
        spec(containers=[{**MAIN, "name": name, "ports": [_HOST_PORT]} for name in ("a", "b")]),
        "spec.containers[1].ports[0].hostPort",
    ),
    Case(
        "port of two containers on the host network",
        "",
        "Pod",
        spec(hostNetwork=True, containers=[{**MAIN, "name": name, "ports": [{"containerPort": 1}]} for name in ("a", "b")]),
        "spec.containers[1].ports[0].hostPort",
    ),
    Case(
        "host port of init containers, one after the other",
        "",
        "Pod",
        pod(initContainers=[{**MAIN, "name": name, "ports": [_HOST_PORT]} for name in ("a", "b")]),
    ),
    Case(
        "host port twice in an init container",
        "",
        "Pod",
        pod(initContainers=[{**MAIN, "name": "a", "ports": [_HOST_PORT, _HOST_PORT]}]),
        "spec.initContainers[0].ports[1].hostPort",
    ),
    # environment
    Case("env", "", "Pod", env(value="$(B)")),
    Case("env twice", "", "Pod", container(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}])),
    Case("env name", "", "Pod", container(env=[{"name": "1=2"}]), "spec.containers[0].env[0].name"),
    Case(
        "env value and source",
        "",
        "Pod",
        env(value="x", valueFrom={"fieldRef": {"fieldPath": "metadata.name"}}),
        "spec.containers[0].env[0].valueFrom",
    ),
    Case("env source empty", "", "Pod", env(valueFrom={}), "spec.containers[0].env[0].valueFrom"),
    Case(
        "env field",
        "",
        "Pod",
        env(valueFrom={"fieldRef": {"fieldPath": "spec.dnsPolicy"}}),
        "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath",
    ),
    Case("env label", "", "Pod", env(valueFrom={"fieldRef": {"fieldPath": "metadata.labels['a.b/c']"}})),
    # resources
    Case("resources", "", "Pod", resources(requests={"cpu": 0.5, "memory": "1Gi"}, limits={"cpu": 1, "memory": "1Gi"})),
    Case(
        "more than the limit",
        "",
        "Pod",
        resources(requests={"cpu": "2"}, limits={"cpu": "1"}),
        "spec.containers[0].resources.requests",
    ),
    Case("no quantity", "", "Pod", resources(requests={"cpu": "two"}), "spec.containers[0].resources.requests.cpu"),
    Case("negative", "", "Pod", resources(requests={"cpu": "-1"}), "spec.containers[0].resources.requests[cpu]"),
    Case(
        "unknown resource",
        "",
        "Pod",
        resources(requests={"bandwidth": "1"}),
        "spec.containers[0].resources.requests[bandwidth]",
    ),
    Case("extended resource", "", "Pod", resources(limits={"example.com/gpu": "2"})),
    Case(
        "half an extended resource",
        "",
        "Pod",
        resources(limits={"example.com/gpu": "500m"}),
        "spec.containers[0].resources.limits[example.com/gpu]",
    ),
    Case(
        "extended request without limit",
        "",
        "Pod",
        resources(requests={"example.com/gpu": 1}),
        "spec.containers[0].resources.limits",
    ),
    Case(
        "extended request below limit",
        "",
        "Pod",
        resources(requests={"example.com/gpu": 1}, limits={"example.com/gpu": 2}),
        "spec.containers[0].resources.requests",
    ),
    Case(
        "batch resource",
        "",
        "Pod",
        resources(requests={"kubernetes.io/batch-cpu": "100"}, limits={"kubernetes.io/batch-cpu": "200"}),
    ),
    # probes
    Case("probe", "", "Pod", container(livenessProbe={"httpGet": {"port": "http"}})),
    Case("probe without handler", "", "Pod", container(livenessProbe={"periodSeconds": 1}), "spec.containers[0].livenessProbe"),
    Case(
        "probe with two handlers",
        "",
        "Pod",
        container(readinessProbe={"exec": {"command": ["x"]}, "tcpSocket": {"port": 1}}),
        "spec.containers[0].readinessProbe.tcpSocket",
    ),
    Case(
        "liveness success threshold",
        "",
        "Pod",
        container(livenessProbe={"tcpSocket": {"port": 1}, "successThreshold": 2}),
        "spec.containers[0].livenessProbe.successThreshold",
    ),
    Case("readiness success threshold", "", "Pod", container(readinessProbe={"tcpSocket": {"port": 1}, "successThreshold": 2})),
    Case(
        "init container probe",
        "",
        "Pod",
        pod(initContainers=[{"name": "i", "image": "x", "readinessProbe": {"tcpSocket": {"port": 1}}}]),
        "spec.initContainers[0].readinessProbe",
    ),
    Case("hook without handler", "", "Pod", container(lifecycle={"preStop": {}}), "spec.containers[0].lifecycle.preStop"),
    # rights
    Case("rights", "", "Pod", container(securityContext={"runAsUser": 1000, "capabilities": {"drop": ["ALL"]}})),
    Case(
        "negative user", "", "Pod", container(securityContext={"runAsUser": -1}), "spec.containers[0].securityContext.runAsUser"
    ),
    Case(
        "capability against escalation",
        "",
        "Pod",
        container(securityContext={"allowPrivilegeEscalation": False, "capabilities": {"add": ["CAP_SYS_ADMIN"]}}),
        "spec.containers[0].securityContext",
    ),
    # volumes
    Case("volume without source", "", "Pod", pod(volumes=[{"name": "v"}])),
    Case(
        "volume with two sources",
        "",
        "Pod",
        pod(volumes=[{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}}]),
        "spec.volumes[0].hostPath",
    ),
    Case("volume name", "", "Pod", pod(volumes=[{"name": "V", "emptyDir": {}}]), "spec.volumes[0].name"),
    Case("volume twice", "", "Pod", pod(volumes=[{"name": "v"}, {"name": "v"}]), "spec.volumes[1].name"),
    Case("secret without name", "", "Pod", pod(volumes=[{"name": "v", "secret": {}}]), "spec.volumes[0].secret.secretName"),
    Case(
        "mode",
        "",
        "Pod",
        pod(volumes=[{"name": "v", "secret": {"secretName": "s", "defaultMode": 0o1000}}]),
        "spec.volumes[0].secret.defaultMode",
    ),
    Case(
        "host path type",
        "",
        "Pod",
        pod(volumes=[{"name": "v", "hostPath": {"path": "/x", "type": "Dir"}}]),
        "spec.volumes[0].hostPath.type",
    ),
    Case(
        "host path with dots",
        "",
        "Pod",
        pod(volumes=[{"name": "v", "hostPath": {"path": "/x/../y"}}]),
        "spec.volumes[0].hostPath.path",
    ),
    Case(
        "mount without volume",
        "",
        "Pod",
        container(volumeMounts=[{"name": "v", "mountPath": "/x"}]),
        "spec.containers[0].volumeMounts[0].name",
    ),
    Case(
        "mount path twice",
        "",
        "Pod",
        {
            "spec": {
                "volumes": [{"name": "v"}],
                "containers": [{**MAIN, "volumeMounts": [{"name": "v", "mountPath": "/x"}] * 2}],
            }
        },
        "spec.containers[0].volumeMounts[1].mountPath",
    ),
    Case(
        "sub path upwards",
        "",
        "Pod",
        {
            "spec": {
                "volumes": [{"name": "v"}],
                "containers": [{**MAIN, "volumeMounts": [{"name": "v", "mountPath": "/x", "subPath": "../y"}]}],
            }
        },
        "spec.containers[0].volumeMounts[0].subPath",
    ),
    # placement
    Case("toleration", "", "Pod", pod(tolerations=[{"operator": "Exists"}])),
    Case("toleration of nothing", "", "Pod", pod(tolerations=[{}]), "spec.tolerations[0].operator"),
    Case(
        "toleration Exists with value",
        "",
        "Pod",
        pod(tolerations=[{"key": "a", "operator": "Exists", "value": "b"}]),
        "spec.tolerations[0].operator",
    ),
    Case(
        "toleration seconds without NoExecute",
        "",
        "Pod",
        pod(tolerations=[{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 3}]),
        "spec.tolerations[0].effect",
    ),
    Case("toleration effect", "", "Pod", pod(tolerations=[{"key": "a", "effect": "Evict"}]), "spec.tolerations[0].effect"),
    Case("affinity", "", "Pod", node_affinity(key="zone", operator="In", values=["a"])),
    Case(
        "affinity without values",
        "",
        "Pod",
        node_affinity(key="zone", operator="In"),
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values",
    ),
    Case(
        "affinity Exists with values",
        "",
        "Pod",
        node_affinity(key="zone", operator="Exists", values=["a"]),
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values",
    ),
    Case(
        "affinity operator",
        "",
        "Pod",
        node_affinity(key="zone", operator="Is", values=["a"]),
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator",
    ),
    Case(
        "affinity Gt",
        "",
        "Pod",
        node_affinity(key="n", operator="Gt", values=["1", "2"]),
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values",
    ),
    Case(
        "affinity without terms",
        "",
        "Pod",
        pod(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}),
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
    ),
    Case(
        "anti-affinity without topology",
        "",
        "Pod",
        pod(
            affinity={
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": LABELS, "topologyKey": ""}]
                }
            }
        ),
        "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey",
    ),
    Case(
        "weight",
        "",
        "Pod",
        pod(
            affinity={
                "nodeAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 101, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}
                    ]
                }
            }
        ),
        "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight",
    ),
    Case(
        "skew 0",
        "",
        "Pod",
        pod(topologySpreadConstraints=[{"maxSkew": 0, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]),
        "spec.topologySpreadConstraints[0].maxSkew",
    ),
    Case(
        "spread twice",
        "",
        "Pod",
        pod(topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}] * 2),
        "spec.topologySpreadConstraints[1]",
    ),
]
