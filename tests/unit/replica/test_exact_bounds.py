"""Bounds of the replica, each at its edge: exactly as much as the bound passes, one more does not.

The bounds are written here as numbers: a constant that moves fails its line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import pytest

from replica_service.core.call_metadata import ReplicaCallOptions, Weighed
from replica_service.core.events import (
    AttachReceived,
    BatchEnded,
    DispatchReceived,
    Fail,
    Refuse,
    RenewalReceived,
    ReplicaCommand,
    ReplicaTimePassed,
    ReportAttach,
    ReportRenewal,
    RunsReceived,
    SlotCallReceived,
)
from replica_service.core.runs import ReplicaRun, RouterPeer
from replica_service.core.scheduler import ReplicaScheduler
from replica_service.core.session_outcomes import ForgottenSessions, Remnant
from replica_service.core.session_table import SessionTable
from replica_service.core.slot_table import SlotTable
from replica_service.core.work import StartBatch
from slotmesh.errors import Failure, Reason
from slotmesh.handlers import BatchControl, BatchSettings
from tests.unit.replica.scheduler_notes import GATHER_S, run, scheduler
from tests.unit.replica.test_session_memory import Client

SECRET = b"s" * 16


def slotted(max_ongoing: int = 4) -> ReplicaScheduler:
    secrets = count(1)
    return ReplicaScheduler(
        {"plain": None}, max_ongoing=max_ongoing, new_secret=lambda: next(secrets).to_bytes(16, "big")
    )


def refused_in(commands: Sequence[ReplicaCommand]) -> int:
    return sum(command.hi - command.lo for command in commands if isinstance(command, Refuse))


def reserved(core: ReplicaScheduler, link: RouterPeer, lease_s: float, now: float) -> bytes:
    link.last_run_id += 1
    wish = ReplicaRun(link, link.last_run_id, [b""], ReplicaCallOptions(), "e", now)
    wish.lease_s = lease_s
    core.step(RunsReceived([wish]), now)
    return list(core.slots._by_secret)[-1]


# -- amounts ---------------------------------------------------------------------------------------------------------


def _permits_and_prefetch(amount: int) -> bool:
    core = scheduler(max_ongoing=4, prefetch=2)
    core.step(RunsReceived([run(RouterPeer(), 1, 3)]), 0.0)
    return refused_in(core.step(RunsReceived([run(RouterPeer(), 1, amount - 3)]), 0.0)) == 0


def _keyed_window(amount: int) -> bool:
    core, link = scheduler(keyed_window=6), RouterPeer()
    core.step(RunsReceived([run(RouterPeer(), 1, 6, key="k")]), 0.0)  # another router's window is its own
    commands = core.step(RunsReceived([run(link, 1, 3, key="k"), run(link, 4, amount - 3, key="j")]), 0.0)
    return refused_in(commands) == 0


def _slots_of_a_stream(amount: int) -> bool:
    core, router, stream = slotted(amount), RouterPeer(), RouterPeer()
    answers: list[ReportAttach] = []
    for number in range(1, amount + 1):
        secret = reserved(core, router, 100.0, 0.0)
        answers += [
            it
            for it in core.step(AttachReceived(stream, number, secret, "e", 100.0), 0.0)
            if isinstance(it, ReportAttach)
        ]
    assert [it.failure for it in answers[:-1]] == [None] * (amount - 1)
    return answers[-1].failure is None


def _calls_that_fill_a_batch(amount: int) -> bool:
    """Whether a batch waits for more."""
    core = scheduler(max_ongoing=10, max_batch_size=3)
    commands = core.step(RunsReceived([run(RouterPeer(), 1, 1, method="batch")]), 0.0)
    commands += core.step(RunsReceived([run(RouterPeer(), 1, amount, method="batch")]), 0.0)
    return not any(isinstance(it, StartBatch) for it in commands)


def weighing(each: float, max_batch_size: int) -> ReplicaScheduler:
    settings = BatchSettings(max_batch_size=max_batch_size, batch_wait_timeout_s=GATHER_S, batch_size_fn=len)
    return ReplicaScheduler(
        {"batch": BatchControl(settings)}, weigh={"batch": lambda _run, _at: Weighed(each)}, max_ongoing=100
    )


def _weight_that_fills_a_batch(amount: int) -> bool:
    """Whether a batch waits for more: each call weighs a half."""
    core = weighing(0.5, 5)
    commands = core.step(RunsReceived([run(RouterPeer(), 1, amount, method="batch")]), 0.0)
    return not any(isinstance(it, StartBatch) for it in commands)


def _weight_of_one_call(amount: int) -> bool:
    core = weighing(float(amount), 5)
    return not any(
        isinstance(it, Fail) for it in core.step(RunsReceived([run(RouterPeer(), 1, 1, method="batch")]), 0.0)
    )


def _kept_bytes(amount: int) -> bool:
    """Whether the oldest outcome is still kept; each costs 64 bytes besides its payload."""
    client = Client(SessionTable(max_bytes=300))
    for call_id, size in ((1, 36), (2, 36), (3, amount - 200 - 64)):
        record = client.sends([call_id])
        client.table.ended(record, 0, 1, [b"x" * size], size)
    return client.finds(1) is not None


def _kept_runs(amount: int) -> bool:
    client = Client(SessionTable(max_runs=4))
    for call_id in range(1, amount + 1):
        client.has_executed([call_id])
    return client.finds(1) is not None


def _sessions(amount: int) -> bool:
    """Whether all of them are known."""
    table = SessionTable(max_sessions=5)
    for number in range(amount):
        table.meet(f"s{number}", 1, float(number))
    return len(table) == amount


def _forgotten(amount: int) -> bool:
    forgotten = ForgottenSessions(3)
    for number in range(amount):
        forgotten.add(f"s{number}", Remnant(2, 0))
    return forgotten.find("s0") is not None


BOUNDS: dict[str, tuple[Callable[[int], bool], int]] = {
    "permits and prefetch": (_permits_and_prefetch, 6),
    "keyed window of a router": (_keyed_window, 6),
    "slots of a stream": (_slots_of_a_stream, 1024),
    "calls that leave a batch open": (_calls_that_fill_a_batch, 1),
    "calls of half a weight that leave a batch open": (_weight_that_fills_a_batch, 9),
    "weight of one call": (_weight_of_one_call, 5),
    "bytes of kept outcomes": (_kept_bytes, 300),
    "runs with kept outcomes": (_kept_runs, 4),
    "sessions": (_sessions, 5),
    "sessions that are forgotten": (_forgotten, 3),
}


@pytest.mark.parametrize(("admits", "most"), BOUNDS.values(), ids=BOUNDS)
def test_exactly_the_bound_passes_and_one_more_does_not(admits: Callable[[int], bool], most: int) -> None:
    assert admits(most)
    assert not admits(most + 1)


@pytest.mark.parametrize("running", range(4))
def test_a_batch_is_cut_in_time_while_fewer_than_the_most_run(running: int) -> None:
    settings = BatchSettings(max_batch_size=2, batch_wait_timeout_s=GATHER_S, max_concurrent_batches=3)
    core, link = ReplicaScheduler({"batch": BatchControl(settings)}, max_ongoing=100), RouterPeer()
    batches: list[StartBatch] = []
    for at in range(running):
        commands = core.step(RunsReceived([run(link, 1 + 2 * at, 2, method="batch")]), 0.0)
        batches += [it for it in commands if isinstance(it, StartBatch)]
    assert len(batches) == running
    core.step(RunsReceived([run(link, 50, 1, method="batch", arrived=1.0)]), 1.0)
    assert core.next_deadline() == (1.0 + GATHER_S if running < 3 else None)
    if running == 3:
        core.step(BatchEnded(batches[1]), 1.0)
        assert core.next_deadline() == 1.0 + GATHER_S
    assert not [it for it in core.step(ReplicaTimePassed(), 1.0 + GATHER_S - 0.01) if isinstance(it, StartBatch)]
    assert [it.count for it in core.step(ReplicaTimePassed(), 1.0 + GATHER_S) if isinstance(it, StartBatch)] == [1]


# -- moments ---------------------------------------------------------------------------------------------------------


def _attach(now: float) -> bool:
    core = slotted()
    secret = reserved(core, RouterPeer(), 10.0, 0.0)
    (answer,) = (
        it for it in core.step(AttachReceived(RouterPeer(), 1, secret, "e", 5.0), now) if isinstance(it, ReportAttach)
    )
    return answer.failure is not None and answer.failure.reason is Reason.SLOT_EXPIRED


def _call_in_a_held_slot(now: float) -> bool:
    """The lease that counts is that of the stream: 10 s from the hand-over."""
    core, stream = slotted(), RouterPeer()
    secret = reserved(core, RouterPeer(), 3.0, 0.0)
    core.step(AttachReceived(stream, 1, secret, "e", 10.0), 0.0)
    stream.last_run_id += 1
    failed = [it for it in core.step(SlotCallReceived(run(stream, 1, 1), 1), now) if isinstance(it, Fail)]
    return [it.failure.reason for it in failed] == [Reason.SLOT_EXPIRED]


def _dispatch(now: float) -> bool:
    core, link = slotted(), RouterPeer()
    secret = reserved(core, link, 10.0, 0.0)
    failed = [it for it in core.step(DispatchReceived(run(link, 2, 1), secret), now) if isinstance(it, Fail)]
    return [it.failure.reason for it in failed] == [Reason.SLOT_EXPIRED]


def _renewal(now: float) -> bool:
    core, link = slotted(), RouterPeer()
    secret = reserved(core, link, 10.0, 0.0)
    (answer,) = (it for it in core.step(RenewalReceived(link, 7, secret, 5.0), now) if isinstance(it, ReportRenewal))
    return isinstance(answer.answer, Failure)


def _longest_lease(now: float) -> bool:
    """A slot that is renewed again and again ends all the same."""
    table = SlotTable()
    table.grant(SECRET, "e", 200.0, 0.0)
    table.renew(SECRET, 200.0, 199.0)
    return table.expire(now) == 1


def _end_is_remembered(now: float) -> bool:
    table = SlotTable()
    table.grant(SECRET, "e", 10.0, 0.0)
    table.dispatch(SECRET, "e", 0.0)
    table.done(next(iter(table._by_secret.values())), 0.0)
    answer = table.dispatch(SECRET, "e", now)
    assert isinstance(answer, Failure)
    assert answer.reason in {Reason.SLOT_USED, Reason.SLOT_UNKNOWN}
    return answer.reason is Reason.SLOT_UNKNOWN


def _wait_for_a_batch(now: float) -> bool:
    core = scheduler(max_ongoing=10, max_batch_size=5)
    core.step(RunsReceived([run(RouterPeer(), 1, 2, method="batch")]), 0.0)
    return any(isinstance(it, StartBatch) for it in core.step(ReplicaTimePassed(), now))


def _session_is_silent(now: float) -> bool:
    table = SessionTable(ttl_s=60.0)
    for name in ("s1", "s2", "s3"):
        table.meet(name, 1, 0.0)
    table.meet("s2", 1, 30.0)
    table.sweep(now)
    assert len(table) in (3, 1)
    return len(table) == 1


MOMENTS: dict[str, tuple[Callable[[float], bool], float]] = {
    "a lease when a stream takes the slot over": (_attach, 10.0),
    "a lease when a call comes for a held slot": (_call_in_a_held_slot, 10.0),
    "a lease when a call is dispatched": (_dispatch, 10.0),
    "a lease when it is renewed": (_renewal, 10.0),
    "the longest lease": (_longest_lease, 300.0),
    "the end of a slot is remembered": (_end_is_remembered, 300.0),
    "the wait for a batch": (_wait_for_a_batch, 0.5),
    "the silence of sessions": (_session_is_silent, 60.0),
}


@pytest.mark.parametrize(("is_over", "moment"), MOMENTS.values(), ids=MOMENTS)
def test_a_time_is_over_at_exactly_its_end_and_not_before(is_over: Callable[[float], bool], moment: float) -> None:
    assert not is_over(moment - 0.001)
    assert is_over(moment)


# -- identities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epoch", "is_met"), [(1, False), (2, False), (3, True), (4, True)])
@pytest.mark.parametrize("is_forgotten", [False, True])
@pytest.mark.parametrize("session", ["s", "another"])
def test_a_session_is_met_by_its_id_and_its_epoch(epoch: int, is_met: bool, is_forgotten: bool, session: str) -> None:
    table = SessionTable(ttl_s=60.0)
    table.meet("s", 3, 0.0)
    if is_forgotten:
        table.sweep(60.0)
        assert not len(table)
    assert (table.meet(session, epoch, 60.0) is not None) == (is_met or session == "another")


@pytest.mark.parametrize(
    ("owner", "identity", "may_call", "is_anothers"),
    [
        ("client/a", "client/a", None, False),
        ("client/a", "client/a", ["e", "f"], False),
        ("client/a", "client/a", ["f", "e"], False),
        ("client/a", "client/a", ["f"], True),
        ("client/a", "client/a", [], True),
        ("client/a", "client/b", None, True),
        ("client/a", "client/b", ["e"], True),
        ("client/a", "client/b", ["f"], True),
        ("client/a", "client/c", ["e", "f"], True),
        ("client/a", "", None, False),
        ("client/a", "", ["f"], False),
        ("", "client/b", None, False),
        ("", "client/b", ["f", "e"], False),
        ("", "client/b", ["f"], True),
    ],
)
def test_a_slot_is_anothers_by_its_owner_or_by_its_endpoint(
    owner: str, identity: str, may_call: list[str] | None, is_anothers: bool
) -> None:
    table = SlotTable()
    table.grant(SECRET, "e", 10.0, 0.0, owner)
    table.grant(b"t" * 16, "f", 10.0, 0.0, "client/c")
    assert table.is_of_another(SECRET, identity, may_call) is is_anothers
