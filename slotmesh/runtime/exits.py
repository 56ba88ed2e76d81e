"""How a process ends: with a message for the operator if it cannot work, and within a bounded time."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from slotmesh.logs import get_logger

_log = get_logger(__name__)


class CannotStart(Exception):
    """The process cannot start; the message has the reason and the way out. `run` prints it and exits."""

    exit_code = 1
    """Exit status of the process."""


def exit_within(seconds: float, status: int, *, hard_exit: Callable[[int], object] = os._exit) -> threading.Thread:
    """Ends the process with this status after `seconds`, unless it ends by itself before.

    Users' code could keep it alive: a task that continues after its cancellation, or a non-daemon thread.
    """

    def wait() -> None:
        time.sleep(seconds)
        _log.warning("code of the handler still runs; the process ends all the same", status=status)
        sys.stdout.flush()
        sys.stderr.flush()
        hard_exit(status)

    thread = threading.Thread(target=wait, name="exit", daemon=True)
    thread.start()
    return thread
