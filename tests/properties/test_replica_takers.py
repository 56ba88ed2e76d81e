"""Which link gets the outcomes of which calls of a record, against a list that names one for each call."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from replica_service.core.runs import RouterPeer, RunRecord
from replica_service.core.session_records import Record, Taker
from tests.support.examples import examples

CALLS = 12
spans = st.tuples(st.integers(0, CALLS - 1), st.integers(1, CALLS)).filter(lambda it: it[0] < it[1])


@given(has_link=st.booleans(), taken=st.lists(st.tuples(spans, st.integers(0, 2)), max_size=6), asked=spans)
@settings(max_examples=examples(400), deadline=None)
def test_each_call_is_told_to_the_link_that_asked_last(
    has_link: bool, taken: list[tuple[tuple[int, int], int]], asked: tuple[int, int]
) -> None:
    first, links = RouterPeer(), [RouterPeer() for _ in range(3)]
    record: RunRecord = Record("s", 1, range(1, CALLS + 1), CALLS, attempt=0, recovers=False)
    told: list[tuple[RouterPeer, int] | None] = [None] * CALLS
    if has_link:
        record.link, record.first = first, 100
        told = [(first, 100 + at) for at in range(CALLS)]
    for number, ((lo, hi), who) in enumerate(taken):
        run_id = 1_000 * (number + 1)
        record.take_over(Taker(record, lo, hi, links[who], run_id, 0))
        told[lo:hi] = [(links[who], run_id + at) for at in range(hi - lo)]
    found: list[tuple[RouterPeer, int] | None] = [None] * CALLS
    for link, run_id, lo, hi in record.recipients(*asked):
        assert found[lo:hi] == [None] * (hi - lo), "each is told once"
        found[lo:hi] = [(link, run_id + at) for at in range(hi - lo)]
    lo, hi = asked
    assert found == [*[None] * lo, *told[lo:hi], *[None] * (CALLS - hi)]
