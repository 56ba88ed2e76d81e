"""What sessions cost the servers: the processor time a call of router and replica, with sessions and without.

Two streams to the same router, driven frame by frame alike; one is a session's, acknowledges what it got, and gives
signs of life. They take turns, in the order that cancels a drift of the machine; what counts is the ratio within four
turns. What a session leaves to do after its last result is waited for within its turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from benchmarks import findings
from benchmarks.findings import Finding
from benchmarks.frames import FrameStream, frame_stream
from benchmarks.processes import MeshProcess, process_mesh
from benchmarks.progress import show
from benchmarks.workloads import ENDPOINT, METHOD, PAYLOAD, STREAM_IN_FLIGHT
from slotmesh.convert.batches import ids_of_results
from slotmesh.runtime.channels import open_channel
from slotmesh.runtime.exits import CannotStart
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy

TURN_S: Final = 0.5
SETTLE_S: Final = 0.15
"""After a turn: the last acknowledgement gets to the replica within this."""
ACK_S: Final = 0.05
BEAT_S: Final = 1.0
MOST: Final = {"router": 0.05, "replica": 0.10}
LOADS: Final[dict[str, dict[str, Any]]] = {"unkeyed": {}, "ordered": {"ordering_key": "one"}}

SPEC: Final = Mesh(
    backends=(Backend(name=ENDPOINT, handler="benchmarks.handler:Echo"),),
    endpoints=(Endpoint(name=ENDPOINT, traffic=TrafficPolicy(weights={ENDPOINT: 1.0})),),
)


@dataclass(frozen=True, slots=True)
class MeasuredCalls:
    """Some calls, and the processor time that they took, by server."""

    calls: int
    cpu_s: dict[str, float]


async def measure(*, rounds: int) -> list[Finding]:
    """A round takes about three seconds for each load."""
    async with process_mesh(SPEC) as mesh, AsyncExitStack() as stack:
        servers: dict[str, MeshProcess] = {"router": mesh.routers[0], "replica": (await mesh.replicas())[0]}
        channel = await stack.enter_async_context(open_channel(mesh.routers[0].address))
        found: list[Finding] = []
        for load, options in LOADS.items():
            drives = [
                _Drive(
                    await stack.enter_async_context(
                        frame_stream(channel, ENDPOINT, METHOD, in_session=in_session, **options)
                    ),
                    servers,
                    in_session=in_session,
                )
                for in_session in (False, True)
            ]
            quads: list[tuple[MeasuredCalls, ...]] = []
            for drive in drives:
                await drive.turn()
            for number in range(rounds):
                show(f"sessions: {load}, round {number + 1} of {rounds}")
                plain, in_session = drives
                order = (plain, in_session, in_session, plain)
                quads.append(tuple([await drive.turn() for drive in order]))
            found += findings_of(load, quads)
    show("")
    return found


def findings_of(load: str, quads: Sequence[tuple[MeasuredCalls, ...]]) -> list[Finding]:
    """Of rounds of four turns each: without, with, with, without."""
    found: list[Finding] = []
    for server, most in MOST.items():
        plain = [_a_call((first, last), server) for first, _, _, last in quads]
        in_session = [_a_call((second, third), server) for _, second, third, _ in quads]
        more = median(with_it / without for without, with_it in zip(plain, in_session, strict=True)) - 1
        found += [
            findings.figure(
                f"sessions_{load}_{server}_cpu",
                f"{server}'s processor time a call, {load}, no session",
                median(plain),
                findings.microseconds,
            ),
            findings.at_most(f"sessions_{load}_{server}", "more of it with a session", more, most, findings.share),
        ]
    return found


def _a_call(turns: tuple[MeasuredCalls, MeasuredCalls], server: str) -> float:
    return sum(turn.cpu_s[server] for turn in turns) / sum(turn.calls for turn in turns)


class _Drive:
    """Keeps calls in flight on one stream."""

    def __init__(self, stream: FrameStream, servers: dict[str, MeshProcess], *, in_session: bool) -> None:
        self._stream = stream
        self._servers = servers
        self._in_session = in_session
        self._acked_at = self._beat_at = time.perf_counter()
        self._acked = self._frame_no = 0

    async def turn(self) -> MeasuredCalls:
        """A load for a while, until everything is answered and settled."""
        before = {name: server.cpu_s() for name, server in self._servers.items()}
        calls = await self._load()
        await asyncio.sleep(SETTLE_S)
        return MeasuredCalls(calls, {name: server.cpu_s() - before[name] for name, server in self._servers.items()})

    async def _load(self) -> int:
        stream, until = self._stream, time.perf_counter() + TURN_S
        await stream.send([PAYLOAD] * STREAM_IN_FLIGHT)
        open_calls, calls = STREAM_IN_FLIGHT, 0
        while open_calls:
            answered = await self._read()
            calls += answered
            open_calls -= answered
            if answered and time.perf_counter() < until:
                await stream.send([PAYLOAD] * answered)
                open_calls += answered
            if self._in_session:
                await self._tell(is_last=not open_calls)
        return calls

    async def _read(self) -> int:
        response = await self._stream.read()
        if response is None or response.WhichOneof("frame") in ("rejected", "go_away") or response.results.errors:
            raise CannotStart(f"calls failed: {response}")
        if response.WhichOneof("frame") == "results":
            self._frame_no = response.results.frame_no
        return sum(len(ids_of_results(batch)) for batch in response.results.batches)

    async def _tell(self, *, is_last: bool) -> None:
        now = time.perf_counter()
        if self._acked < self._frame_no and (is_last or now - self._acked_at >= ACK_S):
            self._acked, self._acked_at = self._frame_no, now
            await self._stream.acknowledge(self._acked)
        if now - self._beat_at >= BEAT_S:
            self._beat_at = now
            await self._stream.beat()
