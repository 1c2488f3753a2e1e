"""The reason codes: why something waits, was refused, was stopped or failed. One enumerated, documented vocabulary.

A code is what users, scripts and dashboards meet (in conditions, events, answers, logs), so a code that was released keeps
its meaning. `meaning` and `remedy` are the texts of `docs/reference/reasons.md`; a test keeps the page and this file equal.
Import these names from `muster.objects.reasons`, which adds the values that carry them.

Pure values; safe to share between tasks and threads.
"""

from __future__ import annotations

import enum


class Category(enum.StrEnum):
    """What kind of answer a reason is, and so what a client may do with it."""

    WAITING = "waiting"
    """Tried again by itself, as soon as something changes that could help."""
    HELD = "held"
    """Waits because somebody decided so; only a person or a policy lets it go on."""
    IMPOSSIBLE = "impossible"
    """Waiting does not help: the request, or the cluster, must change."""
    REFUSED = "refused"
    """Not accepted; nothing was stored or started."""
    EVICTED = "evicted"
    """Was running or holding resources and had to give them up."""
    FAILED = "failed"
    """Ended without success."""
    NETWORK = "network"
    """A route between two parties does not carry requests."""
    PROGRESS = "progress"
    """Nothing is wrong: a step of the way was taken."""


_W, _H, _I, _R = Category.WAITING, Category.HELD, Category.IMPOSSIBLE, Category.REFUSED
_E, _F, _N, _P = Category.EVICTED, Category.FAILED, Category.NETWORK, Category.PROGRESS


class Reason(enum.StrEnum):
    """A reason code. `Reason("BandwidthInsufficient")` finds one by what users see."""

    category: Category
    meaning: str
    remedy: str

    # The defaults are there for type checkers only: looking a code up goes through EnumType, never through here.
    def __new__(cls, code: str, category: Category = Category.WAITING, meaning: str = "", remedy: str = "") -> Reason:
        member = str.__new__(cls, code)
        member._value_ = code
        member.category = category
        member.meaning = meaning
        member.remedy = remedy
        return member

    # fmt: off
    # What a node, a link or a device has too little of.
    CPU_INSUFFICIENT = ("CPUInsufficient", _W,
        "No node has enough unrequested CPU.",
        "Ask for less CPU, or wait for work to end.")
    MEMORY_INSUFFICIENT = ("MemoryInsufficient", _W,
        "No node has enough unrequested memory.",
        "Ask for less memory, or wait for work to end.")
    GPU_INSUFFICIENT = ("GPUInsufficient", _W,
        "No node has enough free GPUs, or enough of one GPU.",
        "Ask for fewer GPUs per pod or a share of one, or spread the work over more pods.")
    GPU_MEMORY_INSUFFICIENT = ("GPUMemoryInsufficient", _W,
        "GPUs are free, but none has enough free memory.",
        "Ask for less GPU memory, or select a model of GPU that has more.")
    DEVICE_INSUFFICIENT = ("DeviceInsufficient", _W,
        "No node has enough free devices of the type that was asked for (RDMA, FPGA, ...).",
        "Ask for fewer devices, or wait for their users to end.")
    DEVICE_TOPOLOGY_UNSATISFIED = ("DeviceTopologyUnsatisfied", _W,
        "Enough devices are free, but not as close to each other as was asked for.",
        "Drop the required topology scope or the joint allocation, or wait.")
    DEVICE_UNHEALTHY = ("DeviceUnhealthy", _W,
        "The devices that would do are reported as unhealthy.",
        "Repair or replace them; see the Device object.")
    BANDWIDTH_INSUFFICIENT = ("BandwidthInsufficient", _W,
        "No node has enough unreserved network bandwidth in the direction that was asked for.",
        "Ask for less bandwidth, wait for its holders to end, or raise the capacity of a node.")
    LINK_BANDWIDTH_INSUFFICIENT = ("LinkBandwidthInsufficient", _W,
        "The link between two parties or pools has too little unreserved bandwidth.",
        "Ask for less bandwidth towards that peer, wait, or raise the capacity of the Link.")
    EPHEMERAL_STORAGE_INSUFFICIENT = ("EphemeralStorageInsufficient", _W,
        "No node has enough unrequested local disk.",
        "Ask for less ephemeral storage, or clean up images and old pods.")
    POD_SLOTS_INSUFFICIENT = ("PodSlotsInsufficient", _W,
        "Every node already runs as many pods as it may.",
        "Wait, add nodes, or raise their pod limit.")
    EXTENDED_RESOURCE_INSUFFICIENT = ("ExtendedResourceInsufficient", _W,
        "No node has enough of an extended resource; the shortfall names it.",
        "Ask for less of it, or wait for work that holds it.")
    BATCH_RESOURCE_INSUFFICIENT = ("BatchResourceInsufficient", _W,
        "Too little reclaimed (batch or mid) CPU or memory is on offer.",
        "Wait until latency-sensitive work uses less, or ask for ordinary resources.")
    NUMA_UNALIGNED = ("NUMAUnaligned", _W,
        "The resources are free, but not on the NUMA nodes that the policy demands.",
        "Relax the NUMA topology policy, ask for less, or wait.")
    CPUSET_INSUFFICIENT = ("CPUSetInsufficient", _W,
        "Not enough whole cores can be pinned under the CPU binding policy.",
        "Ask for fewer CPUs, relax the binding policy, or wait.")
    RESOURCES_INSUFFICIENT = ("ResourcesInsufficient", _W,
        "Each resource alone would fit somewhere, but no node has all of them at once.",
        "Lower one of the requests; the explanation lists the largest that would fit now.")

    # What a node is, or does not let in.
    NO_NODES = ("NoNodes", _W,
        "There is no node at all that this work may be placed on.",
        "Let a node join, or change what restricts the work to others.")
    NODE_SELECTOR_MISMATCH = ("NodeSelectorMismatch", _W,
        "No node has the labels that the node selector names.",
        "Label a node, or change the selector.")
    NODE_AFFINITY_MISMATCH = ("NodeAffinityMismatch", _W,
        "No node satisfies the required node affinity.",
        "Label a node, or make the affinity preferred.")
    NODE_NAME_MISMATCH = ("NodeNameMismatch", _W,
        "The work names a node that does not exist or is not in its pools.",
        "Correct spec.nodeName, or let that node join.")
    NODE_POOL_MISMATCH = ("NodePoolMismatch", _W,
        "The nodes that would do are not in a pool that the queue or job may use.",
        "Name another pool or queue, or put nodes into the pool.")
    PARTY_MISMATCH = ("PartyMismatch", _W,
        "The nodes that would do belong to other parties, and take only work in the namespaces of these.",
        "Let a node of the party, or of none, join; or submit the work in the namespace of the party whose nodes it needs.")
    TAINT_NOT_TOLERATED = ("TaintNotTolerated", _W,
        "The nodes that would do carry a taint that the work does not tolerate.",
        "Add a toleration, or remove the taint; a pressure taint goes when the pressure does.")
    NODE_UNSCHEDULABLE = ("NodeUnschedulable", _W,
        "The nodes that would do are cordoned.",
        "Uncordon them: kubectl uncordon NODE.")
    NODE_NOT_READY = ("NodeNotReady", _W,
        "The nodes that would do are not ready.",
        "Look at the node's conditions and at its agent's log.")
    NODE_OVERLOADED = ("NodeOverloaded", _W,
        "The nodes that would do are measured above the load threshold.",
        "Wait for the load to fall, or raise the threshold of the load-aware plugin.")
    NODE_METRIC_EXPIRED = ("NodeMetricExpired", _W,
        "The load of the nodes is unknown: their last report is too old.",
        "Check the agents; or let the load-aware plugin accept nodes without a fresh report.")
    PORT_CONFLICT = ("PortConflict", _W,
        "A host port that was asked for is taken on every node that would do.",
        "Ask for another port or for none, or wait.")
    POD_AFFINITY_UNSATISFIED = ("PodAffinityUnsatisfied", _W,
        "No node is next to the pods that this one must be near.",
        "Start those pods first, or make the affinity preferred.")
    POD_ANTI_AFFINITY_CONFLICT = ("PodAntiAffinityConflict", _W,
        "Every node that would do is next to a pod that this one must be away from, or the reverse.",
        "Add nodes or topology domains, or make the anti-affinity preferred.")
    TOPOLOGY_SPREAD_UNSATISFIED = ("TopologySpreadUnsatisfied", _W,
        "Placing the pod would make the spread over zones or nodes too uneven.",
        "Raise maxSkew, use ScheduleAnyway, or add nodes in the emptier zones.")
    NETWORK_TOPOLOGY_UNSATISFIED = ("NetworkTopologyUnsatisfied", _W,
        "No network domain of the demanded layer can take the whole group.",
        "Gather on a wider layer, or make the gathering preferred.")
    VOLUME_NODE_CONFLICT = ("VolumeNodeConflict", _W,
        "A volume of the pod can't be used on any node that would do.",
        "Use a volume that those nodes reach, or free the node that has it.")
    VOLUME_NOT_BOUND = ("VolumeNotBound", _W,
        "A volume claim of the pod is not bound to a volume.",
        "Create the volume, or correct the claim.")
    RESERVATION_UNAVAILABLE = ("ReservationUnavailable", _W,
        "The work must use a Reservation, and none that it owns has room.",
        "Create or extend the Reservation, or drop the reservation affinity.")

    # The unit as a whole, and its parties.
    GANG_INCOMPLETE = ("GangIncomplete", _W,
        "Fewer members of the group exist than it needs to start.",
        "Create the missing pods, or lower minMember.")
    GANG_INSUFFICIENT = ("GangInsufficient", _W,
        "Some members of the group would fit now, but not all that must start together.",
        "Wait, ask for fewer or smaller members, or lower the minimum; the explanation says how many fit.")
    PARTY_NOT_RESERVED = ("PartyNotReserved", _W,
        "A partner has not reserved its part yet; the message names it.",
        "Ask the partner; its own reason is on its TaskResource.")
    PARTY_UNREACHABLE = ("PartyUnreachable", _W,
        "The control plane of a partner does not answer.",
        "Check the route to the partner.")
    RESERVATION_EXPIRED = ("ReservationExpired", _W,
        "What was reserved was given back, because a partner did not reserve in time.",
        "None needed, it is tried again; a longer resourceReservedSeconds gives partners more time.")
    YIELDED_TO_OLDER = ("YieldedToOlder", _W,
        "A reservation that was not bound yet was given to older work, so that neither blocks the other.",
        "None needed: it is tried again after the older work.")
    WAITING_FOR_YOUNGER = ("WaitingForYounger", _W,
        "Younger work has reserved what this needs, together with other parties, and was asked to give it back.",
        "None needed: its initiator lets it go, or starts it; this is tried again then.")
    AWAITING_APPROVAL = ("AwaitingApproval", _H,
        "A party has not approved the job yet; the message names it.",
        "That party approves or rejects the job.")
    DEPENDENCY_PENDING = ("DependencyPending", _W,
        "A task that this one depends on has not succeeded yet.",
        "Look at the tasks it depends on.")
    PARALLELISM_REACHED = ("ParallelismReached", _W,
        "As many tasks of the job run as maxParallelism allows.",
        "Raise maxParallelism, or wait.")
    APP_IMAGE_NOT_FOUND = ("AppImageNotFound", _W,
        "No AppImage has the name that the task gives; the task starts once there is one.",
        "Create the AppImage; if the name is wrong, submit a new job.")
    DEPLOY_TEMPLATE_NOT_FOUND = ("DeployTemplateNotFound", _W,
        "The AppImage has no deploy template for the party's role; the task starts once it has one.",
        "Add a template for the role; if the role is wrong, submit a new job.")
    PORTS_EXHAUSTED = ("PortsExhausted", _W,
        "The party has no free port left; the task or service starts as others of the party end.",
        "Wait, or end other work of the party; use fewer replicas.")
    PARTY_UNKNOWN = ("PartyUnknown", _W,
        "A party of the job is not a Domain here; the job goes on once it is.",
        "Create the Domain; if its id is wrong, submit a new job.")
    RESTARTING = ("Restarting", _W,
        "What an earlier run left is being cleared away; the task starts after that.",
        "None needed.")
    RERUNNING = ("Rerunning", _W,
        "The task runs again because somebody asked for it; what it left is being cleared away first.",
        "None needed.")
    BACKING_OFF = ("BackingOff", _W,
        "The last attempt failed; the next one waits for its back-off.",
        "Look at the last attempt's failure and log.")

    CREATION_REFUSED = ("CreationRefused", _W,
        "The server did not let a pod or another object of the work be created; the message has its answer.",
        "Change what it names: a quota, an admission policy, or an object that has the name already.")

    # Queue, quota, policy.
    QUEUED = ("Queued", _W,
        "In line behind other work, not tried yet.",
        "Look at its place in the queue and at what decides it.")
    QUEUE_BLOCKED = ("QueueBlocked", _W,
        "Would fit, but the policy does not let it pass the work ahead, which does not fit yet.",
        "Give a shorter estimate so that it can backfill, or use another queue.")
    BACKFILL_WOULD_DELAY = ("BackfillWouldDelay", _W,
        "Would fit now, but would run into the planned start of work ahead.",
        "Give a shorter estimate of the run time, or ask for less.")
    WAITING_FOR_VICTIMS = ("WaitingForVictims", _W,
        "Room was made by preemption; the evicted work is still ending.",
        "None needed.")
    QUOTA_EXCEEDED = ("QuotaExceeded", _W,
        "The quota of the party, or the elastic quota, has too little left for the request.",
        "Wait until work under the quota ends, or have the quota raised.")
    NON_PREEMPTIBLE_QUOTA_EXCEEDED = ("NonPreemptibleQuotaExceeded", _W,
        "Work that can't be preempted may use only the quota's guaranteed part, which is used up.",
        "Mark the work preemptible, or have min raised.")
    QUEUE_LIMIT_REACHED = ("QueueLimitReached", _W,
        "The queue uses as much, or runs as many jobs, as it may.",
        "Wait, or use another queue.")
    USER_LIMIT_REACHED = ("UserLimitReached", _W,
        "The user has as much in use at once as is allowed.",
        "Wait for own work to end, or have the limit raised.")
    GROUP_LIMIT_REACHED = ("GroupLimitReached", _W,
        "The user group has as much in use at once as is allowed.",
        "Wait for the group's work to end, or have the limit raised.")
    CONSUMPTION_LIMIT_REACHED = ("ConsumptionLimitReached", _H,
        "The user, group or queue has consumed what it may in this period.",
        "Wait for the next period, or have the limit raised.")
    BUDGET_SPENT = ("BudgetSpent", _H,
        "The budget of the user or group for this period is spent.",
        "Have the budget raised.")
    QUEUE_STOPPED = ("QueueStopped", _H,
        "The queue starts nothing at the moment.",
        "An administrator reopens it.")
    HELD_BY_ADMIN = ("HeldByAdmin", _H,
        "An administrator holds this work in the queue.",
        "An administrator releases it.")
    SUSPENDED = ("Suspended", _H,
        "The work was suspended.",
        "Resume it.")

    # The search itself.
    IMPOSSIBLE = ("Impossible", _I,
        "No node could hold this even if it were empty; the message names the largest.",
        "Ask for less, or add a larger node.")
    SEARCH_GAVE_UP = ("NotFound", _W,
        "The bounded search found no placement; that does not prove that there is none.",
        "It is tried again on the next change; simpler constraints help the search.")
    PLUGIN_ERROR = ("PluginError", _W,
        "A scheduling plugin raised an error or returned a wrong shape; the message names it.",
        "Repair or disable the plugin; other work is not affected.")
    NO_PROFILE = ("NoProfile", _W,
        "No scheduling profile has the name in schedulerName.",
        "Correct schedulerName, or add the profile.")
    BINDING_FAILED = ("BindingFailed", _W,
        "The chosen placement could not be written; everything reserved was given back.",
        "None needed, it is tried again; if it repeats, look at the API server.")

    # Submission.
    MANIFEST_INVALID = ("ManifestInvalid", _R,
        "A field of the manifest is wrong; the answer names each.",
        "Correct the fields it names.")
    REQUEST_EXCEEDS_LIMIT = ("RequestExceedsLimit", _R,
        "A request is larger than the limit beside it.",
        "Lower the request or raise the limit.")
    UNIT_INVALID = ("UnitInvalid", _R,
        "A bandwidth or quantity has a unit that is not understood.",
        "Write bandwidth like 200Mbps or 10Gbps, other quantities like 500m, 2Gi.")
    DEPENDENCY_CYCLE = ("DependencyCycle", _R,
        "Tasks of the job depend on each other in a circle.",
        "Break the circle that it names.")
    DEPENDENCY_UNKNOWN = ("DependencyUnknown", _R,
        "A task depends on an alias that the job does not have.",
        "Correct the alias.")
    DUPLICATE_NAME = ("DuplicateName", _R,
        "Two entries of one list have the same name.",
        "Rename one.")
    STAGE_NOT_ALLOWED = ("StageNotAllowed", _R,
        "The job can't do what the stage command says from the phase it is in; the command changed nothing.",
        "The message names the phases from which it is possible.")
    NAME_RESERVED = ("NameReserved", _R,
        "That name is kept for the system.",
        "Choose another name.")
    QUEUE_NOT_FOUND = ("QueueNotFound", _R,
        "No Queue has that name.",
        "Correct the name: kubectl get queues.")
    QUEUE_CLOSED = ("QueueClosed", _R,
        "The queue takes no new jobs.",
        "Use another queue.")
    QUEUE_ADMISSION_DENIED = ("QueueAdmissionDenied", _R,
        "The queue's admission rules do not take this job.",
        "Use another queue, or change the job as it says.")
    JOB_EXCEEDS_LIMIT = ("JobExceedsLimit", _R,
        "The job alone is larger than a limit of its user, group or queue.",
        "Make the job smaller.")
    SUBMIT_LIMIT_REACHED = ("SubmitLimitReached", _R,
        "The user or group has as much waiting and running as may be submitted.",
        "Wait for work to end, or cancel some.")
    USER_SUSPENDED = ("UserSuspended", _R,
        "The user may submit nothing at the moment.",
        "An administrator of the user's group sets spec.suspended of the User to false.")
    USER_NOT_FOUND = ("UserNotFound", _R,
        "The work names a user, and no User has that name.",
        "Correct the name, or have the User created.")
    USER_NOT_YOURS = ("UserNotYours", _R,
        "The work is meant for a user for whom the one who submits it does not act.",
        "Leave the user out, or let an administrator of that user's group submit it.")
    DIVISION_EXCEEDED = ("DivisionExceeded", _R,
        "The limits of the users, groups or queues below would add up to more than the limit above them.",
        "Give less to some of them, or have the limit above raised.")
    PARENT_CYCLE = ("ParentCycle", _R,
        "A group or queue would stand above itself, or under too many others.",
        "Name another parent.")
    FORMULA_INVALID = ("FormulaInvalid", _R,
        "The formula of the policy does not compile; the answer has the position.",
        "Correct it at that position.")
    CONFIGURATION_INVALID = ("ConfigurationInvalid", _R,
        "A configuration was refused and the one before is still in force.",
        "Correct the errors it lists.")

    # Stopped by somebody else's need, or by a node's trouble.
    PREEMPTED = ("Preempted", _E,
        "Gave way to work of higher priority; it is back in its queue, in its place.",
        "None needed.")
    QUOTA_RECLAIMED = ("QuotaReclaimed", _E,
        "Ran on quota borrowed from others, who need it back.",
        "None needed; stay within the guaranteed part.")
    PARTNER_EVICTED = ("PartnerEvicted", _E,
        "Another party's part of the task was evicted, and a task runs whole or not at all.",
        "None needed.")
    CPU_STARVED = ("CPUStarved", _E,
        "Best-effort work got too little CPU for too long on its node.",
        "None needed, it is placed again elsewhere.")
    MEMORY_PRESSURE = ("MemoryPressure", _E,
        "The node ran short of memory.",
        "Ask for the memory that the work really needs.")
    DISK_PRESSURE = ("DiskPressure", _E,
        "The node ran short of disk.",
        "Free disk on the node; ask for ephemeral storage.")
    MIGRATED = ("Migrated", _E,
        "Moved off its node to even out the load.",
        "None needed.")
    NODE_DRAINED = ("NodeDrained", _E,
        "Its node is being emptied.",
        "None needed.")
    EVICTED_BY_ADMIN = ("EvictedByAdmin", _E,
        "An administrator evicted it.",
        "Ask the administrator.")

    # Ended without success.
    CONTAINER_FAILED = ("ContainerFailed", _F,
        "A container ended with a non-zero exit code.",
        "Read its log.")
    OOM_KILLED = ("OOMKilled", _F,
        "A container used more memory than its limit.",
        "Raise the limit, or use less.")
    IMAGE_UNAVAILABLE = ("ImageUnavailable", _F,
        "The image could not be pulled or found.",
        "Correct the image, or load it on the node.")
    CONTAINER_START_FAILED = ("ContainerStartFailed", _F,
        "A container could not be created or started.",
        "Read the message: command, mounts, permissions.")
    CONFIG_RENDER_FAILED = ("ConfigRenderFailed", _F,
        "A configuration template could not be rendered.",
        "Correct the template or the variable it names.")
    PROBE_FAILED = ("ProbeFailed", _F,
        "A liveness or startup probe failed too often.",
        "Read the log; give it more time to start.")
    RUN_TIME_EXCEEDED = ("RunTimeExceeded", _F,
        "Ran longer than its limit on run time.",
        "Raise the limit, or split the work.")
    SCHEDULING_TIMEOUT = ("SchedulingTimeout", _F,
        "Was not placed within the limit that it set itself; the last reason is in the message.",
        "Raise lifecycleSeconds or schedulingDeadlineSeconds, or leave it out to wait without end.")
    RETRIES_EXHAUSTED = ("RetriesExhausted", _F,
        "Failed as often as it may be retried.",
        "Look at the last failure; rerun the job.")
    DEPENDENCY_FAILED = ("DependencyFailed", _F,
        "A task that it depends on failed, so it was not started.",
        "Rerun from the failed task.")
    TASK_NAME_TAKEN = ("TaskNameTaken", _F,
        "A KusciaTask of the name that the job gives its task exists and belongs to somebody else.",
        "Give the task another taskID, or none; or delete the other task.")
    TASK_REFUSED = ("CreateTaskFailed", _F,
        "The API server refused the KusciaTask; the message says why.",
        "Correct the job as it says, and submit it again.")
    VALIDATE_FAILED = ("ValidateFailed", _F,
        "The job was stored although its graph or its parties are wrong; the message names the fields.",
        "Correct the job, then restart it or submit it again.")
    PARTY_FAILED = ("PartyFailed", _F,
        "Too few parties of the task are left; the message names those that failed.",
        "Look at their part.")
    APPROVAL_REJECTED = ("ApprovalRejected", _F,
        "A party rejected the job.",
        "Ask that party; submit a new job.")
    NODE_LOST = ("NodeLost", _F,
        "Its node went silent. It is not started elsewhere until it is certain that it ended.",
        "Bring the node back, or, if it is gone for good, delete the Node object.")
    STOPPED = ("Stopped", _F,
        "Somebody stopped it.",
        "Restart it.")
    CANCELLED = ("Cancelled", _F,
        "Somebody cancelled it for good.",
        "Submit it again.")

    # Routes; Kuscia's own words, spelled as Kuscia spells them.
    ROUTE_NOT_AUTHORIZED = ("DestinationIsNotAuthrized", _N,
        "The destination does not accept this source.",
        "The destination creates its side of the route.")
    ROUTE_TOKEN_MISSING = ("TokenNotGenerate", _N,
        "The two parties have not agreed on a token yet.",
        "Check that each has the other's public key.")
    ROUTE_UNREACHABLE = ("DestinationUnreachable", _N,
        "The endpoint of the route does not answer.",
        "Check host, port, TLS and firewalls.")
    ROUTE_HEARTBEAT_TIMEOUT = ("HeartBeatTimeout", _N,
        "The source has not been heard from on this route for too long.",
        "Check the source's gateway.")
    ROUTE_TOKEN_MISMATCH = ("TokenRevisionNotMatch", _N,
        "Source and destination hold different revisions of the token.",
        "None needed, it is renewed.")

    # Steps of the way.
    RESERVED = ("Reserved", _P,
        "Resources are set aside; binding waits for the other parties.",
        "None needed.")
    SCHEDULED = ("Scheduled", _P,
        "Every member that must start has a node.",
        "None needed.")
    STARTED = ("Started", _P,
        "The work runs.",
        "None needed.")
    SUCCEEDED = ("Succeeded", _P,
        "The work ended with success.",
        "None needed.")
    BUDGET_RUNNING_OUT = ("BudgetRunningOut", _P,
        "The user or group has spent a share of its budget at which a warning is due.",
        "Spend less, or have the budget raised before it is spent.")
    DECISIONS_RECORDED = ("DecisionsRecorded", _P,
        "The decision log is written again, after a time in which it was not.",
        "None needed; `muster replay` says how many steps are missing.")
    DECISIONS_NOT_RECORDED = ("DecisionsNotRecorded", _P,
        "The decision log can't be written: its disk is full, say. Work is scheduled as ever.",
        "Make room, or mend the place that --history names; the log begins anew by itself.")
    # fmt: on
