"""The node: carries the pods that are bound to it as real processes and containers, under the limits that they were granted.

    node, joining      who this node is, what it has, how it joins and leaves
    pods, lifecycle    what becomes of each pod: a pure decision, and the controller that acts on it
    runtimes/          how a container runs: `process`, `runc`; and `kubernetes`, which carries whole pods elsewhere
    shim/              the small parent of every container, which outlives the agent: logs and exit codes are never lost
    cgroups/, network/ what was granted is what is enforced, and measured
    metrics            NodeMetric from what the above count
    serving            the kubelet's log endpoint

`contracts` holds what these promise each other, `layout` where things lie on disk.
"""
