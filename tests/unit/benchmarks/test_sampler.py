"""The sampling profiler."""

from __future__ import annotations

import re
import threading
import time

from benchmarks.sampler import Sampler


def busy(until_cpu_s: float) -> int:
    spins = 0
    while time.thread_time() < until_cpu_s:
        spins += 1
    return spins


def test_it_names_the_function_that_the_thread_is_in() -> None:
    sampler = Sampler(threading.get_ident())
    sampler.start()
    busy(time.thread_time() + 0.1)
    sampler.stop()
    first = sampler.report("here").splitlines()[3]
    assert re.search(r"% +\d+\.\d% +busy \(unit/benchmarks/test_sampler\.py:\d+\)$", first), sampler.report("here")


def test_waiting_counts_for_nothing() -> None:
    done = threading.Event()
    waiting = threading.Thread(target=done.wait)
    waiting.start()
    assert waiting.ident is not None
    sampler = Sampler(waiting.ident)
    sampler.start()
    busy(time.thread_time() + 0.05)
    sampler.stop()
    done.set()
    waiting.join(timeout=60)
    assert "0.00 s on the processor" in sampler.report("there")
