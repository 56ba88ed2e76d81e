"""The queues with calls that wait to be sent, served in turn.

Purpose: decides which calls the next frame takes. Pure.
Invariants: nothing overtakes within a queue. Tenants take turns, and so do the queues of each, so that a map of a
million calls does not keep a single call waiting. A call whose future is done (it was cancelled) does not leave at all.
Lanes that differ only in their key have their few waiting calls in one run, in the queue of their group: 512 lanes with
a call each cost one run, not 512.
Owner: the endpoint's `CallStream`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from slotmesh.client.calls.buffer import BufferShare, BufferShares
from slotmesh.client.calls.call_spec import CallSpec, request_bytes
from slotmesh.client.calls.maps import Gather
from slotmesh.client.calls.queues import GAVE_UP, LaneGroup, QueueTurns, TenantShares
from slotmesh.client.calls.sent_parts import SentPart
from slotmesh.client.calls.waiting_runs import IsOut, WaitingRun, WaitingRunQueue
from slotmesh.streams.limits import CHUNK_BYTES, MAX_FRAME_BYTES
from slotmesh.v1 import call_pb2

FRAME_CALLS = 8_192
"""Calls of one frame at most."""

TURN_CALLS = 1_024
"""Calls that a queue may put into a frame at a time while another one waits."""

COLUMN_CALLS = 8
"""Calls that a lane may have in a column: more are a run of their own, which is cheaper where there are many."""


class LargeCalls(NamedTuple):
    """Calls with more bytes than the whole window, of which one may be unanswered beside all others."""

    over: int
    """The window's bytes."""
    is_free: bool
    """Whether none is unanswered."""


def _requests_of(parts: Sequence[SentPart]) -> int:
    """What the last of them has of HTTP requests beside its payloads, bytes."""
    return sum(map(request_bytes, parts[-1].payloads)) if parts and parts[-1].spec.options.http else 0


class CallOutbox:
    """What waits to be sent. True while something does."""

    __slots__ = ("refused", "rota", "shares")

    def __init__(self, shares: BufferShares | None = None) -> None:
        """`shares`: count the waiting calls that the `CallStream` adds; None: no bound."""
        self.shares = shares or BufferShares()
        self.rota = QueueTurns()
        """To be read: empty where nothing waits, which is asked for each frame."""
        self.refused: list[SentPart] = []
        """To be read: `take_refused` has something to give."""

    def __bool__(self) -> bool:
        return bool(self.rota)

    @property
    def has_wanted(self) -> bool:
        """Whether a caller waits for one of the calls: not all are cancelled."""
        return any(run.has_wanted for queue in self.rota.every() for run in queue.runs)

    def count(self, most: int) -> int:
        """How many calls wait; more than `most` need not be counted."""
        calls = 0
        for queue in self.rota:
            for run in queue.runs:
                calls += len(run)
                for follower in run.followers:
                    calls += sum(map(len, follower.runs))
                    if calls >= most:
                        return calls
                if calls >= most:
                    return calls
        return calls

    @property
    def first_wire(self) -> call_pb2.CallOptions:
        """The options of what leaves first. Only while something waits."""
        queue = self.rota.first
        return queue.wire if isinstance(queue, LaneGroup) else queue.runs[0].spec.wire

    def share_of(self, spec: CallSpec) -> BufferShare:
        """In which waiting calls of this spec are counted."""
        return self.shares.of(spec.tenant)

    def open_run(self, spec: CallSpec) -> WaitingRun:
        """A run that takes the spec's next call, empty if it is new: the caller must append the call immediately."""
        queue = spec.queue
        if spec.group is not None and not queue.runs:
            last, column = queue.column, spec.group.tail
            if last is None or not last.payloads:
                if column is None or len(column.payloads) >= TURN_CALLS:
                    column = self._open_column(spec, spec.group)
                queue.column, queue.in_column = column, 0
                last = column
            if last is column and column.specs is not None and queue.in_column < COLUMN_CALLS:
                queue.in_column += 1
                queue.unanswered += 1
                column.specs.append(spec)
                return column
        run = WaitingRun(spec, [], [], share=self.share_of(spec))
        self._append(queue, run)
        queue.tail = run
        return run

    def add_map(self, spec: CallSpec, payloads: list[bytes], gather: Gather, offset: int) -> None:
        """Calls whose outcomes `gather` takes, the first one at `offset`."""
        self._append(spec.queue, WaitingRun(spec, payloads, [], gather, offset, share=self.share_of(spec)))
        spec.queue.tail = None

    def add_again(self, spec: CallSpec, payload: bytes, sink: Any, since: float) -> None:
        """A call of no lane that had left before, and has begun nowhere. Its timeout counts from `since` on."""
        run = WaitingRun(spec, [payload], [sink], share=self.share_of(spec))
        run.share.put(1, len(payload))
        if spec.options.timeout_s is not None:
            run.made_at = since
        self._append(spec.queue, run)
        spec.queue.tail = None

    def take(self, calls: int, nbytes: int, large: LargeCalls, *, shares: TenantShares | None = None) -> list[SentPart]:
        """Takes the parts of the next frame.

        At most `calls` calls of `nbytes` bytes, which is what the window has left. `large`: one with more bytes than
        the window may leave at any time; the others of that size wait, and their queues with them. `shares`: what each
        tenant may add; None: all. Options of all batches have as many bytes as payloads may have.
        """
        parts: list[SentPart] = []
        rota, lines, calls = self.rota, self.rota.lines, min(calls, FRAME_CALLS)
        room = options_room = MAX_FRAME_BYTES
        while lines and calls > 0 and options_room > 0:
            queue = (queues := lines[0].queues)[0]
            run = queue.runs[0]
            options_room -= run.spec.wire_bytes
            if run.spec.stop_generation and self._is_cut(run):
                continue
            is_alone = len(lines) == 1 == len(queues) and not run.spec.options.http
            sizes = run.sizes(calls if is_alone else min(calls, TURN_CALLS))
            if shares is not None and not shares.trim(run.spec.tenant, sizes):
                rota.pass_over_tenant()
                continue
            if sizes and sizes[0] > large.over:
                if not large.is_free:
                    rota.pass_over()
                    continue
                large = LargeCalls(large.over, False)
                parts.append(run.split(1, sizes[0]))
                if run.specs is None:
                    queue.unanswered += 1
                calls -= 1
            elif sizes:
                total = inline = sum(sizes)
                if total > nbytes or total > room:
                    fitting = fitting_calls(sizes, nbytes, room)
                    if not fitting and (parts or sizes[0] > nbytes):
                        break
                    del sizes[max(fitting, 1) :]
                    total = sum(sizes)
                    inline = sum(inline_sizes(sizes))
                parts.append(run.split(len(sizes), total))
                if run.specs is None:
                    queue.unanswered += len(sizes)
                calls, nbytes, room = calls - len(sizes), nbytes - total, room - inline
            options_room -= _requests_of(parts)
            queue.tail = None if queue.tail is run else queue.tail
            self._next_turn(queue, run)
        rota.end_frame()
        return parts

    def drain(self) -> Iterator[SentPart]:
        """Takes everything, never to be sent."""
        while self.rota:
            queue = self.rota.first
            run = queue.runs[0]
            queue.tail = None
            if sizes := run.sizes(len(run)):
                part = run.split(len(sizes), sum(sizes))
                if run.specs is None:
                    queue.unanswered += part.count
                yield part
            self._next_turn(queue, run)

    def seal(self, now: float) -> None:
        """What waits takes no more calls, as far as it has a timeout, which counts from now on at the latest."""
        for queue in self.rota.every():
            for run in queue.runs:
                if run.made_at is None and run.spec.options.timeout_s is not None:
                    run.made_at = now
                    if queue.tail is run:
                        queue.tail = None

    def take_overdue(self, now: float) -> tuple[list[SentPart], list[SentPart]]:
        """Takes out the calls whose timeouts have passed while they waited, and what stops behind them."""
        if not any(run.is_overdue(now) for queue in self.rota.every() for run in queue.runs):
            return [], []
        overdue: list[SentPart] = []
        behind: list[SentPart] = []
        failed: dict[WaitingRunQueue, int] = {}

        def is_overdue(spec: CallSpec, _payload: bytes, _sink: Any) -> bool:
            failed[spec.queue] = max(failed.get(spec.queue, 0), spec.stop_generation)
            return True

        def is_behind(spec: CallSpec, _payload: bytes, _sink: Any) -> bool:
            return 0 < spec.stop_generation <= failed.get(spec.queue, 0)

        self._take(lambda run: (is_overdue, overdue) if run.is_overdue(now) else (is_behind, behind), self.rota.every())
        return overdue, behind

    def drop_cancelled(self) -> None:
        """Makes room: cancelled calls wait no more, but those of lanes that stop, by which later ones are refused."""
        for queue in self.rota.every():
            for run in queue.runs:
                if not run.spec.stop_generation:
                    run.drop_cancelled(len(run))

    def take_out(self, is_out: IsOut, queues: Iterable[WaitingRunQueue] | None = None) -> list[SentPart]:
        """Takes out calls that wait, never to be sent. `queues`: of these; None: of all."""
        parts: list[SentPart] = []
        self._take(lambda _: (is_out, parts), self.rota.every() if queues is None else queues)
        return parts

    def _take(
        self, choose: Callable[[WaitingRun], tuple[IsOut, list[SentPart]]], queues: Iterable[WaitingRunQueue]
    ) -> None:
        """Takes calls out of runs, in order. `choose`: which calls of a run, and the list that takes them."""
        for queue in queues:
            runs: deque[WaitingRun] = deque()
            for run in queue.runs:
                is_out, parts = choose(run)
                staying, out = run.take_out(is_out)
                runs.extend(filter(None, staying))
                parts += out
                if run.specs is None:
                    queue.unanswered += sum(part.count for part in out)
                elif not run:
                    self.rota.extend(run.followers)
            if queue.tail not in runs:
                queue.tail = None
            if queue.runs and not runs:
                self._leave(queue)
            queue.runs = runs

    def take_oversize(self, limit: int) -> list[SentPart]:
        """Takes out the calls with larger payloads, and what stops behind them."""
        stopped: set[tuple[WaitingRunQueue, int]] = set()

        def is_out(spec: CallSpec, payload: bytes, _sink: Any) -> bool:
            if len(payload) > limit:
                stopped.add((spec.queue, spec.stop_generation))
                return True
            return spec.stop_generation > 0 and (spec.queue, spec.stop_generation) in stopped

        return self.take_out(is_out)

    def take_stopped(self, queue: WaitingRunQueue, generation: int, *, from_cancelled: bool = False) -> list[SentPart]:
        """Takes out what waits of this generation of a lane, or older.

        `from_cancelled`: only from the first call on that its caller took back.
        """
        stops = not from_cancelled

        def is_out(spec: CallSpec, _payload: bytes, sink: Any) -> bool:
            nonlocal stops
            if spec.queue is not queue or not 0 < spec.stop_generation <= generation:
                return False
            stops = stops or sink.done()
            return stops

        queue.tail = None
        column = queue.column
        groups = [column.spec.group] if column is not None and column.payloads and column.spec.group else []
        return self.take_out(is_out, [*groups, queue])

    def take_refused(self) -> list[SentPart]:
        """Calls that `take` has passed over: before them in a lane that stops at failures one was taken back."""
        refused, self.refused = self.refused, []
        return refused

    def _is_cut(self, run: WaitingRun) -> bool:
        """Whether calls were taken out, because they are behind one that its caller took back."""
        if not (cancelled := run.cancelled_specs()):
            return False
        for spec in cancelled:
            if spec.queue.stop is not None:
                spec.queue.stop.fail(spec.queue, spec.stop_generation, 0, GAVE_UP)
            self.refused += self.take_stopped(spec.queue, spec.stop_generation, from_cancelled=True)
        return True

    def _leave(self, queue: WaitingRunQueue) -> None:
        """The queue has nothing that waits any more."""
        if not self.rota.remove(queue) and queue.column is not None:
            queue.column.followers.remove(queue)

    def _open_column(self, spec: CallSpec, group: LaneGroup) -> WaitingRun:
        column = WaitingRun(spec, [], [], specs=[], share=self.share_of(spec))
        self._append(group, column)
        group.tail = column
        return column

    def _append(self, queue: WaitingRunQueue, run: WaitingRun) -> None:
        queue.runs.append(run)
        if len(queue.runs) == 1:
            column = queue.column
            if column is not None and column.payloads:
                column.followers.append(queue)
            else:
                self.rota.append(queue)

    def _next_turn(self, queue: WaitingRunQueue, run: WaitingRun) -> None:
        self.rota.pop()
        if not run:
            queue.runs.popleft()
            self.rota.extend(run.followers)
        if queue.runs:
            self.rota.append(queue)
        else:
            queue.tell_if_idle()


# -- how many calls fit into a frame and into the window ---------------------------------------------------------------


def inline_sizes(sizes: list[int]) -> list[int]:
    """Bytes that payloads of these sizes add to a frame: 0 for those that follow it in chunks."""
    return [0 if size > CHUNK_BYTES else size for size in sizes]


def fitting_calls(sizes: list[int], nbytes: int, room: int) -> int:
    """How many of these calls fit into a window of `nbytes` bytes, and into a frame that has `room` bytes left."""
    fitting = bisect_right(list(accumulate(sizes)), nbytes)
    return min(fitting, bisect_right(list(accumulate(inline_sizes(sizes))), room))
