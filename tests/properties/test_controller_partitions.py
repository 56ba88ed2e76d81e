"""Partition ownership against its invariants, under any interleaving of joins, drains, deaths and weights."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from controller_service.core.partition_owners import (
    NO_OWNER,
    Incarnation,
    OwnerCandidate,
    PartitionOwnership,
    assign,
    count_moves,
    hand_over,
    shares,
)
from slotmesh.calls.key_hash import PARTITIONS
from tests.support.examples import examples

BACKENDS = ("v1", "v2", "v3")
WEIGHTS = st.lists(st.integers(0, 10), min_size=3, max_size=3).filter(any)


def owners_of(ownership: PartitionOwnership) -> list[Incarnation | None]:
    return [None if index == NO_OWNER else ownership.owners[index] for index in ownership.partition_owners]


def weights_of(parts: list[int]) -> dict[str, float]:
    return {name: part / sum(parts) for name, part in zip(BACKENDS, parts, strict=True)}


def members(sizes: list[int]) -> dict[str, list[Incarnation]]:
    return {
        name: [Incarnation(f"{name}-{number}", "i") for number in range(size)]
        for name, size in zip(BACKENDS, sizes, strict=True)
    }


@settings(max_examples=examples(60), deadline=None)
@given(parts=WEIGHTS, sizes=st.lists(st.integers(0, 12), min_size=3, max_size=3))
def test_the_first_assignment_is_everyones_share_within_one(parts: list[int], sizes: list[int]) -> None:
    weights = weights_of(parts)
    ready = members(sizes)
    candidates = shares(weights, ready)
    serving = sum(weights[name] for name in BACKENDS if ready[name])
    if not serving:
        assert not candidates
        return
    assert abs(sum(candidate.share for candidate in candidates) - 1.0) < 1e-9
    assigned = assign(None, candidates, lambda _: False, epoch_floor=7)
    held = Counter(owners_of(assigned))
    assert None not in held
    assert set(assigned.epochs) == {8}
    for name in BACKENDS:
        for owner in ready[name]:
            exact = weights[name] / serving / len(ready[name]) * PARTITIONS
            assert abs(held[owner] - exact) < 1.0 + 1e-6
            assert weights[name] or not held[owner]


@settings(max_examples=examples(30), deadline=None)
@given(busy=st.dictionaries(st.integers(0, PARTITIONS - 1), st.sampled_from("abc"), max_size=9), dead=st.booleans())
def test_what_still_runs_elsewhere_is_not_given_to_anybody_before_it_has_ended(
    busy: dict[int, str], dead: bool
) -> None:
    elders = {name: Incarnation(name, "i") for name in "abc"}
    candidates = shares({"v1": 1.0}, {"v1": [elders["a"], Incarnation("d", "i")]})
    held = {number: elders[name] for number, name in busy.items()}
    gone = {elders["b"]} if dead else set()
    first = assign(
        None,
        candidates,
        gone.__contains__,
        epoch_floor=7,
        busy={(owner, number) for number, owner in held.items()},
    )
    for number, owner in enumerate(owners_of(first)):
        is_held = number in held and held[number] not in gone
        assert first.epochs[number] == 7 + (not is_held)
        assert (number in first.leaving) == is_held
        assert owner == held[number] if is_held else owner in {candidate.owner for candidate in candidates}
    emptied = {(owner, *given) for owner, epochs in first.leaving_by_owner().items() for given in epochs.items()}
    after = assign(first, candidates, gone.__contains__, epoch_floor=7, emptied=emptied)
    assert set(after.epochs) == {8}
    assert not after.leaving
    held_now = Counter(owners_of(after))
    assert max(held_now.values()) - min(held_now.values()) <= 1


@settings(max_examples=examples(30), deadline=None)
@given(order=st.permutations([Incarnation(f"r{number}", "i") for number in range(7)]))
def test_equal_inputs_give_equal_outputs_in_whatever_order_they_come(order: list[Incarnation]) -> None:
    def assigned(owners: list[Incarnation]) -> PartitionOwnership:
        return assign(None, shares({"v1": 1.0}, {"v1": owners}), lambda _: False, epoch_floor=0)

    assert assigned(order) == assigned(sorted(order))


class Membership(RuleBasedStateMachine):
    """Replicas come and go; after each step the controller may look, or not."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: dict[str, float] = {}
        self.ready: dict[str, list[Incarnation]] = {name: [] for name in BACKENDS}
        self.dead: set[Incarnation] = set()
        self.draining: set[Incarnation] = set()
        self.emptied: set[tuple[Incarnation, int, int]] = set()
        self.ownership: PartitionOwnership | None = None
        self.born = 0

    @initialize(parts=WEIGHTS)
    def start(self, parts: list[int]) -> None:
        self.weights = weights_of(parts)

    @rule(parts=WEIGHTS)
    def weigh(self, parts: list[int]) -> None:
        self.weights = weights_of(parts)

    @rule(backend=st.sampled_from(BACKENDS), count=st.integers(1, 3))
    def join(self, backend: str, count: int) -> None:
        for _ in range(count):
            self.born += 1
            self.ready[backend].append(Incarnation(f"{backend}-{self.born}", f"{self.born:032x}"))

    @precondition(lambda self: any(self.ready.values()))
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        backend = data.draw(st.sampled_from([name for name in BACKENDS if self.ready[name]]))
        victim = data.draw(st.sampled_from(self.ready[backend]))
        self.ready[backend].remove(victim)
        self.dead.add(victim)

    @precondition(lambda self: any(self.ready.values()))
    @rule(data=st.data())
    def come_again(self, data: st.DataObject) -> None:
        """A new incarnation under the same id."""
        backend = data.draw(st.sampled_from([name for name in BACKENDS if self.ready[name]]))
        old = data.draw(st.sampled_from(self.ready[backend]))
        self.born += 1
        self.ready[backend].remove(old)
        self.dead.add(old)
        self.ready[backend].append(Incarnation(old.replica_id, f"{self.born:032x}"))

    @precondition(lambda self: any(self.ready.values()))
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        backend = data.draw(st.sampled_from([name for name in BACKENDS if self.ready[name]]))
        leaver = data.draw(st.sampled_from(self.ready[backend]))
        self.ready[backend].remove(leaver)
        self.draining.add(leaver)

    @precondition(lambda self: self.draining)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """A replica that drained has stopped."""
        leaver = data.draw(st.sampled_from(sorted(self.draining)))
        self.draining.remove(leaver)
        self.dead.add(leaver)

    @precondition(lambda self: self.ownership is not None and self.ownership.leaving)
    @rule(data=st.data(), share=st.sampled_from((1, 3)))
    def empty(self, data: st.DataObject, share: int) -> None:
        """An owner has given up what it was told to, or a part of that."""
        assert self.ownership is not None
        leaving = self.ownership.leaving_by_owner()
        owner = data.draw(st.sampled_from(sorted(leaving)))
        epochs = list(leaving[owner].items())
        self.emptied.update((owner, number, epoch) for number, epoch in epochs[::share])

    @rule(balance=st.booleans())
    def look(self, balance: bool) -> None:
        before = self.ownership
        candidates = shares(self.weights, self.ready)
        after = assign(before, candidates, self.dead.__contains__, epoch_floor=0, emptied=frozenset(self.emptied))
        self.ownership = hand_over(after, candidates, is_draining=self.draining.__contains__, balance=balance)
        self.look_at_leaving(after, candidates, balance=balance)

        had = [None] * PARTITIONS if before is None else owners_of(before)
        has = owners_of(after)
        epochs = [0] * PARTITIONS if before is None else list(before.epochs)
        given_away = 0
        for number, (old, new, was, now) in enumerate(zip(had, has, epochs, after.epochs, strict=True)):
            if old is not None and old not in self.dead and (old, number, was) not in self.emptied:
                assert (new, now) == (old, was)  # nothing moves unless its owner is dead, or has emptied it
            if now == was:
                assert new in {None, old}
            else:
                assert now == was + 1  # and if it moves, its epoch grows
                given_away += 1
            assert new not in self.dead
            assert new is not None or not candidates  # no partition waits while somebody could serve it
            assert before is None or now == was or number not in after.leaving  # what has moved has arrived
        assert count_moves(before, after)[0] == given_away
        assert len(set(after.owners)) == len(after.owners)  # one index an owner: at most one owner a partition
        # Looking again finds nothing to do.
        again = assign(after, candidates, self.dead.__contains__, epoch_floor=0, emptied=frozenset(self.emptied))
        assert again is after

    def look_at_leaving(self, assigned: PartitionOwnership, candidates: list[OwnerCandidate], *, balance: bool) -> None:
        """What leaves, leaves for a reason, and those who drain keep nothing."""
        assert self.ownership is not None
        before, after = set(assigned.leaving), set(self.ownership.leaving)
        assert before <= after  # a hand-over that has begun is finished
        owners = owners_of(self.ownership)
        assert all(owners[number] not in {None, *self.dead} for number in after)
        new = after - before
        if candidates:
            drained = {number for number, owner in enumerate(owners) if owner in self.draining}
            assert drained <= after
            share_of = {candidate.owner: candidate.share * PARTITIONS for candidate in candidates}
            kept = Counter(owner for number, owner in enumerate(owners) if owner and number not in after)
            had = Counter(owner for number, owner in enumerate(owners) if owner and number not in before)
            for owner in had.keys() - self.draining:
                share = share_of.get(owner, 0.0)
                if not balance or had[owner] <= share:
                    assert kept[owner] == had[owner]
                else:  # no more than it has too many, whatever leaves already
                    assert share - 1.0 - 1e-6 < kept[owner] < share + 1.0 + 1e-6
        else:
            assert not new

    @invariant()
    def is_well_formed(self) -> None:
        if self.ownership is not None:
            assert len(self.ownership.partition_owners) == len(self.ownership.epochs) == PARTITIONS
            assert all(-1 <= index < len(self.ownership.owners) for index in self.ownership.partition_owners)
            assert set(self.ownership.partition_owners) - {NO_OWNER} == set(range(len(self.ownership.owners)))


@settings(max_examples=examples(60), deadline=None)
@given(
    parts=WEIGHTS,
    other_parts=WEIGHTS,
    sizes=st.lists(st.integers(0, 6), min_size=3, max_size=3),
    other_sizes=st.lists(st.integers(0, 6), min_size=3, max_size=3),
)
def test_hand_overs_reach_everyones_share_by_the_fewest_moves(
    parts: list[int], other_parts: list[int], sizes: list[int], other_sizes: list[int]
) -> None:
    """From any even assignment to any other one: replicas join or drain, weights change, all at once."""
    ready, later = members(sizes), members(other_sizes)
    first = shares(weights_of(parts), ready)
    then = shares(weights_of(other_parts), later)
    if not first or not then:
        return
    there = {owner for owners in later.values() for owner in owners}
    before = ownership = assign(None, first, lambda _: False, epoch_floor=0)
    rounds = 0
    while True:
        rounds += 1
        assert rounds < 5, "the hand-over does not end"
        told = hand_over(ownership, then, is_draining=lambda owner: owner not in there, balance=True)
        if not told.leaving:
            break
        emptied = {(owner, *given) for owner, epochs in told.leaving_by_owner().items() for given in epochs.items()}
        ownership = assign(told, then, lambda _: False, epoch_floor=0, emptied=emptied)
        assert not ownership.leaving
    held, had = Counter(owners_of(ownership)), Counter(owners_of(before))
    exact = {candidate.owner: candidate.share * PARTITIONS for candidate in then}
    for owner, share in exact.items():
        assert abs(held[owner] - share) <= 1.0 + 1e-6
    assert set(held) <= set(exact)
    moves = sum(old != new for old, new in zip(owners_of(before), owners_of(ownership), strict=True))
    assert moves == sum(max(0, count - held[owner]) for owner, count in had.items()), (
        "somebody gave more than it had to"
    )
    too_many = sum(max(0.0, count - exact.get(owner, 0.0)) for owner, count in had.items() if owner is not None)
    assert moves <= too_many + 1e-6, "more moved than was too many"
    changed = [was != now for was, now in zip(before.epochs, ownership.epochs, strict=True)]
    assert sum(changed) == moves


TestMembership = Membership.TestCase
TestMembership.settings = settings(max_examples=examples(40), stateful_step_count=25, deadline=None)


@settings(max_examples=examples(30), deadline=None)
@given(size=st.integers(2, 9), victims=st.integers(1, 8))
def test_orphans_go_to_whoever_has_the_least_so_that_shares_stay_even(size: int, victims: int) -> None:
    owners = [Incarnation(f"r{number}", "i") for number in range(size)]
    first = assign(None, shares({"v": 1.0}, {"v": owners}), lambda _: False, epoch_floor=0)
    dead = set(owners[: min(victims, size - 1)])
    left = [owner for owner in owners if owner not in dead]
    after = assign(first, shares({"v": 1.0}, {"v": left}), dead.__contains__, epoch_floor=0)
    held = Counter(owners_of(after))
    assert max(held.values()) - min(held.values()) <= 1
    assert held.total() == PARTITIONS
