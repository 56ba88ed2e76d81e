"""What runners execute now, and what becomes of it when it is cancelled.

Invariants: a call is cancelled once, but where the grace is over; what is left of cancelling one hits no other call of
its runner.
Owner: the executor of `async def` methods, on the loop of its handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from replica_service.core.calls import RouterPeer
from replica_service.core.failures import CUT_OFF, TAKEN_BACK
from replica_service.shell.executors.call_context import TaskPlace
from replica_service.shell.executors.runners import Runners
from replica_service.shell.handler.failures import HandlerErrors
from slotmesh.errors import Failure
from slotmesh.handlers.rpc_context import RpcRaised
from slotmesh.wire.ranges import among


class RunningCalls:
    """Calls and batches of one executor that have started and not ended."""

    def __init__(self, errors: HandlerErrors, runners: Runners) -> None:
        self._errors = errors
        self._runners = runners
        self.sites: dict[asyncio.Task[Any], TaskPlace] = {}
        """Where each runner that executes calls is: between two steps of the loop, in a call that waits."""
        self.batching: set[asyncio.Task[Any]] = set()
        """Runners that execute a batch."""
        self.cancelled: dict[asyncio.Task[Any], Failure] = {}
        """Runners whose call was cancelled, and that have not noticed yet: the call's failure if it ends by that."""

    def cancel(self, link: RouterPeer, ranges: Iterable[tuple[int, int]]) -> None:
        """Cancels those of the router's calls that run and wait, by run ids, both ends included."""
        waiting = {site.run_id: task for task, site in self.sites.items() if site.run.link is link}
        for first, last in ranges:
            for run_id in among(waiting, first, last):
                self._cancel(waiting[run_id], TAKEN_BACK)

    def abandon(self, link: RouterPeer) -> None:
        """The router's link has ended: cancels its calls without a session, but for those without reply."""
        for task, site in list(self.sites.items()):
            if site.run.link is link and site.run.record is None and not site.run.options.no_reply:
                self._cancel(task, TAKEN_BACK)

    def cut_off(self) -> None:
        """The grace is over."""
        for task in [*self.sites, *self.batching]:
            self.cancelled.setdefault(task, CUT_OFF)
            task.cancel()  # once more where it has gone on before

    def _cancel(self, task: asyncio.Task[Any], failure: Failure) -> None:
        """Cancels what a runner executes, once, unless it ends in this very step of the loop."""
        if task not in self.cancelled:
            self.cancelled[task] = failure
            task.cancel()

    async def failure_of(self, error: BaseException, task: asyncio.Task[Any], method: str) -> Failure:
        """The failure of the cancelled call. Where the process ends, the runner does."""
        if self._runners.is_closing:
            raise asyncio.CancelledError
        failure = await self.uncancelled(task)
        raised = error.error if isinstance(error, RpcRaised) else error
        if failure is not None and isinstance(raised, asyncio.CancelledError):
            return failure
        return self._errors.failure_of(error, method)

    async def uncancelled(self, task: asyncio.Task[Any]) -> Failure | None:
        """Why what the runner has ended was taken back, if it was.

        The runner goes on as if nothing had been: what is left of cancelling it, be it by its handler, hits no other
        call.
        """
        while task.cancelling():
            task.uncancel()
            try:
                await asyncio.sleep(0)  # what was not thrown yet is thrown here
            except asyncio.CancelledError:
                if self._runners.is_closing:
                    raise
        return self.cancelled.pop(task, None)
