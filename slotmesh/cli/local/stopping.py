"""Stops a local mesh: in order, under one deadline, and immediately at a second Ctrl-C.

Order: the ingress; routers, which let running calls end; the controller, which drains its replicas. The ingress has a
head start of `HEAD_START_S`, so that what it has accepted reaches a router, and ends beside the routers from then on.
Invariants: graces do not add up: all calls share one deadline, whichever processes they pass through. The user sees
what is awaited. No process is left over: a process that has not ended in time is killed, replicas included.
Owner: `LocalMesh`, on one event loop.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from slotmesh.cli.console import CommandFailed
from slotmesh.cli.local.child import Child
from slotmesh.cli.operator import Operator
from slotmesh.errors import SlotmeshError
from slotmesh.runtime.process_identity import has_ended, pid_of, process_of
from slotmesh.v1 import controller_service_pb2 as pb

HEAD_START_S: Final = 1.0
"""The time that the ingress has to end before routers are stopped; and the delay before the first report."""
REPORT_S: Final = 5.0
"""The interval between two reports of what is awaited."""
LOOK_TIMEOUT_S: Final = 1.0
"""The time limit for the controller's report of running calls."""
SLACK_S: Final = 5.0
"""The time that a process has to end after the grace of its calls, before it is killed."""
SAME_INTERRUPT_S: Final = 0.5
"""Ctrl-C reaches a process twice where its launcher passes it on: within this time it is the same one."""


@dataclass(frozen=True, slots=True)
class MeshProcesses:
    """The processes of a mesh that were started."""

    ingress: Child | None
    routers: Sequence[Child]
    controller: Child | None

    @property
    def children(self) -> list[Child]:
        """All that this process has started."""
        return [each for each in (self.ingress, *self.routers, self.controller) if each is not None]


class Shutdown:
    """The end of one mesh."""

    def __init__(self, processes: MeshProcesses, grace_s: float, tell: Callable[[str], object]) -> None:
        """`grace_s`: how long running calls may take."""
        self._processes = processes
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + grace_s
        self._replicas: dict[str, str] = {}
        """By replica id, the processes that the controller has reported, to be killed if it does not end them."""

    async def run(self) -> bool:
        """Returns when all processes have ended: whether they could do so in order, or Ctrl-C came again."""
        with _second_interrupt() as insisted:
            in_order = asyncio.ensure_future(self._end_in_order())
            insisting = asyncio.ensure_future(insisted.wait())
            reporting = asyncio.ensure_future(self._report())
            try:
                await asyncio.wait((in_order, insisting), return_when=asyncio.FIRST_COMPLETED)
                return in_order.done()
            finally:
                for task in (in_order, insisting, reporting):
                    task.cancel()
                await asyncio.gather(in_order, insisting, reporting, return_exceptions=True)
                await self._kill_rest()

    async def _end_in_order(self) -> None:
        ingress, routers, controller = self._processes.ingress, self._processes.routers, self._processes.controller
        fronts = [*([] if ingress is None else [ingress]), *routers]
        if ingress is not None:
            ingress.terminate()
            await _all_ended([ingress], HEAD_START_S)
        for router in routers:
            router.terminate()
        await _all_ended(fronts, self._left_s + SLACK_S)
        if controller is not None:
            controller.terminate()
            await _all_ended([*fronts, controller], self._left_s + SLACK_S)

    @property
    def _left_s(self) -> float:
        return max(self._deadline - self._loop.time(), 0.0)

    async def _kill_rest(self) -> None:
        """The controller first: it would replace replicas."""
        late = [child for child in self._processes.children if not child.has_ended]
        for child in reversed(late):
            self._tell(f"{child.name} has not ended; killing it")
            child.kill()
        await asyncio.gather(*(child.ended() for child in late))
        for replica_id, process in self._replicas.items():
            if late and process and not has_ended(process):
                self._tell(f"replica {replica_id} has not ended; killing it")
                with suppress(ProcessLookupError):
                    os.kill(pid_of(process), signal.SIGKILL)

    # -- reports ---------------------------------------------------------------------------------------------------

    async def _report(self) -> None:
        """Never returns."""
        waits_s = HEAD_START_S
        while True:
            await asyncio.sleep(waits_s)
            sample = await self._look()
            left = [child.name for child in self._processes.children if not child.has_ended]
            self._tell(waiting_for(left, sample, self._left_s))
            waits_s = REPORT_S

    async def _look(self) -> pb.GetSnapshotResponse | None:
        """What the controller reports, if it does."""
        controller = self._processes.controller
        if controller is None or not controller.address or controller.has_ended:
            return None
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S), Operator.at(controller.address) as operator:
                sample = await operator.sample(LOOK_TIMEOUT_S)
        except (TimeoutError, SlotmeshError, CommandFailed):
            return None
        replicas = [it.replica for it in sample.replicas if it.replica.pid]
        self._replicas |= {it.replica_id: process_of(it.pid) for it in replicas}
        return sample


def waiting_for(left: Sequence[str], sample: pb.GetSnapshotResponse | None, left_s: float) -> str:
    """The report, from the names of running children and the controller's sample, if it has sent one."""
    replicas = () if sample is None else (it.replica for it in sample.replicas)
    running = {it.replica_id: it.load.ongoing for it in replicas if it.load.ongoing}
    calls = sum(running.values())
    if calls:
        what = f"{calls} {'call that runs' if calls == 1 else 'calls that run'} in {', '.join(sorted(running))}"
    else:
        what = f"{', '.join(left)} to end"
    most = f", at most {left_s:.0f} s more" if left_s >= 1 else ""
    return f"waiting for {what}{most}; Ctrl-C again kills all of it now"


async def _all_ended(children: Sequence[Child], within_s: float) -> None:
    """Waits for their ends, at most `within_s`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await asyncio.gather(*(child.ended() for child in children))


@contextmanager
def _second_interrupt() -> Iterator[asyncio.Event]:
    """The event is set by SIGINT, unless that is the one that has begun the end. `stop_signals` removes the handler."""
    loop, insisted = asyncio.get_running_loop(), asyncio.Event()
    began = loop.time()

    def interrupted() -> None:
        if loop.time() - began >= SAME_INTERRUPT_S:
            insisted.set()

    loop.add_signal_handler(signal.SIGINT, interrupted)
    yield insisted
