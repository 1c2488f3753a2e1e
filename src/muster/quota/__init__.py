"""Users, groups and queues as one tree: limits, what is used of them, what was used so far, and what it cost. Pure."""
