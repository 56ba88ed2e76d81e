"""An executor that a test drives by hand: calls begin and end when it says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from replica_service.core.events import CallsEnded, TurnEnded, WorkReturned
from replica_service.core.failures import CANCELLED
from replica_service.core.runs import ReplicaRun, RouterPeer, StartTurn
from replica_service.core.work import StartBatch, StartCalls, is_stopped
from replica_service.shell.executors.protocol import OutcomeSink
from slotmesh.errors import Failure

Work = StartCalls | StartTurn | StartBatch


@dataclass(eq=False)
class Running:
    """A call that a handler executes."""

    work: StartCalls | StartTurn
    run: ReplicaRun
    index: int
    is_cancelled: bool = False
    """It was taken back. A handler may end by that, or go on."""

    @property
    def payload(self) -> bytes:
        return self.run.payloads[self.index]


class HandExecutor:
    """Starts and ends calls when it is told to; otherwise an executor like the others."""

    def __init__(self, sink: OutcomeSink, now: Callable[[], float]) -> None:
        self.queue: list[StartCalls | StartTurn] = []
        self.running: list[Running] = []
        self._sink = sink
        self._now = now

    def start(self, work: Work) -> None:
        assert not isinstance(work, StartBatch)
        self.queue.append(work)

    def cancel(self, link: RouterPeer, ranges: Iterable[tuple[int, int]]) -> None:
        """What runs goes on until a test ends it, by that or not."""
        for first, last in ranges:
            for each in self.running:
                if each.run.link is link and first <= each.run.first + each.index <= last:
                    each.is_cancelled = True

    def hold(self, turn: StartTurn) -> None:
        turn.stop = turn.next

    def recall(self, is_wanted: Callable[[ReplicaRun], bool]) -> list[StartCalls | StartBatch]:
        recalled: list[StartCalls | StartBatch] = []
        for work in list(self.queue):
            if isinstance(work, StartCalls) and is_wanted(work.run):
                self.queue.remove(work)
                recalled.append(work)
        return recalled

    def abandon(self, link: RouterPeer) -> None:
        """Likewise."""

    def cut_off(self) -> None:
        """Likewise."""

    async def close(self) -> None:
        """Nothing is to be closed."""

    @property
    def startable(self) -> list[StartCalls | StartTurn]:
        """Work of which no call has to end first."""
        busy = {each.work for each in self.running if isinstance(each.work, StartTurn)}
        return [work for work in self.queue if work not in busy]

    def begin(self, work: StartCalls | StartTurn) -> Running | None:
        """Starts the next call of the work, if one may still start."""
        return self._begin_turn(work) if isinstance(work, StartTurn) else self._begin_call(work)

    def end(self, running: Running, *, failure: Failure | None = None) -> None:
        """The call has ended: with a result that tells whose it is, or with the failure."""
        self.running.remove(running)
        run, index = running.run, running.index
        if failure is None:
            self._sink.payloads(run, index, [b"result of " + running.payload])
        else:
            self._sink.failed(run, index, 1, failure)
        if isinstance(running.work, StartCalls):
            self._sink.post(CallsEnded(run, 1))
        elif running.work.next >= running.work.stop:
            self._end_turn(running.work)

    def _begin_call(self, work: StartCalls) -> Running | None:
        if self._now() >= work.run.link.fresh_until:
            self.queue.remove(work)
            self._sink.post(WorkReturned(work))
            return None
        running = Running(work, work.run, work.lo)
        work.lo += 1
        if work.lo == work.hi:
            self.queue.remove(work)
        self.running.append(running)
        return running

    def _begin_turn(self, turn: StartTurn) -> Running | None:
        run = turn.run
        while turn.next < turn.stop and self._now() < run.link.fresh_until and not is_stopped(run, turn.next):
            index = turn.next
            turn.next += 1
            if run.withdrawn is None or index not in run.withdrawn:
                running = Running(turn, run, index)
                self.running.append(running)
                return running
            self._sink.failed(run, index, 1, CANCELLED)
        self._end_turn(turn)
        return None

    def _end_turn(self, turn: StartTurn) -> None:
        self.queue.remove(turn)
        self._sink.post(TurnEnded(turn, turn.next))
