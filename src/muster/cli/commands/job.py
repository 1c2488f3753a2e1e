"""`muster job`: jobs of several parties (KusciaJob) and of one owner (Job), from submission to the comparison of two runs."""

from __future__ import annotations

import click

from muster.cli.framework import Entry, LazyGroup, common_options

_HOME = "muster.cli.commands"
ENTRIES = {
    "submit": Entry(f"{_HOME}.job_submit", "submit", "Create jobs from files, and wait for them if asked to."),
    "list": Entry(f"{_HOME}.job_show", "list_jobs", "List jobs, by phase, party, initiator, label or age."),
    "get": Entry(f"{_HOME}.job_show", "get", "Show one job and its tasks."),
    "tree": Entry(f"{_HOME}.job_show", "tree", "Show a job with its tasks, parties and pods."),
    "watch": Entry(f"{_HOME}.job_submit", "watch", "Follow a job until it has ended."),
    "logs": Entry(f"{_HOME}.job_logs", "logs", "Show what the pods of a job wrote."),
    "stop": Entry(f"{_HOME}.job_control", "stop", "End what runs; it can be restarted."),
    "suspend": Entry(f"{_HOME}.job_control", "suspend", "End what runs, to go on later."),
    "resume": Entry(f"{_HOME}.job_control", "resume", "Go on with a suspended job."),
    "restart": Entry(f"{_HOME}.job_control", "restart", "Run again, in place, what did not succeed."),
    "rerun": Entry(f"{_HOME}.job_control", "rerun", "Run a job that has ended once more, whole or from a task on."),
    "cancel": Entry(f"{_HOME}.job_control", "cancel", "End a job for good."),
    "delete": Entry(f"{_HOME}.job_control", "delete", "Delete jobs with all that belongs to them."),
    "approve": Entry(f"{_HOME}.job_control", "approve", "Accept a job for a party."),
    "reject": Entry(f"{_HOME}.job_control", "reject", "Refuse a job for a party."),
    "diff": Entry(f"{_HOME}.job_show", "diff", "Compare two runs."),
}


@click.group(
    "job",
    cls=LazyGroup,
    entries=ENTRIES,
    short_help="Submit, follow and command jobs.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def job() -> None:
    """Submit, follow and command jobs: KusciaJob, in namespace cross-domain, and Job of muster.dev, in your own.

    A job is named NAME, or KIND/NAME (kusciajob/train, job/train) where both kinds have one of that name.
    """


job.params.extend(common_options())
