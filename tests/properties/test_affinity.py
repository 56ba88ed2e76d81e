"""Affinity keys, among replicas that come, go and are loaded, against a naive model: all places, sorted each time."""

from __future__ import annotations

from math import ceil

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router_service.core.counters import BackendCounts
from router_service.core.preferences.affinity import MAX_TRIED, AffinityKeys, BoundedRing, name_of, places_of
from router_service.core.replicas.replica import RoutedReplica
from slotmesh.calls.key_hash import place_of_key
from tests.support.examples import examples
from tests.unit.router.parts import backend, replica, run

NAMES = [f"r{number}" for number in range(7)]
RANKS = st.sampled_from([None, 0, 1, 2, 9])
KEYS = st.integers(0, 20).map("key {}".format)
RING = 2**64


class AffinityMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.counts = BackendCounts({"e"})
        self.ring = BoundedRing[RoutedReplica]()
        self.keys = AffinityKeys[RoutedReplica](self.counts, self.ring)
        self.known: dict[str, RoutedReplica] = {}
        self.expected = [0, 0]
        """Calls that went to the replica of their key, and to others."""

    @rule(name=st.sampled_from(NAMES), permits=st.sampled_from([1, 2, 7, 8, 9]), others=st.integers(0, 9), rank=RANKS)
    def join(self, name: str, permits: int, others: int, rank: int | None) -> None:
        self.leave(name)
        self.known[name] = replica(name, permits, backend(), others=others, prefetch=3)
        self.known[name].rank = rank
        self.ring.changed(self.known[name])

    @rule(name=st.sampled_from(NAMES), rank=RANKS)
    def rank(self, name: str, rank: int | None) -> None:
        """Two may have one for a moment: a controller has not heard of the other."""
        if (each := self.known.get(name)) is not None:
            each.rank = rank
            self.ring.changed(each)

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        if (gone := self.known.pop(name, None)) is not None:
            gone.listed, gone.draining = False, True
            gone.refresh()
            self.ring.changed(gone)

    @rule(name=st.sampled_from(NAMES), draining=st.booleans(), linked=st.booleans(), passed_over=st.booleans())
    def change(self, name: str, draining: bool, linked: bool, passed_over: bool) -> None:
        if (each := self.known.get(name)) is not None:
            each.draining, each.linked, each.is_passed_over = draining, linked, passed_over
            each.refresh()
            self.ring.changed(each)

    @rule(key=KEYS, count=st.integers(1, 40))
    def send(self, key: str, count: int) -> None:
        """A run of calls, as the sender sends it."""
        calls = run(count=count, affinity_key=key)
        while count:
            picked = self.keys.pick(calls, count)
            assert picked == self.expected_pick(key, count)
            if picked is None:
                return
            each, most = picked
            sent = min(most, count)
            each.own += sent
            self.expected[each is not self.order_of(key)[0]] += sent
            self.keys.sent(calls, sent, each)
            self.ring.changed(each)
            count -= sent

    @rule(name=st.sampled_from(NAMES), share=st.floats(0, 1))
    def complete(self, name: str, share: float) -> None:
        if (each := self.known.get(name)) is not None:
            each.own = int(each.own * share)
            self.ring.changed(each)

    @rule(key=KEYS)
    def look_at_the_first(self, key: str) -> None:
        order = self.order_of(key)
        assert self.ring.first(place_of_key(key)) is (order[0] if order else None)
        assert self.ring.around(place_of_key(key)) == order[:MAX_TRIED]
        for each in self.known.values():
            assert self.keys.suits(run(affinity_key=key), each) is (order[:1] == [each])

    @rule()
    def send_without_a_key(self) -> None:
        assert self.keys.pick(run(count=3), 3) is None

    @invariant()
    def calls_are_counted(self) -> None:
        assert [self.counts.preferred, self.counts.spilled] == self.expected

    @invariant()
    def only_known_replicas_are_kept(self) -> None:
        members = [each for of_name in self.ring._members.values() for each in of_name]
        assert {each.replica_id for each in members} <= self.known.keys()
        assert len(members) == len(self.ring._names) == len({*members})

    def order_of(self, key: str) -> list[RoutedReplica]:
        """The replicas that take calls, in the order of the key."""
        place = place_of_key(key)
        return sorted(
            (each for each in self.known.values() if each.taking),
            key=lambda each: (min((at - place) % RING for at in places_of(name_of(each))), each.replica_id),
        )

    def expected_pick(self, key: str, count: int) -> tuple[RoutedReplica, int] | None:
        order = self.order_of(key)
        load = sum(each.own + each.capacity.others for each in order) + count
        permits = sum(each.capacity.max_ongoing for each in order)
        for each in order:
            most = each.capacity.max_ongoing
            bound = min(most, max(ceil(load * 5 * most / (4 * permits)), ceil(most / 2)))
            if each.own + each.capacity.others < bound:
                return each, bound - each.own - each.capacity.others
        return None


TestAffinity = AffinityMachine.TestCase
TestAffinity.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
