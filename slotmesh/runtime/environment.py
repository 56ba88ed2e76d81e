"""What gRPC's core reads from the environment when it is loaded: for processes of the mesh, before they import gRPC.

Purpose: one place for these settings, each with its reason. What the user has set stays.
Owner: the entry points (`__main__`, the command line, the benchmarks). Never a library: applications that import
slotmesh keep gRPC as it comes, unless they call this first.
"""

from __future__ import annotations

import os
from typing import Final

_SETTINGS: Final = {
    # gRPC's core writes to stderr by itself, past all formats; a peer that goes away is not worth a line of it.
    "GRPC_VERBOSITY": "ERROR",
    # Whoever waits for completions also reads the sockets. With the event engine gRPC's own threads read them, and hand
    # each message over once more: round trips of streams take half as long again (docs/performance.md).
    "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener",
}


def set_grpc_environment() -> None:
    """Has an effect only before gRPC is imported. Processes that are started from here inherit it."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
