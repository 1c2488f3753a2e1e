"""What the agent hands to a shim: one JSON file per run. Standard library only, since shims read it.

The agent writes `launch.json` before it asks for the run; the shim reads it as a plain dictionary. The names here are the
contract between the two.

    argv, env, cwd            what to execute; env is a list of [name, value]
    user, group, groups       whom to become, after namespaces and mounts are in place
    hostname                  for a new uts namespace; empty: the host's
    netns                     path of the network namespace to enter; empty: the host's
    namespaces                of mount, pid, ipc, uts: those that are new for the run
    root                      {"kind": "host"}: the host's files as they are (no mount namespace possible);
                              {"kind": "overlay", "lower": "/", "upper": ..., "work": ..., "merged": ...}: the host's files
                              with a writable layer of its own on top, then pivot_root
    mounts                    [{"target", "source", "kind": "bind"|"tmpfs", "readOnly", "sizeBytes"}] inside the root, in order
    hide                      directories under which nothing is to be seen (an empty read-only tmpfs)
    cgroupProcs               files to write "0" into before anything else is done
    rlimits                   {"nofile": [soft, hard], ...} by the names of `resource`
    readOnlyRoot, noNewPrivileges, keepCapabilities (names)
    log                       {"bytesMax", "filesMax"}
    oomFile                   where the shim reads how many processes the kernel killed for memory; empty: unknown
    pidFile                   empty: the shim's child executes argv and is the run. Otherwise argv is a command such as
                              `runc run -d` that starts the run, ends, and leaves the pid of its first process in this file;
                              the shim is the subreaper, and waits for that pid. argv is run as root in the host's namespaces,
                              its output goes to `start.log` of the run's directory, its standard streams to the run's log.
    stopArgv                  command that the shim runs when the run has ended (`runc delete`), empty: none
    events                    path of the socket to tell the agent by
"""

from __future__ import annotations

from typing import Any

Launch = dict[str, Any]
LAUNCH, LOCK, STARTED, EXIT, LOG = "launch.json", "lock", "started.json", "exit.json", "log"
