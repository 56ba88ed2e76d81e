from __future__ import annotations

import pytest

from slotmesh.client.routers import MAX_LEARNED, Routers
from slotmesh.client.search import FIRST_ATTEMPT_S, Search

A, B, C = "a:1", "b:2", "c:3"


def round_of(search: Search, routers: int) -> list[str]:
    """Asks that many in vain, at once."""
    asked = []
    for _ in range(routers):
        assert search.take_pause_s(A) == 0
        asked.append(search.take())
    return asked


def test_at_first_routers_are_asked_in_the_order_given() -> None:
    assert round_of(Search(Routers([A, B, C]), 10, ""), 3) == [A, B, C]


def test_a_router_that_was_lost_is_asked_last() -> None:
    search = Search(Routers([A, B, C]), 10, A)
    asked = round_of(search, 3)
    assert sorted(asked[:2]) == [B, C]
    assert asked[2] == A


def test_what_a_router_says_of_others_replaces_what_was_said_before() -> None:
    routers = Routers([A])
    routers.learn([B, "no address", B])
    assert routers.in_turn(A) == [B, A]
    routers.learn([C, A])
    assert routers.in_turn(A) == [C, A]
    routers.learn([])
    assert routers.in_turn(A) == [C, A]
    routers.learn([f"r:{port}" for port in range(1, 3 * MAX_LEARNED)])
    assert len(routers.in_turn(A)) == MAX_LEARNED + 1


def test_clients_of_a_lost_router_do_not_all_go_to_the_same() -> None:
    routers = Routers([A, B, C])
    assert {routers.in_turn(A)[0] for _ in range(100)} == {B, C}


def test_rounds_in_vain_have_growing_pauses_and_attempts() -> None:
    search = Search(Routers([A, B]), 100, A)
    attempts, most = [], 0.0
    for _ in range(5):
        attempts.append(search.timeout_s)
        search.take_pause_s(A)
        search.take()
        assert search.take_pause_s(A) == 0
        search.take()
        pause_s = search.take_pause_s(A)
        most = max(most, pause_s)
        assert 0 <= pause_s <= 1
    assert attempts == [FIRST_ATTEMPT_S * 2**round_no for round_no in range(5)]
    assert most > 0


def test_a_router_alone_may_take_all_the_time_there_is() -> None:
    search = Search(Routers([A]), 10, "")
    assert search.is_alone
    assert search.timeout_s == 10
    search.spent(8)
    assert search.timeout_s == 2
    search.spent(3)
    assert search.is_over
    assert search.timeout_s == 0


def test_another_router_is_asked_at_once_and_a_single_one_after_a_pause() -> None:
    two, one = Search(Routers([A, B]), 10, A), Search(Routers([A]), 10, A)
    pauses = set()
    for _ in range(10):
        two.lost(A, was_sound=True)
        assert two.take_pause_s(A) == 0
        one.lost(A, was_sound=True)
        pauses.add(one.take_pause_s(A))
        assert one.take_pause_s(A) == 0, "a pause is made once"
    assert len(pauses) > 1


def test_streams_that_were_of_no_use_use_up_the_patience() -> None:
    search = Search(Routers([A, B]), 10, A)
    search.spent(9)
    search.lost(A, was_sound=False)
    assert search.take_pause_s(A) == 0
    assert search.timeout_s == pytest.approx(1)
    search.lost(B, was_sound=False)
    assert search.take_pause_s(B) > 0
    search.spent(2)
    assert search.is_over
    search.lost(A, was_sound=True)
    assert not search.is_over
    assert search.take_pause_s(A) == 0
