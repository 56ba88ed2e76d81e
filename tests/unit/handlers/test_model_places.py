"""Which model makes room for another."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotmesh.handlers.model_places import ModelPlace, ModelPlaces, ModelUses, PlacesStuck
from tests.support.examples import examples


class Pool:
    """Places, as a pool uses them, without loads."""

    def __init__(self, most: int) -> None:
        self.places = ModelPlaces(most)

    def release(self, place: ModelPlace, uses: ModelUses) -> None:
        place.holders.discard(uses)

    def take(self, model_id: str, uses: ModelUses, *, loads: bool = True) -> str | None:
        """The victim's id; empty: none; None: it waits."""
        found = self.places.take(model_id, uses)
        if found is None:
            return None
        uses.add(found.place, self)
        if found.victim is not None:
            self.places.unloaded()
        if found.is_new and loads:
            found.place.is_loaded = True
        return "" if found.victim is None else found.victim.model_id

    def use(self, model_id: str) -> str | None:
        """By a call that has ended."""
        uses = ModelUses()
        victim = self.take(model_id, uses)
        uses.end()
        return victim


def test_the_model_whose_last_use_is_longest_ago_makes_room() -> None:
    pool = Pool(3)
    assert [pool.use(each) for each in "abcab"] == [""] * 5
    assert pool.use("d") == "c"
    assert pool.use("c") == "a"
    assert list(pool.places.loaded) == ["c", "d", "b"]


def test_a_model_in_use_makes_no_room() -> None:
    pool, uses = Pool(2), ModelUses()
    pool.take("a", uses)
    pool.use("b")
    assert pool.use("c") == "b"
    assert pool.use("d") == "c"
    uses.end()
    assert pool.use("e") == "a"


def test_a_model_that_is_being_loaded_makes_no_room_and_its_waiters_hold_it() -> None:
    pool, first, second = Pool(1), ModelUses(), ModelUses()
    pool.take("a", first, loads=False)
    found = pool.places.take("a", second)
    assert found is not None
    assert not found.is_new
    second.add(found.place, pool)
    assert pool.use("b") is None
    found.place.is_loaded = True
    first.end()
    assert pool.use("b") is None, "the second has not ended"
    second.end()
    assert pool.use("b") == "a"


def test_a_place_is_taken_until_its_model_is_unloaded() -> None:
    pool = Pool(1)
    pool.use("a")
    found = pool.places.take("b", ModelUses())
    assert found is not None
    assert found.victim is not None
    found.place.is_loaded = True
    found.place.holders.clear()
    found_next = pool.places.take("c", ModelUses())
    assert found_next is not None
    assert found_next.victim is found.place


def test_a_failed_load_leaves_its_place() -> None:
    pool, uses = Pool(1), ModelUses()
    found = pool.places.take("a", uses)
    assert found is not None
    pool.places.failed(found.place)
    again = pool.places.take("a", uses)
    assert again is not None
    assert again.is_new
    pool.places.failed(found.place)
    assert pool.places.take("a", uses) == (again.place, False, None), "a late report of the first one"


def test_calls_that_wait_for_each_other_are_found() -> None:
    pool, first, second = Pool(2), ModelUses(), ModelUses()
    pool.take("a", first)
    pool.take("b", second)
    assert pool.take("c", first) is None
    pool.places.waits(first, 1)
    with pytest.raises(PlacesStuck):
        pool.take("d", second)
    assert pool.take("d", ModelUses()) is None, "a call that holds nothing waits"
    pool.places.waits(first, -1)
    assert pool.take("d", second) is None, "the first one does not wait any more"


def test_calls_that_wait_for_each_other_in_several_pools_are_found() -> None:
    pools = [ModelPlaces(1, name) for name in "abc"]
    calls = [ModelUses() for _ in pools]
    for pool, uses in zip(pools, calls, strict=True):
        assert pool.take("x", uses) is not None
    for number in (0, 1):
        assert pools[number + 1].take("y", calls[number]) is None
        pools[number + 1].waits(calls[number], 1)
    with pytest.raises(PlacesStuck) as caught:
        pools[0].take("y", calls[2])
    assert sorted(caught.value.pools) == ["a", "b", "c"]
    pools[1].waits(calls[0], -1)
    assert pools[0].take("y", calls[2]) is None, "the first call will end"


def test_a_pool_whose_load_has_failed_is_not_waited_for() -> None:
    first, second = Pool(1), Pool(1)
    call, loading = ModelUses(), ModelUses()
    second.take("y", call)
    first.take("x", loading, loads=False)
    assert first.take("z", call) is None
    first.places.waits(call, 1)
    (place,) = (it.place for it in [first.places.take("x", loading)] if it is not None)
    first.places.failed(place)
    assert second.take("w", ModelUses()) is None, "the call gets the free place once it runs"


class Call:
    """A call that gets models one after another, and ends."""

    def __init__(self, wanted: list[tuple[int, str]]) -> None:
        self.uses, self.wanted = ModelUses(), wanted
        self.is_waiting = False

    def release(self, place: ModelPlace, uses: ModelUses) -> None:
        place.holders.discard(uses)


WANTED = st.lists(st.tuples(st.integers(0, 2), st.sampled_from("xyz")), min_size=1, max_size=4)


@settings(max_examples=examples(300), deadline=None)
@given(most=st.lists(st.integers(1, 2), min_size=3, max_size=3), calls=st.lists(WANTED, max_size=6), data=st.data())
def test_some_call_can_always_go_on(most: list[int], calls: list[list[tuple[int, str]]], data: st.DataObject) -> None:
    pools = [ModelPlaces(number, str(at)) for at, number in enumerate(most)]
    left = [Call(wanted) for wanted in calls]

    def step(call: Call) -> bool:
        """Whether it got on. One that is refused ends."""
        if call.wanted:
            number, model_id = call.wanted[0]
            pool = pools[number]
            if call.is_waiting:
                pool.waits(call.uses, -1)
            try:
                found = pool.take(model_id, call.uses)
            except PlacesStuck:
                found, call.wanted = None, []
            else:
                call.is_waiting = found is None
                if found is None:
                    pool.waits(call.uses, 1)
                    return False
                call.uses.add(found.place, call)
                found.place.is_loaded = True
                if found.victim is not None:
                    pool.unloaded()
                call.wanted.pop(0)
                return True
        call.uses.end()
        left.remove(call)
        return True

    while left:
        running = [it for it in left if not it.is_waiting]
        picks: bool = data.draw(st.booleans())
        if running and picks:
            step(data.draw(st.sampled_from(running)))
        else:
            assert [it for it in [*left] if step(it)], "all wait for each other"


def test_a_call_that_would_wait_for_itself_is_found() -> None:
    pool, uses = Pool(1), ModelUses()
    pool.take("a", uses)
    with pytest.raises(PlacesStuck):
        pool.take("b", uses)


def test_at_the_end_all_but_used_models_are_taken() -> None:
    pool, uses = Pool(3), ModelUses()
    pool.take("a", uses)
    pool.use("b")
    pool.take("c", ModelUses(), loads=False)
    assert [each.model_id for each in pool.places.take_all_free()] == ["b"]
