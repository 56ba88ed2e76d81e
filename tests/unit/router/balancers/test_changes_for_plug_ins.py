"""Changes of replicas reach balancers of users' own, whatever these do and whatever tables name later."""

from __future__ import annotations

from collections.abc import Sequence

from router_service.core.counters import PickFault
from router_service.core.events import TableReceived
from router_service.core.plugged_balancers import FAULTS_IN_A_ROW, MAX_CHANGED, PluggedBalancer, PlugIns
from router_service.core.routing_table import BackendRoute, ReplicaRoute, RoutingTable
from router_service.core.scheduler import RouterScheduler
from slotmesh.balancers import Calls, Candidate
from slotmesh.spec.model import Backend
from tests.unit.router.balancers.test_plugged_balancers import World
from tests.unit.router.parts import chance, replica, run


def test_a_hook_that_raises_hides_no_change_of_a_replica() -> None:
    class Bad:
        def changed(self, candidate: Candidate) -> None:
            if candidate.free < 2:
                raise OSError("no")

    world, (a, b) = World(lambda _, candidates: candidates[-1], hooks=Bad), [replica(name, 2) for name in "ab"]
    world.add(a, b)
    assert world.balancer.pick(run(count=4), 4) == (b, 2)
    a.own = b.own = 2
    world.add(b, a)
    assert world.balancer.pick(run(count=2), 2) is None, "full ones are no candidates"
    assert world.faults() == {PickFault.HOOK: 2}


def test_a_plug_in_that_is_set_aside_hears_of_no_further_change() -> None:
    class Bad:
        def changed(self, candidate: Candidate) -> None:
            raise OSError("no")

    world = World(lambda _, candidates: candidates[0], hooks=Bad)
    for count in (FAULTS_IN_A_ROW + 5, MAX_CHANGED + 1):
        world.add(*(replica(f"r{at}") for at in range(count)))
        world.balancer.pick(run(), 1)
        assert world.faults()[PickFault.HOOK] == FAULTS_IN_A_ROW


def test_a_table_that_names_a_zone_later_makes_its_replicas_near_ones() -> None:
    scheduler = RouterScheduler(chance(), zone="z")
    for revision, zone in enumerate(("", "z"), 1):
        zones = {"near": zone, "far": ""}
        routes = [ReplicaRoute(key=(name, "life"), address="", max_ongoing=2, zone=it) for name, it in zones.items()]
        route = BackendRoute(settings=Backend(name="b"), replicas=routes)
        scheduler.step(TableReceived(RoutingTable(generation="g", revision=revision, backends={"b": route})), 0.0)
        backend = scheduler.topology.backends["b"]
        for each in backend.replicas.values() if not zone else ():
            each.linked, each.own = True, int(each.replica_id == "near")
            backend.changed(each)
        picked = backend.pick("")
        assert picked is not None
        assert picked.replica_id == ("near" if zone else "far")


def test_zones_that_are_learned_later_leave_a_plug_in_as_it_is() -> None:
    made: list[object] = []

    class PlugIn:
        def __init__(self) -> None:
            made.append(self)

        def pick(self, _calls: Calls, candidates: Sequence[Candidate]) -> Candidate:
            made.append([each.zone for each in candidates])
            return candidates[0]

    plug_ins = PlugIns(makers={"mine": PlugIn})
    scheduler = RouterScheduler(chance(), plug_ins=plug_ins, zone="z")
    for revision, zone in enumerate(("", "z", "z"), 1):
        routes = [ReplicaRoute(key=(name, "life"), address="", max_ongoing=2, zone=zone) for name in "abc"]
        route = BackendRoute(settings=Backend(name="b", balancer="mine"), replicas=routes)
        scheduler.step(TableReceived(RoutingTable(generation="g", revision=revision, backends={"b": route})), 0.0)
    backend = scheduler.topology.backends["b"]
    for each in backend.replicas.values():
        each.linked = True
        backend.changed(each)
    assert isinstance(backend.preferences, PluggedBalancer)
    backend.preferences.pick(run(), 1)
    assert made[1:] == [["z", "z", "z"]]
    picked = [backend.pick("") for _ in range(3)]
    assert all(each is not None and each.is_near for each in picked)
