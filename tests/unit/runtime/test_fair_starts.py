"""In which order, and how many at a time, rpcs begin that have been taken in."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.grpc_internals.accepting import IN_A_TURN, FairStarts

Rpc = tuple[str, int]
"""Its connection, and its number."""


class Begun:
    """What has begun, and in which turn of the loop each."""

    def __init__(self, most: int = 1_000_000) -> None:
        self.order: list[Rpc] = []
        self.starts: FairStarts[Rpc] = FairStarts(self.order.append, lambda rpc: rpc[0], most)

    def come(self, *rpcs: Rpc) -> None:
        for each in rpcs:
            self.starts.add(each)

    async def turns(self, number: int = 1) -> None:
        for _ in range(number):
            await asyncio.sleep(0)

    async def all_begun(self) -> None:
        while self.starts:  # noqa: ASYNC110 - turn by turn
            await asyncio.sleep(0)


def of(peer: str, number: int) -> list[Rpc]:
    return [(peer, each) for each in range(number)]


@pytest.mark.asyncio
async def test_where_few_come_each_begins_at_once() -> None:
    begun = Begun()
    for turn in range(5):
        begun.come(*of(f"a{turn}", IN_A_TURN))
        assert len(begun.order) == (turn + 1) * IN_A_TURN
        await begun.turns(2)


@pytest.mark.asyncio
async def test_in_one_turn_begin_as_many_as_may() -> None:
    begun = Begun()
    begun.come(*of("a", 10 * IN_A_TURN))
    for turn in range(1, 11):
        assert len(begun.order) == turn * IN_A_TURN
        await begun.turns()
    assert begun.order == of("a", 10 * IN_A_TURN), "in their order"


@pytest.mark.asyncio
async def test_one_of_another_connection_does_not_stand_behind_thousands() -> None:
    begun = Begun()
    begun.come(*of("many", 10_000))
    await begun.turns(3)
    begun.come(("one", 0))
    await begun.turns(2)
    assert ("one", 0) in begun.order
    assert len(begun.order) <= 6 * IN_A_TURN


@pytest.mark.asyncio
async def test_a_connection_with_more_connections_beside_waits_for_one_rpc_of_each() -> None:
    begun = Begun()
    begun.come(*(rpc for peer in range(100) for rpc in of(str(peer), 50)))
    begun.come(*of("two", 2))
    await begun.all_begun()
    at = [begun.order.index(rpc) for rpc in of("two", 2)]
    assert at[0] <= 100 + IN_A_TURN
    assert at[1] <= at[0] + 101


@pytest.mark.asyncio
async def test_where_too_many_wait_one_of_each_other_connection_still_may() -> None:
    begun = Begun(most=20)
    begun.come(*of("many", IN_A_TURN + 25), *of("few", 5), *of("one", 1))
    assert len(begun.starts) == 22
    await begun.all_begun()
    assert Counter(peer for peer, _ in begun.order) == {"many": IN_A_TURN + 20, "few": 1, "one": 1}
    begun.come(*of("late", 2))
    await begun.all_begun()
    assert begun.order[-2:] == of("late", 2)


@given(st.lists(st.sampled_from("abcdefgh"), max_size=300), st.integers(1, 30))
def test_what_waits_is_bounded(peers: list[str], most: int) -> None:
    async def run() -> None:
        begun = Begun(most=most)
        for number, peer in enumerate(peers):
            begun.starts.add((peer, number))
            assert len(begun.starts) <= most + len({*peers})
        waiting, before = len(begun.starts), len(begun.order)
        await begun.all_begun()
        assert len(begun.order) == before + waiting

    asyncio.run(run())


@pytest.mark.asyncio
async def test_what_still_waits_may_begin_otherwise() -> None:
    begun = Begun()
    begun.come(*of("a", 3 * IN_A_TURN))
    refused: list[Rpc] = []
    begun.starts.begin_by(refused.append)
    await begun.all_begun()
    assert begun.order + refused == of("a", 3 * IN_A_TURN)
    assert len(begun.order) == IN_A_TURN


class Naive:
    """The same by the plainest means: a list of connections, whose first is next."""

    def __init__(self) -> None:
        self.order: list[Rpc] = []
        self.waiting: list[tuple[str, deque[Rpc]]] = []

    def add(self, rpc: Rpc, may_begin: Callable[[], bool]) -> None:
        if may_begin():
            self.order.append(rpc)
            return
        for peer, rpcs in self.waiting:
            if peer == rpc[0]:
                rpcs.append(rpc)
                return
        self.waiting.append((rpc[0], deque([rpc])))

    def begin(self) -> None:
        peer, rpcs = self.waiting.pop(0)
        self.order.append(rpcs.popleft())
        if rpcs:
            self.waiting.append((peer, rpcs))


@given(st.lists(st.lists(st.sampled_from("abcdef"), max_size=40), max_size=12))
def test_it_goes_round_as_the_naive_one(comes: list[list[str]]) -> None:
    """`comes`: the connections of what comes, turn by turn."""

    async def run() -> None:
        begun, naive, number = Begun(), Naive(), 0
        for peers in comes:
            for peer in peers:
                number += 1
                before = len(begun.order)
                begun.come((peer, number))
                naive.add((peer, number), lambda before=before: len(begun.order) > before)  # type: ignore[misc]
            assert begun.order == naive.order
            await asyncio.sleep(0)
            while len(naive.order) < len(begun.order):
                naive.begin()
            assert begun.order == naive.order
            assert len(begun.starts) == sum(len(rpcs) for _, rpcs in naive.waiting)
        await begun.all_begun()
        assert len(begun.order) == number

    asyncio.run(run())
