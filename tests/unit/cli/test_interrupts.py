"""Ctrl-C ends a command that waits, whichever thread the signal has interrupted."""

from __future__ import annotations

import subprocess
import sys

from tests.support.mesh import ROOT

BOUND_S = 60.0
WAITS = """
import asyncio, os, signal, threading, time
import typer
from slotmesh.cli.console import complete

async def wait():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    threading.Thread(target=interrupt, daemon=True).start()
    await asyncio.Event().wait()

def interrupt():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    time.sleep(0.3)  # the main thread waits by then, in all likelihood: if not, the signal is seen in any case
    os.kill(os.getpid(), signal.SIGINT)

try:
    complete(wait())
except typer.Exit as exit:
    raise SystemExit(exit.exit_code)
"""
"""The main thread waits, and the signal interrupts the other one."""


def test_a_signal_that_another_thread_gets_ends_the_command() -> None:
    done = subprocess.run([sys.executable, "-c", WAITS], cwd=ROOT, check=False, timeout=BOUND_S)
    assert done.returncode == 130
