"""What the first process of a container owes to all others of it.

Purpose: the kernel gives orphans to process 1, which has to reap them, or the container runs out of process ids; and it
drops signals that process 1 does not handle, so that SIGTERM has no effect until a program handles it. A service that
is started as process 1 forks: the parent stays as init, the child is the service.
Invariants: init reaps each process, forwards each signal that it may get, and ends with the status of the service. It
waits with all signals blocked, in place of handlers, so that none is lost.
Owner: `main` of each service, before there are threads.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Final

_OWN: Final = {signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU}
"""Not forwarded: these concern init itself."""


def stay_as_init() -> None:
    """Returns in a child process if this process is number 1, else immediately. The parent ends with the child."""
    if os.getpid() == 1:
        serve_below()


def serve_below() -> None:
    """Returns in a child process; this one never returns."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    service = os.fork()
    if service == 0:
        # A group of its own: Ctrl-C of a terminal reaches the service once, and not through init again.
        os.setpgid(0, 0)
        if os.isatty(0):
            with suppress(OSError):  # another session's terminal
                os.tcsetpgrp(0, os.getpgrp())
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    os._exit(_status_of(service))


def _status_of(service: int) -> int:
    """Waits for the end of the service. Its exit status, as shells show it: 128 and the signal if one ended it."""
    while True:
        received = signal.sigwait(signal.valid_signals())
        if received not in _OWN:
            with suppress(ProcessLookupError):
                os.kill(service, received)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == service:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            if pid == 0:
                break
