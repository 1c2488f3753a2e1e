"""Writes `docs/compatibility.md` from the cases: `python -m tests.fields.page`. A test compares the page with this."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.fields.cases import Case, Kind
from tests.fields.kinds import KINDS

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
REMAKE = "remake it: .venv/bin/python -m tests.fields.page"
NOTHING_TITLE = "Fields that do nothing here, and why"

_HEAD = """# Compatibility, field by field

What every field of KusciaJob, KusciaTask, AppImage, KusciaDeployment and PodGroup does here. Each line is shown by a manifest
in `tests/fields/manifests/`, which the test suite runs with the real controllers and the real scheduler on simulated machines;
this page is made from those tests, and one of them fails when a field has no line. *Beyond Kuscia* marks what Kuscia has not.
What differs for a whole kind is in [coming from Kuscia](migrating-from-kuscia.md), [jobs](jobs.md), [services](services.md) and
[scheduling](scheduling.md#gangs).

Fields that Muster does not know are kept as they are. Inner fields of Kubernetes' own structures (`affinity`, `env`, `envFrom`,
`securityContext`, what a probe does) go into the pod unchanged.
"""


def page() -> str:
    parts = [_HEAD]
    for kind in KINDS:
        parts += [f"## {kind.name}", "", *_table(kind), ""]
    parts += [f"## {NOTHING_TITLE}", "", "| kind | field | why |", "|---|---|---|"]
    parts += [f"| {kind.name} | `{field}` | {why} |" for kind in KINDS for field, why in kind.nothing.items()]
    return "\n".join(parts) + "\n"


def _table(kind: Kind) -> Iterable[str]:
    yield "| field | what it does | shown by |"
    yield "|---|---|---|"
    for case in kind.cases:
        link = f"[{case.path}](../tests/fields/manifests/{kind.name}/{case.path})"
        yield f"| {_fields(case)} | {case.does} | {link} |"


def _fields(case: Case) -> str:
    """Those of one structure share a line: the first by its whole path, the others by what they add."""
    first, *others = case.covered
    if not others:
        return f"`{first}`"
    stem = first.rpartition(".")[0]
    if stem and all(one.startswith(f"{stem}.") for one in others):
        words = ", ".join(f"`{one.removeprefix(f'{stem}.')}`" for one in case.covered)
        return f"`{stem}`: {words}"
    return ", ".join(f"`{one}`" for one in case.covered)


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE.relative_to(Path.cwd())}")
