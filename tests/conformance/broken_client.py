"""The adapter of slotmesh's own client with one defect, named by the argument: the suite must find each."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, Final

from slotmesh.client.routers import Routers
from slotmesh.client.search import Search
from slotmesh.client.stream.batch_writer import BatchWriter
from slotmesh.client.stream.call_stream import CallStream
from slotmesh.client.stream.outgoing_frames import OutgoingFrames
from slotmesh.conformance import python_client
from slotmesh.streams import features
from slotmesh.v1 import router_service_pb2


def ignores_alternates() -> None:
    Routers.learn = lambda *_: None  # type: ignore[method-assign]


def tries_the_lost_router_first() -> None:
    in_turn = Routers.in_turn
    Routers.in_turn = lambda self, last: in_turn(self, last)[::-1] if last else in_turn(self, last)  # type: ignore[method-assign]


def makes_short_pauses() -> None:
    """They do not grow, and leave the processor to the suite."""
    take_pause_s = Search.take_pause_s

    def short(self: Search, last: str) -> float:
        return min(take_pause_s(self, last), 0.02)

    Search.take_pause_s = short  # type: ignore[method-assign]


def reports_closed_early() -> None:
    close = python_client.PythonClient._close

    async def early(self: python_client.PythonClient) -> None:
        python_client.report_line({"closed": True})
        await close(self)

    python_client.PythonClient._close = early  # type: ignore[method-assign]


def merges_methods() -> None:
    finished = BatchWriter.finished

    def merged(self: BatchWriter, request: Any) -> Any:
        first, *others = request.calls.batches
        for batch in others:
            first.payloads.extend(batch.payloads)
        del request.calls.batches[1:]
        return finished(self, request)

    BatchWriter.finished = merged  # type: ignore[method-assign]


def knows_no_window() -> None:
    set_window = OutgoingFrames.set_window
    wide = router_service_pb2.Window(calls=100_000, bytes=10**9)

    def widened(self: OutgoingFrames, window: router_service_pb2.Window) -> None:
        del window
        set_window(self, wide)

    OutgoingFrames.set_window = widened  # type: ignore[method-assign]


def names_no_features() -> None:
    features.OF_CLIENTS = ()  # type: ignore[misc,assignment]


def takes_calls_while_it_closes() -> None:
    CallStream._check_open = lambda self: None  # type: ignore[method-assign]


DEFECTS: Final[dict[str, Callable[[], None]]] = {
    each.__name__: each
    for each in (
        ignores_alternates,
        tries_the_lost_router_first,
        makes_short_pauses,
        reports_closed_early,
        merges_methods,
        knows_no_window,
        names_no_features,
        takes_calls_while_it_closes,
    )
}

if __name__ == "__main__":
    DEFECTS[sys.argv[1]]()
    asyncio.run(python_client.main())
