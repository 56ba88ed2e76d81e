"""How often a tap tells of calls that were dropped."""

from __future__ import annotations

from slotmesh.cli.commands.tap import SAY_EVERY_S, TapDrops


def test_drops_are_told_at_once_and_then_in_sums() -> None:
    drops = TapDrops()
    assert drops.add("a:1", 0, 0.0) == ""
    assert drops.add("a:1", 5, 0.0).startswith("a:1 dropped 5 calls")
    told = [drops.add("a:1", 5, number / 10) for number in range(1, 51)]
    assert [text for text in told if text] == [told[-1]], "one for all of these"
    assert told[-1].startswith("a:1 dropped 250 calls")
    assert drops.total == 255


def test_each_router_is_told_of() -> None:
    drops = TapDrops()
    assert drops.add("a:1", 1, 0.0).startswith("a:1 dropped 1 ")
    assert drops.add("b:1", 2, 0.0).startswith("b:1 dropped 2 ")
    assert drops.add("b:1", 3, SAY_EVERY_S - 0.01) == ""
    assert drops.add("b:1", 0, SAY_EVERY_S).startswith("b:1 dropped 3 ")
