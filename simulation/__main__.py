"""Simulates meshes of real router and replica cores under load: how long calls wait in them, and in which frames."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from simulation.frames import report as frames
from simulation.queues import affinity, models, prefixes, saturation, subsets
from simulation.queues.mesh import QueuesMesh
from simulation.queues.report import QueuesOutcome, conditions, document, table
from simulation.queues.settings import QueuesSettings
from slotmesh.spec.model import BUILT_IN_BALANCERS

_QUICK_CALLS = 20_000
_FRAMES_CALLS = 20_000
QUEUES, FRAMES, SUBSETS, PREFIXES, AFFINITY, MODELS = "queues", "frames", "subsets", "prefixes", "affinity", "models"
MESH = "mesh"


class Asked(NamedTuple):
    """What the command line asks for."""

    settings: list[QueuesSettings]
    """Of the meshes whose queues are looked at."""
    frames_calls: int
    """Calls of each mesh whose frames are looked at, or fewer where they take long; 0: none is."""
    path: Path | None
    """Where JSON is to be written."""
    subsets: Sequence[QueuesSettings] = ()
    """Meshes whose routers link to a part of the replicas, to be compared with others that link to all."""
    prefixes: Sequence[prefixes.PrefixSettings] = ()
    """Meshes whose calls have prompts, to be compared by what routers choose by."""
    affinity: Sequence[QueuesSettings] = ()
    """Meshes whose calls have affinity keys."""
    models: Sequence[models.ModelSettings] = ()
    """Meshes whose calls need models, as well."""
    saturated: Sequence[saturation.SaturationSettings] = ()
    """The same, with more callers than permits."""


def parse(arguments: Sequence[str] | None = None) -> Asked:
    """Ends the process on bad arguments."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"{QUEUES} (what the options are of) or {FRAMES} (default: both);"
        f" {SUBSETS}: routers that link to all replicas, and to a part of them (half an hour);"
        f" {PREFIXES}: conversations whose prompts are cached, by what routers choose by (a minute);"
        f" {AFFINITY}: calls with affinity keys (two minutes);"
        f" {MODELS}: calls of many models that replicas load, with permits free and all in use (two minutes);"
        f" {MESH}, with options of its own, simulates whole meshes in which things break",
    )
    parser.add_argument("--slots", type=_numbers, default=[8, 1], metavar="N[,N…]", help="permits of a replica (8,1)")
    parser.add_argument(
        "--balancers", type=_balancers, default=BUILT_IN_BALANCERS, metavar="NAME[,NAME…]", help="(default: all)"
    )
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_CALLS:,} calls each: a look, not a measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    for name, kind, meaning in (
        ("routers", int, "routers"),
        ("replicas", int, "replicas"),
        ("load", float, "share of the slots that work on average, between 0 and 1"),
        ("link_delay", float, "one way between a router and a replica, in mean service times"),
        ("capacity_gap", float, "least time between two capacity frames to a router, in mean service times"),
        ("batch", int, "calls that arrive together"),
        ("calls", int, "calls to measure"),
        ("warm_up", float, "mean service times before that"),
        ("seed", int, "same seed, same figures"),
        ("subset_size", int, "links of a router to replicas that are enough; 0: it links to all"),
    ):
        default = next(field.default for field in fields(QueuesSettings) if field.name == name)
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=kind, default=default, metavar="N", help=f"{meaning} (default: %(default)s)")
    given = vars(parser.parse_args(arguments))
    parts, slots, balancers, quick, path = (
        given.pop(name) for name in ("parts", "slots", "balancers", "quick", "json")
    )
    known = (QUEUES, FRAMES, SUBSETS, PREFIXES, AFFINITY, MODELS)
    if unknown := [part for part in parts if part not in known]:
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(known)}")
    frames_calls = 0 if parts and FRAMES not in parts else _FRAMES_CALLS // 10 if quick else _FRAMES_CALLS
    if quick:
        given["calls"] = min(given["calls"], _QUICK_CALLS)
    try:
        settings = [QueuesSettings(slots=each, balancer=balancer, **given) for each in slots for balancer in balancers]
    except ValueError as error:
        parser.error(f"--{str(error).replace('_', '-', 1)}")
    compared = subsets.settings(is_quick=quick) if SUBSETS in parts else ()
    prompts = prefixes.settings(is_quick=quick) if PREFIXES in parts else ()
    keyed = affinity.settings(is_quick=quick) if AFFINITY in parts else ()
    needed = models.settings(is_quick=quick) if MODELS in parts else ()
    saturated = saturation.settings(is_quick=quick) if MODELS in parts else ()
    queues = [] if parts and QUEUES not in parts else settings
    return Asked(queues, frames_calls, path, compared, prompts, keyed, needed, saturated)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 where something does not hold that has to."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == [MESH]:
        from simulation.mesh.command import main as simulate_mesh

        return simulate_mesh(given[1:])
    asked = parse(given)
    outcomes = [_simulate(settings) for settings in asked.settings]
    if outcomes:
        sys.stdout.write(f"{table(outcomes)}\n\n{conditions(asked.settings[0])}\n\n")
    compared = subsets.simulate(asked.subsets, _simulate) if asked.subsets else []
    if compared:
        sys.stdout.write(f"{subsets.table(compared)}\n\n{subsets.table_costs(asked.subsets[0])}\n")
    chosen = [prefixes.compare(each) for each in asked.prefixes]
    if chosen:
        sys.stdout.write(f"{prefixes.table(chosen)}\n")
    keyed = affinity.simulate(asked.affinity)
    share_moved = affinity.moved() if keyed else 0.0
    if keyed:
        sys.stdout.write(f"{affinity.table(keyed, share_moved)}\n")
    loaded = [figures for each in asked.models for figures in models.simulate(each)]
    if loaded:
        sys.stdout.write(f"{models.table(loaded)}\n")
    full = [saturation.SaturatedMesh(each).run() for each in asked.saturated]
    if full:
        sys.stdout.write(f"\n{saturation.table(full)}\n")
    framed = frames.simulate(asked.frames_calls, frames.progress) if asked.frames_calls else []
    if framed:
        sys.stdout.write(f"{frames.table(framed)}\n\n{frames.CONDITIONS}\n")
    if asked.path is not None:
        found = {**document(outcomes), "frames": frames.document(framed)}
        asked.path.write_text(f"{json.dumps(found, indent=2)}\n")
        sys.stdout.write(f"JSON: {asked.path}\n")
    holds = [each.is_as_expected for each in outcomes]
    holds += [*(each.is_as_expected for each in compared), *(each.is_as_expected for each in chosen)]
    holds += [*(each.is_as_expected for each in keyed), affinity.moves_few(share_moved)]
    holds += [*(each.is_as_expected for each in loaded), *(each.is_as_expected for each in full)]
    return 0 if all(holds) else 1


def _simulate(settings: QueuesSettings) -> QueuesOutcome:
    mesh = QueuesMesh(settings)
    # What stands now stays until the end: the collector need not go through it again and again.
    gc.collect()
    gc.freeze()
    began = time.perf_counter()
    try:
        figures = mesh.run(_progress(settings))
    finally:
        gc.unfreeze()
    seconds = time.perf_counter() - began
    return QueuesOutcome(settings=settings, figures=figures, seconds=seconds, links=max(mesh.links))


def _progress(settings: QueuesSettings) -> Callable[[float], None]:
    """One line on stderr: written over on a terminal, one a configuration elsewhere."""
    title = f"{settings.balancer}, slots a replica: {settings.slots}"
    title += f", {settings.load:.0%} load, subsets of {settings.subset_size}" if settings.subset_size else ""
    is_terminal = sys.stderr.isatty()

    def tell(share: float) -> None:
        if is_terminal:
            line = "" if share == 1.0 else f"{title}: {share:.0%}"
            sys.stderr.write(f"\r\x1b[K{line}")
        elif share == 1.0:
            sys.stderr.write(f"{title}: done\n")
        sys.stderr.flush()

    return tell


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _balancers(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [part for part in names if part not in BUILT_IN_BALANCERS]:
        there = ", ".join(BUILT_IN_BALANCERS)
        raise argparse.ArgumentTypeError(f"no balancer is named {', '.join(unknown)}; there are {there}")
    return names


if __name__ == "__main__":
    sys.exit(main())
