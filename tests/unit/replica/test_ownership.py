"""Which epochs a replica serves, and what it remembers of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replica_service.core.lanes.ownership import ServedEpochs

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
