"""Whole runs: what they show, and that they can be repeated."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from simulation.mesh.generator import generate
from simulation.mesh.plots import BY_NAME
from simulation.mesh.scenario import (
    Blow,
    ClientPlan,
    Fault,
    Moment,
    ReplicaPlan,
    RouterPlan,
    Scenario,
    WorkKind,
    WorkPlan,
)
from simulation.mesh.shrink import shrink
from simulation.mesh.world import run

pytestmark = pytest.mark.slow

CALM = Scenario(
    seed=1,
    seconds=2.0,
    routers=(RouterPlan(name="router0"), RouterPlan(name="router1")),
    replicas=(ReplicaPlan(name="replica0"), ReplicaPlan(name="replica1")),
    clients=(
        ClientPlan(
            name="client0",
            routers=("router0", "router1"),
            work=tuple(
                WorkPlan(kind=kind, key=key, large=kind is WorkKind.UNKEYED)
                for kind, key in (
                    (WorkKind.UNKEYED, ""),
                    (WorkKind.KEYED, "key"),
                    (WorkKind.STOP, "stop"),
                    (WorkKind.STREAM, ""),
                    (WorkKind.SLOT, ""),
                )
            ),
        ),
    ),
)


def test_everything_works_while_nothing_breaks() -> None:
    result = run(CALM)

    assert result.violations == []
    assert set(result.reasons) == {"a result"}
    assert result.calls == result.executions >= 40
    assert result.seconds < 10.0


@pytest.mark.long
@pytest.mark.parametrize("plot", list(BY_NAME))
def test_the_same_seed_shows_the_same(plot: str) -> None:
    scenario = generate(3, 2.0, plot)

    one, other = run(scenario), run(scenario, is_traced=True)

    assert one.digest == other.digest
    assert one.violations == other.violations
    assert other.trace
    assert run(replace(scenario, seed=4)).digest != one.digest


@pytest.mark.long
def test_the_same_seeds_show_the_same_in_other_processes() -> None:
    command = [sys.executable, "-m", "simulation.mesh.worker", "3", "", ""]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}

    one, other = (
        subprocess.run(
            command, env=environment, input=lines, capture_output=True, check=True, text=True, timeout=60
        ).stdout
        for lines in ("11 12\n", "11\n12\n")
    )

    assert [line for line in _without_times(one) if line] == [line for line in _without_times(other) if line]
    assert one.count("digest") == 2


def _without_times(said: str) -> list[str]:
    return [line.partition('"cpu_s"')[0] for line in said.splitlines()]


@pytest.mark.parametrize("blow", list(Blow))
def test_the_mesh_goes_on_after_each_kind_of_fault(blow: Blow) -> None:
    other = "controller" if blow in {Blow.STALL, Blow.CUT, Blow.RESET, Blow.SLOW} else ""
    fault = Fault(blow=blow, at_s=1.2, who="replica0", other=other, for_s=0.3, amount=0.05)

    result = run(replace(CALM, faults=(fault,)))

    assert "lost" not in result.invariants
    assert result.reasons["a result"] > 30


def test_keys_are_asked_again_when_all_is_whole() -> None:
    fault = Fault(blow=Blow.KILL, at_s=1.2, who="controller", for_s=0.3)

    one, other = run(replace(CALM, faults=(fault,))), run(replace(CALM, faults=(fault,), asks_again=True))

    assert other.calls >= one.calls + 2  # one of each key
    assert other.seconds > one.seconds + 8.0
    assert other.violations == []


def test_a_fault_waits_for_its_moment() -> None:
    moment = Moment(rpc="Execute", frame="results", source="replica", target="router", nth=3)
    fault = Fault(blow=Blow.KILL, at_s=1.0, who="router0", for_s=0.2, moment=moment)

    trace = run(replace(CALM, faults=(fault,)), is_traced=True).trace

    killed = next(at for at, line in enumerate(trace) if line.endswith("killed"))
    before = [line for line in trace[:killed] if "Execute results" in line and float(line.split()[0]) >= 1.0]
    assert len(before) == 3


def test_a_replica_that_is_killed_takes_its_executions_along() -> None:
    slow = replace(
        CALM, clients=(replace(CALM.clients[0], work=(WorkPlan(kind=WorkKind.UNKEYED, run_s=0.5, idempotent=False),)),)
    )
    fault = Fault(blow=Blow.KILL, at_s=1.5, who="replica0", for_s=-1.0)

    result = run(replace(slow, faults=(fault,)))

    assert result.reasons["REPLICA_LOST (executed UNKNOWN)"] > 0


def test_scenarios_shrink_to_what_matters() -> None:
    scenario = generate(6, 4.0, "storm")
    fault = Fault(blow=Blow.KILL, at_s=2.0, who="controller")
    scenario = replace(scenario, faults=(*scenario.faults, fault))

    smallest = shrink(scenario, lambda it: fault in it.faults)

    assert smallest.faults == (fault,)
    assert len(smallest.clients) == len(smallest.routers) == len(smallest.replicas) == 1
    assert len(smallest.clients[0].work) == 1
    assert "kill controller" in str(smallest)


def test_shrinking_ends() -> None:
    tries: list[Scenario] = []

    def still_fails(scenario: Scenario) -> bool:
        tries.append(scenario)
        return True

    shrink(generate(7, 4.0), still_fails, max_tries=5)

    assert len(tries) == 5
