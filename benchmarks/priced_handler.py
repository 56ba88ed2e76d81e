"""A batch handler whose batches cost what they should: some time each, and a little for every call."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Final

import slotmesh
from benchmarks.batch_queue import Station

STATION: Final = Station(most_calls=32, batch_s=0.010, call_s=0.0001)
WAIT_S: Final = 0.010
"""`batch_wait_timeout_s`: what the decorator has unless told otherwise."""
_STAMPS: Final = struct.Struct("<dd")
_SHARE: Final = 0.05
"""Of the newest batch in the mean of what sleeping takes too long."""


@slotmesh.deployment(max_ongoing=2 * STATION.most_calls)
class Priced:
    """Waits without the interpreter's lock, as code does that hands a batch to a model or to a device."""

    def __init__(
        self, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._now = now
        self._sleep = sleep
        self._overslept_s = 0.0

    @slotmesh.batch(max_batch_size=STATION.most_calls, batch_wait_timeout_s=WAIT_S)
    def serve(self, payloads: list[bytes]) -> list[bytes]:
        """When the batch began and when it ended, for each call: `stamps` reads it."""
        began_s = self._now()
        wanted_s = STATION.takes_s(len(payloads))
        # Sleeping always takes a little longer: without the correction the handler would be a slower one.
        self._sleep(max(wanted_s - self._overslept_s, 0.0))
        ended_s = self._now()
        self._overslept_s += _SHARE * (ended_s - began_s - wanted_s)
        return [_STAMPS.pack(began_s, ended_s)] * len(payloads)

    async def arrive(self, _payload: bytes) -> bytes:
        """For calls that wait for no batch: when they were here, twice, as `stamps` reads it."""
        now_s = self._now()
        return _STAMPS.pack(now_s, now_s)


def stamps(result: bytes) -> tuple[float, float]:
    """Begin and end of the call's batch, on this machine's monotonic clock."""
    began_s, ended_s = _STAMPS.unpack(result)
    return began_s, ended_s
