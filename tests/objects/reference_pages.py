"""Writes `docs/reference/kinds.md` and `docs/reference/reasons.md` from the code: `python -m tests.objects.reference_pages`.

A test compares the pages with what this makes, so that they can't fall behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from tests.objects.kinds.samples import ALL as OWN_AND_FOREIGN

from muster.objects.catalog import CATALOG
from muster.objects.reasons import ApiReason, Category, Reason
from muster.objects.resources import Resource

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
REMAKE = "remake it: .venv/bin/python -m tests.objects.reference_pages"

_ABOUT_GROUP = {
    "": "Kubernetes' core group",
    "kuscia.secretflow": "Kuscia's kinds; manifests written for Kuscia work unchanged",
    "scheduling.sigs.k8s.io": "of kubernetes-sigs/scheduler-plugins",
    "quota.koordinator.sh": "Koordinator's quota trees",
    "scheduling.koordinator.sh": "Koordinator's scheduling kinds",
    "slo.koordinator.sh": "Koordinator's colocation kinds",
    "config.koordinator.sh": "Koordinator's configuration",
    "muster.dev": "what none of the others has",
}


def kinds() -> list[Resource]:
    """All kinds, each once; Muster's, Kuscia's and Koordinator's before Kubernetes' own."""
    found = {(r.group, r.version, r.kind): r for r in (*OWN_AND_FOREIGN, *CATALOG.all)}
    order = ["muster.dev", "kuscia.secretflow", "scheduling.sigs.k8s.io"]
    rank = {group: index for index, group in enumerate(order)}
    return sorted(found.values(), key=lambda r: (rank.get(r.group, len(order)), not r.is_custom, r.group, r.version, r.kind))


def kinds_page() -> str:
    parts = [
        "# Kinds",
        "",
        "Every kind that Muster serves, by API group. This page is made from the code and tested against it.",
        "",
        "*Names* are what `kubectl get` and `muster get` take: plural, then short names. *Scope* says whether objects live in",
        "a namespace. *Status* is `subresource` where status is written apart from the rest, `field` where it is a field like",
        "any other, and `-` where the kind has none. *Columns* are those of `get`; those in brackets show with `-o wide`.",
    ]
    for (group, version), resources in groupby(kinds(), key=lambda r: (r.group, r.version)):
        title = f"{group}/{version}" if group else version
        about = _ABOUT_GROUP.get(group, "of Kubernetes")
        parts += ["", f"## `{title}`: {about}", ""]
        parts += _table(("Kind", "Names", "Scope", "Status", "Columns", "What it is"), map(_kind_row, resources))
    return "\n".join(parts) + "\n"


def _kind_row(resource: Resource) -> tuple[str, ...]:
    columns = [f"({c.name})" if c.priority else c.name for c in resource.columns] or ["Age"]
    return (
        f"`{resource.kind}`",
        ", ".join(f"`{name}`" for name in (resource.plural, *resource.short_names)),
        "namespace" if resource.namespaced else "cluster",
        _status(resource),
        " ".join(columns),
        _first_sentence(resource),
    )


def _status(resource: Resource) -> str:
    if resource.has_status:
        return "subresource"
    has_field = resource.view is not None and "status" in resource.view.__struct_fields__
    return "field" if has_field else "-"


def _first_sentence(resource: Resource) -> str:
    text = " ".join(((resource.view.__doc__ if resource.view else "") or "").split())
    return f"{text.split('. ', 1)[0].rstrip('.')}." if text else ""


def reasons_page() -> str:
    parts = [
        "# Reason codes",
        "",
        "Whatever waits, is refused, is stopped or fails says why with one of these codes: in conditions, in events, in",
        "answers of the API and on the command line. A code keeps its meaning from release to release, so scripts can test",
        "for it. This page is made from the code and tested against it.",
    ]
    for category in Category:
        members = [reason for reason in Reason if reason.category is category]
        parts += ["", f"## {category.value.capitalize()}", "", f"{_ABOUT_CATEGORY[category]}", ""]
        parts += _table(("Code", "Meaning", "What you can do"), [(f"`{r.value}`", r.meaning, r.remedy) for r in members])
    parts += [
        "",
        "## Refused API requests",
        "",
        "An API request that is refused is answered with a Kubernetes `Status`, whose `reason` is one of these. `NotFound`",
        "here means that there is no such object; on waiting work it means that a bounded search found no place.",
        "",
    ]
    parts += _table(("Reason", "Meaning", "What you can do"), [(f"`{r.value}`", r.meaning, r.remedy) for r in ApiReason])
    return "\n".join(parts) + "\n"


_ABOUT_CATEGORY = {
    Category.WAITING: "Tried again by itself, as soon as something changes that could help.",
    Category.HELD: "Waits because somebody decided so; only a person or a policy lets it go on.",
    Category.IMPOSSIBLE: "Waiting does not help: the request, or the cluster, must change.",
    Category.REFUSED: "Not accepted; nothing was stored or started.",
    Category.EVICTED: "Was running or holding resources and had to give them up.",
    Category.FAILED: "Ended without success.",
    Category.NETWORK: "A route between two parties does not carry requests. The words and their spelling are Kuscia's.",
    Category.PROGRESS: "Nothing is wrong: a step of the way was taken.",
}


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "kinds.md").write_text(kinds_page(), encoding="utf-8")
    (FOLDER / "reasons.md").write_text(reasons_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
