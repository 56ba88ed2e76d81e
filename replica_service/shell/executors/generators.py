"""Runs methods that yield, `async def` and `def`, for single calls, lanes and batches.

Purpose: each call, or batch of calls, gets a drive that steps the method. This module passes acknowledged values,
cancels and ends of links to the drive of a call.
Invariants: a call holds its permit, its lane or its batch until its generator is closed; calls of a StartTurn run one
after another; every outcome, and the end of each piece of work, is delivered exactly once. Work begins immediately, or
when a thread is free, so nothing waits here that could be recalled: a call that must not start is detected when it
would begin.
Owner: the engine, on its event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

from replica_service.core.call_metadata import MAX_CREDIT
from replica_service.core.events import BatchEnded, CallsEnded, TurnEnded, WorkReturned
from replica_service.core.failures import CANCELLED, CUT_OFF, EXPIRED, OVERDUE, TAKEN_BACK
from replica_service.core.runs import ReplicaRun, RouterPeer, StartTurn
from replica_service.core.work import Skip, StartBatch, StartCalls, StartNow, TurnClaims, WorkCommand, claim
from replica_service.shell.executors.batches import BatchRun
from replica_service.shell.executors.drives import AsyncDrive, InThread, ThreadDrive
from replica_service.shell.executors.generator_drives import (
    Drive,
    DriveEnvironment,
    GeneratorRun,
    Recipient,
    failure_of,
    recipient_of,
)
from replica_service.shell.executors.protocol import CLOSE_S, HandlerEnvironment, deliver
from replica_service.shell.handler.call_context import SinglePlace, base_context, batch_place
from replica_service.shell.handler.handler_loop import HandlerLoop
from replica_service.shell.handler.methods import HandlerMethod
from replica_service.shell.telemetry import entered, entered_batch
from slotmesh.calls.id_ranges import among


class _Entry(NamedTuple):
    """A running call."""

    drive: Drive
    recipient: Recipient
    timer: asyncio.TimerHandle | None
    """Its deadline."""


class GeneratorExecutor:
    """Executes work of methods that yield."""

    def __init__(
        self, environment: HandlerEnvironment, in_thread: InThread, handler_loop: HandlerLoop | None = None
    ) -> None:
        """`in_thread` steps `def` methods; `handler_loop` steps `async def` methods if it is not the current loop."""
        self._methods, self._sink, errors, self._now = environment
        self._own_loop = handler_loop.loop if handler_loop is not None and handler_loop.is_own else None
        self._in_thread = in_thread
        self._turns = TurnClaims()
        self._loop = asyncio.get_running_loop()
        self._environment = DriveEnvironment(
            sink=self._sink, errors=errors, now=self._now, context=base_context(), lock=threading.Lock()
        )
        self._is_cut_off = False
        """No call may begin any more."""
        self._running: dict[RouterPeer, dict[int, _Entry]] = {}
        """Calls that run or are about to, by link and run id. No link has an empty entry."""

    def start(self, work: WorkCommand) -> None:
        if isinstance(work, StartCalls):
            self._start_calls(work)
        elif isinstance(work, StartTurn):
            self._continue_turn(work, work.lo)
        else:
            self._invoke(BatchRun(work, self._methods[work.method], self._now, failure_of), is_first=True)

    def hold(self, turn: StartTurn) -> None:
        self._turns.hold(turn)

    def recall(self, is_wanted: Callable[[ReplicaRun], bool]) -> list[StartCalls | StartBatch]:
        del is_wanted
        return []

    async def close(self) -> None:
        drives = {entry.drive for running in self._running.values() for entry in running.values()}
        tasks = [task for task in [drive.end() for drive in drives] if task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_S)

    # -- from routers ----------------------------------------------------------------------------------------------

    def take(self, link: RouterPeer, run_ids: Iterable[int], counts: Iterable[int]) -> None:
        """Applies the router's acknowledgement of `counts` values of these calls. Unknown calls are ignored."""
        if running := self._running.get(link):
            for run_id, count in zip(run_ids, counts, strict=False):
                if (entry := running.get(run_id)) is not None:
                    entry.drive.take(entry.recipient, count)

    def take_all(self, link: RouterPeer) -> None:
        """Counts all values as taken: the router has half-closed and acknowledges no more."""
        for entry in list(self._running.get(link, {}).values()):
            entry.drive.take(entry.recipient, MAX_CREDIT.values)

    def cancel(self, link: RouterPeer, ranges: Iterable[tuple[int, int]]) -> None:
        """Cancels the router's running calls in these ranges of run ids, both ends included."""
        if running := self._running.get(link):
            for first, last in ranges:
                for run_id in among(running, first, last):
                    entry = running.get(run_id)  # cancelling one may end others
                    if entry is not None and entry.recipient.run.ends_with_caller:
                        entry.drive.cancel(entry.recipient, CANCELLED, TAKEN_BACK)

    def abandon(self, link: RouterPeer) -> None:
        for entry in list(self._running.get(link, {}).values()):
            run = entry.recipient.run
            outlives = run.record is not None or not run.ends_with_caller or run.options.no_reply
            if entry.recipient.takes_values or not outlives:
                entry.drive.cancel(entry.recipient, CANCELLED, TAKEN_BACK)

    def cut_off(self) -> None:
        """Hands calls back that have not begun, at the time they would begin."""
        self._is_cut_off = True
        for running in list(self._running.values()):
            for entry in list(running.values()):
                entry.drive.cancel(entry.recipient, None, CUT_OFF)

    # -- work ------------------------------------------------------------------------------------------------------

    def _start_calls(self, work: StartCalls) -> None:
        run, lo, sink = work.run, work.lo, self._sink
        work.lo = work.hi
        if (failure := failure_of(run)) is not None:
            sink.failed(run, lo, work.hi - lo, failure)
            sink.post(CallsEnded(run, work.hi - lo))
            return

        def then_of(index: int) -> Callable[[bool], None]:
            def then(has_begun: bool) -> None:
                if has_begun:
                    sink.post(CallsEnded(run, 1, waited=True))
                else:
                    sink.post(WorkReturned(StartCalls(run, index, index + 1)))

            return then

        for index in range(lo, work.hi):
            self._drive_call(run, index, then_of(index))

    def _continue_turn(self, turn: StartTurn, index: int) -> None:
        """Starts the next call of the turn, or ends the turn if none may start."""
        run, sink = turn.run, self._sink
        failure = failure_of(run)
        while (found := self._turns.claim(turn, index, self._now(), most=1)) is not None:
            if isinstance(found, Skip):
                sink.failed(run, index, found.hi - index, found.failure)
                index = found.hi
                continue
            if failure is not None:
                sink.failed(run, index, 1, failure)
                index += 1
                continue

            def then(has_begun: bool, index: int = index) -> None:
                if has_begun:
                    self._continue_turn(turn, index + 1)
                else:
                    sink.post(TurnEnded(turn, index))

            self._drive_call(run, index, then)
            return
        sink.post(TurnEnded(turn, index))

    def _drive_call(self, run: ReplicaRun, index: int, then: Callable[[bool], None]) -> None:
        method = self._methods[run.options.method]
        options, payload = run.options, run.payloads[index]
        generator_run = GeneratorRun(
            method=method.name,
            generate=lambda: method.start(options.content_type)(payload),
            values_of=None,
            recipients=(recipient_of(run, index),),
            place=SinglePlace(run, index, self._now),
            may_begin=lambda: not self._is_cut_off and isinstance(claim(run, index, index + 1, self._now()), StartNow),
            enter=lambda: entered(run),
            then=then,
        )
        self._drive(method, generator_run)

    def _invoke(self, left: BatchRun, *, is_first: bool) -> None:
        """Starts the next invocation of the batch. Until one has begun, the batch can be handed back as a whole."""
        batch, method, sink = left.batch, left.method, self._sink
        invocation = left.next()
        if invocation is None or not is_first:
            deliver(left.take_failed(), sink)
        if invocation is None:
            sink.post(BatchEnded(batch))
            return

        recipients = [recipient_of(run, index) for run, lo, hi in invocation.parts for index in range(lo, hi)]

        def begins() -> bool:
            if not is_first:
                return True
            if self._is_cut_off or not left.may_begin:
                return False
            if failed := left.take_failed():
                self._loop.call_soon_threadsafe(deliver, failed, sink, context=self._environment.context)
            return True

        def then(has_begun: bool) -> None:
            if has_begun:
                self._invoke(left, is_first=False)
                return
            cancelled = [(each.run, each.index, each.index + 1) for each in recipients if each.verdict is CANCELLED]
            sink.post(WorkReturned(batch, cancelled))

        def generate() -> Any:
            batch.runner = left.begin(invocation)
            return batch.runner

        generator_run = GeneratorRun(
            method=method.name,
            generate=generate,
            values_of=lambda value: invocation.checked(value, method),
            recipients=recipients,
            place=batch_place(invocation.parts, self._now),
            may_begin=begins,
            enter=lambda: entered_batch(invocation.parts, self._now()),
            then=then,
        )
        self._drive(method, generator_run)

    # -- calls -----------------------------------------------------------------------------------------------------

    def _drive(self, method: HandlerMethod, generator_run: GeneratorRun) -> None:
        """Starts a drive for the generator_run, and keeps it in `_running` until it ends."""
        then, recipients = generator_run.then, generator_run.recipients

        def over(has_begun: bool) -> None:
            for recipient in recipients:
                self._forget(recipient)
            then(has_begun)

        generator_run = replace(generator_run, then=over)
        drive: Drive
        if method.kind.is_async:
            drive = AsyncDrive(generator_run, self._environment, self._own_loop)
        else:
            drive = ThreadDrive(generator_run, self._environment, self._in_thread)
        for recipient in recipients:
            run = recipient.run
            timer = None
            if run.deadline < inf and run.ends_with_caller:
                left_s = max(run.deadline - self._now(), 0.0)
                timer = self._loop.call_later(
                    left_s, drive.cancel, recipient, EXPIRED, OVERDUE, context=self._environment.context
                )
            self._running.setdefault(run.link, {})[run.first + recipient.index] = _Entry(drive, recipient, timer)
        drive.start()

    def _forget(self, recipient: Recipient) -> None:
        run = recipient.run
        running = self._running[run.link]
        timer = running.pop(run.first + recipient.index).timer
        if timer is not None:
            timer.cancel()
        if not running:
            del self._running[run.link]
