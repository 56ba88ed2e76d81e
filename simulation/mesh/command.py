"""`python -m simulation mesh`: many seeds, or one of them with all that happened."""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from simulation.mesh import defects
from simulation.mesh.generator import generate
from simulation.mesh.hunt import hunt_all, hunt_one
from simulation.mesh.patching import changed
from simulation.mesh.plots import BY_NAME
from simulation.mesh.scenario import Scenario
from simulation.mesh.shrink import shrink
from simulation.mesh.workers import HASH_SEED, SeedVerdict, run_seeds
from simulation.mesh.world import Result, run

SECONDS: Final = 5.0
SHOWN: Final = 3
"""Seeds of each kind of violation that are named."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 where something does not hold."""
    asked = _parse(arguments)
    if asked.seed is not None:
        if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
            command = [sys.executable, "-m", "simulation", "mesh", *(arguments or sys.argv[2:])]
            os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": HASH_SEED})  # noqa: S606 - itself again
        with changed(defects.DEFECTS[asked.defect].changes if asked.defect else ()):
            return _one(asked.seed, asked.seconds, asked.plot, shrinks=not asked.no_shrink, is_traced=asked.trace)
    first = asked.first if asked.first is not None else random.SystemRandom().randrange(10**9)
    seeds = range(first, first + asked.seeds)
    if asked.defects:
        return hunt_all(seeds, asked.seconds, asked.processes)
    if asked.defect:
        return hunt_one(asked.defect, seeds, asked.seconds, asked.processes)
    return _many(seeds, asked.within, asked.seconds, asked.plot, asked.processes)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulation mesh", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument(
        "--within",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="of real time: more seeds than that, as many as fit (default: no more)",
    )
    parser.add_argument("--first", type=int, metavar="SEED", help="the first one (default: any)")
    parser.add_argument("--seed", type=int, help="this one only, and what it shows")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="S", help="virtual time of load (default: %(default)s)"
    )
    parser.add_argument("--plot", default="", choices=["", *BY_NAME], help="one plot only")
    parser.add_argument(
        "--defect",
        default="",
        choices=["", *defects.DEFECTS],
        metavar="NAME",
        help="with this seeded defect, until it is found",
    )
    parser.add_argument("--defects", action="store_true", help="which of the seeded defects are found")
    parser.add_argument("--trace", action="store_true", help="with --seed: all that happened")
    parser.add_argument("--no-shrink", action="store_true", help="with --seed: do not look for the smallest scenario")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="(default: one a processor)"
    )
    return parser.parse_args(arguments)


# -- many seeds ----------------------------------------------------------------------------------------------------


def _many(seeds: range, within: float, seconds: float, plot: str, processes: int) -> int:
    """`within`: so many seconds are used, whatever `seeds` take."""
    began, done, cpu_s, virtual_s, calls = time.monotonic(), 0, 0.0, 0.0, 0
    failed: list[SeedVerdict] = []
    digests: dict[int, str] = {}
    for found in run_seeds(_with_more(seeds, began + within), seconds, plot, processes):
        done, cpu_s, virtual_s, calls = done + 1, cpu_s + found.cpu_s, virtual_s + found.virtual_s, calls + found.calls
        digests[found.seed] = found.digest
        if found.violations:
            failed.append(found)
            _tell_failure(found, seconds, plot)
        _progress(f"{done} of {len(seeds)}" if done <= len(seeds) else str(done), done, len(failed))
    _progress("", done, 0)
    digest = hashlib.blake2b(repr(sorted(digests.items())).encode(), digest_size=8).hexdigest()
    sys.stdout.write(
        f"{done} seeds from {seeds.start}: {virtual_s:,.0f} s of virtual time, {calls:,} calls, in"
        f" {time.monotonic() - began:.0f} s ({cpu_s / max(1, done):.2f} CPU seconds a seed), digest {digest}\n"
    )
    if not failed:
        sys.stdout.write("everything holds\n")
        return 0
    kinds = Counter(name for found in failed for name in {name for name, _ in found.violations})
    for name, count in kinds.most_common():
        some = [found.seed for found in failed if any(it == name for it, _ in found.violations)][:SHOWN]
        sys.stdout.write(f"{name}: {count} seeds, as {', '.join(map(str, some))}\n")
    sys.stdout.write(f"{len(failed)} of {done} seeds do not hold\n")
    return 1


def _with_more(seeds: range, until: float) -> Iterator[int]:
    """These, and those that follow until then, on the monotonic clock."""
    for seed in itertools.count(seeds.start):
        if seed >= seeds.stop and time.monotonic() >= until:
            return
        yield seed


def _tell_failure(found: SeedVerdict, seconds: float, plot: str) -> None:
    name, text = found.violations[0]
    more = f" (and {len(found.violations) - 1} more)" if len(found.violations) > 1 else ""
    sys.stdout.write(f"seed {found.seed}: {name}: {text}{more}\n")
    sys.stdout.write(f"  again: {_command(found.seed, seconds, plot)}\n")
    sys.stdout.flush()


def _command(seed: int, seconds: float, plot: str) -> str:
    length = "" if seconds == SECONDS else f" --seconds {seconds:g}"
    story = f" --plot {plot}" if plot else ""
    return f"python -m simulation mesh --seed {seed}{length}{story} --trace"


def _progress(words: str, done: int, failed: int) -> None:
    """One line on stderr, written over, on a terminal; elsewhere one now and then. No words: it is over."""
    line = f"{words} seeds" + (f", {failed} do not hold" if failed else "") if words else ""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}")
    elif line and done % 500 == 0:
        sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


# -- one seed ------------------------------------------------------------------------------------------------------


def _one(seed: int, seconds: float, plot: str, *, shrinks: bool, is_traced: bool) -> int:
    scenario = generate(seed, seconds, plot)
    result = run(scenario)
    sys.stdout.write(f"{_summary(result)}\n")
    if not result.violations:
        if is_traced:
            sys.stdout.write("\n".join(run(scenario, is_traced=True).trace) + "\n")
        sys.stdout.write("everything holds\n")
        return 0
    if shrinks:
        scenario = _shrunk(result)
        result = run(scenario)
        sys.stdout.write(f"\nthe smallest scenario that was found:\n{_summary(result)}\n")
    if is_traced:
        sys.stdout.write("\n".join(run(scenario, is_traced=True).trace) + "\n")
        for each in result.violations:
            sys.stdout.write(f"{each}\n")
    return 1


def _shrunk(result: Result) -> Scenario:
    wanted = result.violations[0].invariant

    def still_fails(scenario: Scenario) -> bool:
        sys.stderr.write(".")
        sys.stderr.flush()
        return wanted in run(scenario).invariants

    smallest = shrink(result.scenario, still_fails)
    sys.stderr.write("\n")
    return smallest


def _summary(result: Result) -> str:
    lines = [str(result.scenario), ""]
    lines.append(
        f"{result.calls} calls, {result.executions} executions, {result.seconds:.3f} s of virtual time,"
        f" digest {result.digest}"
    )
    lines += [f"  {count:>6}  {reason}" for reason, count in sorted(result.reasons.items(), key=lambda it: -it[1])]
    lines += [str(each) for each in result.violations[:20]]
    return "\n".join(lines)
