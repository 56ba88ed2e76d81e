"""The features of the matrix.

`is_whole` says whether calls of one lane are one run, so that one turn may execute them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from replica_service.convert.slots import Granted
from replica_service.core.call_metadata import ReplicaCallOptions
from replica_service.core.events import DispatchReceived, ReplicaTimePassed, StampEchoed
from replica_service.core.runs import ReplicaRun
from replica_service.core.session_records import Record
from replica_service.shell.links.direct_slots import DirectSlots, ReservationTerms
from slotmesh.codec import JSON, OCTET_STREAM
from slotmesh.errors import Executed, Reason
from tests.support.fakes.clock import FakeClock
from tests.support.wait import wait_until
from tests.unit.replica.feature_kinds import ENCODED, KINDS, Kind, Lane, calls, outcome_of, running
from tests.unit.replica.hosting import Hosting, RememberingOutbox, open_link

Cell = Callable[[Hosting, Kind, bool], Awaitable[None]]
FEATURES: dict[str, Cell] = {}


def feature(cell: Cell) -> Cell:
    FEATURES[cell.__name__] = cell
    return cell


# -- features ----------------------------------------------------------------------------------------------------------


@feature
async def results(host: Hosting, kind: Kind, is_whole: bool) -> None:
    count = 3 if is_whole else 1
    run = calls(host, kind, [b"%d" % number for number in range(count)])
    await host.execute(run)
    assert [outcome_of(host, run.first + at) for at in range(count)] == host.payloads(run)


@feature
async def ordering(host: Hosting, kind: Kind, is_whole: bool) -> None:
    """One at a time, in order; calls without a key go on beside it."""
    lane = Lane(host, kind, [b"wait1", b"2", b"3"], is_whole=is_whole)
    await lane.begin(b"wait1")
    await host.execute(calls(host, KINDS[0], [b"beside"]))
    assert host.handler.started == [b"wait1", b"beside"]
    host.handler.gate.set()
    await host.answered(4)
    assert host.handler.started == [b"wait1", b"beside", b"2", b"3"]
    assert [lane.outcome(at) for at in range(3)] == [b"wait1", b"2", b"3"]


@feature
async def lanes_that_continue(host: Hosting, kind: Kind, is_whole: bool) -> None:
    lane = Lane(host, kind, [b"1", b"fail", b"3"], is_whole=is_whole)
    await lane.begin(b"1", b"fail", b"3")
    await host.answered(3)
    assert (lane.outcome(0), lane.failure(1), lane.outcome(2)) == (b"1", (Reason.HANDLER_ERROR, Executed.YES), b"3")


@feature
async def lanes_that_stop(host: Hosting, kind: Kind, is_whole: bool) -> None:
    lane = Lane(host, kind, [b"1", b"fail", b"3", b"4"], is_whole=is_whole, stop_generation=1)
    await lane.begin(b"1", b"fail")
    await host.answered(4)
    assert (lane.outcome(0), lane.failure(1)) == (b"1", (Reason.HANDLER_ERROR, Executed.YES))
    assert lane.failure(2) == lane.failure(3) == (Reason.PREDECESSOR_FAILED, Executed.NO)
    later = Lane(host, kind, [b"5"], is_whole=is_whole, first_id=5, stop_generation=2)
    await later.begin(b"1", b"fail", b"5")


@feature
async def lanes_that_stop_where_one_is_taken_back(host: Hosting, kind: Kind, is_whole: bool) -> None:
    """Whatever becomes of it; its router hears where, but for calls whose outcome it has then."""
    lane = Lane(host, kind, [b"wait1", b"2", b"3"], is_whole=is_whole, stop_generation=1)
    await lane.begin(b"wait1")
    lane.cancel(0, tells_stopped=True)
    assert host.outbox.stopped_at == [(lane.run_id(0), lane.run_id(0))]
    host.handler.gate.set()
    await host.answered(3)
    assert host.handler.started == [b"wait1"]
    assert lane.failure(1) == lane.failure(2) == (Reason.PREDECESSOR_FAILED, Executed.NO)


@feature
async def cancelling_before_the_start(host: Hosting, kind: Kind, is_whole: bool) -> None:
    lane = Lane(host, kind, [b"wait1", b"2", b"3"], is_whole=is_whole)
    await lane.begin(b"wait1")
    lane.cancel(1)
    host.handler.gate.set()
    await host.answered(3)
    assert (lane.failure(1), lane.outcome(2)) == ((Reason.CANCELLED, Executed.NO), b"3")
    assert host.handler.started == [b"wait1", b"3"]


@feature
async def cancelling_while_it_runs(host: Hosting, kind: Kind, is_whole: bool) -> None:
    """Code that goes on has its outcome all the same; what waits behind it runs."""
    lane = Lane(host, kind, [b"wait1", b"2"], is_whole=is_whole)
    await lane.begin(b"wait1")
    lane.cancel(0)
    if kind.can_interrupt:
        await host.answered(2)
    host.handler.gate.set()
    await host.answered(2)
    if kind.ends_as_cancelled:
        assert lane.failure(0) == (Reason.CANCELLED, Executed.UNKNOWN)
    else:
        assert lane.outcome(0) == b"wait1"
    assert lane.outcome(1) == b"2"


@feature
async def deadlines_before_the_start(host: Hosting, kind: Kind, is_whole: bool) -> None:
    lane = Lane(host, kind, [b"wait1", b"2", b"3"], is_whole=is_whole, time_left_s=1.0)
    await lane.begin(b"wait1")
    advance(host, 1.0)
    host.handler.gate.set()
    await host.answered(3)
    assert lane.failure(1) == lane.failure(2) == (Reason.DEADLINE_IN_QUEUE, Executed.NO)
    assert host.handler.started == [b"wait1"]


@feature
async def deadlines_that_pass_while_arguments_are_decoded(host: Hosting, kind: Kind, is_whole: bool) -> None:
    decoding_takes(host, kind, 1.0)
    lane = Lane(host, kind, [ENCODED, ENCODED], is_whole=is_whole, time_left_s=1.0, content_type=JSON)
    host.engine.submit(lane.runs)
    await host.answered(2)
    assert lane.failure(0) == lane.failure(1) == (Reason.DEADLINE_IN_QUEUE, Executed.NO)
    assert not host.handler.started


@feature
async def links_that_are_not_fresh(host: Hosting, kind: Kind, is_whole: bool) -> None:
    lane = Lane(host, kind, [b"wait1", b"2"], is_whole=is_whole)
    await lane.begin(b"wait1")
    host.link.fresh_until = host.clock.now()
    host.handler.gate.set()
    await wait_until(lambda: host.link.parked and not host.engine.scheduler.in_use)
    assert host.handler.started == [b"wait1"]
    host.engine.post(StampEchoed(host.link, host.clock.now()))
    await host.answered(2)
    assert [lane.outcome(0), lane.outcome(1)] == [b"wait1", b"2"]


@feature
async def links_that_go_stale_while_arguments_are_decoded(host: Hosting, kind: Kind, is_whole: bool) -> None:
    decoding_takes(host, kind, 1.0)
    host.link.fresh_until = host.clock.now() + 1.0
    lane = Lane(host, kind, [ENCODED, ENCODED], is_whole=is_whole, content_type=JSON)
    host.engine.submit(lane.runs)
    await wait_until(lambda: host.link.parked and not host.engine.scheduler.in_use)
    assert not host.handler.started
    host.engine.post(StampEchoed(host.link, host.clock.now()))
    await host.answered(2)
    assert host.handler.started == [b"1", b"1"]
    assert not host.outbox.failures_of


@feature
async def no_reply(host: Hosting, kind: Kind, is_whole: bool) -> None:
    lane = Lane(host, kind, [b"1", b"2"], is_whole=is_whole, no_reply=True, streaming=False)
    await lane.begin(b"1", b"2")
    await host.answered(2)
    assert host.outbox.ended_well == {lane.run_id(0), lane.run_id(1)}
    assert not host.outbox.results_of
    assert not host.outbox.values_of


@feature
async def streaming(host: Hosting, kind: Kind, is_whole: bool) -> None:
    """A method that returns gives one value to whoever takes several."""
    lane = Lane(host, kind, [b"1", b"2"], is_whole=is_whole, streaming=True)
    await lane.begin(b"1", b"2")
    await host.answered(2)
    assert host.outbox.values_of == {lane.run_id(0): [b"1"], lane.run_id(1): [b"2"]}
    assert host.outbox.ended_well == {lane.run_id(0), lane.run_id(1)}


@feature
async def batches(host: Hosting, kind: Kind, is_whole: bool) -> None:
    """Calls of several callers, and several of one; batch methods get them together."""
    other = RememberingOutbox()
    link, _ = open_link(host.engine)
    link.outbox = other
    mine = [b"wait", b"mine"] if is_whole else [b"wait"]
    if kind.is_batched:
        getattr(host.handler, kind.method).set_max_batch_size(len(mine) + 1)
    host.engine.submit([calls(host, kind, mine), calls(host, kind, [b"theirs"], link=link)])
    host.handler.gate.set()
    await host.answered(len(mine))
    await wait_until(lambda: other.order)
    assert sorted(host.handler.started) == sorted([*mine, b"theirs"])
    assert host.engine.counters.batches == (1 if kind.is_batched else 0)


@feature
async def links_that_end(host: Hosting, kind: Kind, is_whole: bool) -> None:
    """What runs of a caller that is gone ends, or is heard by nobody; what waits never starts."""
    link, _ = open_link(host.engine)
    link.outbox = outbox = RememberingOutbox()
    parts = [[b"wait1", b"2"]] if is_whole else [[b"wait1"], [b"2"]]
    host.engine.submit([calls(host, kind, part, key="k", link=link) for part in parts])
    await running(host, b"wait1")
    host.engine.close(link)
    if kind.can_interrupt:
        await asyncio.wait_for(host.engine.idle(), 5)
    host.handler.gate.set()
    await asyncio.wait_for(host.engine.idle(), 5)
    assert host.handler.started == [b"wait1"]
    assert not outbox.values_of


@feature
async def draining(host: Hosting, kind: Kind, is_whole: bool) -> None:
    """What runs ends, what waits is handed back."""
    lane = Lane(host, kind, [b"wait1", b"2", b"3"], is_whole=is_whole)
    await lane.begin(b"wait1")
    host.engine.drain()
    host.handler.gate.set()
    await host.answered(3)
    assert lane.outcome(0) == b"wait1"
    assert lane.failure(1) == lane.failure(2) == (Reason.DRAINING, Executed.NO)
    assert host.handler.started == [b"wait1"]


@feature
async def the_end_of_the_grace(host: Hosting, kind: Kind, is_whole: bool) -> None:
    lane = Lane(host, kind, [b"wait1", b"2", b"3"], is_whole=is_whole)
    await lane.begin(b"wait1")
    host.engine.cut_off()
    interrupts = kind.can_interrupt or kind.method == "batched"
    if interrupts:
        await host.answered(3)
    host.handler.gate.set()
    await host.answered(3)
    if interrupts or kind.streams:
        assert lane.failure(0) == (Reason.DRAINING, Executed.UNKNOWN)
    else:
        assert lane.outcome(0) == b"wait1"
    assert lane.failure(1) == lane.failure(2) == (Reason.DRAINING, Executed.NO)
    assert host.handler.started == [b"wait1"]


@feature
async def sessions_that_move(host: Hosting, kind: Kind, is_whole: bool) -> None:
    """What runs goes on, and the next router hears how it ends; what waits is handed back, and never starts.

    An iteration is its connection's, so nobody asks how it ends.
    """
    lane = Lane(host, kind, [b"wait1", b"2", b"3"], is_whole=is_whole)
    await lane.begin(b"wait1")
    ((_, _, report),) = host.engine.reconcile([("s", 2, [(1, 3)])])
    assert list(report.running) == [(1, 1)]
    outbox = await asked_again(host, kind)
    host.handler.gate.set()
    await host.answered(3)
    assert lane.failure(1) == lane.failure(2) == (Reason.SESSION_FENCED, Executed.NO)
    if not kind.streams:
        await wait_until(lambda: outbox.order)
        assert outbox.results_of == {1: b"wait1"}
    assert host.handler.started == [b"wait1"]


async def asked_again(host: Hosting, kind: Kind) -> RememberingOutbox:
    """The router where the session is now wants the outcome of the first call."""
    link, _ = open_link(host.engine)
    link.outbox = outbox = RememberingOutbox()
    options = ReplicaCallOptions(method=kind.method, content_type=OCTET_STREAM, ordering_key="k")
    asking = ReplicaRun(link, 1, [b""], options, "e", host.clock.now())
    asking.record = Record("s", 2, range(1, 2), 1, attempt=0, recovers=True)
    host.engine.submit([asking])
    return outbox


@feature
async def slots(host: Hosting, kind: Kind, is_whole: bool) -> None:
    """A call in a slot starts at once, though no permit is left."""
    granted = await DirectSlots(host.engine, host.clock).reserve(ReservationTerms("e", 10.0), None)
    assert isinstance(granted, Granted)
    rest = [b"wait%d" % number for number in range(3)]
    host.engine.submit([calls(host, KINDS[0], rest)] if is_whole else [calls(host, KINDS[0], [it]) for it in rest])
    await wait_until(lambda: len(host.handler.started) == 3)
    run = calls(host, kind, [b"1"])
    host.engine.post(DispatchReceived(run, granted.slot.secret))
    await host.answered(1)
    assert outcome_of(host, run.first) == b"1"


@feature
async def times_of_calls(host: Hosting, kind: Kind, is_whole: bool) -> None:
    """Each counts once, with what it ran and what it waited before: by itself, without a reply, in a lane."""
    alone = calls(host, kind, [b"wait1"]) if is_whole else calls(host, kind, [b"wait1"], no_reply=True, streaming=False)
    host.engine.submit([alone])
    await running(host, b"wait1")
    advance(host, 2.0)
    host.handler.gate.set()
    await host.until_idle()
    times = host.engine.scheduler.call_times
    assert (sum(times.runs.counts), times.runs.total, times.waits.total) == (1, 2.0, 0.0)
    host.handler.gate.clear()
    lane = Lane(host, kind, [b"wait2", b"3"], is_whole=is_whole)
    await lane.begin(b"wait1", b"wait2")
    advance(host, 2.0)
    host.handler.gate.set()
    await host.until_idle()
    assert (sum(times.runs.counts), times.runs.total) == (3, 4.0)
    assert (sum(times.waits.counts), times.waits.total) == (3, 2.0), "the second call of the lane waits for the first"


# -- what the clock does -----------------------------------------------------------------------------------------------


def advance(host: Hosting, seconds: float) -> None:
    assert isinstance(host.clock, FakeClock)
    host.clock.advance(seconds)
    host.engine.post(ReplicaTimePassed())


def decoding_takes(host: Hosting, kind: Kind, seconds: float) -> None:
    """The clock jumps once, when the next arguments have been decoded."""
    assert isinstance(host.clock, FakeClock)
    clock, method, left = host.clock, host.engine.methods[kind.method], [seconds]

    def then(decode: Any) -> Any:
        def decoded(*args: Any) -> Any:
            value = decode(*args)
            if left:
                clock.advance(left.pop())
            return value

        return decoded

    method._decoder._decoders[JSON] = then(method._decoder.of(JSON))
    split = method.columns.split

    class Columns:
        def __getattr__(self, name: str) -> Any:
            return then(split) if name == "split" else getattr(columns, name)

    columns = method.columns
    method.columns = Columns()  # type: ignore[assignment]
