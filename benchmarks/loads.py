"""Throughput and latency of a mesh of real processes: one router, one replica, 100-byte payloads.

Rounds are interleaved (the bare server, then each load, and again), because machines drift over the time that a
benchmark takes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import slotmesh
from benchmarks.baseline import bare_server
from benchmarks.catalogue import BASELINE, CatalogueEntry, entries
from benchmarks.profiling import Profile
from benchmarks.progress import show
from benchmarks.statistics import Sample, Summary, summarise
from examples.local_mesh import local_mesh
from slotmesh.runtime.channels import open_channel
from slotmesh.v1.router_service_pb2_grpc import RouterServiceStub

HANDLER = "benchmarks.handler:Echo"
_WARM_UP_S = 0.2


@dataclass(frozen=True, slots=True)
class Measured:
    """The loads, and what came of each."""

    entries: Sequence[CatalogueEntry]
    summaries: dict[str, Summary]


async def measure(*, rounds: int, seconds: float, only: Collection[str] | None, profile: Profile) -> Measured:
    """`seconds` for each load in each round. `only`: names of loads to measure beside the bare server.

    Raises:
        SystemExit: there is no load of a name.
    """
    async with AsyncExitStack() as stack:
        bare_address = await stack.enter_async_context(bare_server())
        mesh = await stack.enter_async_context(local_mesh(HANDLER))
        bare = await stack.enter_async_context(open_channel(bare_address))
        router = await stack.enter_async_context(open_channel(mesh.router))
        client = await stack.enter_async_context(slotmesh.connect(mesh.router))
        chosen = _choose(entries(RouterServiceStub(bare), RouterServiceStub(router), client), only)
        with profile.sampling():
            samples = await _rounds(chosen, rounds, seconds)
    return Measured(chosen, {name: summarise(each, samples[BASELINE]) for name, each in samples.items()})


def _choose(catalogue: list[CatalogueEntry], names: Collection[str] | None) -> list[CatalogueEntry]:
    if names is None:
        return catalogue
    known = [entry.name for entry in catalogue]
    if unknown := sorted(set(names) - set(known)):
        raise SystemExit(f"--only: no load is named {', '.join(unknown)}; there are {', '.join(known)}")
    return [entry for entry in catalogue if entry.name in {BASELINE, *names}]


async def _rounds(chosen: list[CatalogueEntry], rounds: int, seconds: float) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {entry.name: [] for entry in chosen}
    for entry in chosen:
        await entry.run(_WARM_UP_S)
    for number in range(rounds):
        for entry in chosen:
            show(f"round {number + 1} of {rounds}: {entry.title}")
            samples[entry.name].append(await entry.run(seconds))
    show("")
    return samples
