"""Answers of the scheduler in words, for `muster explain`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from muster.cli.output import cell_text, simple_table
from muster.objects.reasons import Shortfall, format_amount
from muster.objects.status import Raw

_NEAREST_SHOWN = 5


def answer_text(answer: Raw, *, wide: bool) -> str:
    """One item of what `/muster/v1/explain` returns."""
    return "\n".join(_answer_lines(answer, wide))


def _answer_lines(answer: Raw, wide: bool) -> Iterator[str]:
    verdict = answer.get("verdict") or {}
    profile = f", profile {answer['profile']}" if answer.get("profile") else ""
    yield f"{cell_text(answer.get('subject'))}: {cell_text(answer.get('state'))}{profile}"
    if answer.get("schedulable"):
        yield from _places(answer)
    if verdict and not answer.get("schedulable"):
        yield from verdict_lines(verdict)
    for one in answer.get("victims") or []:
        names = ", ".join(cell_text(pod.get("pod")) for pod in one.get("pods") or []) or "nobody: those who leave anyway"
        yield f"  Preemption: on {cell_text(one.get('node'))} it would end {names}"
        if one.get("violating"):
            yield f"    against disruption budgets of: {', '.join(map(cell_text, one['violating']))}"
    for note in answer.get("notes") or []:
        yield f"  Note: {cell_text(note)}"
    for evaluation in answer.get("evaluations") or []:
        yield from _evaluation_lines(evaluation, wide)


def _places(answer: Raw) -> Iterator[str]:
    pods = answer.get("pods") or []
    word = "would go to" if answer.get("state") in ("hypothetical", "waiting") else "is on"
    for pod in pods[:20]:
        yield f"  {cell_text(pod.get('pod'))} {word} {cell_text(pod.get('node'))}"
    if len(pods) > 20:
        yield f"  and {len(pods) - 20} more pods"


def verdict_lines(verdict: Raw) -> Iterator[str]:
    """The reason, what it means, the number it is short by, who holds it, and what would help."""
    yield f"  Reason: {cell_text(verdict.get('reason'))}" + (f" ({verdict['plugin']})" if verdict.get("plugin") else "")
    if verdict.get("message"):
        yield f"    {cell_text(verdict['message'])}"
    if verdict.get("meaning"):
        yield f"    {cell_text(verdict['meaning'])}"
    for short in verdict.get("shortfalls") or []:
        yield f"  Short: {shortfall_text(short)}"
        for holder in short.get("holders") or []:
            amount = format_amount(holder.get("amount", 0), short.get("unit", ""))
            where = f" on {holder['node']}" if holder.get("node") else ""
            yield f"    held by {cell_text(holder.get('kind'))} {cell_text(holder.get('name'))}: {amount}{where}"
    counts = verdict.get("nodesByReason") or {}
    if counts:
        shown = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))
        yield f"  Nodes: {shown}"
    for one in (verdict.get("nearest") or [])[:_NEAREST_SHOWN]:
        lacks = "; ".join(shortfall_text(short) for short in one.get("shortfalls") or []) or cell_text(one.get("reason"))
        yield f"  Nearest: {cell_text(one.get('subject'))}: {lacks}"
    for text in verdict.get("helps") or [verdict[key] for key in ("remedy",) if verdict.get(key)]:
        yield f"  Helps: {cell_text(text)}"


def shortfall_text(short: Raw) -> str:
    known = {key: short[key] for key in ("resource", "want", "best", "unit", "where") if key in short}
    return str(Shortfall(reason=short.get("reason", ""), **known))


def _evaluation_lines(evaluation: Raw, wide: bool) -> Iterator[str]:
    total, feasible = evaluation.get("nodesTotal", 0), evaluation.get("nodesFeasible", 0)
    yield f"  For {cell_text(evaluation.get('pod'))}: {feasible} of {total} nodes would do"
    nodes = evaluation.get("nodes") or []
    if not wide or not nodes:
        return
    plugins = list(dict.fromkeys(score["plugin"] for node in nodes for score in node.get("scores") or []))
    rows: list[list[Any]] = []
    for node in nodes:
        points = {score["plugin"]: score for score in node.get("scores") or []}
        refusals = "; ".join(
            f"{refusal.get('plugin', '')} {refusal.get('reason')}"
            + "".join(f" ({shortfall_text(short)})" for short in (refusal.get("shortfalls") or [])[:3])
            for refusal in node.get("refusals") or []
        )
        cells = [_points(points.get(plugin)) for plugin in plugins]
        rows.append([node.get("node"), "yes" if node.get("feasible") else "no", node.get("score"), *cells, refusals])
    table = simple_table(["NODE", "FITS", "SCORE", *(plugin.upper() for plugin in plugins), "REFUSED BY"], rows)
    yield from (f"    {line}" for line in table.splitlines())


def _points(score: Raw | None) -> str:
    if score is None:
        return "-"
    weight = score.get("weight", 1)
    return f"{score.get('score', 0)}" if weight == 1 else f"{score.get('score', 0)}x{weight}"


def explanation_text(name: str, status: Raw) -> str:
    """The status of a ScheduleExplanation, from a cluster whose API server has no endpoint of ours."""
    details = status.get("detailedExplanation") or []
    if not details:
        return f"{name}: {cell_text(status.get('failedMessage'))}"
    return "\n".join(line for detail in details for line in _detail_lines(name, detail))


def _detail_lines(name: str, detail: Raw) -> Iterator[str]:
    state = "schedulable" if detail.get("schedulable") else "not schedulable"
    yield f"{cell_text(detail.get('topologyDomain') or name)}: {state}"
    explained = detail.get("scheduleExplanation") or {}
    for place in explained.get("feasibleSchedulingResult") or []:
        yield f"  {place.get('namespace', '')}/{place.get('name', '')} on {cell_text(place.get('nodeName'))}"
    if explained.get("failedMessage"):
        yield f"  {cell_text(explained['failedMessage'])}"
    for one in explained.get("nodeFailedDetails") or []:
        nodes = one.get("failedNodes") or []
        more = f" and {len(nodes) - 5} more" if len(nodes) > 5 else ""
        yield f"  {one.get('failedPlugin', '')} {one.get('reason', '')}: {', '.join(nodes[:5])}{more}"
    for one in detail.get("nodePossibleVictims") or []:
        names = ", ".join(f"{v.get('namespace')}/{v.get('name')}" for v in one.get("possibleVictims") or [])
        yield f"  Preemption: on {one.get('nodeName')} it would end {names}"
    helps = (detail.get("preemptExplanation") or {}).get("failedMessage")
    if helps:
        yield f"  Helps: {cell_text(helps)}"
