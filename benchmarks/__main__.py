"""Measures a mesh of real processes on this machine: one router, one replica, 100-byte payloads.

Rounds are interleaved (the bare server, then each load, and again), because machines drift over the time that a
benchmark takes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import slotmesh
from benchmarks import profiling, report
from benchmarks.baseline import bare_server
from benchmarks.catalogue import BASELINE, Entry, entries
from benchmarks.statistics import Sample, Summary, summarise
from benchmarks.workloads import PAYLOAD
from examples.local_mesh import local_mesh
from slotmesh.runtime.channels import open_channel
from slotmesh.runtime.main import run
from slotmesh.v1 import router_service_pb2_grpc

HANDLER = "benchmarks.handler:Echo"
RESULTS = Path("benchmarks/results/latest.local.json")
_WARM_UP_S = 0.2


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures a mesh on this machine.")
    parser.add_argument("--quick", action="store_true", help="a few seconds in all: a look, not a measurement")
    parser.add_argument("--rounds", type=int, help="rounds of all loads (default: 5, or 2 with --quick)")
    parser.add_argument("--seconds", type=float, help="time of a load in a round (default: 1.5, or 0.3 with --quick)")
    parser.add_argument("--only", metavar="NAME[,NAME…]", help="loads to measure beside the bare server")
    parser.add_argument(
        "--json", type=Path, default=RESULTS, metavar="FILE", help="where to write the results (default: %(default)s)"
    )
    parser.add_argument(
        "--profile", choices=profiling.COMPONENTS, help="also say where the time of this process goes; figures suffer"
    )
    settings = parser.parse_args(arguments)
    settings.rounds = settings.rounds or (2 if settings.quick else 5)
    settings.seconds = settings.seconds or (0.3 if settings.quick else 1.5)
    settings.only = None if settings.only is None else settings.only.split(",")
    return settings


async def main(settings: argparse.Namespace) -> int:
    """Returns the exit status. A ratio below what is expected is told, and no failure: machines differ."""
    async with AsyncExitStack() as stack:
        profile = stack.enter_context(profiling.profile(settings.profile))
        bare_address = await stack.enter_async_context(bare_server())
        mesh = await stack.enter_async_context(local_mesh(HANDLER))
        bare = await stack.enter_async_context(open_channel(bare_address))
        router = await stack.enter_async_context(open_channel(mesh.router))
        client = await stack.enter_async_context(slotmesh.connect(mesh.router))
        catalogue = entries(
            router_service_pb2_grpc.RouterServiceStub(bare), router_service_pb2_grpc.RouterServiceStub(router), client
        )
        chosen = _choose(catalogue, settings.only)
        with profile.sampling():
            rounds = await _measure(chosen, settings.rounds, settings.seconds)
    _tell(chosen, rounds, settings)
    sys.stdout.write(profile.report())
    return 0


def _choose(catalogue: list[Entry], names: list[str] | None) -> list[Entry]:
    if names is None:
        return catalogue
    known = [entry.name for entry in catalogue]
    if unknown := sorted(set(names) - set(known)):
        raise SystemExit(f"--only: no load is named {', '.join(unknown)}; there are {', '.join(known)}")
    return [entry for entry in catalogue if entry.name in {BASELINE, *names}]


async def _measure(chosen: list[Entry], rounds: int, seconds: float) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {entry.name: [] for entry in chosen}
    for entry in chosen:
        await entry.run(_WARM_UP_S)
    for number in range(rounds):
        for entry in chosen:
            _show(f"round {number + 1} of {rounds}: {entry.title}")
            samples[entry.name].append(await entry.run(seconds))
    _show("")
    return samples


def _show(line: str) -> None:
    """Progress, on a terminal only: one line that is written over."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()


def _tell(chosen: list[Entry], rounds: dict[str, list[Sample]], settings: argparse.Namespace) -> None:
    summaries: dict[str, Summary] = {name: summarise(samples, rounds[BASELINE]) for name, samples in rounds.items()}
    facts: dict[str, Any] = {
        "rounds": settings.rounds,
        "seconds": settings.seconds,
        "payload_bytes": len(PAYLOAD),
        "routers": 1,
        "replicas": 1,
        "profiled": settings.profile,
    }
    text = json.dumps(report.document(chosen, summaries, facts), indent=2)
    sys.stdout.write(
        f"{report.table(chosen, summaries)}\n\n"
        f"Medians of {settings.rounds} interleaved rounds of {settings.seconds:g} s, {len(PAYLOAD)}-byte payloads, one "
        f"router, one replica.\n"
    )
    settings.json.parent.mkdir(parents=True, exist_ok=True)
    settings.json.write_text(f"{text}\n")
    sys.stdout.write(f"JSON: {settings.json}\n")


if __name__ == "__main__":
    given = parse()
    run(lambda: main(given), log_level="warning")
