"""The executors of one handler, which methods each executes, and the recall of work that they have not started.

Invariants of recalls: calls that have started continue unless they are cancelled. Calls that have not started are
returned to the scheduler, which queues them again or ends them, before `recall` returns.
Owner: the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from replica_service.core.events import WorkReturned
from replica_service.core.runs import ReplicaRun, RouterPeer
from replica_service.core.scheduler import ReplicaScheduler
from replica_service.core.work import Part, StartBatch, StartCalls, note_failure
from replica_service.shell.executors.generators import GeneratorExecutor
from replica_service.shell.executors.loop import AsyncExecutor
from replica_service.shell.executors.own_loop import OwnLoopExecutor
from replica_service.shell.executors.protocol import Executor, HandlerEnvironment
from replica_service.shell.executors.threads import ThreadExecutor
from replica_service.shell.handler.handler_loop import HandlerLoop, SharedLoop
from replica_service.shell.sessions import Sessions
from slotmesh.calls.id_ranges import Range, common, merged
from slotmesh.handlers import MethodKind
from slotmesh.transport.pump import WokenPumps


class ExecutorSet:
    """One executor for each kind of method."""

    def __init__(
        self,
        environment: HandlerEnvironment,
        max_ongoing: Callable[[], int],
        handler_loop: HandlerLoop | None,
        woken: WokenPumps,
    ) -> None:
        """`max_ongoing` bounds threads. `handler_loop` runs `async def` methods; None: the current loop does.

        `woken`: the current loop's streams that write outcomes.
        """
        handler_loop = handler_loop or SharedLoop()
        self.of_async = (
            OwnLoopExecutor(environment, handler_loop)
            if handler_loop.is_own
            else AsyncExecutor(environment, woken=woken)
        )
        self.threads = ThreadExecutor(environment, max_ongoing, handler_loop.wait_for)
        self.generators = GeneratorExecutor(environment, self.threads.step, handler_loop)
        by_kind: dict[MethodKind, Executor] = {MethodKind.ASYNC: self.of_async, MethodKind.DEF: self.threads}
        self.by_method: dict[str, Executor] = {
            name: by_kind.get(method.kind, self.generators) for name, method in environment.methods.items()
        }
        self.all: tuple[Executor, ...] = (self.of_async, self.threads, self.generators)

    def abandon(self, link: RouterPeer) -> None:
        """Cancels the running calls of an ended link, except those of sessions."""
        for executor in self.all:
            executor.abandon(link)

    def cut_off(self) -> None:
        """Cancels all running calls: the grace is over."""
        for executor in self.all:
            executor.cut_off()

    async def close(self) -> None:
        """Ends all calls that still run."""
        await self.of_async.close()
        await self.generators.close()
        await self.threads.close()


Unstarted = StartCalls | StartBatch


class Recalls:
    """Recalls unstarted work from the executors, after the scheduler has removed the calls that wait.

    The scheduler tracks the work that it has handed to executors, and only they track which of it has started.
    """

    def __init__(
        self,
        scheduler: ReplicaScheduler,
        sessions: Sessions,
        executors: ExecutorSet,
        post: Callable[[WorkReturned], None],
    ) -> None:
        """`post` passes events of unstarted work to the scheduler."""
        self._scheduler = scheduler
        self._sessions = sessions
        self._executors = executors
        self._post = post

    def hold(self, runs: Iterable[ReplicaRun]) -> None:
        """Prevents further calls of these runs' turns from starting."""
        for turn in self._scheduler.turns_of(runs):
            self._executors.by_method[turn.run.options.method].hold(turn)
            if turn.run.record is not None:
                self._sessions.unstarted(turn.run.record, turn.stop, turn.hi)

    def hold_all(self, links: Iterable[RouterPeer]) -> None:
        """Holds all runs of these links."""
        for link in links:
            self.hold(link.waiting.values())

    def abandon(self, link: RouterPeer) -> None:
        """Handles the end of a link: none of its calls starts; running ones that no other link takes are cancelled."""
        self.hold(link.waiting.values())
        self.recall(lambda run: run.link is link)
        self._executors.abandon(link)

    def recall(
        self,
        is_one_of_them: Callable[[ReplicaRun], bool],
        cancelled: Callable[[Unstarted], Sequence[Part]] = lambda _: (),
    ) -> None:
        """Takes the unstarted work of these runs from the executors. `cancelled`: its cancelled parts."""
        for executor in self._executors.all:
            for work in executor.recall(is_one_of_them):
                self._post(WorkReturned(work, cancelled(work)))

    def cancel(self, link: RouterPeer, own: Iterable[Range], ranges: Iterable[Range]) -> list[Range]:
        """These run ids were taken back, of which `own` are not those of calls that went on elsewhere.

        So are calls that run for another link, and that this one has joined. Returns the run ids, on this link, at
        which lanes have stopped.
        """
        self.take_back(link, own)
        stopped = self.stop_behind(link, own)
        for run, first, last, at in self._sessions.running_of(link, ranges):
            joined = [(run.first + first, run.first + last)]
            self.take_back(run.link, joined)
            shift = at - joined[0][0]
            stopped += [(begin + shift, end + shift) for begin, end in self.stop_behind(run.link, joined)]
        return stopped

    def take_back(self, link: RouterPeer, ranges: Iterable[Range]) -> None:
        """These run ids were taken back: what has not started is answered, what runs is cancelled."""
        wanted = merged(ranges)

        def taken_back(run: ReplicaRun, lo: int, hi: int) -> list[Range]:
            return common(run.first + lo, run.first + hi - 1, wanted) if run.link is link else []

        def cancelled(work: Unstarted) -> list[Part]:
            parts = work.parts if isinstance(work, StartBatch) else ((work.run, work.lo, work.hi),)
            return [
                (run, first - run.first, last + 1 - run.first)
                for run, lo, hi in parts
                for first, last in taken_back(run, lo, hi)
            ]

        self.recall(lambda run: bool(taken_back(run, run.begin, run.end)), cancelled)
        for executor in self._executors.all:
            executor.cancel(link, wanted)

    def stop_behind(self, link: RouterPeer, ranges: Iterable[Range]) -> list[Range]:
        """The calls of these run ids that run, or are about to, in lanes that stop: their routers fail them.

        So nothing behind them starts any more, even if they end well. A call behind which another one has started has
        ended well already, and keeps that outcome.
        """
        wanted = merged(ranges)
        stopped: list[Range] = []
        for turn in self._scheduler.turns_of(link.waiting.values()):
            run = turn.run
            if run.options.stop_generation and common(run.first + turn.lo, run.first + turn.hi - 1, wanted):
                self._executors.by_method[run.options.method].hold(turn)
                if run.lane is not None and run.lane.turn is turn:
                    stopped += self._stop(run, max(turn.stop - 1, turn.lo), turn.hi, wanted)
        for run, lo, hi in self._scheduler.in_batches():
            if run.link is link and run.lane is not None and run.options.stop_generation:
                stopped += self._stop(run, lo, hi, wanted)
        return merged(stopped)

    @staticmethod
    def _stop(run: ReplicaRun, lo: int, hi: int, wanted: Sequence[Range]) -> list[Range]:
        """Notes the first of the run's calls from index `lo` up to `hi` that is wanted; returns all that are."""
        found = common(run.first + lo, run.first + hi - 1, wanted)
        if found:
            note_failure(run, found[0][0] - run.first)
        return found
