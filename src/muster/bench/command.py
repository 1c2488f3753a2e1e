"""`muster bench`: list the scenarios, run one or all, print a table or JSON lines. Progress goes to standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from muster.bench.scenario import load_scenario, scenario_names

if TYPE_CHECKING:
    from muster.bench.api import Measured
    from muster.bench.fairness import FairnessLine
    from muster.bench.lines import On
    from muster.bench.queues_embedded_process import QueuesEmbeddedLine
    from muster.bench.queues_process import QueuesLine
    from muster.bench.suite import Task

API = "api"
_API_ABOUT = (
    "Durable creates, updates, bindings and applies, get, list, watch fan-out, readiness, memory, beside kube-apiserver + etcd."
)
JOBS = "jobs"
_JOBS_ABOUT = (
    "What the controllers spend on a task, with few and with many jobs and in a graph of 1,000 tasks; simulated nodes."
)
AGENT = "agent"
_AGENT_ABOUT = "Short tasks started and reaped on one node, by runtime, beside bare fork+exec and bare runc; needs root."
HISTORY = "history"
_HISTORY_ABOUT = "What recording every step costs the engine: its rate with the decision log to its rate without, in turn."
QUEUES = "queues"
_QUEUES_ABOUT = (
    "Workloads in 30 and in 1,000 queues admitted by policy on simulated nodes: engine alone, or Jobs from end to end."
)
FAIRNESS = "fairness"
_FAIRNESS_ABOUT = "One user's requests to the API server alone, and beside floods of another's requests, watches and lists."
_OWN = (API, JOBS, AGENT, HISTORY, QUEUES, FAIRNESS)
_PLACES = ("engine", "embedded", "kubernetes")


@click.group()
def bench() -> None:
    """Measure Muster beside its peers on this machine."""


@bench.command("list")
def list_scenarios() -> None:
    """Show the scenarios that `run` takes."""
    own = {API: _API_ABOUT, JOBS: _JOBS_ABOUT, AGENT: _AGENT_ABOUT, HISTORY: _HISTORY_ABOUT, QUEUES: _QUEUES_ABOUT}
    own[FAIRNESS] = _FAIRNESS_ABOUT
    for name in (*own, *scenario_names()):
        click.echo(f"{name}\t{own.get(name) or load_scenario(name).about}")


@bench.command()
@click.argument("scenario", metavar="SCENARIO", type=click.Choice([*_OWN, *scenario_names(), "all"]))
@click.option(
    "--on",
    "places",
    type=click.Choice(_PLACES),
    multiple=True,
    help="Where pods are scheduled (queues: not kubernetes); may be given several times. Default: engine, with all: all.",
)
@click.option("--nodes", type=click.IntRange(1, 200_000), help="Nodes. Default: 1000, and with all: several sizes.")
@click.option("--pods", type=click.IntRange(1, 2_000_000), help="Measured pods. Default: the scenario's own for that size.")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides all that is random in the workload.")
@click.option(
    "--pairs",
    type=click.IntRange(1, 50),
    help="On kubernetes and of history: runs of each side, in turn. Default: 3, and 5 of history.",
)
@click.option(
    "--rounds", type=click.IntRange(1, 20), default=3, show_default=True, help="Of api: rounds in turn; the median counts."
)
@click.option(
    "--scale",
    type=click.FloatRange(0.01, 100),
    default=1.0,
    show_default=True,
    help="Of api, agent and fairness: factor on operations; of queues: on workloads.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line on standard output.")
def run(
    scenario: str,
    *,
    places: tuple[On, ...],
    nodes: int | None,
    pods: int | None,
    seed: int,
    pairs: int | None,
    rounds: int,
    scale: float,
    as_json: bool,
) -> None:
    """Run SCENARIO (or all). Progress goes to standard error."""
    from muster.bench import api, suite

    if scenario in (API, "all"):
        _show_api(api.run(scale=scale, rounds=rounds, say=_say), as_json=as_json)
    if scenario in (JOBS, "all"):
        _show_jobs(seed=seed, as_json=as_json)
    if scenario in (AGENT, "all"):
        _show_agent(scale=scale, as_json=as_json)
    if scenario in (HISTORY, "all"):
        _show_history(nodes=nodes, pods=pods, pairs=pairs, seed=seed, as_json=as_json)
    if scenario in (QUEUES, "all"):
        where = places or (_EVERYWHERE if scenario == "all" else ("engine",))
        _show_queues(where, nodes=nodes, scale=scale, as_json=as_json)
    if scenario in (FAIRNESS, "all"):
        _show_fairness(scale=scale, as_json=as_json)
    if scenario in _OWN:
        return
    if scenario == "all":
        tasks = suite.all_tasks(places or _EVERYWHERE, nodes=nodes, pods=pods, pairs=pairs)
    else:
        tasks = suite.tasks_of(scenario, places or ("engine",), nodes=nodes, pods=pods, pairs=pairs)
    failures = _run_tasks(tasks, seed=seed, as_json=as_json)
    if failures:
        raise click.ClickException(f"{len(failures)} of the lines could not be measured: " + "; ".join(failures))


_EVERYWHERE: tuple[On, ...] = ("engine", "embedded", "kubernetes")


def _say(text: str) -> None:
    click.echo(text, err=True)


def _run_tasks(tasks: Iterable[Task], *, seed: int, as_json: bool) -> list[str]:
    """Measure and print line by line; what went wrong, a line each. One failure does not take the other lines away."""
    from muster.bench import suite
    from muster.bench.kubernetes import NotAvailable, NotStarted
    from muster.bench.lines import HEADER, row

    failures = []
    if not as_json:
        click.echo(HEADER)
    for task in tasks:
        try:
            line = suite.measure(task, seed=seed, say=_say)
        except (NotAvailable, NotStarted, RuntimeError, ValueError) as error:
            _say(f"{task.scenario} on {task.on} at {task.nodes} nodes: {error}")
            failures.append(f"{task.scenario} on {task.on} at {task.nodes} nodes ({str(error).splitlines()[0]})")
            continue
        if as_json:
            sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
            sys.stdout.flush()
        else:
            click.echo(row(line))
    return failures


def _show_jobs(*, seed: int, as_json: bool) -> None:
    from muster.bench import jobs

    if not as_json:
        click.echo(
            f"{'shape':8}{'jobs':>7}{'tasks':>8}{'succeeded':>11}{'ms per task':>13}{'writes per task':>17}  keys per task"
        )
    plain: dict[int, jobs.JobLine] = {}
    for shape, count, tasks in jobs.SIZES:
        line = jobs.measure(shape, count, tasks, seed=seed, say=_say)
        if shape == "many":
            plain[count] = line
        if as_json:
            sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
            sys.stdout.flush()
            continue
        keys = ", ".join(f"{name} {number:g}" for name, number in line.reconciles_per_task.items() if number >= 0.1)
        click.echo(
            f"{line.shape:8}{line.jobs:>7,}{line.tasks:>8,}{line.succeeded:>11,}{line.cpu_ms_per_task:>13,.1f}"
            f"{line.writes_per_task:>17,.1f}  {keys}"
        )
        if shape == "accounted" and count in plain:
            beside = plain[count]
            time_ratio, writes_ratio = line.cpu_s / beside.cpu_s, line.writes_per_task / beside.writes_per_task
            click.echo(f"{'':8}with accounting to without: {time_ratio:.2f} in time, {writes_ratio:.2f} in writes")


def _show_api(results: Iterable[Measured], *, as_json: bool) -> None:
    if as_json:
        for result in results:
            sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
        return

    def cell(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:,.{digits}f}"

    click.echo(f"{'':44}{'muster':>10}{'peer':>10}{'ratio':>7}{'CPU ms':>8}{'peer':>8}{'ratio':>7}{'load':>7}  bound by")
    for result in results:
        digits = 2 if result.value < 10 else 0
        click.echo(
            f"{f'{result.line} ({result.unit})':44}{cell(result.value, digits):>10}{cell(result.peer_value, digits):>10}"
            f"{cell(result.ratio, 2):>7}{cell(result.cpu_ms, 3):>8}{cell(result.peer_cpu_ms, 3):>8}"
            f"{cell(result.cpu_ratio, 2):>7}{cell(result.load_cpu_ms, 3):>7}  {result.bound_by}"
        )


def _show_fairness(*, scale: float, as_json: bool) -> None:
    from muster.bench import fairness

    if not as_json:
        click.echo(
            f"{'beside':36}{'get p50':>9}{'p99 ms':>9}{'ratio':>7}{'create p50':>12}{'p99 ms':>9}{'ratio':>7}{'RSS MB':>8}"
        )
    for line in fairness.run(scale=scale, say=_say):
        _put(line, _fairness_row, as_json=as_json)


def _fairness_row(line: FairnessLine) -> str:
    return (
        f"{line.beside:36}{line.get_p50_ms:>9,.1f}{line.get_p99_ms:>9,.1f}{line.get_ratio:>7,.1f}"
        f"{line.create_p50_ms:>12,.1f}{line.create_p99_ms:>9,.1f}{line.create_ratio:>7,.1f}{line.resident_mb:>8,.0f}"
    )


def _show_history(*, nodes: int | None, pods: int | None, pairs: int | None, seed: int, as_json: bool) -> None:
    from muster.bench import history

    if not as_json:
        click.echo(
            f"{'scenario':12}{'nodes':>7}{'pods':>8}{'plain/s':>10}{'recorded/s':>12}{'ratio':>7}"
            f"{'process':>9}{'CPU':>7}{'bytes/pod':>11}{'rotation ms':>13}"
        )
    for scenario in history.SCENARIOS:
        line = history.measure(
            scenario,
            nodes=nodes or history.DEFAULT_NODES,
            pods=pods or history.DEFAULT_PODS,
            pairs=pairs or history.DEFAULT_PAIRS,
            seed=seed,
            say=_say,
        )
        if as_json:
            sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
            sys.stdout.flush()
            continue
        click.echo(
            f"{line.scenario:12}{line.nodes:>7,}{line.pods:>8,}{line.plain_per_s:>10,.0f}{line.recorded_per_s:>12,.0f}"
            f"{line.ratio:>7.2f}{line.process_ratio:>9.2f}{line.cpu_share:>7.1%}{line.bytes_per_pod:>11,.0f}{line.rotation_ms:>13,.0f}"
        )


def _show_queues(places: Iterable[On], *, nodes: int | None, scale: float, as_json: bool) -> None:
    from muster.bench import queues

    if not as_json:
        click.echo(
            f"{'on':9}{'queues':>7}{'workloads':>11}{'nodes':>7}{'per s':>8}{'per CPU s':>11}"
            f"{'small s':>9}{'medium s':>10}{'large s':>9}{'RSS MB':>8}{'writes':>8}  what"
        )
    for place in places:
        for count, per_queue in queues.SIZES:
            number, node_len = max(1, round(per_queue * scale)), nodes or queues.DEFAULT_NODES
            if place == "engine":
                _put(queues.measure(count, number, nodes=node_len, say=_say), _engine_row, as_json=as_json)
            elif place == "embedded":
                _put(queues.measure_embedded(count, number, nodes=node_len, say=_say), _embedded_row, as_json=as_json)


Line = TypeVar("Line", bound=msgspec.Struct)


def _put(line: Line, row: Callable[[Line], str], *, as_json: bool) -> None:
    click.echo(msgspec.json.encode(line).decode() if as_json else row(line))
    sys.stdout.flush()


def _engine_row(line: QueuesLine) -> str:
    steps = f"{line.steps:,} steps of {line.step_p50_ms:,.0f} ms, the longest {line.step_max_ms:,.0f} ms"
    steps += f"; {line.order_len:,} put in order in {line.order_ms:,.1f} ms"
    return (
        f"{line.on:9}{line.queues:>7,}{line.workloads:>11,}{line.nodes:>7,}{'-':>8}{line.per_s:>11,.0f}"
        f"{'-':>9}{'-':>10}{'-':>9}{'-':>8}{'-':>8}  {steps}"
    )


def _embedded_row(line: QueuesEmbeddedLine) -> str:
    def wait(name: str) -> str:
        return f"{line.to_admission_s[name]:,.1f}" if name in line.to_admission_s else "-"

    parts = ", ".join(f"{name} {share:.0%}" for name, share in list(line.parts.items())[:6])
    return (
        f"{line.on:9}{line.queues:>7,}{line.workloads:>11,}{line.nodes:>7,}{line.per_s:>8,.0f}{line.per_cpu_s:>11,.0f}"
        f"{wait('small'):>9}{wait('medium'):>10}{wait('large'):>9}{line.rss_peak_mb:>8,.0f}"
        f"{line.writes_per_workload:>8,.1f}  {parts}"
    )


def _show_agent(*, scale: float, as_json: bool) -> None:
    from muster.bench import agent

    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:,.1f}"

    if not as_json:
        click.echo(f"{'what':18}{'bare ms':>9}{'ours ms':>9}{'over ms':>9}{'bare per s':>12}{'tasks per s':>13}")
    for what in agent.WHATS:
        try:
            line = agent.measure(what, scale=scale, say=_say)
        except agent.NotPossible as error:
            _say(f"agent, {what}: {error}")
            continue
        if as_json:
            sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
            sys.stdout.flush()
            continue
        click.echo(
            f"{line.what:18}{shown(line.bare_ms):>9}{line.ours_ms:>9,.1f}{shown(line.over_ms):>9}"
            f"{shown(line.bare_per_s):>12}{line.tasks_per_s:>13,.1f}"
        )
