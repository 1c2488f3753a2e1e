"""SQL over a log, by DuckDB (extra `history`): the tables of `queries` under the names runs, jobs, decisions, actions.

The tables are written to a temporary file each and loaded; then the database loses access to files and network, so that a query
can only read what it was given. Blocking.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from muster.history import queries
from muster.history.queries import Table, Value, Wanted
from muster.history.reader import Log

_TEXT, _NUMBER, _WHOLE = "VARCHAR", "DOUBLE", "BIGINT"
_NUMBERS = frozenset({"submitted", "placed", "started", "ended", "wait_s", "run_s", "score", "at"})
_WHOLES = frozenset({"pods", "evictions", "code"})
TABLES = ("runs", "jobs", "decisions", "actions")
ROWS_MAX = 1_000_000
MEMORY_MAX = "2GB"
_READS = frozenset({"SELECT", "EXPLAIN"})


class SqlUnusable(Exception):
    """The query could not be run; the message says why."""


def query(log: Log, text: str, wanted: Wanted = queries.ALL, note: queries.Note | None = None) -> Table:
    """The result of one SELECT. SqlUnusable when DuckDB is not there, or refuses it."""
    try:
        import duckdb  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise SqlUnusable("SQL needs the package duckdb: install muster[history]; the other tables work without it") from None
    found = list(queries.runs(log, wanted, note))
    makers: dict[str, Callable[[], tuple[tuple[str, ...], Iterable[tuple[Value, ...]]]]] = {
        "runs": lambda: _parts(queries.runs_table(found)),
        "jobs": lambda: _parts(queries.jobs_table(found)),
        "decisions": lambda: (queries.DECISION_COLUMNS, queries.decisions(log, wanted)),
        "actions": lambda: (queries.ACTION_COLUMNS, queries.actions(log, wanted)),
    }
    with duckdb.connect(":memory:") as database, tempfile.TemporaryDirectory(prefix="muster-history-") as directory:
        for name, make in makers.items():
            if name in text.lower():
                _load(database, Path(directory) / f"{name}.ndjson", name, *make())
        database.execute("SET enable_external_access = false")
        database.execute(f"SET memory_limit = '{MEMORY_MAX}'")
        database.execute("SET lock_configuration = true")
        try:
            statements = database.extract_statements(text)
            if len(statements) != 1 or statements[0].type.name not in _READS:
                raise SqlUnusable(f"{text[:80]!r} is not one SELECT; write one, over the tables {', '.join(TABLES)}")
            answer = database.execute(text)
            columns = tuple(str(column[0]) for column in answer.description or ())
            rows = answer.fetchmany(ROWS_MAX + 1)
            if len(rows) > ROWS_MAX:
                raise SqlUnusable(f"more than {ROWS_MAX:,} rows come out; add a condition, or LIMIT")
            return Table(columns, [tuple(map(_plain, row)) for row in rows])
        except duckdb.Error as error:
            raise SqlUnusable(f"{error}; the tables are {', '.join(TABLES)}") from error


def _parts(table: Table) -> tuple[tuple[str, ...], Iterable[tuple[Value, ...]]]:
    return table.columns, table.rows


def _load(database: Any, path: Path, name: str, columns: tuple[str, ...], rows: Iterable[tuple[Value, ...]]) -> None:
    encoder = msgspec.json.Encoder()
    with path.open("wb") as file:
        file.writelines(encoder.encode(dict(zip(columns, row, strict=True))) + b"\n" for row in rows)
    types = {one: _WHOLE if one in _WHOLES else _NUMBER if one in _NUMBERS else _TEXT for one in columns}
    described = ", ".join(f"'{column}': '{kind}'" for column, kind in types.items())
    source = str(path).replace("'", "''")
    # Names and types are our own; the path is a temporary file's.
    database.execute(
        f"CREATE TABLE {name} AS SELECT * FROM read_json('{source}', format='newline_delimited', columns={{{described}}})"  # noqa: S608
    )


def _plain(value: Any) -> Value:
    return value if isinstance(value, str | int | float | bool | None) else str(value)
