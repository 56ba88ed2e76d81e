"""Stamps where a call passes a hop of the mesh: the time, and what Python has done in that process so far.

Purpose: the services have no code for this. In a process that is to be measured, functions through which each frame
passes are wrapped: the entry to what reads a frame, and the `write` of the writing half (`slotmesh.transport.pump`).
Invariants: only frames of calls and of results are stamped; a stamp is taken before the function that is wrapped; the
clock is the same in all processes of a machine. What is wrapped is imported late: gRPC is loaded with it, and reads its
environment then.
Owner: the process, from its start to its end (`startup/sitecustomize.py`), or the block of `stamping`.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import sys
import time
from asyncio.events import Handle
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple
from unittest.mock import patch

CALLED: Final = "called"
CLIENT_WRITES: Final = "client writes"
ROUTER_READS_CALLS: Final = "router reads calls"
ROUTER_WRITES_RUNS: Final = "router writes runs"
REPLICA_READS: Final = "replica reads"
HANDLER_BEGINS: Final = "handler begins"
REPLICA_WRITES: Final = "replica writes"
ROUTER_READS_RESULTS: Final = "router reads results"
ROUTER_WRITES_RESULTS: Final = "router writes results"
CLIENT_READS: Final = "client reads"
RESOLVED: Final = "resolved"

WAY: Final = (
    *(CALLED, CLIENT_WRITES, ROUTER_READS_CALLS, ROUTER_WRITES_RUNS, REPLICA_READS, HANDLER_BEGINS),
    *(REPLICA_WRITES, ROUTER_READS_RESULTS, ROUTER_WRITES_RESULTS, CLIENT_READS, RESOLVED),
)
"""A call's stamps, in the order in which it gets them."""

_WRITTEN: Final = {
    ("StreamCallsRequest", "calls"): CLIENT_WRITES,
    ("ExecuteRequest", "runs"): ROUTER_WRITES_RUNS,
    ("ExecuteResponse", "results"): REPLICA_WRITES,
    ("StreamCallsResponse", "results"): ROUTER_WRITES_RESULTS,
}
"""Message and frame -> the stamp of writing it."""

_LOOP_CODE: Final = frozenset({asyncio.Runner.run.__code__, Handle._run.__code__})
"""What calls a callback, or goes on with a task: uvloop is in the former, asyncio's own loop in the latter."""


class Stamp(NamedTuple):
    """One passage of one frame."""

    name: str
    at_ns: int
    """Monotonic."""
    calls: int
    """Python functions called, and coroutines gone on with, in this process until then; 0 where that is not counted."""
    steps: int
    """Of these, the ones by the event loop itself: callbacks, and steps of tasks."""


class CallCounter:
    """Counts calls of Python functions in a thread. Costs several times what it counts."""

    def __init__(self) -> None:
        self.calls = 0
        self.steps = 0

    def start(self) -> None:
        sys.setprofile(self._count)

    @staticmethod
    def stop() -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            self.calls += 1
            caller = frame.f_back
            if caller is not None and caller.f_code in _LOOP_CODE:
                self.steps += 1


class HopRecorder:
    """The stamps of one process."""

    def __init__(self, counter: CallCounter | None = None) -> None:
        self.stamps: list[Stamp] = []
        self._counter = counter or CallCounter()

    def stamp(self, name: str) -> None:
        counter = self._counter
        self.stamps.append(Stamp(name, time.monotonic_ns(), counter.calls, counter.steps))


recorder = HopRecorder()
"""That of this process: handlers find it here, too."""


@contextmanager
def stamping(roles: Sequence[str], *, counts: bool = False) -> Iterator[HopRecorder]:
    """Stamps what passes the parts of these roles (`client`, `router`, `replica`) in this process meanwhile."""
    global recorder  # noqa: PLW0603 - one a process
    before, counter = recorder, CallCounter()
    recorder = HopRecorder(counter)
    with ExitStack() as stack:
        _stamp_writes(stack, recorder)
        for role in roles:
            _READERS[role](stack, recorder)
        if counts:
            counter.start()
            stack.callback(counter.stop)
        try:
            yield recorder
        finally:
            recorder = before


def stamp_until_exit(role: str, folder: Path, *, counts: bool) -> None:
    """Stamps for as long as the process lives, and leaves the stamps in a file of the folder."""
    stack = ExitStack()
    stamps = stack.enter_context(stamping([role], counts=counts)).stamps

    def leave() -> None:
        stack.close()
        (folder / f"{role}-{os.getpid()}.json").write_text(json.dumps(stamps), "utf-8")

    atexit.register(leave)


def left_stamps(folder: Path, role: str) -> list[Stamp]:
    """What processes of a role have left: the one that has most of them, if there are several."""
    files = [json.loads(path.read_text("utf-8")) for path in folder.glob(f"{role}-*.json")]
    return [Stamp(*each) for each in max(files, key=len, default=[])]


def _stamp_writes(stack: ExitStack, to: HopRecorder) -> None:
    """Writes of all streams of this process."""
    from slotmesh.transport.pump import StreamPump

    plain = StreamPump.__init__

    def init(self: Any, write: Callable[[Any], Any], *rest: Any, **named: Any) -> None:
        def stamped(frame: Any) -> Any:
            if (name := _WRITTEN.get((type(frame).__name__, frame.WhichOneof("frame")))) is not None:
                to.stamp(name)
            return write(frame)

        plain(self, stamped, *rest, **named)

    stack.enter_context(patch.object(StreamPump, "__init__", init))


def _stamp_reads(stack: ExitStack, to: HopRecorder, owner: type, method: str, kind: str | None, name: str) -> None:
    """Calls of a method that takes a frame: of this kind, or of the only one that there is."""
    plain = getattr(owner, method)

    @wraps(plain)
    def stamped(self: Any, frame: Any, *payloads: Any) -> Any:
        if kind is None or frame.WhichOneof("frame") == kind:
            to.stamp(name)
        return plain(self, frame, *payloads)

    stack.enter_context(patch.object(owner, method, stamped))


def _read_by_client(stack: ExitStack, to: HopRecorder) -> None:
    from slotmesh.client.stream.links import RouterLink

    _stamp_reads(stack, to, RouterLink, "accept", "results", CLIENT_READS)


def _read_by_router(stack: ExitStack, to: HopRecorder) -> None:
    from router_service.shell.clients.stream import ClientStream
    from router_service.shell.replicas.link import ReplicaLink

    _stamp_reads(stack, to, ClientStream, "accept", None, ROUTER_READS_CALLS)
    _stamp_reads(stack, to, ReplicaLink, "_handle", "results", ROUTER_READS_RESULTS)


def _read_by_replica(stack: ExitStack, to: HopRecorder) -> None:
    from replica_service.shell.links.router_stream import RouterStream

    _stamp_reads(stack, to, RouterStream, "_handle", "runs", REPLICA_READS)


_READERS: Final[dict[str, Callable[[ExitStack, HopRecorder], None]]] = {
    "client": _read_by_client,
    "router": _read_by_router,
    "replica": _read_by_replica,
}
