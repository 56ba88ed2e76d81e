"""What a caller may have unanswered."""

from __future__ import annotations

import pytest

from router_service.core.callers import Window
from router_service.core.runs import Caller
from slotmesh.errors import Reason
from slotmesh.streams.limits import MAX_CALL_ID


def caller(calls: int = 10, size: int = 100) -> Caller:
    return Caller(Window(calls=calls, bytes=size))


def test_ids_strictly_increase() -> None:
    each = caller()
    assert each.admit(range(1, 4), 3) is None
    for ids in (range(3, 5), range(1, 2), [5, 5], [6, 5]):
        failure = each.admit(ids, 1)
        assert failure is not None
        assert failure.reason is Reason.DUPLICATE_CALL_ID
    assert each.admit([7, 9], 2) is None
    assert each.last_id == 9


@pytest.mark.parametrize("ids", [range(2), range(-5, -3), range(MAX_CALL_ID, MAX_CALL_ID + 2)])
def test_ids_are_positive_and_fit_into_a_double(ids: range) -> None:
    failure = caller().admit(ids, 1)
    assert failure is not None
    assert failure.reason is Reason.BAD_REQUEST
    assert "2^53" in failure.message


def test_a_rejected_batch_changes_nothing() -> None:
    each = caller(calls=4)
    assert each.admit(range(1, 4), 3) is None
    assert each.admit(range(4, 6), 2) is not None
    assert (each.calls, each.size, each.last_id) == (3, 3, 3)
    assert each.admit(range(4, 5), 1) is None


@pytest.mark.parametrize(("calls", "size"), [(11, 1), (1, 100), (2, 101)])
def test_the_window_binds_calls_and_bytes(calls: int, size: int) -> None:
    each = caller()
    assert each.admit(range(1, 2), 1) is None
    failure = each.admit(range(2, 2 + calls), size)
    assert failure is not None
    assert failure.reason is Reason.WINDOW_EXCEEDED
    assert failure.retry_delay_s


def test_one_call_that_is_larger_than_the_window_is_allowed_beside_the_others() -> None:
    each = caller(size=10)
    assert each.admit(range(1, 2), 7) is None
    assert each.admit(range(2, 3), 1000) is None
    assert each.admit(range(3, 4), 3) is None
    assert each.admit(range(4, 5), 1) is not None, "what fits counts as ever"
    assert each.admit(range(4, 5), 11) is not None, "one, not two"
    each.released(2, 10)
    assert each.admit(range(4, 5), 11) is not None
    each.released(1, 1000)
    assert (each.calls, each.size) == (0, 0)
    assert each.admit(range(4, 5), 11) is None
    assert each.admit(range(5, 6), 10) is None


def test_a_large_call_counts_as_a_call() -> None:
    each = caller(calls=1, size=10)
    assert each.admit(range(1, 2), 1) is None
    assert each.admit(range(2, 3), 1000) is not None


def test_two_calls_over_the_bytes_are_not_one() -> None:
    assert caller(size=10).admit(range(1, 3), 11) is not None
