"""The replica's session table against a naive model that knows each call, under arbitrary interleavings."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replica_service.core.call_metadata import ReplicaCallOptions
from replica_service.core.runs import ReplicaRun, RouterPeer, RunRecord
from replica_service.core.session_outcomes import CALL_BYTES
from replica_service.core.session_records import Mark, Record
from replica_service.core.session_table import SessionReport, SessionTable
from slotmesh.calls.id_ranges import merged
from tests.support.examples import examples

TTL_S = 60.0
SESSION = "s"


@dataclass
class Call:
    """What the model knows of one call that was sent here."""

    run: ReplicaRun
    index: int
    epoch: int
    state: str = "pending"
    """pending, kept, evicted (or perhaps still kept), gone (unwanted, acknowledged, unstarted)."""
    payload: bytes = b""
    to: tuple[RouterPeer, int] | None = None
    """Who hears of it, as which run id."""
    sent_as: tuple[RouterPeer, int] | None = None
    """As what it was sent."""
    is_here: bool = True
    """An executor has it."""
    is_acknowledged: bool = False
    """It was, before it had ended."""


def ranges(ids: list[int]) -> list[tuple[int, int]]:
    return merged((each, each) for each in ids)


class SessionMachine(RuleBasedStateMachine):
    @initialize(is_small=st.booleans())
    def start(self, is_small: bool) -> None:
        self.max_bytes = 6 * CALL_BYTES if is_small else 10_000_000
        self.table = SessionTable(max_bytes=self.max_bytes, max_runs=4 if is_small else 1000, ttl_s=TTL_S)
        self.is_small = is_small
        self.now = 100.0
        self.epoch = 0
        self.next_call = 1
        self.next_run = 1
        self.calls: dict[int, Call] = {}
        self.lost_through = 0
        """No call with a greater id was forgotten with its session."""
        self.link = RouterPeer()
        self.connects()

    # -- connections -----------------------------------------------------------------------------------------------

    @rule()
    def connects(self) -> None:
        self.epoch += 1
        overtaken = self.table.meet(SESSION, self.epoch, self.now)
        assert overtaken is not None
        pending = {call.run.first for call in self.calls.values() if call.state == "pending" and call.run.record}
        assert pending == {run.first for run in overtaken.runs if run.record is not None and run.record.pending}
        self.link, self.next_run = RouterPeer(), 1
        for call in self.calls.values():
            call.to = call.sent_as = None

    @precondition(lambda self: self.epoch > 1)
    @rule()
    def an_older_connection_is_refused(self) -> None:
        assert self.table.meet(SESSION, self.epoch - 1, self.now) is None
        assert self.table.reconcile(SESSION, self.epoch - 1, [(1, 1000)]) == SessionReport(is_incomplete=True)

    @rule()
    def link_ends(self) -> None:
        self.table.close(self.link)
        for call in self.calls.values():
            call.to = call.sent_as = None
        self.link, self.next_run = RouterPeer(), 1

    # -- calls -----------------------------------------------------------------------------------------------------

    @rule(gaps=st.lists(st.integers(1, 3), min_size=1, max_size=5), sparse=st.booleans())
    def sent(self, gaps: list[int], sparse: bool) -> None:
        ids: list[int] = []
        for gap in gaps:
            ids.append(self.next_call + (gap - 1 if sparse else 0))
            self.next_call = ids[-1] + 1
        run = self.run_of(range(ids[0], ids[-1] + 1) if not sparse else tuple(ids))
        self.table.add(run)
        for index, call_id in enumerate(ids):
            self.calls[call_id] = Call(run, index, self.epoch, to=(self.link, run.first + index))
            self.calls[call_id].sent_as = self.calls[call_id].to

    def run_of(self, ids: range | tuple[int, ...], *, recovers: bool = False) -> ReplicaRun:
        run = ReplicaRun(self.link, self.next_run, [b""] * len(ids), ReplicaCallOptions(), "e", self.now)
        run.record = Record(SESSION, self.epoch, ids, len(ids), attempt=0, recovers=recovers)
        self.next_run += len(ids)
        return run

    def running(self) -> list[int]:
        return [call_id for call_id, call in self.calls.items() if call.is_here]

    @precondition(lambda self: self.running())
    @rule(data=st.data(), size=st.integers(0, 3))
    def calls_end(self, data: st.DataObject, size: int) -> None:
        ids = self.stretch(data)
        first = self.calls[ids[0]]
        record = first.run.record
        assert record is not None
        payloads = [b"%d" % call_id * size for call_id in ids]
        lo, hi = first.index, first.index + len(ids)
        found = record.recipients(lo, hi)
        told = {(link, run_id + at) for link, run_id, begin, end in found for at in range(end - begin)}
        assert told == {each.to for each in map(self.calls.get, ids) if each is not None and each.to is not None}
        self.table.ended(record, lo, hi, payloads, sum(map(len, payloads)))
        for call_id, payload in zip(ids, payloads, strict=True):
            call = self.calls[call_id]
            call.is_here = False
            if call.state == "pending":
                call.state, call.payload = "gone" if call.is_acknowledged else "kept", payload
                call.to = None if call.is_acknowledged else call.to
        self.look_for_evicted()

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def calls_do_not_start(self, data: st.DataObject) -> None:
        """Twice, as a turn that is recalled reports them again when it ends."""
        ids = self.stretch(data)
        first = self.calls[ids[0]]
        record = first.run.record
        assert record is not None
        for _ in range(2):
            self.table.unstarted(record, first.index, first.index + len(ids))
        for call_id in ids:
            self.calls[call_id].is_here = False
            self.calls[call_id].state = "gone"
            self.calls[call_id].to = None

    def stretch(self, data: st.DataObject) -> list[int]:
        """Calls of one run that an executor has, one after another."""
        ids = [data.draw(st.sampled_from(self.running()))]
        run, index = self.calls[ids[0]].run, self.calls[ids[0]].index
        for call_id in sorted(self.calls):
            call = self.calls[call_id]
            if call.run is run and call.index == index + len(ids) and call.is_here and data.draw(st.booleans()):
                ids.append(call_id)
        return ids

    # -- what is asked ---------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def reconciled(self, data: st.DataObject) -> None:
        asked = data.draw(st.lists(st.integers(1, self.next_call + 2), max_size=8))
        joined = [call for call in self.calls.values() if call.run.record is not None and call.run.record.takers]
        report = self.table.reconcile(SESSION, self.epoch, [(each, each) for each in asked])
        for call_id, call in self.calls.items():
            if call.epoch < self.epoch and call_id not in asked and call not in joined:
                call.state, call.to = "gone", None
        known = {each: self.calls[each].state for each in set(asked) if each in self.calls}
        assert report.running == ranges([each for each, state in known.items() if state == "pending"])
        assert report.kept == ranges([each for each, state in known.items() if state == "kept"])
        assert report.evicted == ranges([each for each, state in known.items() if state == "evicted"])
        assert report.is_incomplete == (bool(asked) and min(asked) <= self.lost_through)

    @rule(data=st.data())
    def recovered(self, data: st.DataObject) -> None:
        ids = tuple(sorted(data.draw(st.sets(st.integers(1, self.next_call + 2), min_size=1, max_size=6))))
        run = self.run_of(ids, recovers=True)
        assert run.record is not None
        told: dict[int, bytes] = {}
        joined: set[int] = set()
        at = 0
        for lo, hi, record, index in self.table.find(run.record):
            assert lo == at
            at = hi
            if record is None:
                continue
            for begin, end, outcome in self.table.take(
                record, index, index + hi - lo, self.link, run.first + lo, attempt=0
            ):
                for inner in range(begin, end):
                    call_id = ids[lo + inner - index]
                    if outcome is None:
                        joined.add(call_id)
                    else:
                        assert not isinstance(outcome, Mark)
                        told[call_id] = outcome[inner - begin]  # type: ignore[index]
                    self.calls[call_id].to = (self.link, run.first + lo + inner - index)
        assert at == len(ids)
        known = {each: self.calls[each] for each in ids if each in self.calls}
        assert told == {each: call.payload for each, call in known.items() if call.state == "kept"}
        assert joined == {each for each, call in known.items() if call.state == "pending"}

    @rule(data=st.data())
    def acknowledged(self, data: st.DataObject) -> None:
        spans = data.draw(
            st.lists(st.tuples(st.integers(1, self.next_run + 1), st.integers(0, 6)), min_size=1, max_size=4)
        )
        wanted = [(first, first + more) for first, more in spans]
        self.table.acknowledge(self.link, wanted, self.now)
        for call in self.calls.values():
            run_ids = [name[1] for name in (call.to, call.sent_as) if name is not None]
            if any(first <= each <= last for each in run_ids for first, last in wanted):
                call.is_acknowledged |= call.state == "pending"
                if call.state == "kept":
                    call.state = "gone"

    @rule(seconds=st.sampled_from((1.0, TTL_S)))
    def swept(self, seconds: float) -> None:
        self.now += seconds
        self.table.sweep(self.now)
        if not len(self.table):
            assert not any(call.state == "pending" for call in self.calls.values())
            for call_id, call in self.calls.items():
                if call.state in {"kept", "evicted"}:
                    self.lost_through = max(self.lost_through, call_id)
                call.state = "gone"
                call.to = None
            if self.epoch > 1:
                assert self.table.meet(SESSION, self.epoch - 1, self.now) is None, "it was overtaken"
            self.table.meet(SESSION, self.epoch, self.now)

    def look_for_evicted(self) -> None:
        """The model does not foretell what is evicted: it sees that nothing was while there was room."""
        asking: RunRecord = Record(
            SESSION, self.epoch, range(1, self.next_call + 1), self.next_call, attempt=0, recovers=True
        )
        found = {
            call_id
            for lo, hi, record, _ in self.table.find(asking)
            if record is not None
            for call_id in range(1 + lo, 1 + hi)
        }
        for call_id, call in self.calls.items():
            if call.state == "kept" and call_id not in found:
                assert self.is_small
                call.state, call.to = "evicted", None

    # -- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def bounds_are_kept_to(self) -> None:
        assert self.table.bytes <= self.max_bytes
        kept = [call for call in self.calls.values() if call.state == "kept"]
        assert self.table.bytes == sum(CALL_BYTES + len(call.payload) for call in kept)
        assert bool(self.table.kept) == bool(kept)

    @invariant()
    def links_remember_only_what_is_of_interest(self) -> None:
        owed = [call for call in self.calls.values() if call.to is not None and call.state in {"pending", "kept"}]
        if not owed:
            assert not any(isinstance(entry, Record) for entry in self.link.sent.values())

    def teardown(self) -> None:
        if not hasattr(self, "table"):
            return
        for call in list(self.calls.values()):
            if call.is_here:
                assert call.run.record is not None
                self.table.unstarted(call.run.record, call.index, call.index + 1)
        self.table.sweep(self.now + TTL_S)
        assert (len(self.table), self.table.kept, self.table.bytes) == (0, 0, 0)
        assert not self.link.sent


TestSessions = pytest.mark.timeout(120)(SessionMachine.TestCase)
TestSessions.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
