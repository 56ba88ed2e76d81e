"""Workarounds for `grpc.aio`, one in each module; one switch turns all of them off.

With `SLOTMESH_PLAIN_GRPC=1` in its environment a process uses the published `grpc.aio`. The switch helps to find out
whether a defect comes from this package, or to run with a version of grpcio that these modules do not fit. Calls have
the same results; the gain of each module is lost (docs/performance.md has the figures).

- `accepting`: a server accepts several rpcs at a time, and begins them in turn, by connection. `grpc.aio` accepts one
  in several turns of its event loop, so that a flood delays all other rpcs. Can go when grpcio has an accept loop of
  its own that does not wait between rpcs (grpc/grpc#43461), and floods were measured with it.
- `completion_wakes`: the event loop reads many of the bytes that wake it at a time. `grpc.aio` writes one for each
  completion and reads one in a turn; once 280 are unread, its polling thread blocks. Can go when one byte wakes the
  loop for all completions that are due.
- `call_writer`: a write that fails waits for the status of its rpc. `grpc.aio` replaces the status that the peer sent
  by INTERNAL, "Internal error from Core". Can go when grpc/grpc#36066 is solved in the oldest grpcio that is allowed.
- `aborts`: the exception that ends an rpc loses its traceback, which otherwise keeps 17 KB for each refused rpc until
  a full garbage collection. Can go when `grpc.aio` does not keep the exception.
- `channelz`, which the switch leaves alone because it is off by default: ignores fields that the published servicer
  fails on, and ends an rpc with a status. Can go when grpcio-channelz does both.

`accepting` and `completion_wakes` check the shape of the parts of `grpc.aio` that they need, and leave them alone if it
differs. Contract tests run with the switch on and off.
"""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "SLOTMESH_PLAIN_GRPC"
"""`1` turns all of this package off in a process; `0`, empty or absent: it is on."""


def is_off() -> bool:
    """Whether to use the published `grpc.aio` without workarounds.

    Raises:
        ValueError: the variable is something else than 0 or 1.
    """
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{VARIABLE} must be 0 or 1, is {value!r}")
    return value == "1"
