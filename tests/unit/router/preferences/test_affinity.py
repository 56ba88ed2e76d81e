"""Affinity keys in the whole core: which replica gets the calls of a key, and which one if that has no room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count

import pytest

from router_service.core.preferences.affinity import (
    MAX_CHANGED,
    MAX_TRIED,
    PLACES,
    BoundedRing,
    Ring,
    name_of,
    places_of,
)
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing import replica_links
from router_service.core.routing.replica_links import IDLE_S
from slotmesh.calls.key_hash import place_of_key
from slotmesh.errors import Reason
from tests.unit.router.parts import replica
from tests.unit.router.slot_world import SlotWorld
from tests.unit.router.world import OK, World

NAMES = [f"r{number}" for number in range(5)]


def order_of(key: str, names: Iterable[str] = NAMES) -> list[str]:
    """The replicas in the order in which they get calls of the key."""
    ring = Ring[RoutedReplica]()
    for name in names:
        ring.put(replica(name), is_member=True)
    return [each.replica_id for each in ring.follow(place_of_key(key))]


def world(names: Sequence[str] = NAMES, slots: int = 8) -> World:
    return World({"b": names}, slots=slots)


def loads(each: World) -> dict[str, int]:
    return {name: len(held) for name in each.backends["b"] if (held := each.at_replica(name))}


def counted(each: World) -> tuple[int, int]:
    counts = each.scheduler.counters.backends["b"]
    return counts.preferred, counts.spilled


def test_places_are_the_same_in_every_process_and_release() -> None:
    assert place_of_key("user-1") == 4075884622034466152
    assert order_of("user-1") == ["r0", "r3", "r4", "r1", "r2"]
    assert order_of("Zoë") == ["r0", "r3", "r4", "r2", "r1"]


def test_calls_of_one_key_go_to_one_replica_side_by_side() -> None:
    each = world()
    ids = count(1)
    for _ in range(4):
        each.submit([next(ids)], affinity_key="user-1")
        each.submit([next(ids)], affinity_key="user-2")
    assert loads(each) == Counter([order_of("user-1")[0]] * 4 + [order_of("user-2")[0]] * 4)
    assert counted(each) == (8, 0)


def test_a_replica_at_its_bound_leaves_calls_to_the_next_ones() -> None:
    each = world(slots=8)
    first, second, third, *_ = order_of("k")
    for number in range(1, 10):
        each.submit([number], affinity_key="k")
    assert loads(each) == {first: 4, second: 4, third: 1}
    assert counted(each) == (4, 5)
    each.complete(first, 1)
    each.submit([10], affinity_key="k")
    assert loads(each) == {first: 4, second: 4, third: 1}, "the first one of the key has room again"


@pytest.mark.parametrize(("slots", "half"), [(1, 1), (2, 1), (7, 4)])
def test_half_of_the_permits_is_for_keys_whatever_the_load(slots: int, half: int) -> None:
    each = world(slots=slots)
    first, second, *_ = order_of("k")
    for number in range(half + 1):
        each.submit([number + 1], affinity_key="k")
    assert loads(each) == {first: half, second: 1}


def test_the_bound_grows_with_the_load_of_all() -> None:
    each = world(slots=8)
    first = order_of("k")[0]
    each.submit(range(1, 28))
    before = loads(each)[first]
    each.submit([100, 101, 102], affinity_key="k")
    # 30 calls at 5 replicas: 6 each, and a quarter more.
    assert loads(each)[first] == 8
    assert before in {5, 6}
    assert counted(each) == (8 - before, 3 - (8 - before))


def test_a_large_run_is_cut_into_few_slices() -> None:
    each = world(slots=512)
    each.submit(range(1, 1_001), affinity_key="k")
    order = order_of("k")
    assert loads(each) == dict(zip(order, [256, 256, 256, 232], strict=False))
    assert all(len(each.batches[name]) == 1 for name in order[:4])


def test_all_get_calls_once_all_are_at_their_bounds_and_what_is_more_waits() -> None:
    each = world(slots=2)
    each.submit(range(1, 13), affinity_key="k")
    assert loads(each) == dict.fromkeys(NAMES, 2)
    each.complete("r3", each.at_replica("r3")[0])
    assert loads(each)["r3"] == 2, "what waits goes where there is room"


def test_room_behind_running_calls_is_used_when_all_are_full() -> None:
    each = world(slots=2)
    for name in NAMES:
        each.report(name, prefetch=3)
    each.submit(range(1, 11), affinity_key="k")
    assert loads(each) == dict.fromkeys(NAMES, 2)
    each.submit(range(11, 13), affinity_key="k")
    assert sum(loads(each).values()) == 12


def test_keys_move_back_to_a_replica_that_returns() -> None:
    each = world()
    first, second, *_ = order_of("k")
    each.submit([1], affinity_key="k", idempotent=True)
    each.lose(first)
    assert loads(each) == {second: 1}, "an idempotent call goes on by the ring"
    each.submit([2], affinity_key="k")
    assert loads(each) == {second: 2}
    each.link(first)
    each.submit([3], affinity_key="k")
    assert loads(each) == {first: 1, second: 2}


def test_no_new_calls_for_replicas_that_drain_or_are_suspects() -> None:
    each = world()
    first, second, third, *_ = order_of("k")
    each.drain(first)
    each.suspects = {second}
    each.push()
    each.submit([1], affinity_key="k")
    assert loads(each) == {third: 1}
    assert counted(each) == (1, 0), "the first one that takes calls is the one of the key"


def test_an_id_keeps_its_keys_in_another_life() -> None:
    ring = Ring[RoutedReplica]()
    old, new, other = replica("a"), replica("a"), replica("b")
    for member in (old, other):
        ring.put(member, is_member=True)
    place = next(number for number in range(0, 2**64, 2**58) if next(ring.follow(number)) is old)
    ring.put(new, is_member=True)
    ring.put(old, is_member=False)
    assert list(ring.follow(place)) == [new, other]


def owners(names: Sequence[str], ranks: dict[str, int], keys: int = 143) -> list[str]:
    """The replica of each key."""
    each = World({"b": names}, slots=1_000, ranks=ranks)
    for number in range(keys):
        each.submit([number + 1], affinity_key=f"k{number}")
    owner_of = {call: name for name in names for call in each.at_replica(name)}
    return [owner_of[number + 1] for number in range(keys)]


def test_a_replacement_with_the_rank_of_the_one_before_takes_exactly_its_keys() -> None:
    before = owners(["a", "b", "c", "d"], {"a": 0, "b": 1, "c": 2, "d": 3})
    assert owners(["b", "c", "d", "e"], {"e": 0, "b": 1, "c": 2, "d": 3}) == [
        "e" if each == "a" else each for each in before
    ]
    by_id = owners(["a", "b", "c", "d"], {})
    moved = sum(one != other for one, other in zip(by_id, owners(["b", "c", "d", "e"], {}), strict=True) if one != "a")
    assert moved > 20, "without ranks, keys of the others move, too"


def test_a_rank_of_a_surge_is_one_more_and_takes_a_share_of_all() -> None:
    before = owners(["a", "b"], {"a": 0, "b": 1})
    with_surge = owners(["a", "b", "c"], {"a": 0, "b": 1, "c": 2})
    assert {two for one, two in zip(before, with_surge, strict=True) if one != two} == {"c"}
    assert {one for one, two in zip(before, with_surge, strict=True) if one != two} == {"a", "b"}


def test_a_rank_that_the_table_learns_later_counts_from_then_on() -> None:
    ranks = {"a": 0, "b": 1, "c": 2}
    each = World({"b": ["a", "b", "c"]}, slots=1_000)
    each.submit([1], affinity_key="k")
    each.complete(next(iter(loads(each))))
    each.ranks = ranks
    each.push()
    found: list[str] = []
    for number in range(143):
        each.submit([number + 2], affinity_key=f"k{number}")
    owner_of = {call: name for name in "abc" for call in each.at_replica(name)}
    found = [owner_of[number + 2] for number in range(143)]
    assert found == owners(["a", "b", "c"], ranks)


def test_of_two_with_one_rank_all_routers_prefer_the_same_one() -> None:
    one, two, other = replica("a"), replica("b"), replica("c")
    one.rank = two.rank = 0
    for order in ((one, two, other), (other, two, one)):
        ring = Ring[RoutedReplica]()
        for member in order:
            ring.put(member, is_member=True)
        assert [each for each in ring.follow(2**63) if each is not other] == [one, two]
        two.rank = 1
        ring.put(two, is_member=True)
        assert sorted(ring._members) == ["\0" + "0", "\0" + "1", "c"]
        two.rank = 0


def test_names_of_ranks_are_those_of_no_id() -> None:
    ranked = replica("r")
    ranked.rank = 12
    assert name_of(ranked) == "\x0012"
    assert name_of(replica("12")) == "12"


def test_a_lookup_ends_after_some_full_replicas() -> None:
    names = [f"s{number}" for number in range(40)]
    each = world(names, slots=1)
    order = order_of("k", names)
    each.submit(range(1, MAX_TRIED + 1), affinity_key="k")
    assert loads(each) == dict.fromkeys(order[:MAX_TRIED], 1)
    each.submit([100], affinity_key="k")
    (picked,) = loads(each).keys() - {*order[:MAX_TRIED]}
    assert picked != order[MAX_TRIED], "the balancer picks"


def test_a_key_belongs_to_the_first_place_from_its_own_on() -> None:
    ring = Ring[RoutedReplica]()
    for name in "abc":
        ring.put(replica(name), is_member=True)
    places = sorted((place, name) for name in "abc" for place in places_of(name))
    for at in (0, 1, -2, -1):
        place, name = places[at]
        assert next(ring.follow(place)).replica_id == name
        assert next(ring.follow(place - 1)).replica_id == name
        assert next(ring.follow(place + 1)).replica_id == places[(at + 1) % len(places)][1]


def test_more_replicas_than_are_added_at_once_are_on_the_ring_after_some_lookups() -> None:
    ring = Ring[RoutedReplica]()
    replicas = [replica(str(number)) for number in range(2 * MAX_CHANGED + 1)]
    for member in replicas:
        ring.put(member, is_member=True)
    found = [len(list(ring.follow(0))) for _ in range(4)]
    assert found == [MAX_CHANGED, 2 * MAX_CHANGED, 2 * MAX_CHANGED + 1, len(replicas)]
    for member in replicas[1:]:
        ring.put(member, is_member=False)
    for left in (MAX_CHANGED + 1, 1, 1):
        assert list(ring.follow(0)) == [replicas[0]]
        assert len(ring._on_ring) == left
        assert sum(map(len, ring._sectors)) == len(ring._name_at) == left * PLACES


def test_a_replica_with_more_permits_takes_more() -> None:
    each = world(["a", "b"], slots=4)
    each.report("a", max_ongoing=12)
    key = next(f"k{number}" for number in range(100) if order_of(f"k{number}", "ab")[0] == "a")
    each.submit(range(1, 7), affinity_key=key)
    assert loads(each) == {"a": 6}


@pytest.mark.parametrize("key", ["k", "other"])
def test_reservations_go_the_same_way(key: str) -> None:
    each = SlotWorld({"b": NAMES}, slots=4)
    first, second, *_ = order_of(key)
    for _ in range(3):
        each.reserve(affinity_key=key)
    assert {name: len(ops) for name, ops in each.ops.items()} == {first: 2, second: 1}
    assert counted(each) == (2, 1)


def test_copies_for_a_shadow_go_the_same_way() -> None:
    each = World({"b": ["r"], "dark": NAMES}, slots=8, shadows={"dark": 1.0})
    each.submit([1], affinity_key="k")
    each.submit([2], affinity_key="k")
    assert each.at_replica(order_of("k")[0]) == [1, 2]


def test_a_key_decides_the_backend_too() -> None:
    each = World({"b": ["r"], "c": ["s"]}, slots=64, weights={"b": 0.5, "c": 0.5})
    for number in range(1, 21):
        each.submit([number], affinity_key="k")
    assert sorted([len(each.at_replica("r")), len(each.at_replica("s"))]) == [0, 20]


def test_refused_calls_find_another_replica() -> None:
    each = world()
    first, second, *_ = order_of("k")
    each.submit([1], affinity_key="k")
    each.refuse(first, reason=Reason.QUEUE_FULL, others=8)
    assert loads(each) == {second: 1}


# -- more replicas than a router links to ------------------------------------------------------------------------------

PARTIAL = "abcdefgh"


def partial_world() -> World:
    """Eight replicas and four routers, of which each links to a part of them."""
    return World({"b": [*PARTIAL]}, slots=8, subset_size=2, routers=["me", "second", "third", "fourth"])


def linked(each: World) -> set[str]:
    return {it.replica_id for it in each.scheduler.topology.replicas.values() if it.has_link}


def key_of_stranger(each: World) -> tuple[str, list[str]]:
    """A key whose replica has no link, and the order of its replicas."""
    keys = (f"k{number}" for number in count())
    key = next(key for key in keys if order_of(key, PARTIAL)[0] not in linked(each))
    return key, order_of(key, PARTIAL)


def test_the_replica_of_a_key_is_linked_and_gets_its_calls_then() -> None:
    each = partial_world()
    members = linked(each)
    key, (first, *others) = key_of_stranger(each)
    each.submit([1], affinity_key=key)
    assert linked(each) == members | {first}
    nearest = next(name for name in others if name in members)
    assert each.at_replica(nearest) == [1], "meanwhile the next one with a link"
    each.link(first)
    each.submit([2, 3], affinity_key=key)
    each.submit(range(10, 60))
    assert each.at_replica(first) == [2, 3], "and no others"
    each.complete(first)
    each.complete(nearest, 1)
    assert each.outcomes == dict.fromkeys([1, 2, 3], OK)
    each.at(IDLE_S + 1)
    each.at(2 * IDLE_S + 2)
    assert linked(each) == members


def test_affinity_keys_leave_room_for_links_that_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_links, "MAX_EXTRA", 2)
    each = partial_world()
    members = linked(each)
    for number in range(100):
        each.submit([number + 1], affinity_key=f"k{number}")
    (extra,) = linked(each) - members
    each.owner = (min(set(PARTIAL) - linked(each)), 1)
    each.push()
    each.submit([200], ordering_key="k")
    assert linked(each) == members | {extra, each.owner[0]}


def test_a_rank_that_another_replica_has_too_moves_keys_at_once() -> None:
    ring = BoundedRing[RoutedReplica]()
    one, two, other = replica("a"), replica("b"), replica("c")
    one.rank, two.rank, other.rank = 0, 0, 1
    for each in (one, two, other):
        ring.changed(each)
    place = next(number for number in range(0, 2**64, 2**58) if ring.first(number) is one)
    one.rank = 1
    ring.changed(one)
    assert ring.first(place) is two


def test_a_replica_that_takes_no_calls_for_a_while_is_not_the_first_one_of_its_keys() -> None:
    ring = BoundedRing[RoutedReplica]()
    one, two = replica("a"), replica("b")
    for each in (one, two):
        ring.changed(each)
    place = next(number for number in range(0, 2**64, 2**58) if ring.first(number) is one)
    for is_linked, first in ((False, two), (True, one)):
        one.linked = is_linked
        ring.changed(one)
        assert ring.first(place) is first


def test_places_near_which_no_replica_takes_calls_are_remembered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = BoundedRing[RoutedReplica]()
    away = replica("a")
    away.linked = False
    ring.changed(away)
    assert (ring.first(1), ring.around(1)) == (None, [])
    monkeypatch.setattr(ring, "follow", lambda _place: pytest.fail("looks again"))
    assert (ring.first(1), ring.around(1)) == (None, [])
    monkeypatch.undo()
    away.linked = True
    ring.changed(away)
    assert (ring.first(1), ring.around(1)) == (away, [away])
