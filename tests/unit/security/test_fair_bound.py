"""A bound that many share: shares, the reserve, and that nothing of what was given back is left."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from slotmesh.calls.fair_shares import FairBound, Over
from tests.support.examples import examples


def test_one_holder_does_not_get_all_and_others_find_what_is_left() -> None:
    bound: FairBound[str] = FairBound.within(80, 4)
    bound.take("a", 60)
    assert bound.over("a", 1) is Over.SHARE
    assert bound.over("a", 1, has_share=False) is None
    assert bound.over("b", 10) is None
    bound.take("b", 10)
    assert bound.over("c", 5) is Over.ALL, "it is no newcomer"
    assert bound.over("c", 4) is None
    bound.take("c", 4)
    assert bound.over("c", 1) is Over.ALL
    assert bound.over("d", 4) is None


def test_one_thing_may_be_larger_than_a_share() -> None:
    bound: FairBound[str] = FairBound.within(80, 4)
    bound.take("a", 60)
    assert bound.over("a", 10, own=60) is None
    assert bound.over("a", 11, own=60) is Over.ALL
    assert bound.over("a", 1, own=59) is Over.SHARE


STEPS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 40), st.booleans()), max_size=40)


@settings(max_examples=examples(200), deadline=None)
@given(STEPS)
def test_what_is_held_is_the_sum_and_never_passes_the_bound(steps: list[tuple[str, int, bool]]) -> None:
    bound: FairBound[str] = FairBound.within(80, 8)
    model: dict[str, int] = {}
    for who, amount, gives in steps:
        if gives:
            less = min(amount, model.get(who, 0))
            bound.give(who, less)
            model[who] = model.get(who, 0) - less
        elif bound.over(who, amount) is None:
            bound.take(who, amount)
            model[who] = model.get(who, 0) + amount
        assert bound.held == {name: held for name, held in model.items() if held}
        assert bound.total == sum(model.values()) <= 80
        newcomer = "z"
        if bound.total <= 72:
            assert bound.over(newcomer, 8) is None, "there is always something for a newcomer"
