"""Services, ingresses, network policies, volumes and workloads that a server refuses, and some that it takes."""

from __future__ import annotations

from typing import Any

from tests.objects.native.case import LABELS, NEVER, PV, TEMPLATE, Case, spec

from muster.objects.status import Raw

_NETWORKING, _STORAGE = "networking.k8s.io", "storage.k8s.io"
_BACKEND: Raw = {"service": {"name": "s", "port": {"number": 80}}}


def _service(**fields: Any) -> Raw:
    return spec(**{"ports": [{"port": 80}], **fields})


def _ingress(path: str = "/", **rule: Any) -> Raw:
    paths = [{"path": path, "pathType": "Prefix", "backend": _BACKEND}]
    return spec(rules=[{"http": {"paths": paths}, **rule}])


def _policy(**rule: Any) -> Raw:
    return spec(podSelector={}, egress=[rule])


def _block(cidr: str, *but: str) -> Raw:
    return _policy(to=[{"ipBlock": {"cidr": cidr, "except": list(but)}}])


def _endpoints(**address: Any) -> Raw:
    return {"subsets": [{"addresses": [{"ip": "10.1.1.1", **address}], "ports": [{"port": 80}]}]}


_SERVICES = [
    Case("node port", "", "Service", spec(type="NodePort", ports=[{"port": 80, "nodePort": 30999}])),
    Case("node port inside", "", "Service", spec(ports=[{"port": 80, "nodePort": 30999}]), "spec.ports[0].nodePort"),
    Case("ranges of a balancer", "", "Service", _service(type="LoadBalancer", loadBalancerSourceRanges=["10.0.0.0/8"])),
    Case(
        "ranges without a balancer",
        "",
        "Service",
        _service(loadBalancerSourceRanges=["10.0.0.0/8"]),
        "spec.loadBalancerSourceRanges",
    ),
    Case("traffic from outside", "", "Service", _service(type="NodePort", externalTrafficPolicy="Local")),
    Case("traffic from nowhere", "", "Service", _service(externalTrafficPolicy="Local"), "spec.externalTrafficPolicy"),
    Case("health port", "", "Service", _service(type="LoadBalancer", healthCheckNodePort=30998), "spec.healthCheckNodePort"),
    Case("loopback outside", "", "Service", _service(externalIPs=["127.0.0.1"]), "spec.externalIPs"),
    Case("address outside", "", "Service", _service(externalIPs=["192.0.2.1"])),
    Case("protocol of a port", "", "Service", spec(ports=[{"port": 1, "appProtocol": "a b"}]), "spec.ports[0].appProtocol"),
    Case("multicast endpoint", "", "Endpoints", _endpoints(ip="224.0.0.1"), "subsets[0].addresses[0].ip"),
    Case("link-local endpoint", "", "Endpoints", _endpoints(ip="169.254.1.1"), "subsets[0].addresses[0].ip"),
    Case("link-local endpoint, IPv6", "", "Endpoints", _endpoints(ip="fe80::1"), "subsets[0].addresses[0].ip"),
    Case("unspecified endpoint", "", "Endpoints", _endpoints(ip="0.0.0.0"), "subsets[0].addresses[0].ip"),
    Case("endpoint's host", "", "Endpoints", _endpoints(hostname="A_"), "subsets[0].addresses[0].hostname"),
]

_INGRESSES = [
    Case("host", _NETWORKING, "Ingress", _ingress(host="a.b")),
    Case("any host of", _NETWORKING, "Ingress", _ingress(host="*.a.b")),
    *(
        Case(f"host {host}", _NETWORKING, "Ingress", _ingress(host=host), "spec.rules[0].host")
        for host in ("a.*.b", "*", "A.b", "192.0.2.1", "a:80")
    ),
    *(
        Case(f"path {path}", _NETWORKING, "Ingress", _ingress(path), "spec.rules[0].http.paths[0].path")
        for path in ("//a", "/a/../b", "/a/./b", "/a/..", "/a%2fb")
    ),
    Case("no paths", _NETWORKING, "Ingress", spec(rules=[{"http": {"paths": []}}]), "spec.rules[0].http.paths"),
    Case("class", _NETWORKING, "Ingress", spec(defaultBackend=_BACKEND, ingressClassName="C_"), "spec.ingressClassName"),
    Case(
        "class twice",
        _NETWORKING,
        "Ingress",
        {
            "metadata": {"annotations": {"kubernetes.io/ingress.class": "c"}},
            **spec(defaultBackend=_BACKEND, ingressClassName="c"),
        },
        "metadata.annotations[kubernetes.io/ingress.class]",
    ),
    Case("tls host", _NETWORKING, "Ingress", spec(defaultBackend=_BACKEND, tls=[{"hosts": ["A"]}]), "spec.tls[0].hosts[0]"),
    Case(
        "tls secret",
        _NETWORKING,
        "Ingress",
        spec(defaultBackend=_BACKEND, tls=[{"secretName": "S_"}]),
        "spec.tls[0].secretName",
    ),
]

_POLICIES = [
    Case("port by name", _NETWORKING, "NetworkPolicy", _policy(ports=[{"port": "http"}])),
    Case("port by a bad name", _NETWORKING, "NetworkPolicy", _policy(ports=[{"port": "HT_"}]), "spec.egress[0].ports[0].port"),
    Case("port 0", _NETWORKING, "NetworkPolicy", _policy(ports=[{"port": 0}]), "spec.egress[0].ports[0].port"),
    Case("three types", _NETWORKING, "NetworkPolicy", spec(podSelector={}, policyTypes=["Egress"] * 3), "spec.policyTypes"),
    Case("but a part", _NETWORKING, "NetworkPolicy", _block("10.0.0.0/8", "10.1.0.0/16")),
    Case("but a part, IPv6", _NETWORKING, "NetworkPolicy", _block("fd00::/8", "fd00:1::/32")),
    *(
        Case(f"but {but}", _NETWORKING, "NetworkPolicy", _block("10.0.0.0/8", but), "spec.egress[0].to[0].ipBlock.except[0]")
        for but in ("11.1.0.0/16", "10.0.0.0/8", "10.0.0.0/7", "fd00::/16")
    ),
]

_VOLUMES = [
    Case("volume's class", "", "PersistentVolume", spec(**{**PV, "storageClassName": "C_"}), "spec.storageClassName"),
    Case("nothing", "", "PersistentVolume", spec(**{**PV, "capacity": {"storage": "0"}}), "spec.capacity[storage]"),
    Case("path upwards", "", "PersistentVolume", spec(**{**PV, "hostPath": {"path": "/a/../b"}}), "spec.hostPath.path"),
    Case("no path", "", "PersistentVolume", spec(**{**PV, "hostPath": {"path": ""}}), "spec.hostPath.path"),
    Case(
        "root to be wiped",
        "",
        "PersistentVolume",
        spec(**{**PV, "hostPath": {"path": "/"}, "persistentVolumeReclaimPolicy": "Recycle"}),
        "spec.persistentVolumeReclaimPolicy",
    ),
    Case(
        "path of NFS",
        "",
        "PersistentVolume",
        spec(capacity=PV["capacity"], accessModes=PV["accessModes"], nfs={"server": "s", "path": "x"}),
        "spec.nfs.path",
    ),
    Case("provisioner", _STORAGE, "StorageClass", {"provisioner": "a b"}, "provisioner"),
    Case("provisioner in capitals", _STORAGE, "StorageClass", {"provisioner": "A.b/C"}),
    Case("recycling", _STORAGE, "StorageClass", {"provisioner": "a/b", "reclaimPolicy": "Recycle"}, "reclaimPolicy"),
    Case("parameter without a name", _STORAGE, "StorageClass", {"provisioner": "a/b", "parameters": {"": "b"}}, "parameters"),
    *(
        Case(
            f"topology of {values}",
            _STORAGE,
            "StorageClass",
            {"provisioner": "a/b", "allowedTopologies": [{"matchLabelExpressions": [{"key": "a", "values": values}]}]},
            refused and f"allowedTopologies[0].matchLabelExpressions[0].{refused}",
        )
        for values, refused in ((["b"], ""), ([], "values"), (["b", "b"], "values[1]"))
    ),
]

_WORKLOADS = [
    Case(
        "progress sooner than ready",
        "apps",
        "Deployment",
        spec(selector=LABELS, template=TEMPLATE, progressDeadlineSeconds=2, minReadySeconds=2),
        "spec.progressDeadlineSeconds",
    ),
    Case(
        "more than all",
        "apps",
        "Deployment",
        spec(selector=LABELS, template=TEMPLATE, strategy={"rollingUpdate": {"maxUnavailable": "150%"}}),
        "spec.strategy.rollingUpdate.maxUnavailable",
    ),
    Case(
        "more than all on top",
        "apps",
        "Deployment",
        spec(selector=LABELS, template=TEMPLATE, strategy={"rollingUpdate": {"maxSurge": "150%"}}),
    ),
    Case(
        "an end to what has none",
        "apps",
        "Deployment",
        spec(selector=LABELS, template={**TEMPLATE, "spec": {**TEMPLATE["spec"], "activeDeadlineSeconds": 3}}),
        "spec.template.spec.activeDeadlineSeconds",
    ),
    Case("job without time", "batch", "Job", spec(template=NEVER, activeDeadlineSeconds=0)),
    Case("selector of one's own", "batch", "Job", spec(template=NEVER, selector=LABELS), "spec.selector"),
    Case(
        "selector of one's own, said so",
        "batch",
        "Job",
        spec(template={**NEVER, "metadata": TEMPLATE["metadata"]}, selector=LABELS, manualSelector=True),
    ),
    Case(
        "selector of other pods",
        "batch",
        "Job",
        spec(template=NEVER, selector=LABELS, manualSelector=True),
        "spec.template.metadata.labels",
    ),
    Case(
        "labels of the template",
        "batch",
        "Job",
        spec(template={**NEVER, "metadata": {"labels": {"a b": "c"}}}),
        "spec.template.metadata.labels",
    ),
]

NETWORKS = [*_SERVICES, *_INGRESSES, *_POLICIES, *_VOLUMES, *_WORKLOADS]
