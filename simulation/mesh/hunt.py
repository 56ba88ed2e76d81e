"""The hunt for seeded defects: which are found, after how many seeds, and by which violation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from simulation.mesh.defects import DEFECTS, Defect
from simulation.mesh.workers import run_seeds

_MAX_WORDS: Final = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunted:
    """What became of one defect."""

    defect: Defect
    seeds: int
    """That were tried, with the one that found it."""
    seed: int | None
    """The one that found it."""
    invariant: str = ""
    text: str = ""
    reached: int = 0
    """How often the changed code was called."""

    @property
    def words(self) -> str:
        """For a line of the table."""
        if self.seed is not None:
            return f"{self.seeds:>5}  {self.invariant}: seed {self.seed}"
        if not self.reached:
            return f"    -  never reached in {self.seeds} seeds"
        return f"    -  not found in {self.seeds} seeds; reached {self.reached} times"


def hunt(defect: Defect, seeds: Sequence[int], seconds: float, processes: int) -> Hunted:
    """Tries seeds, those of its plots in turn, until one finds it."""
    tried = reached = 0
    with closing(run_seeds(seeds, seconds, ",".join(defect.plots), processes, defect.name)) as results:
        for found in results:
            tried, reached = tried + 1, reached + found.reached
            if found.violations:
                invariant, text = found.violations[0]
                return Hunted(
                    defect=defect, seeds=tried, seed=found.seed, invariant=invariant, text=text, reached=reached
                )
    return Hunted(defect=defect, seeds=tried, seed=None, reached=reached)


def hunt_one(name: str, seeds: Sequence[int], seconds: float, processes: int) -> int:
    """Returns the exit status: 1 where it was not found."""
    defect = DEFECTS[name]
    sys.stdout.write(f"{name}: {defect.breaks} ({defect.promise}; plots: {', '.join(defect.plots) or 'all'})\n")
    hunted = hunt(defect, seeds, seconds, processes)
    _tell(hunted)
    if hunted.seed is None:
        return 1
    plot = defect.plots[hunted.seed % len(defect.plots)] if defect.plots else ""
    sys.stdout.write(f"  {hunted.text[:_MAX_WORDS]}\n")
    story = f" --plot {plot}" if plot else ""
    sys.stdout.write(f"  again: python -m simulation mesh --seed {hunted.seed}{story} --defect {name} --trace\n")
    return 0


def hunt_all(seeds: Sequence[int], seconds: float, processes: int) -> int:
    """One defect a processor at a time. Returns the exit status: 1 where one was not found."""
    missed: list[str] = []
    with ThreadPoolExecutor(max_workers=processes) as pool:
        for done in as_completed([pool.submit(hunt, each, seeds, seconds, 1) for each in DEFECTS.values()]):
            hunted = done.result()
            _tell(hunted)
            if hunted.seed is None:
                missed.append(hunted.defect.name)
    sys.stdout.write(
        f"{len(DEFECTS) - len(missed)} of {len(DEFECTS)} defects were found, each within {len(seeds)} seeds\n"
    )
    if missed:
        sys.stdout.write(f"not found: {', '.join(missed)}\n")
    return 1 if missed else 0


def _tell(hunted: Hunted) -> None:
    sys.stdout.write(f"{hunted.defect.name:<28}{hunted.words}\n")
    sys.stdout.flush()
