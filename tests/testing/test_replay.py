"""`slotmesh.testing.replay_balancer`: the router's core, with any balancer, on virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import slotmesh.testing
from slotmesh.balancers import CallEnd, Calls, Candidate, Pick
from slotmesh.testing import ReplayedCall, ReplayedReplica, replay_balancer


class First:
    def pick(self, calls: Calls, candidates: Sequence[Candidate]) -> Candidate:
        return candidates[0]


class MostMemory:
    def pick(self, calls: Calls, candidates: Sequence[Candidate]) -> Candidate:
        return max(candidates, key=lambda it: (it.figures.get("kv_free", 0.0), -it.load))


def steady(number: int, *, every: float = 0.01, service_time: float = 0.03) -> list[ReplayedCall]:
    return [ReplayedCall(at=every * at, service_time=service_time) for at in range(number)]


def test_a_balancer_that_knows_only_the_first_lets_others_idle() -> None:
    replay = replay_balancer(First, steady(100), replicas=4)
    assert replay.calls_by_replica == {"r0": 100}
    even = replay_balancer("round_robin", steady(100), replicas=4)
    assert even.calls_by_replica == dict.fromkeys(("r0", "r1", "r2", "r3"), 25)
    assert replay.queue_time(1.0) == even.queue_time(1.0) == 0.0
    assert not replay.faults


def test_calls_wait_where_all_replicas_are_full_and_their_time_is_exact() -> None:
    replicas = [ReplayedReplica(replica_id="a", max_ongoing=1)]
    calls = [ReplayedCall(at=1.0, service_time=0.5, size=number) for number in range(4)]
    replay = replay_balancer(First, calls, replicas)
    assert replay.queue_times == pytest.approx([0.0, 0.5, 1.0, 1.5])
    assert (replay.queue_time(0.5), replay.queue_time(0.99)) == pytest.approx((0.5, 1.5))


def test_what_replicas_report_and_where_they_are() -> None:
    replicas = [
        ReplayedReplica(replica_id="full", figures={"kv_free": 0.1}, zone="here"),
        ReplayedReplica(replica_id="empty", figures={"kv_free": 0.9}, zone="there", max_ongoing=2),
    ]
    assert set(replay_balancer(MostMemory, steady(10), replicas).replica_ids) == {"full", "empty"}
    assert replay_balancer(MostMemory, steady(2), replicas).replica_ids == ["empty", "empty"]
    assert replay_balancer("least_loaded", steady(8), replicas, zone="here").calls_by_replica == {"full": 8}


def test_the_calls_are_as_they_were_given_and_frames_stay_whole() -> None:
    seen: list[Calls] = []

    class Takes:
        def pick(self, calls: Calls, candidates: Sequence[Candidate]) -> Pick:
            seen.append(calls)
            return Pick(candidates[0], calls.number)

    late = ReplayedCall(at=9.0, metadata={"region": "eu"}, affinity_key="k", tenant="t", method="m")
    calls = [late, *[ReplayedCall(at=1.0, size=10)] * 3]
    replay = replay_balancer(Takes, calls)
    assert [(it.number, it.size) for it in seen] == [(3, 30), (1, 0)]
    assert (seen[1].metadata, seen[1].affinity_key, seen[1].tenant, seen[1].method) == ({"region": "eu"}, "k", "t", "m")
    assert len(replay.replica_ids) == 4


def test_the_time_of_a_call_may_depend_on_where_it_is() -> None:
    caches: dict[str, set[str]] = {}

    def service_time(call: ReplayedCall, replica_id: str) -> float:
        cache = caches.setdefault(replica_id, set())
        is_hit = call.affinity_key in cache
        cache.add(call.affinity_key)
        return 0.01 if is_hit else 0.1

    calls = [ReplayedCall(at=0.05 * number, affinity_key=f"k{number % 7}") for number in range(140)]
    replay_balancer("least_loaded", calls, service_time=service_time)
    assert sum(map(len, caches.values())) == 7, "each key is at one replica"


def test_faults_are_counted_and_no_call_is_lost() -> None:
    class Odd:
        ends = 0

        def pick(self, calls: Calls, candidates: Sequence[Candidate]) -> Candidate | None:
            return None

        def sent(self, candidate: Candidate, count: int) -> None:
            pass

        def ended(self, candidate: Candidate, count: int, end: CallEnd, latency_s: float) -> None:
            Odd.ends += count

    replay = replay_balancer(Odd, steady(30))
    assert replay.faults == {"none": 10, "set_aside": 20}
    assert all(replay.replica_ids)
    assert Odd.ends == 7, "it is set aside before most of them end"


def test_the_same_seed_gives_the_same_picks() -> None:
    picks = [replay_balancer("power_of_two", steady(50), seed=seed).replica_ids for seed in (1, 1, 2)]
    assert picks[0] == picks[1] != picks[2]


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="no balancer is named 'mine': there are least_loaded"):
        replay_balancer("mine", [])
    with pytest.raises(ValueError, match="at least one is needed"):
        replay_balancer(First, [], replicas=0)
    assert slotmesh.testing.replay_balancer(First, []).queue_time(0.9) == 0.0


@pytest.mark.asyncio
async def test_a_mesh_of_a_test_may_have_one_too() -> None:
    class Echo:
        async def echo(self, number: int) -> int:
            return number

    path = "tests.support.balancers:First"
    backend = slotmesh.testing.Backend(Echo, num_replicas=2, settings={"balancer": path})
    async with slotmesh.testing.mesh({"echo": backend}, balancers=[path]) as mesh:
        assert [await mesh.endpoint("echo").echo(number) for number in range(3)] == [0, 1, 2]
        async with mesh.endpoint("echo").reserve() as slot:
            assert slot.replica_id == mesh.replica_ids("echo")[0]
