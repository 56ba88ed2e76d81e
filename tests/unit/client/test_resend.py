from __future__ import annotations

from slotmesh.client.calls.outbox import FRAME_CALLS, LargeCalls
from slotmesh.client.stream.pending_calls import PendingCalls
from slotmesh.client.stream.resends import Resends, Rosters
from slotmesh.streams.limits import CHUNK_BYTES, MAX_FRAME_BYTES
from slotmesh.v1.router_service_pb2 import RosterVersion
from tests.unit.client.parts import NONE_LARGE, make_part

PLENTY = 10**9


def pending_of(*parts: list[int]) -> PendingCalls:
    """With parts of calls of these payload sizes."""
    pending = PendingCalls()
    for sizes in parts:
        pending.add(make_part(*sizes))
    return pending


def answer(pending: PendingCalls, *ids: int) -> None:
    assert sum(count for *_, count in pending.settle(list(ids))) == len(ids)


def taken(resends: Resends, calls: int = PLENTY, nbytes: int = PLENTY, *, alone: bool = False) -> list[list[int]]:
    return [list(resent.ids) for resent in resends.take(calls, nbytes, LargeCalls(nbytes, is_free=alone))]


def test_the_unanswered_leave_again_in_order_part_by_part() -> None:
    pending = pending_of([1, 2, 3, 4], [5], [6, 7])
    answer(pending, 2, 5, 7)
    resends = Resends(pending.parts())
    assert (resends.calls, resends.nbytes) == (4, 1 + 3 + 4 + 6)
    frame = resends.take(PLENTY, PLENTY, NONE_LARGE)
    assert [(list(each.ids), each.payloads, each.consecutive) for each in frame] == [
        ([1, 3, 4], [b"x", b"xxx", b"xxxx"], False),
        ([6], [b"xxxxxx"], True),
    ]
    assert not resends
    assert (resends.calls, resends.nbytes) == (0, 0)


def test_a_part_may_leave_in_several_frames() -> None:
    pending = pending_of([1] * 5)
    resends = Resends(pending.parts())
    assert taken(resends, calls=2) == [[1, 2]]
    assert taken(resends, calls=0) == []
    answer(pending, 1)
    assert taken(resends, calls=2) == [[3, 4]]
    assert resends.calls == 1
    assert taken(resends) == [[5]]


def test_bytes_are_kept_to_but_for_one_call_alone() -> None:
    resends = Resends(pending_of([4, 4, 9]).parts())
    assert taken(resends, nbytes=3) == []
    assert taken(resends, nbytes=8) == [[1, 2]]
    assert taken(resends, nbytes=8) == []
    assert taken(resends, nbytes=8, alone=True) == [[3]]


def test_frames_are_bounded() -> None:
    full = [CHUNK_BYTES] * (MAX_FRAME_BYTES // CHUNK_BYTES)
    resends = Resends(pending_of([0] * (FRAME_CALLS + 1), [*full, 1]).parts())
    assert [len(ids) for ids in taken(resends)] == [FRAME_CALLS]
    assert [len(ids) for ids in taken(resends)] == [1, len(full)]
    assert [len(ids) for ids in taken(resends)] == [1]
    assert not resends


def test_what_is_answered_before_it_could_leave_again_does_not() -> None:
    pending = pending_of([1, 1], [1, 1])
    resends = Resends(pending.parts())
    answer(pending, 1, 2, 3)
    assert taken(resends) == [[4]]
    assert (resends.calls, resends.nbytes) == (0, 0)


def test_options_that_differ_from_call_to_call_fill_a_frame_too() -> None:
    pending = PendingCalls()
    for _ in range(6):
        part = make_part(1)
        part.spec.wire_bytes = MAX_FRAME_BYTES // 4
        pending.add(part)
    resends = Resends(pending.parts())
    assert [len(taken(resends)) for _ in range(2)] == [4, 2]


def test_of_each_generation_and_term_the_newest_roster_is_stated() -> None:
    rosters = Rosters()
    for generation, revision, term in (("g", 3, "t"), ("g", 5, "t"), ("g", 4, "t"), ("g", 6, "u"), ("h", 1, "u")):
        rosters.acknowledge(RosterVersion(generation=generation, revision=revision, term_id=term))
    stated = rosters.at_opening(is_resuming=True)
    assert [(it.generation, it.revision, it.term_id) for it in stated] == [("g", 5, "t"), ("g", 6, "u"), ("h", 1, "u")]
    assert rosters.newest == stated[-1]
    assert not rosters.at_opening(is_resuming=False)
