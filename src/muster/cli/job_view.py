"""Jobs in words and pictures: rows of a list, the tree of a job, the lines of what changed, two runs side by side.

Pure: trees and the present instant go in, lines of text come out. Colours are ANSI codes that the caller asks for; nothing that
came from a server can bring its own, because every word passes `cell_text`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from muster.cli.output import cell_text, simple_table, to_compact, width_of
from muster.client.job_diff import JobDiff, RunFacts
from muster.client.job_tree import FINISHED_PHASES, JobTree, PartyNode, PodNode, TaskNode
from muster.objects.ages import human_duration, since
from muster.objects.reason_codes import Reason

BAR_LEN = 20
VALUE_LEN_MAX = 60
RECORDS_SHOWN = 4
RECORD_LEN_SHOWN = 30
_COLORS = {
    **dict.fromkeys(("Succeeded", "Available", "Accepted"), "32"),
    **dict.fromkeys(("Failed", "Rejected", "ApprovalReject"), "31"),
    **dict.fromkeys(("Running",), "36"),
    **dict.fromkeys(("Stopped", "Cancelled", "Suspended", "Skipped"), "35"),
}
_WAITING_COLOR = "33"


class Style:
    """Whether to colour, and as what."""

    def __init__(self, *, is_colored: bool = False) -> None:
        self.is_colored = is_colored

    def phase(self, phase: str) -> str:
        word = cell_text(phase) if phase else "Waiting"
        return self._paint(word, _COLORS.get(phase, _WAITING_COLOR))

    def bold(self, text: str) -> str:
        return self._paint(text, "1")

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.is_colored else text


PLAIN = Style()


def bar(progress: float, length: int = BAR_LEN) -> str:
    """`[#######-------------]  35%`; full only at the very end."""
    done = length if progress >= 1 else min(length - 1, int(progress * length))
    percent = 100 if progress >= 1 else min(99, int(progress * 100))
    return f"[{'#' * done}{'-' * (length - done)}] {percent:3d}%"


# --- the tree -----------------------------------------------------------------------------------------------------------------


def tree_lines(tree: JobTree, now: float, *, style: Style = PLAIN, is_brief: bool = False) -> list[str]:
    """The whole tree. `is_brief` leaves out the pods of tasks that have ended well, and of those that have not begun."""
    lines = [_head(tree, now, style)]
    if why := head_why(tree):
        lines.append(f"  {why}")
    if tree.refusal:
        lines.append(f"  the command {cell_text(tree.stage)} was not followed: {cell_text(tree.refusal)}")
    if tree.place:
        lines.append(f"  place {tree.place} in queue {cell_text(tree.queue or 'default')}")
    for party, word in sorted(tree.approvals.items()):
        lines.append(f"  approval of {cell_text(party)}: {cell_text(word.removeprefix('Job'))}")
    width = max((width_of(cell_text(task.alias)) for task in tree.tasks), default=0)
    for i, task in enumerate(tree.tasks):
        is_last = i == len(tree.tasks) - 1
        lines += _task_lines(task, now, style, is_brief=is_brief, is_last=is_last, width=width)
    return lines


def _head(tree: JobTree, now: float, style: Style) -> str:
    took = tree.duration_s(now)
    parts = [style.bold(cell_text(tree.title)), style.phase(tree.outcome or tree.phase), bar(tree.progress)]
    if took is not None:
        parts.append(human_duration(took))
    return "  ".join([*parts, *_tries(tree.attempts, tree.preemptions)])


def _tries(attempts: int, preemptions: int) -> list[str]:
    words = [f"attempt {attempts}"] if attempts > 1 else []
    return words + ([f"preempted {preemptions}x"] if preemptions else [])


def _why(reason: str, message: str) -> str:
    """`Reason: message`. Some messages begin with their code already."""
    words = [cell_text(word) for word in (reason, message.removeprefix(f"{reason}: ")) if word]
    return ": ".join(words)


def head_why(tree: JobTree) -> str:
    """Reason and message of the job; a reason that only repeats the phase is left out."""
    reason = "" if tree.reason in (tree.phase, tree.outcome) else tree.reason
    return _why(reason, tree.message)


def _task_lines(task: TaskNode, now: float, style: Style, *, is_brief: bool, is_last: bool, width: int) -> Iterator[str]:
    branch, trunk = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
    alias = cell_text(task.alias)
    parts = [alias + " " * (width - width_of(alias)), style.phase(task.phase)]
    if task.phase == "Running":
        parts.append(bar(task.progress))
    took = task.duration_s(now if task.phase not in FINISHED_PHASES else None)
    if took is not None:
        parts.append(human_duration(took))
    parts += _tries(task.attempts, task.preemptions)
    if task.is_tolerable:
        parts.append("tolerable")
    said = _why(task.reason, task.message) if task.phase not in ("Succeeded", "Running") else ""
    if said:
        parts.append(said)
    elif not task.phase or task.phase == "Waiting":
        parts.append(f"after {', '.join(map(cell_text, task.dependencies))}" if task.dependencies else "")
    yield f"{branch}{'  '.join(part for part in parts if part)}"
    if is_brief and task.phase in ("Succeeded", "Skipped", "Waiting", ""):
        return
    parties = [party for party in task.parties if party.pods or party.phase or not is_brief]
    for i, party in enumerate(parties):
        yield from (trunk + line for line in _party_lines(party, style, is_last=i == len(parties) - 1, said=said))


def _party_lines(party: PartyNode, style: Style, *, is_last: bool, said: str) -> Iterator[str]:
    """`said` is what the task's line says already: pods that start together wait for one reason, and it is long."""
    branch, trunk = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
    if not party.party:
        # A role of a Job: its pods hang on it directly.
        yield from _pod_lines(party.pods, style, said)
        return
    name = f"{cell_text(party.party)}/{cell_text(party.role)}" if party.role else cell_text(party.party)
    message = cell_text(party.message) if party.message else ""
    is_news = not said or not message.endswith(f": {said}")
    words = [name, style.phase(party.phase) if party.phase else "", message if is_news else ""]
    yield branch + "  ".join(word for word in words if word)
    yield from (trunk + line for line in _pod_lines(party.pods, style, said))


def shown_bytes(count: int) -> str:
    """As people write amounts of data: `712B`, `1.4MB`; powers of 1000, as bandwidth has."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count}B"


def _record(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= RECORD_LEN_SHOWN else text[: RECORD_LEN_SHOWN - 1] + "…"


def _pod_lines(pods: Sequence[PodNode], style: Style, said: str) -> Iterator[str]:
    for i, pod in enumerate(pods):
        branch = "└─ " if i == len(pods) - 1 else "├─ "
        words = [cell_text(pod.name), style.phase(pod.phase or "Pending"), cell_text(pod.node) if pod.node else ""]
        if pod.progress is not None and pod.phase == "Running":
            words.append(bar(pod.progress, 10))
        if pod.restarts:
            words.append(f"restarts {pod.restarts}")
        if pod.sent_bytes or pod.received_bytes:
            words.append(f"sent {shown_bytes(pod.sent_bytes)}, received {shown_bytes(pod.received_bytes)}")
        words += [f"{cell_text(name)}={cell_text(_record(value))}" for name, value in list(pod.records.items())[:RECORDS_SHOWN]]
        if pod.phase not in ("Running", "Succeeded") and (why := _why(pod.reason, pod.message)) != said:
            words.append(why)
        yield branch + "  ".join(word for word in words if word)


# --- what changed -------------------------------------------------------------------------------------------------------------


def change_lines(before: JobTree | None, after: JobTree) -> Iterator[str]:
    """One line for the job and for each task whose phase, reason or attempt is another than before."""
    if before is None or _head_news(before) != _head_news(after):
        # While it runs, its tasks have the news.
        why = head_why(after) if after.outcome or after.phase != "Running" else ""
        yield f"{cell_text(after.title)} {after.outcome or after.phase or 'Waiting'}{why and f' {why}'}"
    old = {task.alias: task for task in before.tasks} if before else {}
    for task in after.tasks:
        was = old.get(task.alias)
        is_in_turn = task.reason in ("", Reason.DEPENDENCY_PENDING.value, Reason.PARALLELISM_REACHED.value)
        if task.phase in ("", "Waiting") and is_in_turn and (was is None or was.phase in ("", "Waiting")):
            continue  # a task that waits for others of its job has no news
        if was is None or (was.phase, was.reason, was.attempts) != (task.phase, task.reason, task.attempts):
            where = f" on {', '.join(map(cell_text, task.nodes))}" if task.phase == "Running" and task.nodes else ""
            why = f" {_why(task.reason, task.message)}" if task.phase not in ("Running", "Succeeded") and task.reason else ""
            again = f" (attempt {task.attempts})" if task.attempts > 1 else ""
            yield f"  {cell_text(task.alias)} {task.phase or 'Waiting'}{again}{where}{why}"


def _head_news(tree: JobTree) -> tuple[str, str]:
    return tree.outcome or tree.phase, "" if tree.phase == "Running" else tree.reason


# --- lists --------------------------------------------------------------------------------------------------------------------

LIST_HEADERS = ("NAME", "KIND", "PHASE", "TASKS", "PROGRESS", "REASON", "AGE")
WIDE_HEADERS = ("NAMESPACE", "INITIATOR", "PARTIES", "TOOK", "MESSAGE")


def list_row(tree: JobTree, now: float, *, is_wide: bool = False) -> list[Any]:
    done = sum(1 for task in tree.tasks if task.phase in ("Succeeded", "Skipped"))
    is_kuscia = tree.kind == "KusciaJob"
    row: list[Any] = [
        tree.name,
        tree.kind,
        tree.outcome or tree.phase or "Waiting",
        f"{done}/{len(tree.tasks)}" if is_kuscia else f"{len(tree.tasks)} roles",
        f"{int(tree.progress * 100)}%",
        tree.reason,
        since(tree.created, now),
    ]
    if is_wide:
        took = tree.duration_s(now)
        shown = human_duration(took) if took is not None else None
        row += [tree.namespace, tree.initiator, ",".join(tree.parties), shown, tree.message]
    return row


def task_table(tree: JobTree, now: float, *, is_wide: bool = False) -> str:
    """The tasks of one job."""
    headers = ["TASK", "PHASE", "PROGRESS", "ATTEMPTS", "TOOK", "REASON"]
    rows: list[list[Any]] = []
    for task in tree.tasks:
        took = task.duration_s(now if task.phase not in FINISHED_PHASES else None)
        row: list[Any] = [task.alias, task.phase or "Waiting", f"{int(task.progress * 100)}%", task.attempts]
        row += [human_duration(took) if took is not None else None, task.reason]
        if is_wide:
            row += [",".join(task.dependencies), ",".join(p.party for p in task.parties), ",".join(task.nodes), task.message]
        rows.append(row)
    return simple_table(headers + (["AFTER", "PARTIES", "NODES", "MESSAGE"] if is_wide else []), rows)


# --- two runs -----------------------------------------------------------------------------------------------------------------


def diff_text(found: JobDiff) -> str:
    lines = [f"{found.before}  ->  {found.after}", ""]
    if found.spec:
        lines.append("Spec:")
        lines += [f"  {change.path}: {_value(change.before)} -> {_value(change.after)}" for change in found.spec]
        lines += [f"  and {found.left_out} more fields"] if found.left_out else []
    else:
        lines.append("Spec: the same")
    lines += ["", "Runs:"]
    rows = []
    for title, one in [("(job)", found.job), *((change.alias, change) for change in found.tasks)]:
        old, new = one.before, one.after
        rows.append([title, *(_pair(pick(old), pick(new)) for pick in (_phase, _took, _attempts, _nodes))])
    table = simple_table(["TASK", "PHASE", "TOOK", "ATTEMPTS", "NODES"], rows)
    return "\n".join([*lines, *(f"  {line}" for line in table.splitlines())])


def _value(value: Any) -> str:
    if value is None:
        return "(not set)"
    text = cell_text(value if isinstance(value, str) else to_compact(value))
    return text if len(text) <= VALUE_LEN_MAX else f"{text[: VALUE_LEN_MAX - 1]}…"


def _pair(old: str, new: str) -> str:
    return old if old == new else f"{old} -> {new}"


def _phase(facts: RunFacts | None) -> str:
    if facts is None:
        return "(none)"
    return f"{facts.phase} ({facts.reason})" if facts.reason and facts.phase == "Failed" else facts.phase or "Waiting"


def _took(facts: RunFacts | None) -> str:
    return human_duration(facts.duration_s) if facts is not None and facts.duration_s is not None else "-"


def _attempts(facts: RunFacts | None) -> str:
    return str(facts.attempts) if facts is not None else "-"


def _nodes(facts: RunFacts | None) -> str:
    return ",".join(facts.nodes) if facts is not None and facts.nodes else "-"
