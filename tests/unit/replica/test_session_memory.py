"""What a replica knows of calls that it was sent twice, and what is left of sessions that it has forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from replica_service.core import session_outcomes
from replica_service.core.call_metadata import ReplicaCallOptions
from replica_service.core.runs import ReplicaRun, RouterPeer, RunRecord
from replica_service.core.session_outcomes import CALL_BYTES, ForgottenSessions, Remnant
from replica_service.core.session_records import Record
from replica_service.core.session_table import SessionReport, SessionTable

TTL_S = 60.0


class Client:
    """One session at a table, over one link."""

    def __init__(self, table: SessionTable, name: str = "s") -> None:
        self.table = table
        self.name = name
        self.link = RouterPeer()
        self._next_run = 1

    def meets(self, epoch: int, now: float = 0.0) -> bool:
        return self.table.meet(self.name, epoch, now) is not None

    def sends(self, ids: Sequence[int], epoch: int = 1) -> RunRecord:
        assert self.meets(epoch)
        run = ReplicaRun(self.link, self._next_run, [b""] * len(ids), ReplicaCallOptions(), "e", 0.0)
        run.record = Record(self.name, epoch, ids, len(ids), attempt=0, recovers=False)
        self._next_run += len(ids)
        self.table.add(run)
        return run.record

    def has_executed(self, ids: Sequence[int], epoch: int = 1) -> RunRecord:
        record = self.sends(ids, epoch)
        self.table.ended(record, 0, len(ids), [b""] * len(ids), 0)
        return record

    def asks(self, epoch: int, first: int, last: int, now: float = 0.0) -> SessionReport:
        self.meets(epoch, now)
        return self.table.reconcile(self.name, epoch, [(first, last)])

    def finds(self, call_id: int) -> RunRecord | None:
        asking: RunRecord = Record(self.name, 1, [call_id], 1, attempt=0, recovers=True)
        ((_, _, record, _),) = self.table.find(asking)
        return record


def test_nobody_looks_at_what_is_asked_of_a_session_that_is_not_known() -> None:
    def ranges() -> Iterator[tuple[int, int]]:
        raise AssertionError("they may be thousands")
        yield

    table = SessionTable()
    table.meet("s", 2, 0.0)
    assert table.reconcile("s", 2, ranges()) == SessionReport([], [], [])


def test_a_call_is_found_beside_one_that_was_sent_again() -> None:
    client = Client(SessionTable())
    first = client.sends(range(1, 6))
    client.table.unstarted(first, 2, 3)
    client.table.ended(first, 0, 2, [b"", b""], 0)
    client.table.ended(first, 3, 5, [b"", b""], 0)
    client.asks(2, 1, 5)
    again = client.has_executed([3], epoch=2)
    assert [client.finds(each) for each in range(1, 6)] == [first, first, again, first, first]


def test_of_calls_that_are_forgotten_unacknowledged_it_does_not_say_that_they_never_started() -> None:
    client = Client(SessionTable(ttl_s=TTL_S))
    client.has_executed([1, 2])
    client.table.sweep(TTL_S)
    assert not len(client.table)
    assert client.asks(2, 1, 2) == SessionReport([], [], [], is_incomplete=True)
    assert not client.asks(3, 3, 9).is_incomplete, "those came later"
    assert client.asks(4, 2, 2).is_incomplete, "who asks next does not know what the last one was told"


def test_what_was_acknowledged_or_never_started_leaves_nothing() -> None:
    client = Client(SessionTable(ttl_s=TTL_S))
    client.has_executed([1])
    client.table.unstarted(client.sends([2]), 0, 1)
    client.table.acknowledge(client.link, [(1, 1)], 0.0)
    client.table.sweep(TTL_S)
    assert client.asks(2, 1, 2) == SessionReport([], [], [])


@pytest.mark.parametrize("why", ["silence", "room"])
def test_an_epoch_that_was_overtaken_stays_so_when_the_session_is_forgotten(why: str) -> None:
    client = Client(SessionTable(ttl_s=TTL_S, max_sessions=1))
    client.meets(3)
    if why == "silence":
        client.table.sweep(TTL_S)
    else:
        Client(client.table, "other").meets(1)
    assert not client.meets(2)
    assert client.meets(3)


def test_who_asks_at_an_epoch_that_was_overtaken_is_told_nothing() -> None:
    client = Client(SessionTable())
    client.has_executed([1])
    client.asks(3, 9, 9)  # all but this was acknowledged elsewhere
    assert client.asks(2, 1, 1) == SessionReport(is_incomplete=True)


def test_of_more_evicted_calls_than_it_remembers_it_does_not_say_that_they_never_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_outcomes, "MAX_EVICTED_RANGES", 4)
    client = Client(SessionTable(max_bytes=CALL_BYTES))
    for call_id in range(1, 20, 2):
        client.has_executed([call_id])
    report = client.asks(2, 1, 19)
    assert report.kept == [(19, 19)]
    assert (1, 1) not in report.evicted
    assert report.is_incomplete
    assert not client.asks(3, 17, 19).is_incomplete, "of these it knows all"


def test_the_oldest_remnants_go_first() -> None:
    forgotten = ForgottenSessions(2)
    for name in "abc":
        forgotten.add(name, Remnant(2, 0))
    assert len(forgotten) == 2
    assert forgotten.find("a") is None
    assert forgotten.find("c") == Remnant(2, 0)


def test_nothing_is_left_of_a_session_that_nobody_can_ask_about() -> None:
    forgotten = ForgottenSessions(2)
    forgotten.add("a", Remnant(1, 0))
    assert not len(forgotten)
