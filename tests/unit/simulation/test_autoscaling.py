"""The curves of docs/autoscaling.md: what they show holds, and they are what the simulation draws."""

from __future__ import annotations

from itertools import pairwise

import pytest

from simulation.autoscaling.__main__ import FOLDER
from simulation.autoscaling.drawing import draw
from simulation.autoscaling.mesh import AutoscalingScenario, Curve, ScaledMesh
from simulation.autoscaling.scenarios import SCENARIOS
from tests.support.tiers import long

each_seed = pytest.mark.parametrize("seed", [1, 2, *map(long, range(3, 6))])
each_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda it: it.name)


def run(name: str, seed: int) -> Curve:
    (scenario,) = [it for it in SCENARIOS if it.name == name]
    return ScaledMesh(scenario, seed).run()


@each_seed
def test_a_step_from_1_to_40_calls_settles_at_8_and_goes_back(seed: int) -> None:
    curve = run("step", seed)
    assert max(curve.wanted) <= 9
    assert set(curve.wanted[30:180]) == {8}
    assert set(curve.wanted[245:]) == {1}, "down_delay after the load has gone"


@each_seed
def test_from_zero_the_first_call_waits_for_the_start_of_a_replica_and_no_longer(seed: int) -> None:
    curve = run("zero", seed)
    assert curve.first_wait_s is not None
    assert curve.first_wait_s <= 3.0 + 0.02, "start_s, and two steps of the simulation"
    assert curve.wanted[0] == 0
    assert curve.wanted[-1] == 0


@each_seed
def test_a_load_that_swells_is_followed_in_one_direction_at_a_time(seed: int) -> None:
    wanted = run("day", seed).wanted
    steps = [b - a for a, b in pairwise(wanted) if a != b]
    turns = sum((a > 0) != (b > 0) for a, b in pairwise(steps))
    assert turns <= 5, "up, down, up, down, and up at the end"


@each_scenario
def test_the_curves_in_the_docs_are_those_that_are_drawn(scenario: AutoscalingScenario) -> None:
    drawn = draw(scenario.title, ScaledMesh(scenario, 1).run())
    assert (FOLDER / f"{scenario.name}.svg").read_text("utf-8") == drawn, "run: python -m simulation.autoscaling"
