"""One manifest for each field of Kuscia's and Koordinator's job kinds: the field does what it should, or the docs say why not.

The manifests of a kind run together in one world, once; each test reads what became of its own.
"""

from __future__ import annotations

import functools
from collections import Counter

import pytest
from tests.fields.cases import Case, Kind
from tests.fields.kinds import KINDS, everything
from tests.fields.page import PAGE, REMAKE, page
from tests.fields.record import MANIFESTS, Record, run

_BY_NAME = {kind.name: kind for kind in KINDS}


@functools.cache
def _record(name: str) -> Record:
    kind = _BY_NAME[name]
    acts = {case.path: case.act for case in kind.cases if case.act is not None}
    return run(name, [case.path for case in kind.cases], acts, seconds=kind.seconds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "case"),
    [
        pytest.param(kind, case, id=f"{kind.name}-{case.file}", marks=pytest.mark.xdist_group(f"fields-{kind.name}"))
        for kind in KINDS
        for case in kind.cases
    ],
)
def test_field(kind: Kind, case: Case) -> None:
    record = _record(kind.name)
    if case.path in record.failures:
        raise record.failures[case.path]
    missing = [name for name in case.refused if name not in record.refused]
    assert not missing, f"the server took {missing}"
    case.check(record)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(k, id=k.name, marks=pytest.mark.xdist_group(f"fields-{k.name}")) for k in KINDS])
def test_nothing_else_is_refused(kind: Kind) -> None:
    meant = {name for case in kind.cases for name in case.refused}
    assert {name: said for name, said in _record(kind.name).refused.items() if name not in meant} == {}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_field_is_shown_once_or_the_docs_say_why_not(kind: Kind) -> None:
    told = Counter([*(field for case in kind.cases for field in case.covered), *kind.nothing])
    known = everything(kind.name)
    assert [field for field in known if field not in told] == [], "no manifest shows them, and nothing says why not"
    assert [field for field in told if field not in known] == [], "there are no such fields"
    assert [field for field, count in told.items() if count > 1] == [], "shown twice"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_manifest_is_run_and_says_what_it_shows(kind: Kind) -> None:
    files = {path.name: path.read_text() for path in (MANIFESTS / kind.name).iterdir()}
    assert sorted(files) == sorted(case.path for case in kind.cases)
    assert [name for name, text in files.items() if not text.startswith("# ")] == []


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), REMAKE
