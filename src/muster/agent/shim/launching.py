"""What the agent hands to a shim: one JSON file per run. Standard library only, since shims read it.

The agent writes `launch.json` before it asks for the run; the shim reads it as a plain dictionary. The names here are the
contract between the two.

    argv, env, cwd            what to execute; env is a list of [name, value]
    user, group, groups       whom to become, after namespaces and mounts are in place
    hostname                  for a new uts namespace; empty: the host's
    netns                     path of the network namespace to enter; empty: the host's
    namespaces                of user, mount, pid, ipc, uts: those that are new for the run; `user` is for an agent without
                              rights: the task keeps the agent's user, and only so can have the others
    root                      {"kind": "host"}: the host's files as they are (no mount namespace possible);
                              {"kind": "overlay", "lower": "/", "upper": ..., "work": ..., "merged": ...}: the host's files
                              with a writable layer of its own on top, then pivot_root
                              {"kind": "binds", ...}: without rights: the host's directories shown read-only in `upper`;
                              "shown": further file systems of the host that are shown read-only where they are;
                              "kept": directories inside hidden ones that are shown all the same, read-only;
                              "keptLast": the same, but below a directory that `mounts` or the task's own /tmp covers
    mounts                    [{"target", "source", "kind": "bind"|"tmpfs", "readOnly", "sizeBytes", "sourceRoot"}] inside the
                              root, in order; a source never leads out of its sourceRoot, if it has one, and with "noLinks"
                              over no link; "isPlain": made by the agent itself, mounted as it is
    hide                      directories under which nothing is to be seen (an empty tmpfs of root's)
    cgroupProcs               files that the first process is written into before it executes
    rlimits                   {"nofile": [soft, hard], ...} by the names of `resource`
    readOnlyRoot, noNewPrivileges, keepCapabilities (names)
    log                       {"bytesMax", "filesMax"}
    oomFile                   where the shim reads how many processes the kernel killed for memory; empty: unknown
    pidFile                   empty: the shim's child executes argv and is the run. Otherwise argv is a command such as
                              `runc run -d` that starts the run, ends, and leaves the pid of its first process in this file;
                              the shim is the subreaper, and waits for that pid. argv is run as root in the host's namespaces,
                              its output goes to `start.log` of the run's directory, its standard streams to the run's log.
    enter                     with pidFile: words for `runtimes.runc_enter`, which puts the root together before argv
    startArgv                 with pidFile: command that lets the run go (`runc start`) when its start is on record; empty: none
    stopArgv                  command that the shim runs when the run has ended (`runc delete`), empty: none
    stateDir                  with pidFile: runc's directory of the container. Where it looks as runc's do, the shim does itself
                              what startArgv and stopArgv would do (`runc_state`); empty: it never does
    bootId                    of the boot in which it was written: after another one, it is over
    events                    path of the socket to tell the agent by
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Launch = dict[str, Any]
else:
    Launch = dict
LAUNCH, STARTED, EXIT, LOG = "launch.json", "started.json", "exit.json", "log"
LOCK = LAUNCH
"""The file that the shim holds a lock on for as long as it lives. It is written in place and never replaced."""
BEGUN = "begun.json"
"""Written before a command with a pidFile is run: the attempt is spent, whatever becomes of it."""
TERMINATION = "termination-log"
"""What the container sees at its `terminationMessagePath`."""
