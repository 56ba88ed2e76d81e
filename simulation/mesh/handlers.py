"""The handler of simulated replicas: it does what its calls say, and notes each execution."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from math import inf
from typing import TYPE_CHECKING

import msgspec

import slotmesh
from simulation.mesh.history import CANCELLED, FINISHED, RAISED
from slotmesh.internal.v1.replica_service_pb2 import ExecuteRequest

if TYPE_CHECKING:
    from simulation.mesh.node import Node

RAISE, SWALLOW = "raise", "swallow"


def make_handler(node: Node, max_ongoing: int) -> type:
    """A handler that writes to the history of the node's world."""
    recorder = node.world.history

    @slotmesh.deployment(max_ongoing=max_ongoing, blocked_after_s=0)
    class Simulated:
        """Sleeps on virtual time."""

        async def work(self, tag: str, key: str, run_s: float, how: str, blob: bytes) -> str:
            """Gives the tag back; `how` says what goes wrong."""
            del blob
            number, ends = recorder.started(tag, key, node.pid), FINISHED
            loop = asyncio.get_running_loop()
            until = loop.time() + run_s
            try:
                while run_s and (left_s := until - loop.time()) > 0:
                    try:
                        await asyncio.sleep(left_s)
                    except asyncio.CancelledError:
                        if how != SWALLOW:
                            raise
                if how == RAISE:
                    raise ValueError(tag)
            except ValueError:
                ends = RAISED
                raise
            except asyncio.CancelledError:
                ends = CANCELLED
                raise
            finally:
                recorder.ended(number, ends)
            return tag

        async def spell(self, tag: str, count: int, run_s: float) -> AsyncIterator[str]:
            """Yields the tag, so often."""
            number = recorder.started(tag, "", node.pid)
            try:
                for _ in range(count):
                    await asyncio.sleep(run_s)
                    yield tag
            finally:
                recorder.ended(number, FINISHED)

    return Simulated


def calls_in(message: bytes) -> Iterator[tuple[str, float]]:
    """The calls of an ExecuteRequest, and what is left of their timeouts, seconds. Not those that come in chunks."""
    for batch in ExecuteRequest.FromString(message).runs.batches:
        time_left_s = batch.time_left.ToNanoseconds() / 1e9 if batch.HasField("time_left") else inf
        for payload in filter(None, batch.payloads):
            yield msgspec.msgpack.decode(payload)[0], time_left_s
