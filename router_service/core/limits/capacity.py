"""The capacity that replicas report, and how many calls of a run travel together to one replica.

Purpose: one rule for new and for queued runs, for batch methods and for shadows. It weighs the cost of a slice against
its benefit:

- Each additional slice costs a message in both directions, `MESSAGES_S` of processor time regardless of its size, and
  its answer is a small frame, which leads to small frames from the client. Its benefit is that calls run in parallel.
- So a slice has `SLICE_S` of work: its messages cost half of that, and no call waits much longer than that behind
  others while another replica is idle. Calls that take `SLICE_S` or more travel one by one while there are replicas
  for all of them; hundreds of calls that take almost no time travel together.
- A run is cut into even slices of one to two times `SLICE_S`, but into no more slices than there are replicas to take
  them; larger runs are spread evenly.
- A batch method gets full batches while there are enough calls: half a batch costs as much as a full one.
- Quick calls join others: a replica with less than `SLICE_S` of work, all of it known to be quick, gets the next quick
  calls before an idle replica is woken, so that they share its messages.

A method without a reported service time does not count as quick: its runs are spread evenly.
Owner: pure functions. `ReportedCapacity` is made at the edge from each frame that carries one; the replica's state
keeps the newest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from slotmesh.streams.pacing import MESSAGES_S, QUICK_S

DEFAULT_KEYED_WINDOW = 8192
"""The bound of unanswered keyed calls at a replica that has not reported its own."""


class ReportedCapacity(NamedTuple):
    """A replica's own report. Counts calls."""

    max_ongoing: int
    prefetch: int = 0
    others: int = 0
    """Room taken by anything but this router's unkeyed calls."""
    keyed_window: int = DEFAULT_KEYED_WINDOW
    draining: bool = False


SLICE_S = 2 * MESSAGES_S
"""Work that is worth a slice of its own: seconds that its calls take one after another."""
SLICE_NS = round(SLICE_S * 1e9)
QUICK_NS = round(QUICK_S * 1e9)
"""Calls that are less work than this are quick."""
UNKNOWN_NS = 10**9
"""Work of a call whose method has no reported service time: it does not count as quick."""
CALL_S = 1e-6
"""What a call in a frame costs beside its handler: no replica executes calls faster than that."""


@dataclass(frozen=True, slots=True)
class MethodTime:
    """The service time of a method, as a replica reports it."""

    service_s: float
    """Time of a call, seconds: where calls are executed one after another, what each takes of the handler."""
    batch_size: int = 0
    """Maximum number of calls that it takes together; 0 if it takes one at a time."""
    call_ns: int = field(init=False)
    """Work that one call is, nanoseconds: whole numbers, so that sums come out even."""
    is_quick: bool = field(init=False)
    """Calls are about to be answered once they were sent."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "call_ns", round((self.service_s + CALL_S) * 1e9))
        object.__setattr__(self, "is_quick", self.call_ns < QUICK_NS)


def worth_calls(service_s: float) -> int:
    """Calls of this service time that are worth a slice."""
    return max(1, round(SLICE_S / (service_s + CALL_S)))


def slice_calls(calls: int, replicas: int, time: MethodTime | None) -> int:
    """How many of `calls` go to one replica at most, where `replicas` take calls; at least 1.

    `time`: what the replica has reported of the method. The caller bounds the slice by the replica's room as well.
    """
    slices = max(1, replicas)
    if time is not None:
        slices = max(1, min(slices, calls // worth_calls(time.service_s)))
    even = ceil(calls / slices)
    if time is not None and time.batch_size > 1:
        even = ceil(even / time.batch_size) * time.batch_size
    return min(even, calls)


def joins(work_ns: int, time: MethodTime | None) -> bool:
    """Whether a call goes where there is some work already: as long as it is quick, and there is less than a slice."""
    return time is not None and work_ns > 0 and work_ns + time.call_ns <= SLICE_NS
