"""A vectorised handler fed by `map` through the mesh, beside calling it directly.

Both take turns. Directly means: the very method of the very class, in a loop in this process, with arrays of as many
rows as the mesh's batches can have, while nothing else runs. So the mesh may use what is left of the processors, and of
the interpreter's lock of the replica. How much work a batch is was fitted before, to `BATCH_S`. The handler has two
batches at a time, as one would have it that computes without the lock; how it does with one is told, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import slotmesh
from benchmarks import findings
from benchmarks.findings import Finding
from benchmarks.nearest_handler import BATCH_CALLS, Nearest, Rows, rows
from benchmarks.processes import MeshProcess, process_mesh
from benchmarks.progress import show
from slotmesh.codec import OCTET_STREAM
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy

BATCH_S: Final = 0.001
LEAST_SHARE: Final = 0.6
TURN_S: Final = 1.0
MAP_CALLS: Final = 16 * BATCH_CALLS
MAPS_IN_FLIGHT: Final = 2
AT_A_TIME: Final = 2
_TRIED_CENTROIDS: Final = 128
_TRIED_BATCHES: Final = 50
_WARM_UP_S: Final = 0.5
_NAME: Final = "nearest"


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorisedTurn:
    """One through the mesh."""

    calls: int
    elapsed_s: float
    cpu_s: dict[str, float]
    """Processor time that client, router and replica used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorisedRound:
    """A turn of each."""

    batch_s: float
    """Time of a batch, called directly; the mean."""
    batch_cpu_s: float
    """Processor time of it."""
    mesh: VectorisedTurn

    @property
    def share(self) -> float:
        """Calls a second through the mesh / directly."""
        return self.mesh.calls / self.mesh.elapsed_s / (BATCH_CALLS / self.batch_s)


def spec(centroids: int, at_a_time: int = AT_A_TIME) -> Mesh:
    user_config = {"centroids": centroids, "at_a_time": at_a_time}
    backend = Backend(name=_NAME, handler="benchmarks.nearest_handler:Nearest", user_config=user_config)
    return Mesh(backends=(backend,), endpoints=(Endpoint(name=_NAME, traffic=TrafficPolicy(weights={_NAME: 1.0})),))


async def measure(*, rounds: int) -> list[Finding]:
    """A round is a turn of each."""
    centroids = fitting(rows(BATCH_CALLS))
    singly, played = [await _play(centroids, at_a_time, rounds) for at_a_time in (1, AT_A_TIME)]
    show("")
    return found(centroids, singly, played)


async def _play(centroids: int, at_a_time: int, rounds: int) -> list[VectorisedRound]:
    points = rows(MAP_CALLS)
    batch = points[:BATCH_CALLS]
    handler = Nearest(centroids)
    played: list[VectorisedRound] = []
    wanted = spec(centroids, at_a_time)
    async with process_mesh(wanted) as mesh, slotmesh.connect(mesh.routers[0].address) as client:
        method = client.endpoint(_NAME).options(content_type=OCTET_STREAM).method("nearest")
        if b"".join(await method.map(points)) != handler.nearest(points).tobytes():
            raise AssertionError("the mesh has other results than the handler")
        members = {"router": mesh.routers[0], "replica": (await mesh.replicas())[0]}
        await mapped(method, points, _WARM_UP_S, members)
        for number in range(rounds):
            show(f"vectorised: {at_a_time} at a time, round {number + 1} of {rounds}")
            batch_s, batch_cpu_s = looped(handler, batch, TURN_S)
            mesh_turn = await mapped(method, points, TURN_S, members)
            played.append(VectorisedRound(batch_s=batch_s, batch_cpu_s=batch_cpu_s, mesh=mesh_turn))
    return played


def fitting(batch: Rows) -> int:
    """How many centroids make a batch take about `BATCH_S`."""
    handler = Nearest(_TRIED_CENTROIDS)
    times_s = []
    for _ in range(_TRIED_BATCHES):
        began_s = time.perf_counter()
        handler.nearest(batch)
        times_s.append(time.perf_counter() - began_s)
    return max(round(_TRIED_CENTROIDS * BATCH_S / median(times_s)), 1)


def looped(handler: Nearest, batch: Rows, seconds: float) -> tuple[float, float]:
    """Time and processor time of a batch, called again and again for so long; the means."""
    count = 0
    before_s = time.thread_time()
    began_s = time.perf_counter()
    while (elapsed_s := time.perf_counter() - began_s) < seconds or not count:
        handler.nearest(batch)
        count += 1
    return elapsed_s / count, (time.thread_time() - before_s) / count


async def mapped(
    method: slotmesh.Method[bytes], points: Rows, seconds: float, members: dict[str, MeshProcess]
) -> VectorisedTurn:
    """A call for each row, for so long."""
    began_s = time.perf_counter()
    until_s = began_s + seconds
    before_s = _cpu_s(members)
    calls = 0

    async def again() -> None:
        nonlocal calls
        while time.perf_counter() < until_s:
            results = await method.map(points)
            calls += len(results)  # both may have waited meanwhile

    await asyncio.gather(*(again() for _ in range(MAPS_IN_FLIGHT)))
    elapsed_s = time.perf_counter() - began_s
    after_s = _cpu_s(members)
    return VectorisedTurn(
        calls=calls, elapsed_s=elapsed_s, cpu_s={name: after_s[name] - before_s[name] for name in after_s}
    )


def _cpu_s(members: dict[str, MeshProcess]) -> dict[str, float]:
    return {"client": time.process_time(), **{name: member.cpu_s() for name, member in members.items()}}


def found(centroids: int, singly: Sequence[VectorisedRound], rounds: Sequence[VectorisedRound]) -> list[Finding]:
    """Medians of the rounds; `singly`: with one batch at a time."""

    def cpu_s(name: str) -> float:
        return median(each.mesh.cpu_s[name] / each.mesh.calls for each in rounds)

    batch_s = median(each.batch_s for each in rounds)
    return [
        findings.figure(
            "vectorised_batch",
            f"a batch of {BATCH_CALLS} rows and {centroids} centroids, called directly",
            batch_s,
            findings.milliseconds,
        ),
        findings.figure(
            "vectorised_direct", "rows a second, called directly in a loop", BATCH_CALLS / batch_s, findings.rate
        ),
        findings.figure(
            "vectorised_mesh",
            "calls a second by map through the mesh",
            median(each.mesh.calls / each.mesh.elapsed_s for each in rounds),
            findings.rate,
        ),
        findings.at_least(
            "vectorised_share",
            "through the mesh / directly",
            median(each.share for each in rounds),
            LEAST_SHARE,
            findings.ratio,
        ),
        findings.figure(
            "vectorised_singly",
            "the same with one batch at a time",
            median(each.share for each in singly),
            findings.ratio,
        ),
        findings.figure("vectorised_client", "processor time a call, client", cpu_s("client"), findings.microseconds),
        findings.figure("vectorised_router", "the same, router", cpu_s("router"), findings.microseconds),
        findings.figure(
            "vectorised_replica", "the same, replica with handler", cpu_s("replica"), findings.microseconds
        ),
        findings.figure(
            "vectorised_handler",
            "the same, handler called directly",
            median(each.batch_cpu_s for each in rounds) / BATCH_CALLS,
            findings.microseconds,
        ),
    ]
