"""What `muster install` puts into a cluster, as plain objects. Pure: options in, manifests out, the same every time.

Every object carries `MANAGED_LABEL`, and `muster uninstall` removes what carries it and nothing else. Permissions are
tables of `Rule` (`permissions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from muster import __version__
from muster.cli.permissions import AGENT_ROLES, READ, WRITE, Rule, policy_rules
from muster.controllers.domain_objects import OWN_PERMISSIONS
from muster.objects.labels import Muster
from muster.objects.resources import Resource
from muster.objects.status import Raw

NAME = "muster"
CONTROLLER = "muster-controller"
WEBHOOK = "muster-webhook"
LEASE = "muster-controller"
WEBHOOK_SECRET = "muster-webhook-ca"  # noqa: S105 - the name of a Secret
MANAGED_LABEL = "app.kubernetes.io/managed-by"
MANAGED_VALUE = "muster-install"
FIELD_MANAGER = "muster-install"
DEFAULT_NAMESPACE = "muster-system"
WEBHOOK_PORT = 9443
HEALTH_PORT = 8081


class InstallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`webhook_url` replaces the Service as the webhooks' address, for a controller that runs outside the cluster."""

    namespace: str = DEFAULT_NAMESPACE
    image: str = f"muster:{__version__}"
    replicas: int = 2
    webhook_url: str = ""
    budget_version: str = "v1"
    """Of the policy group: `v1`, or `v1beta1` on clusters before 1.21."""


BASE_RULES = (
    Rule("", ("events",), ("create", "patch"), "controllers report what they do"),
    # A list or watch for one name only is allowed by a rule on that name.
    Rule(
        "admissionregistration.k8s.io",
        ("validatingwebhookconfigurations", "mutatingwebhookconfigurations"),
        ("get", "list", "watch", "patch"),
        "the leader writes the webhooks' CA certificate",
        (NAME,),
    ),
    Rule("", ("nodes",), READ, "the webhooks refuse what no node could ever hold"),
    Rule("kuscia.secretflow", ("domains", "appimages"), READ, "the webhooks work out which nodes and how many pods that means"),
    Rule("muster.dev", ("users", "usergroups", "queues", "jobs"), READ, "the webhooks judge what is submitted by whom"),
    Rule("kuscia.secretflow", ("kusciajobs",), READ, "the same"),
    Rule("", ("pods",), READ, "pods of users and queues count as submitted"),
    Rule("authorization.k8s.io", ("subjectaccessreviews",), ("create",), "who may hold and pin jobs in a queue"),
)
_SCHEDULER_RULES = (
    Rule("", ("pods", "nodes", "namespaces", "persistentvolumes", "persistentvolumeclaims"), READ, "what is placed, and where"),
    Rule("storage.k8s.io", ("storageclasses",), READ, "volumes that tie a pod to nodes"),
    Rule("policy", ("poddisruptionbudgets",), READ, "preemption respects budgets"),
    Rule("slo.koordinator.sh", ("nodemetrics",), READ, "measured use of nodes"),
    Rule("scheduling.sigs.k8s.io", ("podgroups",), READ, "pods that start together"),
    Rule("kuscia.secretflow", ("taskresourcegroups",), READ, "tasks of several parties, which start together"),
    Rule("kuscia.secretflow", ("taskresources",), (*READ, "patch"), "a party's word that it has reserved, and the answer"),
    Rule("muster.dev", ("nodepools", "links"), READ, "pools, and links between parties"),
    Rule("muster.dev", ("placements",), ("get", "list", "create", "delete"), "plans of units with several pods"),
    Rule("", ("pods/binding",), ("create",), "binding"),
    Rule("", ("pods",), ("patch", "delete"), "what plugins add to a pod; victims that violate their budget"),
    Rule("", ("pods/status",), ("patch",), "why a pod waits, and its nominated node"),
    Rule("", ("pods/eviction",), ("create",), "preemption"),
    Rule("", ("persistentvolumeclaims",), ("patch",), "tells a claim that waits for its first consumer the node"),
    # A list or watch for one name only is allowed by a rule on that name.
    Rule("", ("configmaps",), ("get", "list", "watch", "patch"), "the scheduler's configuration", ("muster-scheduler",)),
)
_EXPLANATION_RULES = (
    Rule("scheduling.koordinator.sh", ("scheduleexplanations",), (*READ, "delete"), "questions; old answers are deleted"),
    Rule("scheduling.koordinator.sh", ("scheduleexplanations/status",), ("patch",), "answers"),
)
_JOB_RULES = (
    Rule("muster.dev", ("jobs",), READ, "jobs"),
    Rule("muster.dev", ("jobs/status",), ("patch",), "where a job stands"),
    Rule("muster.dev", ("jobs/finalizers",), ("update",), "jobs own what is made for them"),
    Rule("", ("pods",), (*READ, "create", "patch", "delete"), "pods of jobs, and what they say of their job as it changes"),
    Rule("scheduling.sigs.k8s.io", ("podgroups",), (*READ, "create"), "roles start together"),
    Rule("", ("services",), (*READ, "create"), "pods of a job find each other by name"),
    Rule("scheduling.k8s.io", ("priorityclasses",), (*READ, "create"), "a job's priority is its pods' priority"),
)
_POD_GROUP_RULES = (
    Rule("scheduling.sigs.k8s.io", ("podgroups",), (*READ, "patch"), "status of gangs, which is a plain field of the kind"),
    Rule("", ("pods",), READ, "what is counted"),
)
_TASK_RESERVATION_RULES = (
    Rule("kuscia.secretflow", ("taskresourcegroups",), (*READ, "patch"), "tasks whose parties reserve together"),
    Rule("kuscia.secretflow", ("taskresourcegroups/status",), ("patch",), "the decision that all parties begin"),
    Rule("kuscia.secretflow", ("taskresourcegroups/finalizers",), ("update",), "groups own their TaskResources"),
    Rule("kuscia.secretflow", ("taskresources",), (*READ, "create", "patch"), "how far each party is"),
    Rule("", ("pods",), READ, "which pods of a task have a node"),
)
_KUSCIA_TASK_RULES = (
    Rule("kuscia.secretflow", ("kusciatasks",), (*READ, "patch"), "tasks, and the finalizer that keeps one while it has pods"),
    Rule("kuscia.secretflow", ("kusciatasks/status",), ("patch",), "where a task stands"),
    Rule("kuscia.secretflow", ("taskresourcegroups",), (*READ, "create", "patch", "delete"), "the group that owns an attempt"),
    Rule("kuscia.secretflow", ("taskresourcegroups/finalizers",), ("update",), "groups own what is made for a task"),
    Rule("kuscia.secretflow", ("taskresources",), READ, "what a pod's place is reserved by"),
    Rule("kuscia.secretflow", ("appimages", "domains", "kusciadeployments"), READ, "what to run, for whom, and ports in use"),
    Rule("kuscia.secretflow", ("kusciatasksummaries",), READ, "what partners say about their part"),
    Rule("", ("namespaces",), READ, "the namespaces of parties"),
    Rule("", ("pods", "services", "configmaps"), (*READ, "create", "delete"), "what a task is made of"),
    Rule("", ("pods",), ("patch",), "what pods say of their task as it changes"),
)
_DOMAIN_RULES = (
    Rule("kuscia.secretflow", ("domains",), (*READ, "patch"), "parties, and the finalizer that keeps one while its work runs"),
    Rule("kuscia.secretflow", ("domains/status",), ("patch",), "a party's nodes and quota, and what holds its deletion"),
    Rule("kuscia.secretflow", ("domains/finalizers",), ("update",), "parties own their accounts and roles"),
    Rule("kuscia.secretflow", ("kusciajobs", "kusciatasks", "kusciadeployments"), READ, "work that has not ended"),
    Rule("", ("nodes", "pods"), READ, "what a party has, and uses"),
    Rule("", ("namespaces",), (*READ, "create", "patch"), "a party's namespace; never deleted"),
    Rule("", ("configmaps", "services"), READ, "what is in a namespace that was there before the party"),
    Rule("", ("configmaps",), ("create",), "a party's configuration, made empty"),
    Rule("", ("serviceaccounts",), (*READ, "create", "patch", "delete"), "who acts for a party"),
    Rule("rbac.authorization.k8s.io", ("roles", "rolebindings"), (*READ, "create", "patch", "delete"), "what a party may do"),
    *(Rule(*permission, "what it grants to parties it must have itself") for permission in OWN_PERMISSIONS),
)
_KUSCIA_JOB_RULES = (
    Rule("kuscia.secretflow", ("kusciajobs",), (*READ, "patch"), "jobs; the label of a restart that was followed"),
    Rule("kuscia.secretflow", ("kusciajobs/status",), ("patch",), "where a job stands"),
    Rule("kuscia.secretflow", ("kusciajobs/finalizers",), ("update",), "jobs own their tasks"),
    Rule("kuscia.secretflow", ("kusciatasks",), (*READ, "create", "patch", "delete"), "tasks of jobs"),
    Rule("kuscia.secretflow", ("domains", "appimages"), READ, "the parties, and what they run"),
)
_JOB_CLEANUP_RULES = (
    Rule("kuscia.secretflow", ("kusciajobs",), (*READ, "delete"), "finished jobs beyond the limits"),
    Rule("muster.dev", ("jobs",), (*READ, "delete"), "finished jobs beyond the limits"),
    Rule("kuscia.secretflow", ("kusciatasks",), READ, "a job with a task under way is not touched"),
    Rule("", ("configmaps",), READ, "the limits", ("muster-jobs",)),
)
_KUSCIA_DEPLOYMENT_RULES = (
    Rule("kuscia.secretflow", ("kusciadeployments",), (*READ, "patch"), "services, their ports and the finalizer"),
    Rule("kuscia.secretflow", ("kusciadeployments/status",), ("patch",), "how much of a service is up"),
    Rule("kuscia.secretflow", ("kusciadeploymentsummaries", "kusciatasks"), READ, "what partners have; ports that are taken"),
    Rule("kuscia.secretflow", ("appimages", "domains"), READ, "what runs, and where"),
    Rule("", ("namespaces",), READ, "parties whose namespace is there"),
    Rule("", ("pods",), (*READ, "create", "delete"), "the pods of services"),
    Rule("", ("services",), (*READ, "create", "patch", "delete"), "how their ports are found"),
    Rule("", ("configmaps",), (*READ, "create", "delete"), "their files"),
)
_NODE_ADDRESS_RULES = (Rule("", ("nodes",), (*READ, "patch"), "addresses for the pods of Muster's own nodes"),)
_INTERCONN_HOST_RULES = (
    Rule("kuscia.secretflow", ("taskresourcegroups", "kusciatasks", "domains"), READ, "tasks with partners, and who they are"),
    Rule("kuscia.secretflow", ("taskresourcegroups/finalizers",), ("update",), "groups own their summaries"),
    Rule("kuscia.secretflow", ("taskresources",), (*READ, "patch"), "a partner's word that it has reserved"),
    Rule("kuscia.secretflow", ("kusciatasksummaries",), (*READ, "create", "patch"), "what a partner is told of a task"),
    Rule("kuscia.secretflow", ("kusciajobs",), (*READ, "create", "patch", "delete"), "copies for partners; partners' commands"),
    Rule("kuscia.secretflow", ("kusciajobs/status",), ("patch",), "a partner's approval"),
    Rule("kuscia.secretflow", ("kusciajobsummaries",), (*READ, "create", "patch", "delete"), "what a partner is told of a job"),
)
_POLICY_RULES = (
    Rule("muster.dev", ("schedulingpolicies",), (*READ, "create", "patch"), "the policies that come with Muster"),
    Rule("muster.dev", ("schedulingpolicies/status",), ("patch",), "whether a policy can be used, and by which queues"),
    Rule("muster.dev", ("queues",), (*READ, "create"), "the default queue; which policies are in use"),
    Rule("", ("namespaces",), READ, "something that is always there, to begin with"),
)
_PLACE_RULES = (
    Rule("muster.dev", ("jobs",), READ, "jobs that wait"),
    Rule("muster.dev", ("jobs/status",), ("patch",), "where a job stands in its queue"),
)
_QUEUE_RULES = (
    Rule("muster.dev", ("queues", "schedulingpolicies", "nodepools"), READ, "queues, and what they name"),
    Rule("muster.dev", ("queues/status",), ("patch",), "what waits and runs in a queue"),
)
_NODE_POOL_RULES = (
    Rule("muster.dev", ("nodepools",), READ, "pools of nodes"),
    Rule("muster.dev", ("nodepools/status",), ("patch",), "what a pool has, and what of it is used"),
    Rule("scheduling.koordinator.sh", ("devices",), READ, "the devices of its nodes"),
)
_LEDGER_RULES = (
    Rule("muster.dev", ("users", "usergroups", "queues", "jobs"), READ, "who uses what, and what is submitted"),
    Rule("muster.dev", ("users/status", "usergroups/status", "queues/status"), ("patch",), "what each uses and has used"),
    Rule("muster.dev", ("usagerecords",), (*READ, "create", "delete"), "the pages of the ledger"),
    Rule("kuscia.secretflow", ("kusciajobs", "appimages"), READ, "what is submitted"),
    Rule("", ("pods",), (*READ, "patch"), "runs; a pod stays until its run is noted"),
)
CONTROLLER_RULES: dict[str, tuple[Rule, ...]] = {
    "job": _JOB_RULES,
    "pod-groups": _POD_GROUP_RULES,
    "ledger": _LEDGER_RULES,
    "scheduler": _SCHEDULER_RULES,
    "explanations": _EXPLANATION_RULES,
    "policies": _POLICY_RULES,
    "places": _PLACE_RULES,
    "queues": _QUEUE_RULES,
    "node-pools": _NODE_POOL_RULES,
    "domain": _DOMAIN_RULES,
    "kuscia-deployment": _KUSCIA_DEPLOYMENT_RULES,
    "task-reservation": _TASK_RESERVATION_RULES,
    "interconn-host": _INTERCONN_HOST_RULES,
    "kuscia-task": _KUSCIA_TASK_RULES,
    "kuscia-job": _KUSCIA_JOB_RULES,
    "job-cleanup": _JOB_CLEANUP_RULES,
    "node-addresses": _NODE_ADDRESS_RULES,
}
"""What each controller of a real cluster needs beyond `BASE_RULES`, by its name. A test sees that none is forgotten."""
NAMESPACE_RULES = (
    Rule("coordination.k8s.io", ("leases",), ("get", "update"), "leader election", (LEASE,)),
    # `create` can't be narrowed by name: the object does not exist when the question is asked.
    Rule("coordination.k8s.io", ("leases",), ("create",), "leader election after somebody deleted the lease"),
    Rule("", ("secrets",), ("get", "update"), "the webhooks' CA, shared by the replicas", (WEBHOOK_SECRET,)),
    Rule("", ("secrets",), ("create",), "the webhooks' CA, on first start"),
)


SUBMITTER_RULES = (
    Rule("muster.dev", ("jobs",), ("create",), "submitting"),
    Rule("kuscia.secretflow", ("kusciajobs",), ("create",), "submitting"),
    Rule(
        "muster.dev",
        ("queues", "schedulingpolicies", "nodepools"),
        READ,
        "where to submit to, by what work is ordered, what is free; these are in no namespace",
    ),
    Rule("scheduling.koordinator.sh", ("scheduleexplanations",), ("create", "get", "delete"), "asking why work waits"),
)
"""For people, cluster-wide. What they see of work, their own and others', is up to their roles in its namespace."""


def rules_for(controllers: Iterable[str]) -> list[Rule]:
    return [*BASE_RULES, *(rule for name in controllers for rule in CONTROLLER_RULES[name])]


def labels(component: str = "") -> dict[str, str]:
    common = {"app.kubernetes.io/name": NAME, MANAGED_LABEL: MANAGED_VALUE, "app.kubernetes.io/version": __version__}
    return common | ({"app.kubernetes.io/component": component} if component else {})


def _meta(name: str, namespace: str = "", component: str = "", **extra: Any) -> Raw:
    meta: Raw = {"name": name, "labels": labels(component)}
    if namespace:
        meta["namespace"] = namespace
    return meta | extra


def namespace_of(options: InstallOptions) -> Raw:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": _meta(options.namespace)}


def crds(resources: Iterable[Resource], *, selectable_fields: bool = False) -> list[Raw]:
    from muster.objects.crd import crds_for

    made = []
    for crd in crds_for(resources, selectable_fields=selectable_fields):
        metadata = crd["metadata"] | {"labels": crd["metadata"].get("labels", {}) | labels()}
        made.append(crd | {"metadata": metadata})
    return made


def access(options: InstallOptions, custom: Sequence[Resource], controllers: Sequence[str]) -> list[Raw]:
    """The service account, what it may do, what users who may view or edit a namespace may do with Muster's kinds, and roles
    for agents, which an administrator binds."""
    ns = options.namespace
    subject = [{"kind": "ServiceAccount", "name": CONTROLLER, "namespace": ns}]
    rbac = "rbac.authorization.k8s.io"
    groups: dict[str, list[str]] = {}
    for resource in custom:
        groups.setdefault(resource.group, []).append(resource.plural)

    def for_users(name: str, verbs: tuple[str, ...], into: Sequence[str]) -> Raw:
        meta = _meta(name)
        meta["labels"] |= {f"{rbac}/aggregate-to-{role}": "true" for role in into}
        rules = [{"apiGroups": [g], "resources": plurals, "verbs": list(verbs)} for g, plurals in groups.items()]
        return {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": meta, "rules": rules}

    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _meta(CONTROLLER, ns, "controller")},
        _cluster_role(CONTROLLER, "controller", rules_for(controllers)),
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": _meta(CONTROLLER, component="controller"),
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": CONTROLLER},
            "subjects": subject,
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "Role",
            "metadata": _meta(CONTROLLER, ns, "controller"),
            "rules": policy_rules(NAMESPACE_RULES),
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": _meta(CONTROLLER, ns, "controller"),
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": CONTROLLER},
            "subjects": subject,
        },
        for_users("muster-view", READ, ("view",)),
        for_users("muster-edit", (*WRITE, "deletecollection"), ("edit",)),
        _cluster_role("muster-submitter", "", SUBMITTER_RULES),
        *(_cluster_role(name, "agent", rules) for name, rules in AGENT_ROLES.items()),
    ]


def _cluster_role(name: str, component: str, rules: Sequence[Rule]) -> Raw:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": _meta(name, component=component),
        "rules": policy_rules(rules),
    }


def workload(options: InstallOptions) -> list[Raw]:
    """The lease (made empty, so that the first leader need not wait out a term), the service, the pods and their budget."""
    ns = options.namespace
    selector = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/component": "controller"}
    return [
        {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": _meta(LEASE, ns, "controller")},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": _meta(WEBHOOK, ns, "webhook"),
            "spec": {
                "selector": selector,
                "ports": [{"name": "webhook", "port": 443, "targetPort": "webhook", "protocol": "TCP"}],
            },
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": _meta(CONTROLLER, ns, "controller"),
            "spec": {
                "replicas": options.replicas,
                "selector": {"matchLabels": selector},
                "template": {
                    "metadata": {"labels": selector | {"app.kubernetes.io/version": __version__}},
                    "spec": _pod_spec(options, selector),
                },
            },
        },
        {
            "apiVersion": f"policy/{options.budget_version}",
            "kind": "PodDisruptionBudget",
            "metadata": _meta(CONTROLLER, ns, "controller"),
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector}},
        },
    ]


def _pod_spec(options: InstallOptions, selector: dict[str, str]) -> Raw:
    def probe(path: str) -> Raw:
        return {"httpGet": {"path": path, "port": "health"}, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3}

    return {
        "serviceAccountName": CONTROLLER,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector},
            }
        ],
        "containers": [
            {
                "name": "controller",
                "image": options.image,
                "imagePullPolicy": "IfNotPresent",
                "args": [
                    "controller",
                    f"--lease-namespace={options.namespace}",
                    f"--webhook-listen=0.0.0.0:{WEBHOOK_PORT}",
                    f"--health-listen=0.0.0.0:{HEALTH_PORT}",
                ],
                "ports": [
                    {"name": "webhook", "containerPort": WEBHOOK_PORT, "protocol": "TCP"},
                    {"name": "health", "containerPort": HEALTH_PORT, "protocol": "TCP"},
                ],
                "livenessProbe": probe("/healthz"),
                "readinessProbe": probe("/readyz"),
                "resources": {"requests": {"cpu": "200m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    }


DELETIONS = ("jobs", "kusciajobs", "queues", "users", "usergroups", "schedulingpolicies", "nodepools", "domains")
"""Kinds whose deletion is judged, or is worth a record. The rest is deleted by controllers all day."""
_POD_MARKS = (Muster.USER, Muster.QUEUE)


def webhooks(options: InstallOptions, custom: Sequence[Resource]) -> list[Raw]:
    """Both configurations, without a CA: the leader adds its own, and applying these again leaves it in place.

    Pods that say of themselves whose they are, or in which queue, are asked about like Muster's own kinds. All others are asked
    about when they are made, so that nobody is free of limits by saying nothing; but a cluster whose Muster is down goes on
    making them.
    """
    by_group: dict[tuple[str, str], list[str]] = {}
    for resource in custom:
        by_group.setdefault((resource.group, resource.version), []).append(resource.plural)

    def rules(path: str) -> list[Raw]:
        made = []
        for (group, version), plurals in by_group.items():
            made.append(_rule(group, version, ("CREATE", "UPDATE"), plurals))
            deleted = [plural for plural in plurals if plural in DELETIONS]
            if path == "/validate" and deleted:
                made.append(_rule(group, version, ("DELETE",), deleted))
        return made

    def hooks(path: str) -> list[Raw]:
        word = path.strip("/")
        user, queue = _POD_MARKS
        marked = [_rule("", "v1", ("CREATE", "UPDATE"), ["pods"])]
        no_user = {"key": user, "operator": "DoesNotExist"}
        return [
            _hook(options, f"{word}.muster.dev", path, rules(path)),
            _hook(options, f"{word}-pods-of-users.muster.dev", path, marked, [{"key": user, "operator": "Exists"}]),
            _hook(options, f"{word}-pods-in-queues.muster.dev", path, marked, [{"key": queue, "operator": "Exists"}, no_user]),
            _hook(
                options,
                f"{word}-new-pods.muster.dev",
                path,
                [_rule("", "v1", ("CREATE",), ["pods"])],
                [{"key": queue, "operator": "DoesNotExist"}, no_user],
            )
            | {"failurePolicy": "Ignore", "timeoutSeconds": 3},
        ]

    api = "admissionregistration.k8s.io/v1"
    return [
        {"apiVersion": api, "kind": kind, "metadata": _meta(NAME, component="webhook"), "webhooks": hooks(path)}
        for kind, path in (("MutatingWebhookConfiguration", "/mutate"), ("ValidatingWebhookConfiguration", "/validate"))
    ]


def _rule(group: str, version: str, operations: Sequence[str], plurals: Sequence[str]) -> Raw:
    return {
        "apiGroups": [group],
        "apiVersions": [version],
        "operations": list(operations),
        "resources": list(plurals),
        "scope": "*",
    }


def _hook(options: InstallOptions, name: str, path: str, rules: list[Raw], labels: Sequence[Raw] = ()) -> Raw:
    if options.webhook_url:
        client: Raw = {"url": f"{options.webhook_url.rstrip('/')}{path}"}
    else:
        client = {"service": {"namespace": options.namespace, "name": WEBHOOK, "path": path, "port": 443}}
    return {
        "name": name,
        "clientConfig": client,
        "rules": rules,
        **({"objectSelector": {"matchExpressions": list(labels)}} if labels else {}),
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        # What is judged is also noted in the decision log; what is only tried is not.
        "sideEffects": "None" if path == "/mutate" else "NoneOnDryRun",
        "timeoutSeconds": 10,
        "admissionReviewVersions": ["v1"],
    }


def everything(options: InstallOptions, custom: Sequence[Resource], controllers: Sequence[str] = ()) -> list[Raw]:
    """In the order of application: the kinds first, the webhooks last, when something is there to answer them."""
    return [
        *crds(custom),
        namespace_of(options),
        *access(options, custom, controllers),
        *workload(options),
        *webhooks(options, custom),
    ]
