"""Makes a scenario smaller, as long as it still shows what it showed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, TypeVar

from simulation.mesh.scenario import Scenario, WorkKind

MAX_TRIES: Final = 400

ItemT = TypeVar("ItemT")


def shrink(scenario: Scenario, still_fails: Callable[[Scenario], bool], max_tries: int = MAX_TRIES) -> Scenario:
    """The smallest scenario that was found: nothing that could be left out by itself is left in it.

    `still_fails` says whether a scenario shows the same violation.
    """
    tries = 0
    has_shrunk = True
    while has_shrunk:
        has_shrunk = False
        for smaller in _smaller(scenario):
            if tries >= max_tries:
                return scenario
            tries += 1
            if still_fails(smaller):
                scenario, has_shrunk = smaller, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Each with one thing less, what saves most first."""
    for at in range(len(scenario.clients)):
        if len(scenario.clients) > 1:
            yield replace(scenario, clients=_without(scenario.clients, at))
    for at in range(len(scenario.faults)):
        yield replace(scenario, faults=_without(scenario.faults, at))
    for at in reversed(range(len(scenario.replicas))):
        if len(scenario.replicas) > 1:
            gone = scenario.replicas[at].name
            yield replace(
                _without_faults_of(scenario, gone),
                replicas=tuple(it for it in scenario.replicas if gone not in {it.name, it.twin_of}),
            )
    for at in reversed(range(len(scenario.routers))):
        if len(scenario.routers) > 1:
            gone = scenario.routers[at].name
            clients = tuple(
                replace(each, routers=tuple(name for name in each.routers if name != gone)) for each in scenario.clients
            )
            yield replace(_without_faults_of(scenario, gone), routers=_without(scenario.routers, at), clients=clients)
    for number, client in enumerate(scenario.clients):
        for at in range(len(client.work)):
            if len(client.work) > 1:
                less = replace(client, work=_without(client.work, at))
                yield replace(scenario, clients=_with(scenario.clients, number, less))
    if (shorter := _shorter(scenario)) is not None:
        yield shorter
    yield from _simpler_work(scenario)


def _simpler_work(scenario: Scenario) -> Iterator[Scenario]:
    for number, client in enumerate(scenario.clients):
        for at, work in enumerate(client.work):
            for change in (
                {"fails": 0.0} if work.fails and work.kind is not WorkKind.STOP else {},
                {"swallows": 0.0} if work.swallows else {},
                {"gives_up": 0.0} if work.gives_up else {},
                {"burst": 1} if work.burst > 1 else {},
                {"large": False} if work.large else {},
                {"pause_s": work.pause_s * 2} if work.pause_s < 0.5 else {},
            ):
                if change:
                    simpler = replace(client, work=_with(client.work, at, replace(work, **change)))
                    yield replace(scenario, clients=_with(scenario.clients, number, simpler))


def _shorter(scenario: Scenario) -> Scenario | None:
    last = max((fault.at_s for fault in scenario.faults), default=1.0)
    seconds = max(last + 0.5, scenario.seconds * 0.75)
    return replace(scenario, seconds=seconds) if seconds < scenario.seconds - 0.2 else None


def _without_faults_of(scenario: Scenario, name: str) -> Scenario:
    return replace(scenario, faults=tuple(it for it in scenario.faults if name not in {it.who, it.other}))


def _without(items: tuple[ItemT, ...], at: int) -> tuple[ItemT, ...]:
    return (*items[:at], *items[at + 1 :])


def _with(items: tuple[ItemT, ...], at: int, item: ItemT) -> tuple[ItemT, ...]:
    return (*items[:at], item, *items[at + 1 :])
