"""Processes that share a machine's cores.

Invariants: a process does one thing at a time, in order; no more processes work at the same time than there are cores;
who waits for a core gets one in turn, and has it for one job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.kernel import Kernel

Then = Callable[[], None]
Job = Callable[[], tuple[float, Then]]
"""Called when its turn comes: does what is done at once; returns the processor time, and what follows when that is
over."""


class Machine:
    """Gives cores to processes."""

    def __init__(self, kernel: Kernel, cores: int) -> None:
        """`cores`: 0 is one for each process."""
        self.kernel = kernel
        self._cores = cores or 2**30
        self._ready: deque[Process] = deque()

    def ready(self, process: Process) -> None:
        """The process has something to do."""
        self._ready.append(process)
        self._assign()

    def done(self, process: Process) -> None:
        """The process has done one thing, and its core is free."""
        self._cores += 1
        if process.jobs:
            self._ready.append(process)
        self._assign()

    def _assign(self) -> None:
        while self._cores and self._ready:
            self._cores -= 1
            self._ready.popleft().work()


class Process:
    """One of them."""

    def __init__(self, machine: Machine) -> None:
        self.jobs: deque[Job] = deque()
        self.busy_s = 0.0
        """Processor time that it has used."""
        self._machine = machine
        self._is_known = False
        """It works, or waits for a core."""

    def do(self, job: Job) -> None:
        """Does this behind all that there is to do."""
        self.jobs.append(job)
        if not self._is_known:
            self._is_known = True
            self._machine.ready(self)

    def work(self) -> None:
        """It has a core."""
        cost_s, then = self.jobs.popleft()()
        self.busy_s += cost_s
        kernel = self._machine.kernel
        kernel.at(kernel.now + cost_s, self._over, then)

    def _over(self, then: Then) -> None:
        then()
        self._is_known = bool(self.jobs)
        self._machine.done(self)
