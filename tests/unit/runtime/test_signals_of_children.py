"""Signals of processes that a handler forks: an event loop learns of signals by a pipe, which they share with it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

import pytest
import uvloop

from slotmesh.runtime.signals import stop_signals

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]

LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
LASTS_S = 3.0
"""How long a child lives that no signal ends."""


def ended_by(number: signal.Signals) -> int:
    """What ended a forked child that was sent this signal as soon as there was one: minus the signal."""
    child = os.fork()
    if not child:
        time.sleep(LASTS_S)
        os._exit(100)
    os.kill(child, number)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def stopped(loop: Callable[[], asyncio.AbstractEventLoop], *, by: Callable[[], object], ignored: bool = False) -> bool:
    """Whether a process that stops by signals is requested to, while this runs in a thread of it."""

    async def serve() -> bool:
        with stop_signals(ignore_interrupt=ignored) as stop:
            await asyncio.to_thread(by)
            for _ in range(3):  # a signal that has come is handled in a later turn
                await asyncio.sleep(0)
            return stop.is_set()

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(serve())


@LOOPS
def test_a_signal_to_a_forked_child_ends_the_child_and_not_its_parent(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    ended: list[int] = []

    def end_children() -> None:
        while len(ended) < 20 and ended.count(-signal.SIGTERM) == len(ended):
            ended.append(ended_by(signal.SIGTERM))

    assert not stopped(loop, by=end_children)
    assert ended == [-signal.SIGTERM] * 20


@LOOPS
def test_the_parent_is_stopped_by_its_own_signals_after_a_fork(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    def fork_and_end() -> None:
        ended_by(signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGTERM)

    assert stopped(loop, by=fork_and_end)


def test_a_child_forked_after_the_stop_handles_signals_by_default() -> None:
    assert not stopped(asyncio.new_event_loop, by=lambda: None)
    assert ended_by(signal.SIGTERM) == -signal.SIGTERM


def test_a_child_of_a_launched_process_ignores_ctrl_c_as_its_parent_does() -> None:
    def interrupt_and_end() -> int:
        child = os.fork()
        if not child:
            os._exit(7 if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else 100)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    codes: list[int] = []
    assert not stopped(asyncio.new_event_loop, by=lambda: codes.append(interrupt_and_end()), ignored=True)
    assert codes == [7]
