"""Models in the whole core: which replica gets the calls of a model, and which one loads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from router_service.core.events import HandlerStateReported
from router_service.core.preferences import Preferences
from router_service.core.preferences.affinity import MAX_TRIED, Ring
from router_service.core.preferences.models import ModelIds
from router_service.core.replicas.replica import RoutedReplica
from slotmesh.calls.key_hash import place_of_model
from tests.unit.router.parts import replica
from tests.unit.router.slot_world import SlotWorld
from tests.unit.router.world import World

NAMES = [f"r{number}" for number in range(5)]


def order_of(model: str, names: Iterable[str] = NAMES) -> list[str]:
    """The replicas in the order in which they load the model."""
    ring = Ring[RoutedReplica]()
    for name in names:
        ring.put(replica(name), is_member=True)
    return [each.replica_id for each in ring.follow(place_of_model(model))]


def loads(world: World) -> dict[str, list[int]]:
    """The calls at each replica."""
    return {name: held for name in world.backends["b"] if (held := world.at_replica(name))}


def report(world: World, name: str, *models: str, most: int = 0) -> None:
    """The replica has loaded these models, and no others."""
    world.step(HandlerStateReported(world.replicas[name], {}, frozenset(models), max_models=most))


def new_world(names: Sequence[str] = NAMES, slots: int = 8) -> World:
    return World({"b": names}, slots=slots)


def preference(world: World) -> ModelIds[RoutedReplica]:
    preferences = world.scheduler.topology.backends["b"].preferences
    assert isinstance(preferences, Preferences)
    (found,) = (each for each in preferences._ordered if isinstance(each, ModelIds))
    return found


def test_places_are_the_same_in_every_process_and_release() -> None:
    assert place_of_model("m1") == 13286733291178425896
    assert order_of("m1") == ["r1", "r0", "r2", "r4", "r3"]


def test_a_cold_model_is_loaded_at_one_replica_and_its_next_calls_follow() -> None:
    for model in ("m1", "m2"):
        world = new_world()
        for call in (1, 2, 3):
            world.submit([call], model_id=model)
        assert loads(world) == {order_of(model)[0]: [1, 2, 3]}


def test_a_replica_that_has_the_model_is_preferred() -> None:
    world = new_world()
    *_, last = order_of("m1")
    report(world, last, "m1", "m2")
    world.submit([1], model_id="m1")
    assert loads(world) == {last: [1]}


def test_of_several_replicas_the_first_takes_calls_up_to_its_bound_and_then_the_least_loaded() -> None:
    world = new_world(slots=8)
    *_, fourth, last = order_of("m1")
    report(world, last, "m1")
    report(world, fourth, "m1")
    for call in range(1, 6):
        world.submit([call], model_id="m1")
    assert loads(world) == {last: [1, 2, 3, 4], fourth: [5]}
    world.submit([6, 7, 8, 9, 10], model_id="m1")
    assert {name: len(held) for name, held in loads(world).items()} == {last: 6, fourth: 4}
    world.submit([11], model_id="m1")
    assert loads(world)[fourth][-1] == 11, "both are at their bound"


def test_an_unloaded_model_is_loaded_where_it_belongs() -> None:
    world = new_world()
    first, *_, last = order_of("m1")
    report(world, last, "m1")
    world.submit([1], model_id="m1")
    report(world, last, "m2")
    world.submit([2], model_id="m1")
    assert loads(world) == {last: [1], first: [2]}


def test_a_hot_model_is_loaded_at_the_next_replica_when_its_own_are_full() -> None:
    world = new_world(slots=2)
    first, second, *_ = order_of("m1")
    report(world, first, "m1")
    world.submit([1, 2], model_id="m1")
    assert loads(world) == {first: [1, 2]}
    world.submit([3], model_id="m1")
    assert loads(world) == {first: [1, 2], second: [3]}


def test_a_model_goes_where_a_place_is_free() -> None:
    world = new_world()
    first, second, third, *_ = order_of("m1")
    report(world, first, "a", "b", most=2)
    report(world, second, "c", most=2)
    report(world, third, most=2)
    world.submit([1], model_id="m1")
    assert loads(world) == {second: [1]}
    # The model that was sent there counts.
    other = next(f"x{number}" for number in range(1_000) if order_of(f"x{number}")[0] == second)
    world.submit([2], model_id=other)
    assert 2 not in loads(world)[second]


def test_where_no_place_is_free_the_first_replica_unloads_another_model() -> None:
    world = new_world()
    for name in NAMES:
        report(world, name, f"{name}-1", f"{name}-2", most=2)
    world.submit([1], model_id="m1")
    assert loads(world) == {order_of("m1")[0]: [1]}


def test_a_loaded_replica_takes_calls_up_to_its_room_and_others_only_up_to_their_bound() -> None:
    world = new_world(slots=8)
    first, *_ = order_of("m1")
    world.submit(range(1, 21), model_id="m1")
    held = {name: len(calls) for name, calls in loads(world).items()}
    assert held[first] == 8
    assert sum(held.values()) == 20


def test_a_lost_replica_is_forgotten_and_a_new_link_begins_without_models() -> None:
    world = new_world()
    first, second, *_, last = order_of("m1")
    report(world, last, "m1")
    world.submit([1], model_id="m1", idempotent=True)
    world.lose(last)
    assert loads(world) == {first: [1]}
    world.link(last)
    world.lose(first)
    assert loads(world) == {second: [1]}
    assert preference(world)._with.keys() == {"m1"}


def test_what_was_sent_is_remembered_for_as_many_models_as_the_replica_keeps() -> None:
    world = new_world(["r0"], slots=1_000)
    report(world, "r0", most=3)
    for number in range(10):
        world.submit([number], model_id=f"m{number}")
    assert preference(world)._with.keys() == {"m7", "m8", "m9"}
    report(world, "r0", "m8", "m9", most=3)
    report(world, "r0", "m9", most=3)
    assert preference(world)._with.keys() == {"m7", "m9"}
    world.backends["b"] = []
    world.push()
    world.complete("r0")
    assert not preference(world)._with
    assert not preference(world)._sent


def test_only_some_replicas_of_a_model_are_looked_at_in_turn() -> None:
    names = [f"r{number}" for number in range(2 * MAX_TRIED)]
    world = new_world(names, slots=1)
    for name in names:
        report(world, name, "m1")
    world.submit(range(len(names)), model_id="m1")
    assert all(len(held) == 1 for held in loads(world).values())
    assert len(loads(world)) == len(names)


def test_routers_agree_on_where_a_cold_model_is_loaded() -> None:
    one, other = new_world(), new_world([*reversed(NAMES)])
    for number in range(50):
        for world in (one, other):
            world.submit([number], model_id=f"m{number}")
    assert {name: len(held) for name, held in loads(one).items()} == {
        name: len(held) for name, held in loads(other).items()
    }


def test_a_model_goes_before_an_affinity_key() -> None:
    world = new_world()
    *_, last = order_of("m1")
    report(world, last, "m1")
    for number in range(5):
        world.submit([number], model_id="m1", affinity_key=f"user-{number}")
    assert loads(world) == {last: [0, 1, 2, 3, 4]}


def test_a_reservation_goes_to_the_model() -> None:
    world = SlotWorld({"b": NAMES})
    *_, last = order_of("m1")
    world.step(HandlerStateReported(world.replicas[last], {}, frozenset({"m1"})))
    world.reserve(model_id="m1")
    assert world.replicas[last].own == 1


def test_a_replica_that_reports_the_model_goes_before_one_that_does_not_load_it() -> None:
    world = new_world()
    first, second, *_ = order_of("m1")
    world.submit([1], model_id="m1")
    assert loads(world) == {first: [1]}
    world.fail(first, 1)
    report(world, second, "m1")
    world.submit([2], model_id="m1")
    assert loads(world) == {second: [2]}
