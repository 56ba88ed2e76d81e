"""The memory of repeated calls against a naive model: one effect for each id, equal outcomes, and bounds.

The model remembers each attempt, and looks at all of them each time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replica_service.core.call_metadata import ReplicaCallOptions
from replica_service.core.failures import EVICTED
from replica_service.core.repeated_calls import CallVerdict, RepeatedCalls
from replica_service.core.request_memory import OUTCOME_BYTES, CallOutcome, bytes_of_failure, bytes_of_values
from replica_service.core.runs import ReplicaRun, RouterPeer
from slotmesh.calls.request_ids import CallIdentity
from slotmesh.calls.result_envelopes import with_head
from slotmesh.errors import Executed, Failure, Reason
from tests.support.examples import examples

KEEP_S = 60.0
MAX_CALLS, MAX_BYTES = 6, 3 * OUTCOME_BYTES + 1000
KEYS = st.tuples(st.sampled_from(("e", "f")), st.sampled_from(("a", "b", "c", "d")))
MARKS = (b"", b"a" * 16, b"b" * 16)
"""Of HTTP fronts; of none."""


@dataclass
class First:
    """The call of an id that was executed, or is about to be."""

    run: ReplicaRun
    waiting: list[tuple[RouterPeer, int]] = field(default_factory=list)
    values: list[bytes] | None = field(default_factory=list)
    """None: they were dropped while the call ran."""
    outcome: tuple[list[bytes], Failure | None] | None = None
    ended_at: float = 0.0
    place: int = 0
    """In the order in which they began to hold bytes, or ended."""
    head: bytes | None = None
    """Behind the result, which is without it in `result`."""
    result: bytes = b""
    is_kept: bool = False
    """It holds its values or outcome."""


class RepeatedCallsMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.now = 0.0
        self.owned = True
        self.calls = RepeatedCalls(lambda _run: self.owned, keep_s=KEEP_S, max_calls=MAX_CALLS, max_bytes=MAX_BYTES)
        self.links = [RouterPeer(), RouterPeer()]
        self.ids = count(1)
        self.known: dict[tuple[str, str], First] = {}
        self.marks: dict[tuple[RouterPeer, int], bytes] = {}

    # -- events ----------------------------------------------------------------------------------------------------

    @rule(owned=st.booleans())
    def the_partition_moves(self, owned: bool) -> None:
        self.owned = owned

    @rule(
        key=KEYS,
        digest=st.sampled_from((b"1", b"1", b"1", b"2")),
        at=st.integers(0, 1),
        streaming=st.booleans(),
        mark=st.sampled_from(MARKS),
    )
    def a_call_arrives(self, key: tuple[str, str], digest: bytes, at: int, streaming: bool, mark: bytes) -> None:
        self.forget_expired()
        before = len(self.calls)
        link = self.links[at]
        run = ReplicaRun(
            link, next(self.ids), [b""], ReplicaCallOptions(streaming=streaming, http=mark), key[0], self.now
        )
        self.marks[link, run.first] = mark
        run.request = CallIdentity(key[1], digest + (b"s" if streaming else b""))
        known = self.known.get(key)
        verdict, outcome = self.calls.begin(run, self.now)
        failure = outcome.failure
        if known is None:
            if not self.owned:
                assert (verdict, failure and failure.reason) == (CallVerdict.HAND_BACK, Reason.STALE_TABLE)
                assert len(self.calls) <= before
            elif len(self.known) >= MAX_CALLS:
                assert failure is not None
                assert (verdict, failure.reason) == (CallVerdict.FAIL, Reason.QUEUE_FULL)
                assert failure.executed is Executed.NO
            else:
                assert verdict is CallVerdict.EXECUTE
                self.known[key] = First(run)
        elif known.run.request is not None and known.run.request.digest != run.request.digest:
            assert failure is not None
            assert (verdict, failure.reason) == (CallVerdict.FAIL, Reason.BAD_REQUEST)
            assert failure.metadata == {"field": "request_id"}
        elif known.outcome is None:
            assert verdict is CallVerdict.WAIT
            known.waiting.append((link, run.first))
        else:
            assert verdict is CallVerdict.DELIVER
            self.check(known, outcome, mark)

    @precondition(lambda self: self.pending())
    @rule(data=st.data(), size=st.integers(0, 900), head=st.sampled_from((None, b"", b"head")))
    def it_ends(self, data: st.DataObject, size: int, head: bytes | None) -> None:
        known = self.draw(data)
        known.ended_at = self.now
        if known.run.options.streaming:
            known.outcome = (known.values, None) if known.values is not None else ([], EVICTED)
            ended = self.calls.ended(known.run, None, self.now)
        else:
            known.result, mark = b"x" * size, known.run.options.http
            known.head = head if mark else None
            payload = known.result if known.head is None else with_head(known.result, known.head, mark)
            known.outcome = ([payload], None)
            ended = self.calls.ended(known.run, payload, self.now)
        self.has_ended(known, ended)

    @precondition(lambda self: self.pending())
    @rule(data=st.data(), executed=st.sampled_from((Executed.YES, Executed.UNKNOWN)))
    def it_fails(self, data: st.DataObject, executed: Executed) -> None:
        known = self.draw(data)
        failure = Failure(reason=Reason.HANDLER_ERROR, message="no", executed=executed)
        known.ended_at = self.now
        known.outcome = (known.values, failure) if known.values is not None else ([], EVICTED)
        self.has_ended(known, self.calls.ended(known.run, failure, self.now))

    @precondition(lambda self: self.pending())
    @rule(data=st.data())
    def it_never_starts(self, data: st.DataObject) -> None:
        known = self.draw(data)
        ended = self.calls.ended(known.run, Failure(reason=Reason.CANCELLED, message="no"), self.now)
        assert ended is not None
        assert list(ended[1]) == known.waiting
        self.known = {key: each for key, each in self.known.items() if each is not known}

    @precondition(lambda self: self.pending())
    @rule(data=st.data(), sizes=st.lists(st.integers(0, 300), max_size=3))
    def it_yields(self, data: st.DataObject, sizes: list[int]) -> None:
        known = self.draw(data)
        if known.run.options.streaming:
            values = [b"v" * size for size in sizes]
            if known.values is not None and values:
                known.values += values
                if not known.is_kept:
                    known.is_kept, known.place = True, next(self.ids)
            self.calls.yielded(known.run, values)
            self.drop_excess()

    @rule(at=st.integers(0, 1), first=st.integers(1, 30), length=st.integers(0, 10))
    def callers_leave(self, at: int, first: int, length: int) -> None:
        link, gone = self.links[at], range(first, first + length + 1)
        expected = []
        for known in self.known.values():
            expected += [run_id for each, run_id in known.waiting if each is link and run_id in gone]
            known.waiting = [each for each in known.waiting if each[0] is not link or each[1] not in gone]
        assert sorted(self.calls.leave(link, [(gone[0], gone[-1])])) == sorted(expected)

    @rule(at=st.integers(0, 1))
    def a_link_ends(self, at: int) -> None:
        """Its calls that run continue, and another link takes its place."""
        self.calls.close(self.links[at])
        for known in self.known.values():
            known.waiting = [each for each in known.waiting if each[0] is not self.links[at]]
        self.links[at] = RouterPeer()

    @rule(seconds=st.sampled_from((0.5, 20.0, 59.0, 60.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def the_sweep_comes(self) -> None:
        self.calls.expire(self.now)
        self.forget_expired()

    # -- the model -------------------------------------------------------------------------------------------------

    def pending(self) -> list[First]:
        return [known for known in self.known.values() if known.outcome is None]

    def draw(self, data: st.DataObject) -> First:
        return data.draw(st.sampled_from(self.pending()))

    def has_ended(self, known: First, ended: object) -> None:
        known.is_kept, known.place = known.outcome is not None and known.outcome[1] is not EVICTED, next(self.ids)
        self.drop_excess()
        assert isinstance(ended, tuple)
        outcome, waiting = ended
        assert list(waiting) == known.waiting
        for link, run_id in known.waiting:
            assert waiting[link, run_id] == self.marks[link, run_id]
            assert list(outcome.for_mark(self.marks[link, run_id]).values) == values_for(
                known, self.marks[link, run_id]
            )
        assert known.outcome is not None
        assert (list(outcome.values), outcome.failure) == known.outcome, "those who wait get it, kept or not"
        known.waiting = []

    def drop_excess(self) -> None:
        kept = sorted((each for each in self.known.values() if each.is_kept), key=lambda each: each.place)
        while sum(map(size_of, kept)) > MAX_BYTES:
            dropped = kept.pop(0)
            dropped.is_kept = False
            if dropped.outcome is None:
                dropped.values = None
        assert self.calls.held_bytes == sum(map(size_of, kept))

    def check(self, known: First, outcome: CallOutcome, mark: bytes) -> None:
        assert known.outcome is not None
        if known.is_kept:
            assert (list(outcome.values), outcome.failure) == (values_for(known, mark), known.outcome[1])
            assert outcome.is_streamed == known.run.options.streaming
        else:
            assert outcome.failure is not None
            assert (outcome.failure.reason, outcome.failure.executed) == (Reason.RESULT_EVICTED, Executed.YES)

    def forget_expired(self) -> None:
        self.known = {
            key: each for key, each in self.known.items() if each.outcome is None or each.ended_at + KEEP_S > self.now
        }

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "calls"):
            return
        assert self.calls.held_bytes <= MAX_BYTES
        assert len(self.known) <= len(self.calls) <= MAX_CALLS
        for link in self.links:
            waits = any(each is link for known in self.known.values() for each, _ in known.waiting)
            assert self.calls.owes(link) == waits


def values_for(known: First, mark: bytes) -> list[bytes]:
    """What a repetition with this mark gets."""
    assert known.outcome is not None
    if known.head is None:
        return known.outcome[0]
    return [with_head(known.result, known.head, mark) if mark else known.result]


def size_of(known: First) -> int:
    if known.outcome is None:
        return bytes_of_values(known.values or ())
    return OUTCOME_BYTES + bytes_of_values(known.outcome[0]) + bytes_of_failure(known.outcome[1])


TestRepeatedCalls = RepeatedCallsMachine.TestCase
TestRepeatedCalls.settings = settings(max_examples=examples(200), stateful_step_count=50, deadline=None)
