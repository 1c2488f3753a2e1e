"""Traces of jobs, read from files: who came when, asked for how much, and ran how long.

Formats: `philly` (the CSV of the Philly virtual clusters; of it only the submission, the GPUs, the model as a type, and the
run's own length are read), `openb` (the pod lists of the openb clusters), and `muster` (CSV, or one JSON object per line in a
file whose name ends in `.jsonl`; the columns are the fields of `TraceJob` that `_MUSTER` lists). Each may be packed with gzip.

Reads files, otherwise pure. Strict and bounded: the first wrong value ends the reading with a `TraceError` that names the file,
the line, the column and the value, and nothing of the file is used. Jobs come out by submission, then in the file's order.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

import msgspec

JOBS_MAX = 1_000_000
LINE_BYTES_MAX = 65_536
FILE_BYTES_MAX = 2 << 30
TEXT_LEN_MAX = 253
SECONDS_MAX = 1e10
GPUS_MAX = 1_000_000
PODS_MAX = 10_000
FORMATS = ("philly", "openb", "muster")


class TraceError(ValueError):
    """What can't be read, where it stands, and what would be right."""


class TraceJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job. Times are seconds; `submit_s` counts from the trace's own zero."""

    id: str
    submit_s: float
    run_s: float
    """How long it runs when nothing stops it: the truth, which no policy sees unless the estimate says it."""
    gpu_milli: int = 0
    """Of all its pods together: thousandths of a GPU."""
    cpu_milli: int = 0
    memory_mib: int = 0
    pods: int = 0
    """How many equal pods it has; 0: as many as its GPUs need."""
    type: str = ""
    name: str = ""
    user: str = ""
    group: str = ""
    queue: str = ""
    level: float = 0
    estimate_s: float | None = None
    """What its owner said; used unless `--estimates` says otherwise."""
    deadline_s: float | None = None
    preemptible: bool = True
    checkpoint_s: float = 1.0
    gpu_models: tuple[str, ...] = ()
    """Models that will do; any when empty."""
    line: int = 0

    @property
    def gpus(self) -> float:
        return self.gpu_milli / 1000


def read_trace(path: Path, format_name: str) -> list[TraceJob]:
    """Every job of the file. Raises `TraceError`; `OSError` when it can't be opened."""
    if format_name not in FORMATS:
        raise TraceError(f"format {format_name!r}: there are {', '.join(FORMATS)}")
    if path.stat().st_size > FILE_BYTES_MAX:
        raise TraceError(f"{path}: larger than {FILE_BYTES_MAX >> 30} GiB; split it")
    if format_name == "muster" and path.name.removesuffix(".gz").endswith((".jsonl", ".ndjson")):
        rows = _json_rows(path)
    else:
        required, optional = _COLUMNS[format_name]
        rows = csv_rows(path, required, optional)
    make = _MAKERS[format_name]
    jobs: list[TraceJob] = []
    lines: dict[str, int] = {}
    for row in rows:
        if len(jobs) >= JOBS_MAX:
            raise TraceError(f"{path}, line {row.line}: more than {JOBS_MAX} jobs; split the trace")
        job = make(row)
        if job.id in lines:
            row.fail(row.id_column, f"is the job of line {lines[job.id]} already; ids are unique")
        lines[job.id] = row.line
        jobs.append(job)
    if not jobs:
        raise TraceError(f"{path}: holds no job; below the header there must be a line for each")
    return sorted(jobs, key=lambda job: (job.submit_s, job.line))


# -- rows ----------------------------------------------------------------------------------------------------------------------


class Row:
    """One line of a file: values by column, each checked as it is asked for."""

    def __init__(self, path: Path, line: int, values: Mapping[str, str], id_column: str) -> None:
        self.path, self.line, self._values, self.id_column = path, line, values, id_column

    def fail(self, column: str, why: str) -> NoReturn:
        shown = self._values.get(column, "")
        shown = shown if len(shown) <= 80 else shown[:79] + "…"
        raise TraceError(f"{self.path}, line {self.line}, column {column}: {shown!r} {why}")

    def has(self, column: str) -> bool:
        return bool(self._values.get(column))

    def text(self, column: str, *, needed: bool = False) -> str:
        value = self._values.get(column, "")
        if needed and not value:
            self.fail(column, "must not be empty")
        if len(value) > TEXT_LEN_MAX or not value.isprintable():
            self.fail(column, f"must be at most {TEXT_LEN_MAX} printable characters")
        return value

    def whole(self, column: str, low: int, high: int, otherwise: int | None = None) -> int:
        value = self._values.get(column, "")
        if not value and otherwise is not None:
            return otherwise
        # `int` would also take 1_000, blanks around it and other scripts' digits.
        if not (value.isascii() and value.removeprefix("-").isdigit()) or len(value) > 20 or not low <= int(value) <= high:
            self.fail(column, f"must be a whole number from {low} to {high}")
        return int(value)

    def number(self, column: str, low: float, high: float) -> float:
        value = self._values.get(column, "")
        try:
            number = float(value) if value.isascii() and "_" not in value and len(value) <= 40 else math.nan
        except ValueError:
            number = math.nan
        if not low <= number <= high:
            self.fail(column, f"must be a number from {low:g} to {high:g}")
        return number

    def yes(self, column: str, otherwise: bool) -> bool:
        value = self._values.get(column, "")
        if value not in ("", "true", "false"):
            self.fail(column, "must be true or false")
        return otherwise if not value else value == "true"


def csv_rows(path: Path, required: tuple[str, ...], optional: tuple[str, ...] | None = None) -> Iterator[Row]:
    """The rows below the header, which must have all `required` columns, the first of which names the row. With `optional`
    given, a column that is in neither is an error; otherwise it is ignored."""
    with path.open("rb") as file:
        reader = csv.reader(_lines(path, file), strict=True)
        try:
            header = next(reader, [])
            _check_header(path, header, required, optional)
            for values in reader:
                if not values:
                    continue
                if len(values) != len(header):
                    raise TraceError(
                        f"{path}, line {reader.line_num}: {len(values)} values for {len(header)} columns; write one for each "
                        f"column, with nothing between two commas where there is none: {_shown(','.join(values))}"
                    )
                yield Row(path, reader.line_num, dict(zip(header, values, strict=True)), required[0])
        except csv.Error as error:
            why = str(error)
            if "new-line character" in why:
                why = "a carriage return stands inside of a line; save the file with the line ends of Unix or Windows"
            raise TraceError(f"{path}, line {reader.line_num}: not CSV: {why}") from error


def _check_header(path: Path, header: list[str], required: tuple[str, ...], optional: tuple[str, ...] | None) -> None:
    missing = [column for column in required if column not in header]
    if missing:
        has = _shown(", ".join(header), 300) if any(header) else "none"
        hint = "; columns are separated by commas" if len(header) == 1 and any(mark in header[0] for mark in ";\t|") else ""
        raise TraceError(f"{path}, line 1: lacks the column {', '.join(missing)}; it has {has}{hint}")
    double = [column for column in header if header.count(column) > 1]
    if double:
        raise TraceError(f"{path}, line 1: has the column {double[0]!r} twice; leave one out")
    if optional is not None and (strange := [column for column in header if column not in required + optional]):
        raise TraceError(f"{path}, line 1: column {strange[0]!r} is unknown; there are {', '.join(required + optional)}")


def header_of(path: Path) -> list[str]:
    """The columns that the file has; none when it is empty."""
    with path.open("rb") as file:
        return next(csv.reader(_lines(path, file)), [])


def _shown(text: str, length: int = 80) -> str:
    text = "".join(char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return text if len(text) <= length else text[: length - 1] + "…"


def _lines(path: Path, file: io.BufferedReader) -> Iterator[str]:
    """Line by line, unpacked if need be; never more than a line and a buffer in memory."""
    is_packed = file.peek(2)[:2] == b"\x1f\x8b"
    source = gzip.GzipFile(fileobj=file) if is_packed else file
    size = number = 0
    try:
        while line := source.readline(LINE_BYTES_MAX + 1):
            number += 1
            size += len(line)
            if len(line) > LINE_BYTES_MAX:
                raise TraceError(f"{path}, line {number}: longer than {LINE_BYTES_MAX} bytes; is it a trace at all?")
            if size > FILE_BYTES_MAX:
                raise TraceError(f"{path}, line {number}: unpacked, it is larger than {FILE_BYTES_MAX >> 30} GiB; split it")
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}, line {number}, byte {error.start + 1}: not UTF-8; save it as UTF-8 text") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(
            f"{path}, after line {number}: what gzip packed is damaged or cut off: {error}; fetch it again"
        ) from error


def _json_rows(path: Path) -> Iterator[Row]:
    known = {*_COLUMNS["muster"][0], *_MUSTER}
    with path.open("rb") as file:
        for number, line in enumerate(_lines(path, file), start=1):
            if not line.strip():
                continue
            try:
                raw = msgspec.json.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise TraceError(f"{path}, line {number}: not JSON: {error}; each line is one object") from error
            if not isinstance(raw, dict):
                raise TraceError(f"{path}, line {number}: must be an object, not {type(raw).__name__}")
            values: dict[str, str] = {}
            for column, value in raw.items():
                if column not in known:
                    raise TraceError(
                        f"{path}, line {number}: field {column[:80]!r} is unknown; there are {', '.join(sorted(known))}"
                    )
                if not isinstance(value, str | int | float | None):
                    raise TraceError(f"{path}, line {number}, field {column}: must be a text or a number")
                values[column] = _as_text(value)
            yield Row(path, number, values, "id")


def _as_text(value: str | float | None) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return str(value)


# -- the formats ---------------------------------------------------------------------------------------------------------------


def _philly(row: Row) -> TraceJob:
    """Iterations and the time of one would give the length of the run away, so they are not read."""
    return TraceJob(
        id=row.text("job_id", needed=True),
        submit_s=row.number("submit_time", 0, SECONDS_MAX * 1000) / 1000,
        run_s=row.number("duration", 0, SECONDS_MAX * 1000) / 1000,
        gpu_milli=1000 * row.whole("num_gpu", 0, GPUS_MAX),
        type=row.text("model_name"),
        line=row.line,
    )


def _openb(row: Row) -> TraceJob:
    """It ran from when it was scheduled; one that never was is taken to run as long as it was there."""
    submit_s = row.number("creation_time", 0, SECONDS_MAX)
    began_s = row.number("scheduled_time", submit_s, SECONDS_MAX) if row.has("scheduled_time") else submit_s
    count = row.whole("num_gpu", 0, GPUS_MAX)
    share = row.whole("gpu_milli", 0, 1000)
    return TraceJob(
        id=row.text("name", needed=True),
        submit_s=submit_s,
        run_s=row.number("deletion_time", began_s, SECONDS_MAX) - began_s,
        gpu_milli=count * (share if count == 1 else 1000),
        cpu_milli=row.whole("cpu_milli", 0, 10**9),
        memory_mib=row.whole("memory_mib", 0, 10**9),
        pods=1,
        type=row.text("qos"),
        gpu_models=_models(row, "gpu_spec"),
        line=row.line,
    )


def _muster(row: Row) -> TraceJob:
    return TraceJob(
        id=row.text("id", needed=True),
        submit_s=row.number("submit_s", 0, SECONDS_MAX),
        run_s=row.number("run_s", 0, SECONDS_MAX),
        gpu_milli=_gpu_milli(row),
        cpu_milli=row.whole("cpu_milli", 0, 10**12, 0),
        memory_mib=row.whole("memory_mib", 0, 10**12, 0),
        pods=row.whole("pods", 1, PODS_MAX, 0) if row.has("pods") else 0,
        type=row.text("type"),
        name=row.text("name"),
        user=row.text("user"),
        group=row.text("group"),
        queue=row.text("queue"),
        level=row.number("level", -1e9, 1e9) if row.has("level") else 0,
        estimate_s=row.number("estimate_s", 1e-3, SECONDS_MAX) if row.has("estimate_s") else None,
        deadline_s=row.number("deadline_s", 0, SECONDS_MAX) if row.has("deadline_s") else None,
        preemptible=row.yes("preemptible", True),
        checkpoint_s=row.number("checkpoint_s", 1e-3, SECONDS_MAX) if row.has("checkpoint_s") else 1.0,
        gpu_models=_models(row, "gpu_models"),
        line=row.line,
    )


def _gpu_milli(row: Row) -> int:
    gpus = row.number("gpus", 0, GPUS_MAX) if row.has("gpus") else 0.0
    if 0 < gpus < 0.001:
        row.fail("gpus", "is less than a thousandth of a GPU; write 0 for none")
    return round(1000 * gpus)


def _models(row: Row, column: str) -> tuple[str, ...]:
    return tuple(sorted({model for model in row.text(column).split("|") if model}))


_MAKERS: dict[str, Callable[[Row], TraceJob]] = {"philly": _philly, "openb": _openb, "muster": _muster}
_MUSTER = (
    *("gpus", "cpu_milli", "memory_mib", "pods", "type", "name", "user", "group", "queue", "level"),
    *("estimate_s", "deadline_s", "preemptible", "checkpoint_s", "gpu_models"),
)
_OPENB = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "creation_time", "deletion_time")
_COLUMNS: dict[str, tuple[tuple[str, ...], tuple[str, ...] | None]] = {
    "philly": (("job_id", "num_gpu", "submit_time", "model_name", "duration"), None),
    "openb": ((*_OPENB, "scheduled_time"), None),
    "muster": (("id", "submit_s", "run_s"), _MUSTER),
}
"""By format: columns that must be there, and those that may; None: whatever else there is, is not looked at."""
