"""Balancers of users' own: what they see, what becomes of their picks, and what they cannot break."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from router_service.core.calls import Reserve, RouterCallOptions
from router_service.core.counters import PickCounts, PickFault
from router_service.core.plugged_balancers import (
    FAULTS_IN_A_ROW,
    LONGEST_PAUSE_S,
    MAX_CHANGED,
    PAUSE_S,
    PluggedBalancer,
    PlugIns,
    Turn,
)
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.runs import RouterRun
from slotmesh.balancers import CallEnd, Calls, Candidate, Pick
from tests.unit.router.parts import NOBODY, replica, run

Decide = Callable[[Calls, Sequence[Candidate]], Any]


class World:
    """A plug-in in its surroundings, on a clock that stands still unless it is moved."""

    def __init__(self, decide: Decide, *, hooks: type[Any] | None = None, budget_s: float = 0.001) -> None:
        self.now = 100.0
        self.reported: list[tuple[PickFault, BaseException | None]] = []
        self.counts = PickCounts()
        self.asked: list[tuple[Calls, Sequence[Candidate]]] = []
        world = self

        class PlugIn(hooks or object):  # type: ignore[misc]  # any class
            def pick(self, calls: Calls, candidates: Sequence[Candidate]) -> Any:
                world.asked.append((calls, candidates))
                return decide(calls, candidates)

        def report(_backend: str, _balancer: str, cause: PickFault, error: BaseException | None) -> None:
            self.reported.append((cause, error))

        plug_ins = PlugIns(
            makers={"mine": PlugIn},
            now=lambda: self.now,
            budget_s=budget_s,
            metadata_of=lambda wire: {"wire": wire.decode()},
            report=report,
        )
        self.balancer = PluggedBalancer[RoutedReplica]("b", "mine", plug_ins, self.counts)

    def add(self, *replicas: RoutedReplica) -> None:
        for each in replicas:
            self.balancer.changed(each)

    def faults(self) -> dict[PickFault, int]:
        return {fault: count for fault, count in self.counts.faults.items() if count}


def first(_calls: Calls, candidates: Sequence[Candidate]) -> Candidate:
    return candidates[0]


def test_candidates_are_the_replicas_with_room_by_id() -> None:
    world, (a, b, c) = World(first), [replica(name, 2) for name in "cab"]
    world.add(a, b, c)
    assert world.balancer.pick(run(), 1) == (b, 1)
    assert [each.replica_id for each in world.asked[0][1]] == ["a", "b", "c"]
    b.own = 2
    world.add(b)
    assert world.balancer.pick(run(), 1) == (c, 1)
    b.own = 1
    world.add(b)
    c.draining = True
    c.refresh()
    world.add(c)
    assert world.balancer.pick(run(), 1) == (b, 1)
    assert [(each.replica_id, each.free) for each in world.asked[-1][1]] == [("a", 1), ("c", 2)]


def test_a_candidate_has_what_is_known_of_the_replica() -> None:
    world, one = World(first), replica("r", 4, prefetch=2, others=3)
    one.own, one.zone, one.is_near, one.rank, one.devices = 1, "z", True, 3, ("cuda:0",)
    one.figures, one.models = {"kv_free": 0.3}, frozenset({"m"})
    world.add(one)
    world.balancer.pick(run(), 1)
    (candidate,) = world.asked[0][1]
    assert candidate == Candidate(
        replica_id="r",
        rank=3,
        zone="z",
        devices=("cuda:0",),
        is_near=True,
        max_ongoing=4,
        in_flight=4,
        free=2,
        models=frozenset({"m"}),
        figures={"kv_free": 0.3},
    )
    assert candidate.load == 1.0


def test_what_a_plug_in_has_seen_does_not_change() -> None:
    world, one = World(first), replica("r", 4)
    world.add(one)
    world.balancer.pick(run(), 1)
    one.own = 3
    world.add(one)
    world.balancer.pick(run(), 1)
    before, after = world.asked[0][1], world.asked[1][1]
    assert [each.free for each in (*before, *after)] == [4, 1]


def test_only_what_changed_is_made_anew() -> None:
    world, (a, b) = World(first), [replica(name, 4) for name in "ab"]
    world.add(a, b)
    world.balancer.pick(run(), 1)
    world.add(a)
    world.balancer.pick(run(), 1)
    world.balancer.pick(run(), 1)
    (a1, b1), (a2, b2), (a3, _) = (candidates for _, candidates in world.asked)
    assert a1 is not a2 is a3
    assert b1 is b2


def test_calls_are_described_without_their_payloads() -> None:
    world = World(first)
    world.add(replica("r", 100))
    waiting = run(
        count=5, size=10, method="m", tenant="t", affinity_key="k", model_id="d", prefix_blocks=(1, 2), wire=b"it"
    )
    world.balancer.pick(waiting, 4)
    assert world.asked[0][0] == Calls(
        endpoint="e",
        method="m",
        number=4,
        size=40,
        affinity_key="k",
        model_id="d",
        tenant="t",
        prefix_blocks=(1, 2),
        metadata={"wire": "it"},
    )


def test_a_reservation_is_one_call_that_is_not_known_yet() -> None:
    world, one = World(first), replica("r", 100)
    world.add(one)
    reserving = RouterRun(1, NOBODY, "e", RouterCallOptions(tenant="t"), range(1, 2), [b""], 0.0, slot=Reserve())
    assert world.balancer.pick(reserving, 1) == (one, 1)
    assert world.asked[0][0] == Calls(endpoint="e", tenant="t", metadata={"wire": ""}, is_reservation=True)


def test_the_size_follows_what_was_sent_in_between() -> None:
    begun = Turn(None, 0, 0, 0, 0)
    one = run(count=6, size=10)
    turn = begun.after(one, 6)
    one.cursor = 4
    later = turn.after(one, 2)
    assert (turn.size, later.size, later.calls) == (60, 20, 6)
    assert later.after(run(count=2, size=3), 2).size == 6, "another run"
    one.cursor = 0
    assert later.after(one, 6).size == 60, "it was put back"


def test_a_plain_candidate_gets_an_even_share_and_frames_stay_whole() -> None:
    world, replicas = World(first), [replica(name, 100) for name in "abcd"]
    world.add(*replicas)
    waiting = run(count=100)
    picked = []
    while waiting.waiting:
        found = world.balancer.pick(waiting, waiting.waiting)
        assert found is not None
        picked.append(found[1])
        waiting.cursor += found[1]
    assert picked == [25, 25, 25, 25]


@pytest.mark.parametrize(("wanted", "gets"), [(1, 1), (7, 7), (9, 8), (100, 8)])
def test_a_pick_may_be_for_several_calls_as_far_as_there_is_room(wanted: int, gets: int) -> None:
    world, one = World(lambda _, candidates: Pick(candidates[0], wanted)), replica("r", 8)
    world.add(one)
    assert world.balancer.pick(run(count=20), 20) == (one, gets)
    assert not world.faults()


def test_no_room_is_no_fault() -> None:
    world = World(first)
    assert world.balancer.pick(run(), 1) is None
    full = replica("r", 1)
    full.own = 1
    world.add(full)
    assert world.balancer.pick(run(), 1) is None
    assert not world.asked
    assert not world.faults()


def raises(error: BaseException) -> Decide:
    def decide(_calls: Calls, _candidates: Sequence[Candidate]) -> None:
        raise error

    return decide


@pytest.mark.parametrize(
    ("decide", "cause"),
    [
        (raises(KeyError("key of a caller")), PickFault.RAISED),
        (raises(SystemExit(1)), PickFault.RAISED),
        (raises(StopIteration()), PickFault.RAISED),
        (lambda *_: None, PickFault.NONE),
        (lambda *_: Candidate(replica_id="another"), PickFault.IMPOSSIBLE),
        (lambda *_: Candidate(replica_id="full"), PickFault.IMPOSSIBLE),
        (lambda *_: "r", PickFault.IMPOSSIBLE),
        (lambda *_: 7, PickFault.IMPOSSIBLE),
        (lambda *_: Pick(None, 1), PickFault.NONE),
        (lambda *_: Pick(Candidate(replica_id="r"), "many"), PickFault.RAISED),  # type: ignore[arg-type]
        (lambda *_: Candidate(replica_id=5), PickFault.RAISED),  # type: ignore[arg-type]
    ],
)
def test_a_pick_that_is_not_possible_is_left_to_the_router_and_counted(decide: Decide, cause: PickFault) -> None:
    world, full = World(decide), replica("full", 1)
    full.own = 1
    world.add(replica("r"), full)
    assert world.balancer.pick(run(), 1) is None
    assert world.faults() == {cause: 1}
    assert [it for it, _ in world.reported] == [cause]


def test_a_plug_in_that_fails_in_a_row_is_set_aside_for_a_while() -> None:
    works: list[bool] = []

    def decide(_calls: Calls, candidates: Sequence[Candidate]) -> Candidate | None:
        return candidates[0] if works else None

    world = World(decide)
    world.add(replica("r"))
    for _ in range(FAULTS_IN_A_ROW):
        world.balancer.pick(run(), 1)
    assert len(world.asked) == FAULTS_IN_A_ROW
    works.append(True)
    world.now += PAUSE_S - 0.01
    assert world.balancer.pick(run(), 1) is None
    assert world.faults() == {PickFault.NONE: FAULTS_IN_A_ROW, PickFault.SET_ASIDE: 1}
    assert len(world.reported) == FAULTS_IN_A_ROW, "nothing new is to be logged while it is set aside"
    world.now += 0.01
    assert world.balancer.pick(run(), 1) is not None


def test_one_that_works_in_between_is_not_set_aside() -> None:
    world = World(lambda _, candidates: candidates[0] if len(world.asked) % FAULTS_IN_A_ROW == 0 else None)
    world.add(replica("r"))
    for _ in range(5 * FAULTS_IN_A_ROW):
        world.balancer.pick(run(), 1)
    assert PickFault.SET_ASIDE not in world.faults()


def slow(took_s: float) -> World:
    def decide(_calls: Calls, candidates: Sequence[Candidate]) -> Candidate:
        world.now += took_s
        return candidates[0]

    world = World(decide)
    world.add(replica("r"))
    return world


def test_a_pick_over_the_budget_is_used_and_counted() -> None:
    world = slow(0.0011)
    assert world.balancer.pick(run(), 1) is not None
    assert world.faults() == {PickFault.LATE: 1}
    assert sum(world.counts.times.counts) == 1
    assert slow(0.0009).balancer.pick(run(), 1) is not None


def test_one_that_hangs_is_set_aside_at_once_and_for_longer_each_time() -> None:
    world = slow(1.0)
    world.balancer.pick(run(), 1)
    for pause_s in (PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S):
        world.now += pause_s - 0.01
        assert world.balancer.pick(run(), 1) is None
        world.now += 0.01
        assert world.balancer.pick(run(), 1) is not None, "it is tried again"
    world.now += 8 * PAUSE_S + LONGEST_PAUSE_S
    world.balancer.pick(run(), 1)
    world.now += PAUSE_S
    assert world.balancer.pick(run(), 1) is not None, "that was long ago"


@pytest.mark.parametrize(("every_s", "is_set_aside"), [(0.2, True), (0.4, False)])
def test_delays_are_bounded_by_their_share_of_the_time(every_s: float, is_set_aside: bool) -> None:
    """Each second pick takes 30 ms; a tenth of the time is what there is for them."""

    def decide(_calls: Calls, candidates: Sequence[Candidate]) -> Candidate:
        world.now += 0.03 * (len(world.asked) % 2)
        return candidates[0]

    world = World(decide)
    world.add(replica("r"))
    for _ in range(40):
        world.now += every_s / 2
        world.balancer.pick(run(), 1)
    assert (PickFault.SET_ASIDE in world.faults()) is is_set_aside


def test_a_plug_in_that_cannot_be_made_is_set_aside_for_good() -> None:
    def make() -> Any:
        raise ValueError("no model")

    counts = PickCounts()
    plugged = PluggedBalancer[RoutedReplica]("b", "mine", PlugIns(makers={"mine": make}), counts)
    plugged.changed(replica("r"))
    assert plugged.pick(run(), 1) is None
    assert {fault for fault, count in counts.faults.items() if count} == {PickFault.RAISED, PickFault.SET_ASIDE}


class Follows:
    """Hooks that write down what they get."""

    seen: list[Any]

    def changed(self, candidate: Candidate) -> None:
        self.seen.append((candidate.replica_id, candidate.free))

    def sent(self, candidate: Candidate, count: int) -> None:
        self.seen.append(("sent", candidate.replica_id, count))

    def ended(self, candidate: Candidate, count: int, end: CallEnd, latency_s: float) -> None:
        self.seen.append((end, candidate.replica_id, count, latency_s))


def following() -> tuple[World, list[Any]]:
    hooks = type("Hooks", (Follows,), {"seen": []})
    return World(first, hooks=hooks), hooks.seen  # type: ignore[attr-defined]


def test_a_plug_in_may_follow_replicas_and_calls() -> None:
    world, seen = following()
    one = replica("r", 4)
    world.add(one)
    assert not seen, "before a pick nothing is made"
    world.balancer.pick(run(), 1)
    one.own = 4
    world.add(one)
    world.balancer.pick(run(), 1)
    hooks = world.balancer.hooks
    assert hooks is not None
    hooks.sent(one, 4)
    hooks.ended(one, 4, CallEnd.WELL, 0.5)
    assert seen == [("r", 4), ("r", 0), ("sent", "r", 4), (CallEnd.WELL, "r", 4, 0.5)]


def test_changes_do_not_pile_up_without_picks() -> None:
    world, seen = following()
    for number in range(MAX_CHANGED + 1):
        world.add(replica(f"r{number}", 1))
    assert len(seen) == MAX_CHANGED + 1
    assert not world.balancer._changed


def test_hooks_that_raise_harm_nobody_and_are_not_called_while_it_is_set_aside() -> None:
    class Bad:
        def sent(self, candidate: Candidate, count: int) -> None:
            raise OSError("no")

        def ended(self, candidate: Candidate, count: int, end: CallEnd, latency_s: float) -> None:
            raise AssertionError("is not reached")

    world, one = World(first, hooks=Bad), replica("r")
    hooks = world.balancer.hooks
    assert hooks is not None
    for _ in range(FAULTS_IN_A_ROW):
        hooks.sent(one, 1)
    hooks.ended(one, 1, CallEnd.WELL, 0.0)
    assert world.faults() == {PickFault.HOOK: FAULTS_IN_A_ROW}
    assert World(first).balancer.hooks is None
