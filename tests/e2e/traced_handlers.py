"""Handlers whose calls are traced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

from opentelemetry import trace

import slotmesh

TRACER = trace.get_tracer("app")


class Traced:
    """One method of each kind, each with a span of its own."""

    async def waits(self, number: int) -> int:
        with TRACER.start_as_current_span(f"own {number}"):
            await asyncio.sleep(0.001)
        return number

    async def at_once(self, number: int) -> int:
        with TRACER.start_as_current_span(f"own {number}"):
            return number

    def threaded(self, number: int) -> int:
        with TRACER.start_as_current_span(f"own {number}"):
            return number

    @slotmesh.batch(max_batch_size=256, batch_wait_timeout_s=0.05)
    async def batched(self, numbers: list[int]) -> list[int]:
        with TRACER.start_as_current_span(f"own {len(numbers)}"):
            return numbers

    @slotmesh.batch(max_batch_size=256, batch_wait_timeout_s=0.05)
    def in_thread_batched(self, numbers: list[int]) -> list[int]:
        with TRACER.start_as_current_span(f"own {len(numbers)}"):
            return numbers

    async def generated(self, number: int) -> AsyncIterator[int]:
        with TRACER.start_as_current_span(f"own {number}"):
            yield number

    def generated_in_thread(self, number: int) -> Iterator[int]:
        with TRACER.start_as_current_span(f"own {number}"):
            yield number

    async def logs(self, text: str) -> None:
        logging.getLogger("app").warning(text)

    async def fails(self, number: int) -> int:
        raise ValueError(f"no {number}")


@slotmesh.deployment(own_loop=True)
class TracedOnItsOwnLoop(Traced):
    """The same, on a loop in another thread."""
