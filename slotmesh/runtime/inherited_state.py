"""What a process may inherit of its starter, and must not: closed standard streams, and signals that are off.

Supervisors, cron and programs in other languages start processes so. Where 0, 1 or 2 is closed, the next socket or file
gets that number, what is printed would be written to it, and libuv ends the process when it closes one. An ignored
SIGCHLD hides how children have ended, and a blocked SIGTERM stops no process.
"""

from __future__ import annotations

import os
import signal
import sys


def undo_inherited_state() -> None:
    """Call it in the main thread, before files are opened and processes are started."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the lowest free descriptor is the one that is missing
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115, PTH123 - as long as the process lives
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    if hasattr(signal, "pthread_sigmask"):  # there is none on Windows
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
