"""The choice of a backend against a naive model: weights are shares of what can serve, in one draw a call."""

from __future__ import annotations

import random
from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from router_service.core.routing.traffic import choose
from slotmesh.spec.model import Prospect
from tests.support.examples import examples
from tests.unit.router.world import World

NAMES = ("a", "b", "c", "d", "e")
WEIGHTS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from((0.0, 0.01, 0.1, 0.5, 0.9)), min_size=1).filter(
    lambda weights: any(weights.values())
)
STATES = st.fixed_dictionaries(dict.fromkeys(NAMES, st.sampled_from(("ready", "ready", "lost", "draining", *Prospect))))
KEYS = [f"key-{number}" for number in range(40)]


def world_in(states: dict[str, str | Prospect], weights: dict[str, float], seed: int = 0) -> World:
    """One replica of each backend that is ready, was lost, or drains; none where there is a prospect."""
    has_replica = {name: not isinstance(state, Prospect) for name, state in states.items()}
    backends = {name: [name + "1"] * has_replica[name] for name in NAMES}
    prospects = {name: state for name, state in states.items() if isinstance(state, Prospect)}
    world = World(backends, slots=10**6, weights=weights, prospects=prospects, seed=seed)
    for name, state in states.items():
        if state == "lost":
            world.lose(name + "1")
        elif state == "draining":
            world.drain(name + "1")
    return world


def naive_shares(states: dict[str, str | Prospect], weights: dict[str, float]) -> dict[str, float]:
    """Backends that can serve; else those for which calls wait. A backend whose replicas drain may have others soon."""
    positive = {name: weight for name, weight in weights.items() if weight > 0}
    ready = {name: weight for name, weight in positive.items() if states[name] == "ready"}
    gone = (Prospect.FAILING, Prospect.NONE)
    return ready or {name: weight for name, weight in positive.items() if states[name] not in gone}


def whereabouts(world: World, calls: int) -> list[str]:
    """The backend at which each call is or waits, or nothing where it has failed."""
    at = {call: name for name in NAMES for call in world.got(name + "1")}
    for name, backend in world.scheduler.topology.backends.items():
        runs = backend.queue.drain()
        at |= {call: name for run in runs for call in run.ids[run.cursor :]}
    for call, outcome in world.outcomes.items():
        assert outcome in {"BACKEND_UNAVAILABLE", "REPLICA_LOST"}
        if outcome == "BACKEND_UNAVAILABLE":
            at[call] = ""
    return [at[call] for call in range(calls)]


@given(states=STATES, weights=WEIGHTS, seed=st.integers(0, 2**32))
@settings(max_examples=examples(300))
def test_calls_are_drawn_from_what_can_serve(
    states: dict[str, str | Prospect], weights: dict[str, float], seed: int
) -> None:
    shares = naive_shares(states, weights)
    world = world_in(states, weights, seed)
    draws = random.Random(seed)
    for call in range(20):
        world.submit([call])
    expected = []
    for _ in range(20):
        drawn = draws.random() * sum(shares.values()) if len(shares) > 1 else 0.0
        bounds = accumulate(shares.values())
        expected.append(next((name for name, bound in zip(shares, bounds, strict=True) if drawn < bound), ""))
    if not shares:
        assert set(whereabouts(world, 20)) == {""}
    elif len(shares) == 1:
        assert set(whereabouts(world, 20)) == set(shares)
    else:
        assert whereabouts(world, 20) == expected


@given(states=STATES, weights=WEIGHTS)
@settings(max_examples=examples(200))
def test_shard_keys_move_only_from_what_cannot_serve(
    states: dict[str, str | Prospect], weights: dict[str, float]
) -> None:
    shares = naive_shares(states, weights)
    world = world_in(states, weights)
    for call, key in enumerate(KEYS):
        world.submit([call], shard_key=key)
    at = whereabouts(world, len(KEYS))
    for key, name in zip(KEYS, at, strict=True):
        home = choose(key, weights)
        assert name == (home if home in shares else choose(key, shares) if shares else "")


@given(states=STATES, weights=WEIGHTS, seed=st.integers(0, 2**32), calls=st.integers(2, 60))
@settings(max_examples=examples(200))
def test_runs_are_divided_among_what_can_serve(
    states: dict[str, str | Prospect], weights: dict[str, float], seed: int, calls: int
) -> None:
    shares = naive_shares(states, weights)
    world = world_in(states, weights, seed)
    world.submit(range(calls))
    assert set(whereabouts(world, calls)) <= (shares.keys() or {""})


@given(before=STATES, after=STATES, weights=WEIGHTS)
@settings(max_examples=examples(200))
def test_what_waits_follows(
    before: dict[str, str | Prospect], after: dict[str, str | Prospect], weights: dict[str, float]
) -> None:
    """Whatever states follow each other, in the end what waits is where a new call would be."""
    world = world_in(before, weights)
    world.submit(range(10))
    at = {call for name in NAMES for call in world.got(name + "1")} | world.outcomes.keys()
    world.backends = {name: [name + "1"] * (not isinstance(state, Prospect)) for name, state in after.items()}
    world.prospects = {name: state for name, state in after.items() if isinstance(state, Prospect)}
    world.links_at_once = False
    world.push()
    for name, state in after.items():
        replica = world.replicas.get(name + "1")
        if replica is None or not replica.listed:
            continue
        if state == "ready" and not replica.draining:
            world.link(name + "1")
        elif state == "lost" and replica.linked:
            world.lose(name + "1")
        elif state == "draining":
            world.drain(name + "1")
    states = {
        name: "draining" if (it := world.replicas.get(name + "1")) is not None and it.listed and it.draining else state
        for name, state in after.items()
    }
    shares = naive_shares(states, weights)
    whereabouts_now = whereabouts(world, 10)
    for call in set(range(10)) - at:
        assert whereabouts_now[call] in (shares.keys() or {""})
