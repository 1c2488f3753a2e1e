"""Controllers: one file each, a pure `plan` and a thin shell (`runtime`), run by `manager`.

Which of them run depends on who else looks after the store:

- `embedded_controllers`: on the embedded store (`muster up`), where Muster is alone and also does what
  kube-controller-manager does elsewhere, as far as Muster's users need it;
- `cluster_controllers`: on a real cluster (`muster controller`), where Kubernetes does that itself. Everything in
  here also runs on the embedded store.

| controller | embedded | cluster |
|---|---|---|
| service-accounts: ServiceAccount `default` and ConfigMap `kube-root-ca.crt` in each namespace | yes | |
| event-expiry: Events that are an hour old go | yes | |
| disruption: status of PodDisruptionBudgets | yes | |
| pod-gc: pods of deleted nodes, and the oldest finished ones beyond a limit | yes | |
| endpoints: addresses behind Services with a selector | yes | |
| node-lifecycle: conditions and taints of silent nodes, and their pods once these have certainly ended | yes | |
| scheduler: nodes for the pods that name one of its profiles (embedded: or none) | yes | yes |
| explanations: answers to ScheduleExplanations | yes | yes |
| job: pods of Jobs (muster.dev), from submission to end | yes | yes |
| places: where waiting Jobs stand in their queues | yes | yes |
| queues: status of Queues | yes | yes |
| node-pools: status of NodePools | yes | yes |
| pod-groups: status of PodGroups | yes | yes |
| ledger: what users, groups and queues have used, and whether they may go on | yes | yes |
| policies: built-in SchedulingPolicies, the default Queue, and the status of policies | yes | yes |
| domain: a party's namespace, account, node and quota status | yes | yes |
| kuscia-job: KusciaJobs: their graph, commands, approvals and tasks | yes | yes |
| node-addresses: a range of pod addresses for each node that an agent keeps | yes | yes |
| job-cleanup: finished jobs go by age, number and size | yes | yes |
| kuscia-task: ports, config, pods and services of KusciaTasks, and their status | yes | yes |
| kuscia-deployment: pods, services and status of KusciaDeployments | yes | yes |
| task-reservation: phases of TaskResourceGroups and their TaskResources | yes | yes |
| interconn-host: what partners with a control plane of their own are told, and say | yes | yes |

Garbage collection by owner references and namespaces that empty themselves are part of the embedded store, not controllers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.controllers.explanations import Forecast
    from muster.controllers.runtime import Runnable
    from muster.history.recorder import Recorder


def embedded_controllers(
    *,
    ca_pem: str,
    scheduler_config: str | None = None,
    workload_approval: bool = False,
    pod_range: str = "",
    history: Recorder | None = None,
) -> list[Runnable]:
    """For `muster up`. `ca_pem` is the certificate (PEM) of the CA that signed the server's own; `scheduler_config` the text of
    the scheduler's configuration, used while there is no ConfigMap; the rest as below."""
    from muster.controllers.disruption import Disruption
    from muster.controllers.endpoints import EndpointsKeeper
    from muster.controllers.event_expiry import EventExpiry
    from muster.controllers.node_lifecycle import NodeLifecycle
    from muster.controllers.pod_gc import PodGarbage
    from muster.controllers.service_accounts import ServiceAccounts

    return [
        ServiceAccounts(ca_pem),
        EventExpiry(),
        Disruption(),
        PodGarbage(),
        EndpointsKeeper(),
        NodeLifecycle(),
        *cluster_controllers(
            scheduler_config=scheduler_config,
            workload_approval=workload_approval,
            pod_range=pod_range,
            is_alone=True,
            history=history,
        ),
    ]


def cluster_controllers(
    *,
    scheduler_config: str | None = None,
    workload_approval: bool = False,
    pod_range: str = "",
    is_alone: bool = False,
    history: Recorder | None = None,
    forecast: Forecast | None = None,
) -> list[Runnable]:
    """For `muster controller`: the controllers of Muster's own kinds, and the scheduler, wherever objects are stored. With
    `workload_approval`, each party of a job but its initiator is asked before the job begins. `pod_range` is divided over the
    nodes of Muster's agents. `is_alone`: there is no kube-scheduler beside ours. `history` records what the scheduler does.
    `forecast` answers ScheduleExplanations that ask when work will start."""
    from muster.controllers.domain import Domains
    from muster.controllers.explanations import Explanations
    from muster.controllers.interconn_host import InterconnHost
    from muster.controllers.job import JobController
    from muster.controllers.job_cleanup import JobCleanup
    from muster.controllers.kuscia_deployment import KusciaDeployments
    from muster.controllers.kuscia_job import KusciaJobs
    from muster.controllers.kuscia_task import KusciaTasks
    from muster.controllers.ledger import LedgerKeeper
    from muster.controllers.node_addresses import POD_RANGE, NodeAddresses
    from muster.controllers.places import PlaceKeeper
    from muster.controllers.pod_groups import PodGroups
    from muster.controllers.policies import Policies
    from muster.controllers.pools import PoolKeeper
    from muster.controllers.queues import QueueKeeper
    from muster.controllers.scheduler import Scheduler
    from muster.controllers.scheduler_past import past_in
    from muster.controllers.task_ports import PortLedger
    from muster.controllers.task_reservation import TaskReservation

    ports = PortLedger()  # one for all who give out ports
    scheduler = Scheduler(file_text=scheduler_config, is_sole=is_alone, history=history, past=past_in(history))
    return [
        scheduler,
        Explanations(scheduler.live_engine, forecast),
        PlaceKeeper(scheduler.live_engine),
        QueueKeeper(scheduler.live_engine),
        PoolKeeper(scheduler.live_engine),
        Policies(scheduler.live_engine),
        JobController(),
        PodGroups(),
        LedgerKeeper(),
        Domains(),
        TaskReservation(),
        InterconnHost(),
        KusciaJobs(workload_approval=workload_approval),
        KusciaTasks(ports),
        KusciaDeployments(ports),
        JobCleanup(),
        NodeAddresses(pod_range or POD_RANGE),
    ]
