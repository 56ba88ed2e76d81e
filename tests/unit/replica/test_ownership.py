"""Which epochs a replica serves, and what it remembers of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replica_service.core.served_partitions import ServedEpochs

PARTITIONS = st.integers(0, 3)
EPOCHS = st.integers(1, 9)
ENDPOINTS = st.sampled_from(["e", "f"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), ENDPOINTS, PARTITIONS, EPOCHS),
        st.tuples(st.just("revoke"), ENDPOINTS, PARTITIONS, EPOCHS),
        st.tuples(st.just("fence"), ENDPOINTS, PARTITIONS, EPOCHS),
    )
)


@given(STEPS)
def test_floors_are_those_of_a_naive_model_and_none_that_a_fence_covers_is_kept(
    steps: list[tuple[str, str, int, int]],
) -> None:
    ownership, floors, newest = ServedEpochs(), dict[tuple[str, int], int](), 0
    for kind, endpoint, partition, epoch in steps:
        newest = max(newest, epoch)
        floor = floors.get((endpoint, partition), 0)
        if kind == "admit":
            assert ownership.admit(endpoint, partition, epoch) == (epoch >= floor)
            floors[endpoint, partition] = max(floor, epoch)
        elif kind == "revoke":
            ownership.revoke(endpoint, {partition: epoch})
            floors[endpoint, partition] = max(floor, epoch + 1)
        else:
            ownership.fence(epoch)
            for place in [(name, number) for name in "ef" for number in range(4)]:
                floors[place] = max(floors.get(place, 0), epoch + 1)
        assert ownership.newest == newest
        for (name, number), lowest in floors.items():
            assert ownership.serves(name, number, lowest)
            assert not lowest or not ownership.serves(name, number, lowest - 1)


def test_a_fence_frees_the_floors_below_it() -> None:
    ownership = ServedEpochs()
    for partition in range(100):
        ownership.admit("e", partition, 5)
    ownership.revoke("f", {3: 9})
    ownership.fence(7)
    assert ownership._floors == {"f": {3: 10}}
    ownership.revoke("e", {})
    assert ownership.newest == 9


def test_the_floors_of_endpoints_that_come_and_go_are_bounded() -> None:
    ownership = ServedEpochs(max_floors=100)
    for number in range(1_000):
        assert ownership.admit(f"e{number}", number % 4, 5)
        ownership.revoke(f"e{number}", {number % 4: 5, 9: 5})
        assert ownership._count == sum(map(len, ownership._floors.values())) <= 100
    # The newest ones are remembered, and one that was refreshed is newer than those before it.
    assert not ownership.admit("e999", 9, 5)
    assert not ownership.admit("e951", 9, 5)
    ownership.revoke("e951", {9: 6})
    for number in range(1_000, 1_049):
        ownership.revoke(f"e{number}", {1: 5, 2: 5})
    assert not ownership.admit("e951", 9, 6)
    assert ownership.newest == 6


def test_an_endpoint_keeps_all_of_its_own_floors() -> None:
    ownership = ServedEpochs(max_floors=100)
    ownership.revoke("f", {1: 5})
    ownership.revoke("e", dict.fromkeys(range(4_096), 5))
    assert not any(ownership.admit("e", partition, 5) for partition in range(4_096))
    ownership.fence(7)
    assert ownership._count == 0
    assert not ownership.admit("f", 1, 7)
