from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf

import pytest

from slotmesh.client.routers import MAX_LEARNED, Routers
from slotmesh.client.search import FIRST_ATTEMPT_S, HOPELESS_S, Search, attempt, diagnose
from slotmesh.security.handshakes import ConnectionProblem
from tests.support.wait import within

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


CERTAIN, POSSIBLE = ConnectionProblem("it requires TLS"), ConnectionProblem("it may start", is_certain=False)


def test_a_search_ends_early_once_every_router_has_a_problem_that_retries_do_not_solve() -> None:
    search = Search(Routers([A, B]), 10, "")
    search.spent(HOPELESS_S)
    search.diagnosed(A, CERTAIN)
    assert not search.is_over, "B is not known"
    search.diagnosed(B, POSSIBLE)
    assert not search.is_over, "B may be starting"
    search.diagnosed(B, CERTAIN)
    assert search.is_over
    assert search.tried_s == HOPELESS_S
    assert search.problem == ConnectionProblem(f"{A}: it requires TLS")
    search.diagnosed(A, POSSIBLE)
    assert not search.is_over, "A has another problem now"
    search.spent(1.234)
    search.diagnosed(A, CERTAIN)
    assert search.is_over
    assert search.tried_s == 3.2, "the time that has passed"


def test_a_search_does_not_end_early_before_its_time_nor_after_a_connection() -> None:
    search = Search(Routers([A]), 10, "")
    search.diagnosed(A, CERTAIN)
    search.spent(HOPELESS_S - 0.1)
    assert not search.is_over
    routers = Routers([A])
    routers.learn([])  # a router has answered
    later = Search(routers, 10, "")
    later.diagnosed(A, CERTAIN)
    later.spent(9)
    assert not later.is_over, "its certificate may be renewed"
    later.spent(1.5)
    assert later.is_over
    assert (later.tried_s, later.problem) == (10, CERTAIN)


def test_a_known_problem_stays_until_another_is_found_or_there_is_a_connection() -> None:
    routers = Routers([A, B])
    search = Search(routers, 10, "")
    search.diagnosed(B, CERTAIN)
    search.diagnosed(B, None)
    found = ConnectionProblem(f"{B}: it requires TLS")
    assert search.problem == found, "not found out this time"
    round_of(search, 2)
    search.take_pause_s(A)
    assert search.problem == found, "in the next round"
    routers.learn([])  # a router has answered
    search.diagnosed(B, None)
    assert search.problem is None
    search.diagnosed(A, CERTAIN)
    search.lost(A, was_sound=False)
    assert search.problem is None, "there was a stream"


class Undecided(Routers):
    """Their problem is found out by every third look only. There is a connection after some looks."""

    def __init__(self, addresses: Sequence[str], connected_from: float = inf) -> None:
        super().__init__(addresses)
        self.looks = 0
        self.connected_from = connected_from
        self.looked_again = asyncio.Event()

    async def problem(self, address: str) -> ConnectionProblem | None:
        is_connected = self.confirm_connection(address)
        self.looks += 1
        if is_connected:
            self.looked_again.set()
        return None if self.looks % 3 or is_connected else CERTAIN

    def confirm_connection(self, address: str) -> bool:
        self.was_reached = self.was_reached or self.looks >= self.connected_from
        return self.was_reached


@pytest.mark.asyncio
@pytest.mark.parametrize("hopeless_s", [0.0, 0.05])
async def test_the_only_router_is_looked_at_again_until_the_cause_is_known(
    monkeypatch: pytest.MonkeyPatch, hopeless_s: float
) -> None:
    monkeypatch.setattr("slotmesh.client.search.HOPELESS_S", hopeless_s)
    monkeypatch.setattr("slotmesh.client.search.LOOK_INTERVAL_S", 0.001)
    routers = Undecided([A])
    search = Search(routers, 60, "")
    with pytest.raises(TimeoutError):
        async with attempt(search, routers, A):
            await within(asyncio.Event().wait(), "the end of the attempt")
    await diagnose(search, routers, A)
    assert (routers.looks, search.is_over, search.problem) == (3, True, CERTAIN)
    assert hopeless_s <= search.tried_s < 60


@pytest.mark.asyncio
async def test_an_attempt_goes_on_if_there_is_a_connection_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotmesh.client.search.HOPELESS_S", 0.01)
    monkeypatch.setattr("slotmesh.client.search.LOOK_INTERVAL_S", 0.001)
    routers = Undecided([A], connected_from=3)
    search = Search(routers, 60, "")
    async with attempt(search, routers, A):
        await within(routers.looked_again.wait(), "another look")
        await asyncio.sleep(0)
    assert (search.is_over, search.problem) == (False, None)


@pytest.mark.asyncio
async def test_a_query_about_a_router_opens_no_channel_and_a_closed_one_has_no_known_problem() -> None:
    routers = Routers([A])
    assert not routers.has_failed(A)
    assert await routers.problem(A) is None
    assert not routers._channels
    channel = routers.channel(A)
    await channel.close()
    assert await routers.problem(A) is None
    await routers.aclose()


def test_problems_of_other_addresses_are_not_kept() -> None:
    search = Search(Routers([A]), 10, "")
    search.diagnosed(B, CERTAIN)
    assert (search.problem, search.is_hopeless) == (None, False)
