"""Plots: what a scenario is made of where its story asks for it."""

from __future__ import annotations

import pytest

from simulation.mesh.generator import generate
from simulation.mesh.scenario import Blow, WorkKind

SEEDS = range(40)


def test_nothing_else_goes_wrong_at_the_edge_of_what_is_promised() -> None:
    for seed in SEEDS:
        scenario = generate(seed, plot_name="owners_fenced")
        blows = [fault.blow for fault in scenario.faults]
        assert blows == [Blow.CUT, *len(scenario.routers) * [Blow.KILL]]


def test_other_plots_have_a_storm_besides_now_and_then() -> None:
    blows = {fault.blow for seed in SEEDS for fault in generate(seed, plot_name="owners_change").faults}
    assert blows > {Blow.TERMINATE}


def test_keys_are_asked_again_where_that_is_the_point() -> None:
    assert all(generate(seed, plot_name="clock_goes_back").asks_again for seed in SEEDS)


@pytest.mark.parametrize("plot", ["owners_fenced", "owner_unheard", "tables_late", "owners_change"])
def test_each_router_has_a_client_of_its_own_with_the_same_keys(plot: str) -> None:
    scenario = generate(7, plot_name=plot)
    assert [client.routers for client in scenario.clients] == [(router.name,) for router in scenario.routers]
    assert len({tuple(work.key for work in client.work) for client in scenario.clients}) == 1


@pytest.mark.parametrize("plot", ["requests_repeated", "requests_drain"])
def test_no_replica_is_killed_that_remembers_calls_and_no_router_starts_later(plot: str) -> None:
    for seed in SEEDS:
        scenario = generate(seed, plot_name=plot)
        assert not any(it.begins_s for it in scenario.routers)
        assert {work.kind for client in scenario.clients for work in client.work} == {WorkKind.REQUEST}
        for fault in scenario.faults:
            assert fault.blow is not Blow.KILL or fault.who.startswith("router")
            assert fault.blow not in {Blow.KILL, Blow.TERMINATE} or fault.for_s < 0 or fault.who.startswith("replica")


def test_calls_are_not_repeated_in_a_drain_where_routers_lack_links() -> None:
    attempts: dict[bool, set[int]] = {True: set(), False: set()}
    for seed in SEEDS:
        scenario = generate(seed, plot_name="requests_drain")
        attempts[scenario.has_subsets] |= {work.attempts for client in scenario.clients for work in client.work}
    assert attempts == {True: {1}, False: {3}}


def test_what_must_succeed_is_given_up_by_no_client() -> None:
    for seed in SEEDS:
        scenario = generate(seed, plot_name="requests_drain")
        assert {(work.must_succeed, work.gives_up) for client in scenario.clients for work in client.work} == {
            (True, 0.0)
        }
        ending = {fault.who for fault in scenario.faults if fault.for_s < 0}
        assert ending < {it.name for it in scenario.replicas}
