"""Console scenarios: what somebody types at a shell with kubectl, and what must come back, in one file for both servers.

A scenario (`kubectl_scenarios/*.console`) is a transcript:

    # row: `diff`                                 the row of docs/api-coverage.md that it shows; there may be several
    # since: 1.27: older servers have no ...      left out on Kubernetes before that version
    # only here: it is Muster's own                no Kubernetes can be asked, so there the scenario is left out
    # here: the wording is our own                of the next command: its output is Muster's, Kubernetes' is not compared
    $ kubectl apply -f pod.yaml
    > more of the same command
    pod/web created                               what it writes to stdout
    ! Warning: ...                                and to stderr
    [1]                                           and the exit code, when it is not 0

What differs from run to run is masked (`mask`). Commands run with bash, in a directory of their own that holds
`kubectl_scenarios/files`, in a namespace of their own, as the administrator of the cluster.

`MUSTER_RECORD=1` rewrites the expected output instead of comparing: from Kubernetes where it is compared with it, otherwise
from Muster. What was recorded is for a person to read before it is committed.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import yaml

SCENARIOS = Path(__file__).parent / "kubectl_scenarios"
BIN = Path(sys.executable).parent
COMMAND_TIMEOUT_S = 60.0
RECORDING = bool(os.environ.get("MUSTER_RECORD"))

_WARNING = "! Warning: "

_MASKS = [
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "UID"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| ?[+-]\d{4}( UTC)?)"), "TIME"),
    (re.compile(r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w{3} \d{4} \d\d:\d\d:\d\d [+-]\d{4}"), "TIME"),
    (re.compile(r'(resourceVersion"?[:=] ?)"?\d+"?'), r"\1RV"),
    (re.compile(r"https://(127\.0\.0\.1|localhost):\d+"), "https://SERVER"),
    (re.compile(r"(127\.0\.0\.1|localhost):\d{4,5}\b"), "SERVER"),
    (re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]+"), "TOKEN"),
    (re.compile(r"\b10\.\d+\.\d+\.\d+\b"), "IP"),
    # What every typed client of old writes for an empty struct; newer servers leave it out, and so does Muster.
    (re.compile(r'^ *"?creationTimestamp"?: null,?\n', re.MULTILINE), ""),
    (re.compile(r"^status: \{\}\n?", re.MULTILINE), ""),
    (re.compile(r"/tmp/pytest-\S*?/config\b"), "KUBECONFIG"),
    (re.compile(r"/tmp/kubectl-edit-\d+"), "EDITED"),
    (re.compile(r"/tmp/\S*?(LIVE|MERGED)-\d+"), r"\1"),
    (re.compile(r"(?<![^\s(])((\d+[yd]){1,2}|\d{1,2}m(\d+s)?|\d{1,3}s)(?=\s|$|\))", re.MULTILINE), "AGE"),
    (re.compile(r"(?<=\S)(  +|\t+ *)(?=\S)"), "  "),
    (re.compile(r"[ \t]+$", re.MULTILINE), ""),
]


def mask(text: str) -> str:
    """`text` without what is different each time: uids, times, ages, versions, addresses, widths of columns."""
    text = "\n".join(_in_one_order(line) for line in text.split("\n"))
    for pattern, put in _MASKS:
        text = pattern.sub(put, text)
    return text


def _in_one_order(line: str) -> str:
    """Where the order says nothing: the members of a line of JSON, and the parts of a warning, which kubectl keeps in a map."""
    if line.startswith(_WARNING):
        return _WARNING + "; ".join(sorted(line.removeprefix(_WARNING).split("; ")))
    if not (line.startswith("{") and line.endswith("}")):
        return line
    try:
        return json.dumps(json.loads(line), sort_keys=True, separators=(",", ":"))
    except ValueError:
        return line


class Step(msgspec.Struct):
    command: str
    output: str = ""
    here: str = ""
    """Why the output is not the one of Kubernetes."""


class Scenario(msgspec.Struct):
    path: Path
    rows: list[str]
    steps: list[Step]
    since: str = ""
    only_here: str = ""

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def namespace(self) -> str:
        return "ns-" + self.name

    @property
    def since_minor(self) -> int:
        return int(self.since.partition(":")[0].partition(".")[2]) if self.since else 0

    def text(self) -> str:
        """As it stands in its file."""
        lines = [f"# row: {row}" for row in self.rows]
        if self.since:
            lines.append(f"# since: {self.since}")
        if self.only_here:
            lines.append(f"# only here: {self.only_here}")
        for step in self.steps:
            lines.append("")
            if step.here:
                lines.append(f"# here: {step.here}")
            lines.append("$ " + step.command.replace("\n", "\n> "))
            if step.output:
                lines.append(step.output)
        return "\n".join(lines) + "\n"


def read(path: Path) -> Scenario:
    scenario = Scenario(path, [], [])
    here, output = "", list[str]()
    for line in path.read_text().splitlines():
        if line.startswith("# row: "):
            scenario.rows.append(line[7:])
        elif line.startswith("# since: "):
            scenario.since = line[9:]
        elif line.startswith("# only here: "):
            scenario.only_here = line[13:]
        elif line.startswith("# here: "):
            here = line[8:]
        elif line.startswith("$ "):
            scenario.steps.append(Step(line[2:], here=here))
            here, output = "", []
        elif line.startswith("> "):
            scenario.steps[-1].command += "\n" + line[2:]
        elif scenario.steps:
            output.append(line)
            scenario.steps[-1].output = "\n".join(output).rstrip("\n")
        else:
            assert not line, f"{path.name}: {line!r} comes before the first command"
    return scenario


def all_scenarios() -> list[Scenario]:
    return [read(path) for path in sorted(SCENARIOS.glob("*.console"))]


class Console:
    """Runs the commands of one scenario against one server."""

    def __init__(self, scenario: Scenario, kubeconfig: Path, work_dir: Path) -> None:
        self._scenario = scenario
        self._dir = work_dir / scenario.name
        shutil.copytree(SCENARIOS / "files", self._dir)
        config = yaml.safe_load(kubeconfig.read_text())
        for context in config["contexts"]:
            context["context"]["namespace"] = scenario.namespace
        (self._dir / "config").write_text(yaml.safe_dump(config))

    def run(self, command: str) -> str:
        """The masked output of one command."""
        environment = {
            "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self._dir),
            "KUBECONFIG": str(self._dir / "config"),
            "NS": self._scenario.namespace,
            "TZ": "UTC",
        }
        done = subprocess.run(
            ["bash", "-c", command],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=COMMAND_TIMEOUT_S,
            env=environment,
            cwd=self._dir,
            check=False,
        )
        parts = [done.stdout.rstrip("\n"), *("! " + line for line in done.stderr.splitlines())]
        if done.returncode:
            parts.append(f"[{done.returncode}]")
        # A blank line would end the output in the file, so it is written as a dot.
        return "\n".join(line or "." for line in mask("\n".join(filter(None, parts))).splitlines())

    def walk(self, *, is_kubernetes: bool) -> None:
        """All commands in order; then their transcript is compared as a whole, or recorded."""
        scenario = self._scenario
        found = []
        for step in scenario.steps:
            got = self.run(step.command)
            is_ours = bool(step.here or scenario.only_here or (scenario.since and not is_kubernetes))
            if RECORDING and is_kubernetes != is_ours:
                step.output = got
            found.append(step if is_kubernetes and is_ours else msgspec.structs.replace(step, output=got))
        wanted, seen = scenario.text(), msgspec.structs.replace(scenario, steps=found).text()
        if RECORDING:
            scenario.path.write_text(wanted)
        assert seen == wanted, "\n" + "".join(
            difflib.unified_diff(wanted.splitlines(True), seen.splitlines(True), scenario.path.name, "as it is", n=2)
        )
