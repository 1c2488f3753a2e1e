"""Objects of Kubernetes' other groups."""

from __future__ import annotations

from tests.objects.native.case import HOOK, LABELS, MAIN, NEVER, RBAC, ROLE_REF, TEMPLATE, Case, spec

_HPA = "HorizontalPodAutoscaler"
_SCALED = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
_CPU = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}

GROUPS = [
    Case("deployment", "apps", "Deployment", spec(selector=LABELS, template=TEMPLATE)),
    Case("deployment without selector", "apps", "Deployment", spec(template=TEMPLATE), "spec.selector"),
    Case(
        "selector of others",
        "apps",
        "Deployment",
        spec(selector={"matchLabels": {"app": "x"}}, template=TEMPLATE),
        "spec.template.metadata.labels",
    ),
    Case("selector empty", "apps", "ReplicaSet", spec(selector={}, template=TEMPLATE), "spec.selector"),
    Case(
        "deployment that ends",
        "apps",
        "Deployment",
        spec(selector=LABELS, template={**TEMPLATE, "spec": NEVER["spec"]}),
        "spec.template.spec.restartPolicy",
    ),
    Case("negative replicas", "apps", "Deployment", spec(selector=LABELS, template=TEMPLATE, replicas=-1), "spec.replicas"),
    Case(
        "recreate with rolling",
        "apps",
        "Deployment",
        spec(selector=LABELS, template=TEMPLATE, strategy={"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}),
        "spec.strategy.rollingUpdate",
    ),
    Case(
        "percent",
        "apps",
        "Deployment",
        spec(selector=LABELS, template=TEMPLATE, strategy={"rollingUpdate": {"maxSurge": "some"}}),
        "spec.strategy.rollingUpdate.maxSurge",
    ),
    Case(
        "no move possible",
        "apps",
        "Deployment",
        spec(selector=LABELS, template=TEMPLATE, strategy={"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}),
        "spec.strategy.rollingUpdate.maxUnavailable",
    ),
    Case("stateful set", "apps", "StatefulSet", spec(selector=LABELS, template=TEMPLATE, serviceName="s")),
    Case(
        "stateful set mounts its claims",
        "apps",
        "StatefulSet",
        spec(
            selector=LABELS,
            serviceName="s",
            template={
                "metadata": TEMPLATE["metadata"],
                "spec": {"containers": [{**MAIN, "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]},
            },
            volumeClaimTemplates=[
                {
                    "metadata": {"name": "data"},
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
                }
            ],
        ),
    ),
    Case("daemon set", "apps", "DaemonSet", spec(selector=LABELS, template=TEMPLATE)),
    Case("job", "batch", "Job", spec(template=NEVER)),
    Case("job for ever", "batch", "Job", spec(template=TEMPLATE), "spec.template.spec.restartPolicy"),
    Case(
        "job template broken",
        "batch",
        "Job",
        spec(template={"spec": {"restartPolicy": "Never", "containers": []}}),
        "spec.template.spec.containers",
    ),
    Case(
        "cron job",
        "batch",
        "CronJob",
        spec(schedule="*/5 1-3 * JAN MON", jobTemplate={"spec": {"template": NEVER}}),
        "",
        "1.21",
    ),
    Case(
        "cron schedule",
        "batch",
        "CronJob",
        spec(schedule="now", jobTemplate={"spec": {"template": NEVER}}),
        "spec.schedule",
        "1.21",
    ),
    Case("budget", "policy", "PodDisruptionBudget", spec(minAvailable="50%", selector=LABELS), "", "1.21"),
    Case("budget both", "policy", "PodDisruptionBudget", spec(minAvailable=1, maxUnavailable=1), "spec", "1.21"),
    Case("budget percent", "policy", "PodDisruptionBudget", spec(minAvailable="half"), "spec.minAvailable", "1.21"),
    Case("autoscaler", "autoscaling", _HPA, spec(scaleTargetRef=_SCALED, maxReplicas=3), "", "1.23"),
    Case(
        "autoscaler of nothing",
        "autoscaling",
        _HPA,
        spec(scaleTargetRef={"kind": "", "name": "x"}, maxReplicas=3),
        "spec.scaleTargetRef.kind",
        "1.23",
    ),
    Case(
        "autoscaler bounds",
        "autoscaling",
        _HPA,
        spec(scaleTargetRef=_SCALED, minReplicas=4, maxReplicas=3),
        "spec.maxReplicas",
        "1.23",
    ),
    Case(
        "autoscaler from none",
        "autoscaling",
        _HPA,
        spec(scaleTargetRef=_SCALED, minReplicas=0, maxReplicas=3),
        "spec.minReplicas",
        "1.23",
    ),
    Case(
        "autoscaler metric of another type",
        "autoscaling",
        _HPA,
        spec(scaleTargetRef=_SCALED, maxReplicas=3, metrics=[{"type": "Pods", "resource": _CPU}]),
        "spec.metrics[0].pods",
        "1.23",
    ),
    Case(
        "autoscaler target without a value",
        "autoscaling",
        _HPA,
        spec(
            scaleTargetRef=_SCALED,
            maxReplicas=3,
            metrics=[{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}],
        ),
        "spec.metrics[0].resource.target.averageUtilization",
        "1.23",
    ),
    Case("role", RBAC, "Role", {"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]}),
    Case(
        "role without verbs",
        RBAC,
        "Role",
        {"rules": [{"verbs": [], "apiGroups": [""], "resources": ["pods"]}]},
        "rules[0].verbs",
    ),
    Case(
        "role with urls", RBAC, "Role", {"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]}, "rules[0].nonResourceURLs"
    ),
    Case("cluster role with urls", RBAC, "ClusterRole", {"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]}),
    Case(
        "role without groups", RBAC, "ClusterRole", {"rules": [{"verbs": ["get"], "resources": ["pods"]}]}, "rules[0].apiGroups"
    ),
    Case("binding", RBAC, "RoleBinding", {"roleRef": ROLE_REF, "subjects": [{"kind": "User", "name": "u"}]}),
    Case(
        "binding to nobody's kind",
        RBAC,
        "RoleBinding",
        {"roleRef": ROLE_REF, "subjects": [{"kind": "Robot", "name": "u"}]},
        "subjects[0].kind",
    ),
    Case(
        "account without namespace",
        RBAC,
        "ClusterRoleBinding",
        {"roleRef": {**ROLE_REF, "kind": "ClusterRole"}, "subjects": [{"kind": "ServiceAccount", "name": "u"}]},
        "subjects[0].namespace",
    ),
    Case(
        "account of the same namespace",
        RBAC,
        "RoleBinding",
        {"roleRef": ROLE_REF, "subjects": [{"kind": "ServiceAccount", "name": "u"}]},
    ),
    Case("cluster binding of a role", RBAC, "ClusterRoleBinding", {"roleRef": ROLE_REF}, "roleRef.kind"),
    Case("priority", "scheduling.k8s.io", "PriorityClass", {"value": 1_000_000_000}),
    Case("priority too high", "scheduling.k8s.io", "PriorityClass", {"value": 1_000_000_001}, "value"),
    Case(
        "system priority", "scheduling.k8s.io", "PriorityClass", {"metadata": {"name": "system-x"}, "value": 1}, "metadata.name"
    ),
    Case(
        "preemption policy", "scheduling.k8s.io", "PriorityClass", {"value": 1, "preemptionPolicy": "Often"}, "preemptionPolicy"
    ),
    Case("lease", "coordination.k8s.io", "Lease", spec(holderIdentity="x", leaseDurationSeconds=15)),
    *(
        Case(f"lease renewed at {time or 'no time'}", "coordination.k8s.io", "Lease", spec(renewTime=time), refused)
        for time, refused in (
            ("2026-11-15T20:05:41.000250Z", ""),
            ("2026-11-15T20:05:41.000250+02:00", ""),
            (None, ""),
            ("2026-11-15T20:05:41Z", "spec.renewTime"),
            ("2026-11-15T20:05:41.1Z", "spec.renewTime"),
            ("2026-11-15T20:05:41.0002507Z", "spec.renewTime"),
            ("2026-02-30T20:05:41.000250Z", "spec.renewTime"),
        )
    ),
    Case("lease duration", "coordination.k8s.io", "Lease", spec(leaseDurationSeconds=0), "spec.leaseDurationSeconds"),
    Case("storage class", "storage.k8s.io", "StorageClass", {"provisioner": "a.b/c"}),
    Case(
        "binding mode",
        "storage.k8s.io",
        "StorageClass",
        {"provisioner": "a.b/c", "volumeBindingMode": "Late"},
        "volumeBindingMode",
    ),
    Case("runtime class", "node.k8s.io", "RuntimeClass", {"handler": "runc"}),
    Case("handler", "node.k8s.io", "RuntimeClass", {"handler": "Run C"}, "handler"),
    Case(
        "network policy",
        "networking.k8s.io",
        "NetworkPolicy",
        spec(podSelector={}, ingress=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]),
    ),
    Case(
        "network",
        "networking.k8s.io",
        "NetworkPolicy",
        spec(podSelector={}, ingress=[{"from": [{"ipBlock": {"cidr": "ten"}}]}]),
        "spec.ingress[0].from[0].ipBlock.cidr",
    ),
    Case(
        "peer empty", "networking.k8s.io", "NetworkPolicy", spec(podSelector={}, egress=[{"to": [{}]}]), "spec.egress[0].to[0]"
    ),
    Case("policy type", "networking.k8s.io", "NetworkPolicy", spec(podSelector={}, policyTypes=["Up"]), "spec.policyTypes[0]"),
    Case("ingress without rules", "networking.k8s.io", "Ingress", spec(), "spec"),
    Case(
        "ingress path",
        "networking.k8s.io",
        "Ingress",
        spec(
            rules=[
                {
                    "http": {
                        "paths": [
                            {"path": "x", "pathType": "Exact", "backend": {"service": {"name": "s", "port": {"number": 1}}}}
                        ]
                    }
                }
            ]
        ),
        "spec.rules[0].http.paths[0].path",
    ),
    Case("ingress backend", "networking.k8s.io", "Ingress", spec(defaultBackend={}), "spec.defaultBackend"),
    Case("webhook", "admissionregistration.k8s.io", "ValidatingWebhookConfiguration", {"webhooks": [HOOK]}),
    Case(
        "webhook name",
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
        {"webhooks": [{**HOOK, "name": "a.b"}]},
        "webhooks[0].name",
    ),
    Case(
        "webhook url",
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
        {"webhooks": [{**HOOK, "clientConfig": {"url": "http://x"}}]},
        "webhooks[0].clientConfig.url",
    ),
    Case(
        "webhook nowhere",
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
        {"webhooks": [{**HOOK, "clientConfig": {}}]},
        "webhooks[0].clientConfig",
    ),
    Case(
        "webhook effects",
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
        {"webhooks": [{**HOOK, "sideEffects": "Some"}]},
        "webhooks[0].sideEffects",
    ),
    Case(
        "webhook timeout",
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
        {"webhooks": [{**HOOK, "timeoutSeconds": 31}]},
        "webhooks[0].timeoutSeconds",
    ),
    Case(
        "webhook versions",
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
        {"webhooks": [{**HOOK, "admissionReviewVersions": ["v9"]}]},
        "webhooks[0].admissionReviewVersions",
    ),
    Case(
        "webhook twice",
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
        {"webhooks": [HOOK, HOOK]},
        "webhooks[1].name",
    ),
    Case(
        "slice",
        "discovery.k8s.io",
        "EndpointSlice",
        {"addressType": "IPv4", "endpoints": [{"addresses": ["10.9.8.7"]}]},
        "",
        "1.21",
    ),
    Case(
        "slice address",
        "discovery.k8s.io",
        "EndpointSlice",
        {"addressType": "IPv4", "endpoints": [{"addresses": ["::1"]}]},
        "endpoints[0].addresses[0]",
        "1.21",
    ),
]
