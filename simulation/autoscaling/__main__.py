"""Draws the curves of docs/autoscaling.md: `python -m simulation.autoscaling`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from simulation.autoscaling.drawing import draw
from simulation.autoscaling.mesh import ScaledMesh
from simulation.autoscaling.scenarios import SCENARIOS

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "autoscaling"


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m simulation.autoscaling", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of all that is left to chance (1)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the curves are written (docs/autoscaling)")
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    for scenario in SCENARIOS:
        curve = ScaledMesh(scenario, arguments.seed).run()
        (arguments.folder / f"{scenario.name}.svg").write_text(draw(scenario.title, curve), "utf-8")
        wait = "" if curve.first_wait_s is None else f", the first call began after {curve.first_wait_s:.2f} s"
        sys.stdout.write(f"{scenario.name}: at most {max(curve.wanted)} replicas{wait}\n")
        sys.stdout.writelines(f"  {line}\n" for line in curve.decisions)
    return 0


if __name__ == "__main__":
    sys.exit(main())
