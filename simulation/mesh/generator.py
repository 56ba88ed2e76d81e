"""Scenarios from seeds: a mesh, its work, and a plot; now and then a storm besides."""

from __future__ import annotations

from math import inf
from random import Random
from typing import Final

from simulation.mesh.draft import Draft
from simulation.mesh.plots import BY_NAME, PLOTS
from simulation.mesh.scenario import SETTLE_S, ClientPlan, ReplicaPlan, RouterPlan, Scenario, WorkKind, WorkPlan
from simulation.mesh.storm import storm

SUBSETS: Final = 0.3
"""Share of scenarios in which routers link to a part of the replicas."""


def generate(seed: int, seconds: float = 5.0, plot_name: str = "") -> Scenario:
    """The scenario of a seed; with a plot of that name, if one is wanted."""
    chance = Random(f"scenario {seed}")
    routers = [RouterPlan(name=f"router{n}") for n in range(chance.choice((1, 2, 2, 2, 3)))]
    if len(routers) > 1 and chance.random() < 0.2:
        routers[-1] = RouterPlan(name=routers[-1].name, begins_s=chance.uniform(1.0, seconds))
    names = [it.name for it in routers]
    clients = [_client(chance, number, names) for number in range(chance.choice((1, 1, 2, 2, 3)))]
    draft = Draft(chance, seconds, routers, _replicas(chance, seconds), clients, [])
    of_subsets = Random(f"subsets {seed}")
    if of_subsets.random() < SUBSETS:
        draft.has_subsets = True
        draft.need_routers(of_subsets.choice((1, 2, 2, 3)))
        draft.need_replicas(of_subsets.choice((1, 2, 3, 4)))
    plot = chance.choices([it for it, _ in PLOTS], [weight for _, weight in PLOTS])[0]
    if plot_name:
        plot = BY_NAME[plot_name]
    plot(draft)
    if plot is not storm and not draft.is_edge and chance.random() < 0.25:
        storm(draft)
    return Scenario(
        seed=seed,
        plot=plot.__name__,
        seconds=draft.seconds,
        routers=tuple(draft.routers),
        replicas=tuple(draft.replicas),
        clients=tuple(draft.clients),
        faults=tuple(draft.faults),
        asks_again=(chance.random() < 0.25 or draft.asks_again) and not draft.stays_on_hold,
        remembers=draft.remembers or (plot is storm and chance.random() < 0.5),
        has_subsets=draft.has_subsets,
    )


def _replicas(chance: Random, seconds: float) -> list[ReplicaPlan]:
    there = [
        ReplicaPlan(
            name=f"replica{n}", begins_s=chance.choice((0.0, 0.0, 0.1)), max_ongoing=chance.choice((1, 2, 4, 8))
        )
        for n in range(chance.choice((0, 1, 1, 2, 2, 3)))
    ]
    later = [
        ReplicaPlan(
            name=f"replica{len(there) + n}",
            begins_s=chance.uniform(SETTLE_S, seconds - 0.5),
            max_ongoing=chance.choice((1, 2, 4, 8)),
        )
        for n in range(chance.choice((0, 0, 0, 1)) if there else 1)
    ]
    return [*there, *later]


def _client(chance: Random, number: int, routers: list[str]) -> ClientPlan:
    order = routers[:]
    chance.shuffle(order)
    work = tuple(_work(chance, f"key{number}-{at}") for at in range(chance.choice((1, 2, 2, 3))))
    work = tuple({it.key or at: it for at, it in enumerate(work)}.values())  # a key has one lane at a client
    begins_s = SETTLE_S + chance.choice((0.0, 0.0, chance.random()))
    return ClientPlan(name=f"client{number}", routers=tuple(order), work=work, begins_s=begins_s)


def _work(chance: Random, own_key: str) -> WorkPlan:
    kinds = (
        WorkKind.UNKEYED,
        WorkKind.UNKEYED,
        WorkKind.KEYED,
        WorkKind.KEYED,
        WorkKind.STOP,
        WorkKind.STREAM,
        WorkKind.SLOT,
    )
    kind = chance.choice(kinds)
    key = ""
    if kind in {WorkKind.KEYED, WorkKind.STOP}:
        # Calls of one key from two clients never overlap, but have no order.
        key = f"shared{chance.randint(0, 1)}" if chance.random() < 0.3 else own_key
    run_s = chance.choice((0.0, 0.001, 0.01, 0.05, 0.3))
    is_hasty = chance.random() < 0.25
    return WorkPlan(
        kind=kind,
        key=key,
        keys=chance.choice((1, 2, 6)) if kind is WorkKind.KEYED else 1,
        burst=chance.choice((1, 2, 4)),
        pause_s=chance.choice((0.15, 0.3, 0.6)) + run_s,
        run_s=run_s,
        timeout_s=max(0.005, run_s * chance.uniform(0.8, 3.0)) if is_hasty else chance.choice((20.0, 20.0, 20.0, inf)),
        fails=0.1 if kind is WorkKind.STOP or chance.random() < 0.2 else 0.0,
        swallows=chance.choice((0.0, 0.0, 0.5)),
        gives_up=chance.choice((0.0, 0.0, 0.15)),
        idempotent=chance.random() < 0.15,
        large=chance.random() < 0.04,
    )
