"""Draw the pictures of the guides again: `python tools/pictures.py`, or with a directory to draw them there and not in docs/.

They come out of the very commands that the guides show, and are the same on every machine, so a test can tell old ones.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from muster.cli.main import run

ROOT = Path(__file__).parents[1]
TRACE = ROOT / "examples" / "traces" / "two-days.csv"
IMAGES = ROOT / "docs" / "images"
PICTURES = {
    "simulating": ("waits", "completion-by-size", "stretch-by-size", "use", "gains"),
    "what-if": ("waits", "gains"),
}
"""Those that the guides show, of all that the commands draw."""


def draw(images: Path) -> None:
    """`images`/simulating: four policies on the example. `images`/what-if: the example's log under another policy."""
    common = ["simulate", "--trace", str(TRACE), "--cluster", "4x8"]
    policies = [word for name in ("fifo", "easy", "shortest-first", "balanced") for word in ("--policy", name)]
    with tempfile.TemporaryDirectory() as folder:
        log, drawn = str(Path(folder) / "log"), Path(folder)
        for command in (
            [*common, *policies, "--plots", str(drawn / "simulating")],
            [*common, "--policy", "fifo", "--record", log],
            ["what-if", log, "--policy", "balanced", "--plots", str(drawn / "what-if")],
        ):
            if run(command) != 0:
                raise SystemExit(f"failed: muster {' '.join(command)}")
        for kind, names in PICTURES.items():
            (images / kind).mkdir(parents=True, exist_ok=True)
            for name in names:
                shutil.copyfile(drawn / kind / f"{name}.svg", images / kind / f"{name}.svg")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
