"""Data for the example, and its manifests for nodes that have no images.

    prepare.py data --items 20000 --common 5000 DIR      DIR/alice.csv, DIR/bob.csv
    prepare.py manifests --data DIR [--bandwidth 20Mbps] [--wide 980Mbps] [PART...] | muster apply -f -

The manifests are those beside this file, with this Python, this directory's psi.py and DIR in them. Tasks on nodes with runtime
process see the machine's files, but neither its /tmp nor what their unprivileged user may not read. The Python that the agent
runs on is always shown to them; for another one that they can't reach, --python names a directory that image.py has made.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent.resolve()
PARTIES = ("alice", "bob")
PARTS = ("parties", "app", "job")


def write_data(directory: Path, items: int, common: int) -> None:
    """Two files of made-up customers, `common` of them the same, in an order that shows nothing."""
    directory.mkdir(parents=True, exist_ok=True)
    for index, party in enumerate(PARTIES):
        own = range(common + index * items, index * items + items)
        numbers = sorted([*range(common), *own], key=lambda number: ((number + 1) * 2_654_435_761) % 2**32)
        path = directory / f"{party}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["id", "city"], *([f"customer-{n:07}", f"city-{n % 97}"] for n in numbers)])
        path.chmod(0o644)


def program(data: Path) -> Path:
    """psi.py where tasks can reach it: they see neither root's home nor /tmp here; then a copy lies with the data."""
    own = HERE / "psi.py"
    if not any(own.is_relative_to(place) for place in ("/root", "/tmp", "/run")):  # noqa: S108
        return own
    return Path(shutil.copy(own, data.resolve()))


def manifests(
    data: Path,
    *,
    python: Path | None = None,
    host: str = "",
    bandwidth: str = "",
    wide: str = "",
    parts: Sequence[str] = PARTS,
) -> list[Any]:
    """The objects of these files, as this machine needs them. `python` is a directory that image.py has made; `host` is where
    tasks find each other when they share the network of this machine, and have no names."""
    command = [sys.executable, str(program(data))]
    environment = []
    if python is not None:
        command = [str(python.resolve() / "usr/local/bin/python"), str(python.resolve() / "psi/psi.py")]
        environment = [{"name": "LD_LIBRARY_PATH", "value": str(python.resolve() / "usr/lib")}]
    found = [one for part in parts for one in yaml.safe_load_all((HERE / f"{part}.yaml").read_text(encoding="utf-8"))]
    for one in found:
        spec = one["spec"]
        for template in spec.get("deployTemplates", ()):
            container = template["spec"]["containers"][0]
            # All is in the environment too; a file would need a mount, which not every agent may make.
            container["command"], container["env"] = command, environment
            del container["configVolumeMounts"]
        for task in spec.get("tasks", ()):
            given = json.loads(task["taskInputConfig"].replace("/psi/data", str(data.resolve())))
            given |= {"hosts": dict.fromkeys(PARTIES, host)} if host else {}
            task["taskInputConfig"] = json.dumps(given)
            asked = wide if one["metadata"]["name"] == "psi-wide" else bandwidth
            for amounts in (amounts for party in task["parties"] for amounts in party["resources"].values() if asked):
                amounts["bandwidth"] = asked
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    data = commands.add_parser("data", help="write two CSV files")
    data.add_argument("directory", type=Path)
    data.add_argument("--items", type=int, default=20_000)
    data.add_argument("--common", type=int, default=5_000)
    text = commands.add_parser("manifests", help="print the manifests for nodes with runtime process")
    text.add_argument("--data", type=Path, default=HERE / "data")
    text.add_argument("--python", type=Path, help="a directory that image.py has made, where tasks can't reach this Python")
    text.add_argument("--host", default="", help="where agents are not root: the address that tasks share, 127.0.0.1")
    text.add_argument("--bandwidth", default="", help="what the job asks for and is limited to")
    text.add_argument("--wide", default="", help="what the second job asks for")
    text.add_argument("parts", nargs="*", default=list(PARTS), help="files beside this one, without .yaml")
    given = parser.parse_args()
    if given.command == "data":
        if not 0 <= given.common <= given.items:
            parser.error(f"--common {given.common}: between 0 and --items ({given.items})")
        write_data(given.directory, given.items, given.common)
    else:
        names = ("python", "host", "bandwidth", "wide", "parts")
        made = manifests(given.data, **{name: getattr(given, name) for name in names})
        yaml.safe_dump_all(made, sys.stdout, sort_keys=False)


if __name__ == "__main__":
    main()
