"""Values of one client are taken at their replica when they were written, or when the client says so."""

from __future__ import annotations

import pytest

from router_service.core.callers import ALONE, CREDITS, HALF
from router_service.shell.clients.taken_values import TAKE_BYTES, TAKE_VALUES
from slotmesh.streams.features import CHUNKS, TAKE_ITEMS
from slotmesh.streams.limits import CHUNK_BYTES
from tests.unit.router.values_client import Client


class TestTakenByTheRouter:
    def test_values_are_taken_when_they_were_written_and_not_before(self) -> None:
        client = Client()
        client.values(*[(1, b"x")] * TAKE_VALUES)
        assert client.outbox.next_frame() is not None
        assert not client.link.taken, "the write is under way"
        client.outbox.written()
        assert client.link.taken == {1001: TAKE_VALUES}

    def test_few_of_them_wait_for_others(self) -> None:
        client = Client()
        for _ in range(TAKE_VALUES):
            client.values((1, b"x"), (2, b"y"))
            client.frames()
        assert client.link.taken == {1001: TAKE_VALUES, 1002: TAKE_VALUES}
        assert client.link.times == 2

    def test_bytes_count_as_well(self) -> None:
        client = Client()
        client.values((1, bytes(TAKE_BYTES - 1)))
        client.frames()
        assert not client.link.taken
        client.values((1, b"x"))
        client.frames()
        assert client.link.taken == {1001: 2}

    def test_so_do_bytes_that_left_in_chunks(self) -> None:
        client = Client(CHUNKS)
        client.values((1, bytes(CHUNK_BYTES + 1)))
        client.frames()
        assert client.link.taken == {1001: 1}

    def test_who_can_say_no_more_has_all_taken_that_was_written(self) -> None:
        client = Client(TAKE_ITEMS)
        client.values(*[(1, b"x")] * 10)
        client.frames()
        assert not client.link.taken
        client.outbox.taking.take_all()
        assert client.link.taken == {1001: 10}
        client.values(*[(1, b"x")] * TAKE_VALUES)
        client.frames()
        assert client.outbox.next_frame() is None
        assert client.link.taken == {1001: 10 + TAKE_VALUES}

    def test_nothing_is_taken_of_a_call_that_has_ended(self) -> None:
        client = Client()
        client.values(*[(1, b"x")] * TAKE_VALUES)
        client.done(1)
        client.frames()
        assert not client.link.taken
        assert not client.outbox.taking.calls, "and nothing is remembered of it"

    def test_nothing_is_taken_on_a_link_that_is_new(self) -> None:
        client = Client()
        client.values(*[(1, b"x")] * TAKE_VALUES)
        client.replica.links += 1
        client.frames()
        assert not client.link.taken

    def test_what_a_client_says_that_did_not_promise_to_changes_nothing(self) -> None:
        client = Client()
        client.values((1, b"x"))
        client.frames()
        client.outbox.taking.take([1], [1])
        assert not client.link.taken


class TestTakenByTheClient:
    def test_ids_are_translated(self) -> None:
        client = Client(TAKE_ITEMS)
        client.values((1, b"a"), (2, b"x"), (1, b"b"))
        assert client.outbox.next_frame() is not None
        client.outbox.taking.take([2, 1], [1, 2])
        assert client.link.taken == {1001: 2, 1002: 1}

    def test_the_router_takes_nothing_by_itself(self) -> None:
        client = Client(TAKE_ITEMS)
        client.values(*[(1, b"x")] * 4 * TAKE_VALUES)
        client.frames()
        assert not client.link.taken

    def test_no_more_than_was_written_is_taken(self) -> None:
        client = Client(TAKE_ITEMS)
        client.values((1, b"a"), (1, b"b"))
        client.outbox.taking.take([1], [1])
        assert not client.link.taken, "nothing was"
        client.frames()
        client.outbox.taking.take([1, 1, 1, 77], [1, 10**9, 5, 1])
        client.outbox.taking.take([1, 1], [-5, 0])
        assert client.link.taken == {1001: 2}

    def test_nothing_is_taken_of_a_call_that_has_ended(self) -> None:
        client = Client(TAKE_ITEMS)
        client.values((1, b"a"))
        client.failed(1)
        client.frames()
        client.outbox.taking.take([1], [1])
        assert not client.link.taken


class TestCallersWithManyCalls:
    """Their credits are for the way to the router: what has left it is taken, as long as the client keeps up."""

    LEVEL = 7
    CREDIT = CREDITS[LEVEL]

    def client(self, *features: str) -> Client:
        client = Client(*features)
        client.caller.streams[1] = self.LEVEL
        return client

    @pytest.mark.parametrize("takes_items", [False, True])
    @pytest.mark.parametrize(("count", "size"), [(CREDIT.values // 2, 1), (1, CREDIT.bytes // 2)])
    def test_what_has_left_is_taken_soon(self, takes_items: bool, count: int, size: int) -> None:
        client = self.client(*([TAKE_ITEMS] if takes_items else []))
        client.values(*[(1, bytes(size))] * count)
        assert not client.link.taken, "it waits"
        client.frames()
        assert client.link.taken == {1001: count}

    @pytest.mark.parametrize("size", [1, 40_000, HALF.bytes])
    def test_a_client_that_takes_nothing_is_not_left_far_behind(self, size: int) -> None:
        client = self.client(TAKE_ITEMS)
        for _ in range(3 * HALF.values):
            client.values((1, bytes(size)))
        client.frames()
        taken = client.link.taken[1001]
        assert taken <= HALF.values
        assert (taken - 1) * size < HALF.bytes
        assert taken == HALF.values or taken * size >= HALF.bytes

    @pytest.mark.parametrize("size", [1, 3000, 40_000, HALF.bytes, 2 * HALF.bytes])
    @pytest.mark.parametrize("level", [0, 1, 2, 7, len(CREDITS) - 1])
    def test_one_that_says_what_it_has_taken_when_that_is_half_gets_all(self, size: int, level: int) -> None:
        client = Client(TAKE_ITEMS)
        client.caller.streams[1] = level
        credit, given, told, untold = CREDITS[level], 0, 0, 0
        while told < 300 and told * size < 4 * ALONE.bytes:
            before = (given, told)
            while given - (gone := client.link.taken[1001]) < credit.values and (given - gone) * size < credit.bytes:
                client.values((1, bytes(size)))
                given += 1
            assert given - told <= ALONE.values
            assert (given - told - 2) * size < ALONE.bytes
            untold += len(client.heard())
            if untold >= HALF.values or untold * size >= HALF.bytes:
                client.outbox.taking.take([1], [untold])
                told, untold = told + untold, 0
            assert (given, told) != before, "nothing moves"

    def test_who_can_say_no_more_has_all_taken_that_was_written(self) -> None:
        client = self.client(TAKE_ITEMS)
        client.values(*[(1, b"x")] * 2 * HALF.values)
        client.frames()
        client.outbox.taking.take([1], [3])
        client.outbox.taking.take_all()
        assert client.link.taken == {1001: 2 * HALF.values}
        client.values(*[(1, b"x")] * (self.CREDIT.values // 2))
        client.frames()
        client.outbox.next_frame()
        assert client.link.taken == {1001: 2 * HALF.values + self.CREDIT.values // 2}

    def test_a_call_counts_until_its_outcome_has_left(self) -> None:
        client = Client(TAKE_ITEMS)
        client.caller.stream([1, 2, 3])
        client.values((1, b"x"))
        client.done(1)
        client.failed(2)
        assert set(client.caller.streams) == {1, 2, 3}
        client.frames()
        assert set(client.caller.streams) == {3}
