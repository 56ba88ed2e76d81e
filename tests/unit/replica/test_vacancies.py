"""Which routers are told of room, in which order, and when. Times are seconds; the gap is one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from math import inf

import pytest

from replica_service.core.permits import Vacancies
from replica_service.core.runs import RouterPeer


def vacancies(*waiting: RouterPeer, draws: Sequence[float] = (0.5,)) -> Vacancies:
    """`draws` come one after another, again and again: head start or none; which router, and how long a gap."""
    made = Vacancies(1.0, cycle(draws).__next__)
    for link in waiting:
        made.reported(link, is_full=True)
    return made


def reacting(made: Vacancies, reaction_s: float, times: int = 1) -> None:
    """A router's calls end, and each time it comes with the next one so much later."""
    link = RouterPeer()
    for _ in range(times):
        made.freed(link, 0.0)
        made.came(link, reaction_s)


def test_nobody_waits_for_time_to_pass_where_there_is_no_room() -> None:
    made = vacancies(RouterPeer())
    assert made.due(5.0, has_room=False) is None
    assert made.notify_at == inf


def test_the_router_whose_call_ended_has_a_head_start() -> None:
    waiting = RouterPeer()
    made = vacancies(waiting)
    reacting(made, 0.1)
    assert made.due(5.0, has_room=True) is None
    assert made.notify_at == pytest.approx(5.15)
    assert made.due(5.15, has_room=True) is waiting
    assert made.due(9.0, has_room=True) is None
    assert made.notify_at == inf


def test_one_router_after_another_is_told_whichever_is_drawn() -> None:
    first, second, third = RouterPeer(), RouterPeer(), RouterPeer()
    made = vacancies(first, second, third, draws=(0.5, *(0.99, 0.0), *(0.0, 0.0), *(0.0, 0.0)))
    reacting(made, 0.1)
    made.due(0.0, has_room=True)
    heard = []
    while (now := made.notify_at) < inf:
        heard.append((made.due(now, has_room=True), round(now, 6)))
    assert heard == [(third, 0.15), (first, 0.3), (second, 0.45)]


def test_sometimes_there_is_no_head_start() -> None:
    first, second = RouterPeer(), RouterPeer()
    made = vacancies(first, second, draws=(0.24, 0.5, 0.5))
    reacting(made, 0.1)
    assert made.due(0.0, has_room=True) is second
    assert made.notify_at == pytest.approx(0.15)


def test_who_has_heard_it_by_a_result_is_not_told() -> None:
    told, other = RouterPeer(), RouterPeer()
    made = vacancies(told, other)
    made.due(0.0, has_room=True)
    made.reported(told, is_full=False)
    assert made.due(1.0, has_room=True) is other
    assert made.due(2.0, has_room=True) is None


def test_it_ends_when_somebody_has_come_and_begins_anew() -> None:
    first, second = RouterPeer(), RouterPeer()
    made = vacancies(first, second)
    made.due(0.0, has_room=True)
    heard = made.due(1.0, has_room=True)
    assert heard in {first, second}
    assert made.due(1.5, has_room=False) is None
    assert made.notify_at == inf
    assert made.due(3.0, has_room=True) is None
    assert made.notify_at == 4.0
    assert {heard, made.due(4.0, has_room=True)} == {first, second}


def test_a_router_is_told_once_a_gap_and_others_meanwhile() -> None:
    often, other = RouterPeer(), RouterPeer()
    made = vacancies(often)
    reacting(made, 0.125)
    made.due(0.0, has_room=True)
    assert made.due(0.25, has_room=True) is often
    made.reported(often, is_full=True)
    made.reported(other, is_full=True)
    made.due(0.25, has_room=True)
    assert made.due(0.5, has_room=True) is other
    assert made.due(0.75, has_room=True) is None
    assert made.notify_at == 0.25 + 0.75
    assert made.due(1.0, has_room=True) is often


def test_the_head_start_follows_the_quickest_and_forgets_it() -> None:
    made = vacancies(RouterPeer())
    reacting(made, 0.2)
    reacting(made, 0.1)
    reacting(made, 0.5)
    made.due(0.0, has_room=True)
    assert made.notify_at == pytest.approx(1.5 * 0.1 * 1.05)
    made.due(0.0, has_room=False)
    reacting(made, 0.5, times=100)
    made.due(0.0, has_room=True)
    assert made.notify_at == pytest.approx(1.5 * 0.5)


def test_the_head_start_is_at_most_a_gap_and_never_nothing() -> None:
    made = vacancies(RouterPeer())
    made.due(0.0, has_room=True)
    assert made.notify_at == 1.0
    made.due(0.0, has_room=False)
    reacting(made, 0.0)
    made.due(0.0, has_room=True)
    assert made.notify_at == pytest.approx(0.015)


def test_only_the_first_run_after_an_end_counts_as_a_reaction() -> None:
    made, link = vacancies(RouterPeer()), RouterPeer()
    made.freed(link, 0.0)
    made.came(link, 0.2)
    made.came(link, 0.21)
    made.due(0.0, has_room=True)
    assert made.notify_at == pytest.approx(0.3)
