"""Calls with a request id: which are executed, and the delivery of outcomes to their repetitions.

Purpose: connects the engine and the memory of repeated calls. Calls without a request id are not passed to it.
Invariant: each repetition gets exactly one outcome on its link while that is open; one whose first call was not
executed is handed back, so that its router sends it again, except for calls in slots: the slot is used.
Owner: the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from replica_service.core import failures
from replica_service.core.repeated_calls import CallVerdict, RepeatedCalls
from replica_service.core.request_memory import CallOutcome
from replica_service.core.runs import ReplicaRun, RouterPeer
from slotmesh.calls.id_ranges import Range
from slotmesh.calls.request_ids import KEEP_S
from slotmesh.errors import Executed, Failure

SWEEPS = 4
"""Sweeps in the time for which outcomes are kept."""


class Repetitions:
    """The repeated calls of one replica."""

    def __init__(
        self,
        now: Callable[[], float],
        owns: Callable[[ReplicaRun], bool],
        refuse: Callable[[ReplicaRun, Failure], None],
    ) -> None:
        """`owns`: whether the replica may execute a run, as owner of its partition. `refuse` fails a call."""
        self._calls = RepeatedCalls(owns)
        self._now = now
        self._refuse = refuse
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # -- calls -----------------------------------------------------------------------------------------------------

    def admit(self, runs: Iterable[ReplicaRun]) -> list[ReplicaRun]:
        """Returns the runs to execute. The others get their outcome now, or when the calls that they repeat end."""
        return [run for run in runs if run.request is None or self.begins(run)]

    def begins(self, run: ReplicaRun) -> bool:
        """Whether this call is executed. Otherwise it gets its outcome now, or when the call that it repeats ends."""
        verdict, outcome = self._calls.begin(run, self._now())
        match verdict:
            case CallVerdict.EXECUTE:
                if self._timer is None:
                    self._timer = self._loop.call_later(KEEP_S / SWEEPS, self._sweep)
            case CallVerdict.DELIVER:
                _deliver(run.link, run.first, outcome)
            case CallVerdict.FAIL if outcome.failure is not None:
                self._refuse(run, outcome.failure)
            case CallVerdict.HAND_BACK if outcome.failure is not None:
                run.link.outbox.refused(run.first, 1, outcome.failure)
        return verdict is CallVerdict.EXECUTE

    # -- outcomes, which were delivered to the calls that were executed ---------------------------------------------

    def yielded(self, run: ReplicaRun, payloads: Sequence[bytes]) -> None:
        """Keeps values of a call that continues."""
        self._calls.yielded(run, payloads)

    def ended(self, run: ReplicaRun, result: bytes | Failure | None) -> None:
        """Keeps the outcome of a call, and delivers it to its repetitions. None: a streaming call has ended well."""
        if (ended := self._calls.ended(run, result, self._now())) is None:
            return
        outcome, waiting = ended
        failure = outcome.failure
        is_lost = failure is not None and failure.executed is Executed.NO and run.slot is None
        for (link, first), mark in waiting.items():
            if is_lost:
                link.outbox.refused(first, 1, failures.NOT_BEGUN)
            else:
                _deliver(link, first, outcome.for_mark(mark))

    def refused(self, run: ReplicaRun, failure: Failure) -> None:
        """A call was handed back, and with it its repetitions."""
        if (ended := self._calls.ended(run, failure, self._now())) is not None:
            for link, first in ended[1]:
                link.outbox.refused(first, 1, failure)

    # -- routers ---------------------------------------------------------------------------------------------------

    def cancel(self, link: RouterPeer, ranges: Iterable[Range]) -> None:
        """Repetitions with these run ids wait no more. The calls that they repeat continue."""
        for first in self._calls.leave(link, ranges):
            link.outbox.failed(first, 1, failures.REPETITION_CANCELLED)

    def close(self, link: RouterPeer) -> None:
        self._calls.close(link)

    def owes(self, link: RouterPeer) -> bool:
        """Whether repetitions of the router wait."""
        return self._calls.owes(link)

    def _sweep(self) -> None:
        self._timer = None
        has_more = self._calls.expire(self._now())
        if len(self._calls):
            self._timer = self._loop.call_later(0.0 if has_more else KEEP_S / SWEEPS, self._sweep)


def _deliver(link: RouterPeer, first: int, outcome: CallOutcome) -> None:
    """Puts an outcome into the link's outbox."""
    if outcome.is_streamed and outcome.values:
        link.outbox.values(first, outcome.values, outcome.size, outcome.content_type)
    if outcome.failure is not None:
        link.outbox.failed(first, 1, outcome.failure)
    elif outcome.is_streamed:
        link.outbox.done(first, 1)
    else:
        link.outbox.results(first, outcome.values, outcome.size, outcome.content_type)
