"""Limits, measures and ends what pods run, through the kernel's control groups (v1, v2, and machines with both).

opening     what the machine has -> `PodCgroups`
pods        the groups of pods and containers
v1, v2      limits to files, files to usage
killing     ending a whole group
executor    the one writer of kernel files
"""

from muster.agent.cgroups.opening import open_cgroups
from muster.agent.cgroups.pods import PodCgroups, node_limits

__all__ = ["PodCgroups", "node_limits", "open_cgroups"]
