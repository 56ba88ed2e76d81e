"""Which stream a call takes: order is kept, and what is heavy is left alone."""

from __future__ import annotations

from ingress_service.core.stream_choice import HEAVY, LARGE_BYTES, Chosen, StreamChoice


def streams(choice: StreamChoice, who: str, count: int, size: int = 0, key: str = "") -> tuple[set[int], list[Chosen]]:
    chosen = [choice.take(who, size, key) for _ in range(count)]
    return {it.stream for it in chosen}, chosen


def test_those_with_little_share_the_first_stream() -> None:
    choice = StreamChoice(4)
    assert {it for who in "abcdef" for it in streams(choice, who, 10)[0]} == {0}


def test_who_fills_a_stream_stays_there_and_others_leave() -> None:
    choice = StreamChoice(4)
    assert streams(choice, "other", 1)[0] == {0}
    assert streams(choice, "flood", 2_000)[0] == {0}
    assert streams(choice, "other", 3)[0] == {1}
    assert streams(choice, "flood", 1)[0] == {0}
    assert streams(choice, "newcomer", 1)[0] == {1}


def test_small_calls_pass_large_ones_of_the_same_requester() -> None:
    choice = StreamChoice(4)
    assert streams(choice, "a", 4, 5 * HEAVY)[0] == {0}
    assert streams(choice, "a", 4)[0] == {1}
    assert streams(choice, "a", 1, LARGE_BYTES)[0] == {0}


def test_where_all_are_heavy_the_lightest_is_taken() -> None:
    choice = StreamChoice(2)
    assert streams(choice, "a", 1, 9 * HEAVY)[0] == {0}
    assert streams(choice, "b", 1, 2 * HEAVY)[0] == {1}
    assert streams(choice, "c", 1)[0] == {1}


def test_calls_of_one_key_that_are_under_way_are_on_one_stream() -> None:
    choice = StreamChoice(4)
    _, of_flood = streams(choice, "flood", 1, 9 * HEAVY, key="k")
    keyed, of_other = streams(choice, "other", 2, key="k")
    assert keyed == {0}
    assert streams(choice, "other", 1)[0] == {1}
    for each in [*of_flood, *of_other]:
        choice.give(each)
    assert streams(choice, "flood", 1, 9 * HEAVY)[0] == {0}
    assert streams(choice, "other", 1, key="k")[0] == {1}, "nothing of the key is under way"


def test_nothing_is_left_of_calls_that_have_ended() -> None:
    choice = StreamChoice(4)
    chosen = [choice.take(who, size, key) for who in "ab" for size in (0, 9 * HEAVY) for key in ("", "k")]
    for each in chosen:
        choice.give(each)
    assert streams(choice, "c", 1)[0] == {0}
    assert choice.is_empty is False
    choice.give(Chosen(0, ("c", False), 2_048, ""))
    assert choice.is_empty
