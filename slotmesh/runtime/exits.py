"""How a process ends: with words for the operator where it cannot do its work, and in any case it does end."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from slotmesh.logs import get_logger

_log = get_logger(__name__)


class CannotStart(Exception):
    """The process cannot begin its work; the message says why and what to do. `run` prints it and exits."""

    exit_code = 1
    """Exit status of the process."""


def exit_within(seconds: float, status: int, *, hard_exit: Callable[[int], object] = os._exit) -> threading.Thread:
    """The work is done: the process has `seconds` to end by itself, then it is ended with this status.

    Users' code could keep it alive: a task that is cancelled and goes on, or a non-daemon thread that never returns.
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
