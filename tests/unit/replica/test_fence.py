"""A replica's own fence: its lease, and the timer of the kernel that ends the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from replica_service.core.lifecycle import Fence, FenceSettings
from replica_service.shell.stopping import KernelTimer
from tests.support.fakes.clock import FakeClock

SETTINGS = FenceSettings(after_s=10.0, grace_s=5.0)


def test_time_counts_from_the_sending_of_the_newest_acknowledged_report() -> None:
    fence = Fence(SETTINGS)
    assert not fence.is_closed(1_000.0), "before the replica is ready there is nothing to fence"
    assert not fence.acknowledged(999.0, 1_000.0)
    fence.begin(1_000.0)
    assert (fence.closes_at, fence.ends_at) == (1_010.0, 1_015.0)
    assert fence.acknowledged(1_001.0, 1_009.0)
    assert (fence.closes_at, fence.ends_at) == (1_011.0, 1_016.0)
    assert not fence.acknowledged(1_000.5, 1_009.0), "an older acknowledgement shortens nothing"
    assert fence.closes_at == 1_011.0
    assert fence.acknowledged(9_999.0, 1_010.0), "no report was sent in the future"
    assert fence.closes_at == 1_020.0


def test_a_fence_that_has_closed_stays_closed() -> None:
    fence = Fence(SETTINGS)
    fence.begin(0.0)
    assert not fence.acknowledged(9.9, 10.0), "it is too late, to the moment"
    assert fence.is_closed(10.0)
    assert not fence.acknowledged(10.5, 11.0)
    assert fence.is_closed(11.0)
    assert (fence.closes_at, fence.ends_at) == (10.0, 15.0)


def test_the_timer_is_set_again_where_the_process_stood_still_meanwhile() -> None:
    clock, delays = FakeClock(), list[float]()

    def arm(delay_s: float) -> None:
        delays.append(delay_s)
        if len(delays) == 1:
            clock.advance(4.0)

    KernelTimer(clock, arm).set(clock.now() + 10.0)
    assert delays == [10.0, 6.0]


def test_a_time_that_has_passed_arms_the_timer_and_does_not_disarm_it() -> None:
    clock, delays = FakeClock(), list[float]()
    KernelTimer(clock, delays.append).set(clock.now() - 1.0)
    assert len(delays) == 1
    assert 0.0 < delays[0] < 0.001


Start = Callable[..., subprocess.Popen[bytes]]
PROGRAM = """
    import signal, sys, threading, time
    from replica_service.shell.stopping import KernelTimer
    from slotmesh.runtime.clock import MonotonicClock

    {before}
    timer = KernelTimer(MonotonicClock())
    timer.prepare()
    timer.set(time.monotonic() + {delay_s})
    print("armed", flush=True)
    def work():
        while True:
            print("works", flush=True)
    threading.Thread(target=work, daemon=True).start()
    while True:
        pass
"""


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the program; what runs at the end is killed."""
    with ExitStack() as processes:

        def started(delay_s: float, before: str = "") -> subprocess.Popen[bytes]:
            program = textwrap.dedent(PROGRAM).format(delay_s=delay_s, before=before)
            process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
            processes.callback(process.wait, 60)
            processes.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == b"armed\n"
            return process

        yield started


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether the process has got a signal that it has not handled."""
    (mask,) = [it for it in Path(f"/proc/{pid}/status").read_text().splitlines() if it.startswith("ShdPnd:")]
    return bool(int(mask.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize(
    "before",
    [
        "",
        "signal.signal(signal.SIGALRM, signal.SIG_IGN)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})",
    ],
    ids=["as started", "ignored", "blocked"],
)
def test_the_timer_ends_a_process_that_does_nothing_but_run(start: Start, before: str) -> None:
    process = start(0.1, before)
    assert process.stdout is not None
    with process.stdout as out:
        for _ in out:
            pass
    assert process.wait(60) == -signal.SIGALRM


def start_stopped(start: Start) -> subprocess.Popen[bytes]:
    """A process that was stopped before its timer ran out."""
    for delay_s in (0.3, 3.0, 30.0):
        process = start(delay_s)
        process.send_signal(signal.SIGSTOP)
        found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if found is not None and found.si_code == os.CLD_STOPPED:
            return process
        process.communicate()
    raise AssertionError("this machine takes longer than 30 s to stop a process")


def test_a_process_that_stood_still_ends_before_its_own_code_runs_again(start: Start) -> None:
    process = start_stopped(start)
    assert process.stdout is not None
    with process.stdout as out:
        os.set_blocking(out.fileno(), False)
        while out.read(1 << 20):
            pass  # there is room again for what it would write
        deadline = time.monotonic() + 60
        while not is_pending(process.pid, signal.SIGALRM):
            assert time.monotonic() < deadline, "the timer does not run out in a process that is stopped"
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == -signal.SIGALRM
        assert not out.read(1 << 20), "nothing was written after it went on"
