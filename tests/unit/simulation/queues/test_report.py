"""What people and scripts read."""

from __future__ import annotations

import json
from dataclasses import replace

from simulation.queues.figures import Figures, quantile
from simulation.queues.report import QueuesOutcome, conditions, document, table
from simulation.queues.settings import QueuesSettings

FIGURES = Figures(
    calls=200_000,
    failed=0,
    mean=0.01,
    p50=0.0,
    p99=0.25,
    longest=0.5,
    refusals=0.4,
    pushes=0.2,
    idle_while_queued=0.012,
    wasted=0.3,
    events=900_000,
)


def outcome(figures: Figures = FIGURES, **settings: object) -> QueuesOutcome:
    return QueuesOutcome(settings=replace(QueuesSettings(), **settings), figures=figures, seconds=10.0)  # type: ignore[arg-type]


def test_lines_are_aligned_and_theory_follows_each_number_of_slots() -> None:
    lines = table([outcome(), outcome(balancer="round_robin"), outcome(slots=1)]).splitlines()
    names = [line.split()[1] for line in lines[1:]]
    assert names == ["least_loaded", "round_robin", *(["theory:"] * 4), "least_loaded", *(["theory:"] * 4)]
    assert len({line.index("0.250") for line in lines if "0.250" in line}) == 1
    assert "90,000" in lines[1]


def test_what_is_expected_is_told_where_it_is_defined() -> None:
    assert table([outcome()]).splitlines()[1].endswith("p99 ≤ 0.3, refusals ≤ 0.5 ✓")
    assert table([outcome(replace(FIGURES, p99=0.31))]).splitlines()[1].endswith("✗")
    assert outcome(balancer="power_of_two").bounds is None
    assert outcome(replicas=999).bounds is None


def test_each_bound_counts() -> None:
    assert outcome(calls=5, seed=9, warm_up=1.0).is_as_expected
    assert not outcome(replace(FIGURES, p99=0.31)).is_as_expected
    assert not outcome(replace(FIGURES, refusals=0.51)).is_as_expected
    assert not outcome(replace(FIGURES, failed=1)).is_as_expected
    assert outcome(replace(FIGURES, p99=0.79), slots=1).is_as_expected
    assert outcome(replace(FIGURES, p99=9.0, refusals=9.0), load=0.5).is_as_expected


def test_the_document_is_json_without_infinities() -> None:
    (result,) = json.loads(json.dumps(document([outcome(replicas=8, load=0.99)]), allow_nan=False))["results"]
    assert result["settings"]["balancer"] == "least_loaded"
    assert result["figures"]["p99"] == 0.25
    assert result["references"][-1]["p99"] is None
    assert result["as_expected"] is None


def test_conditions_say_how_calls_arrive() -> None:
    assert "200,000 calls one by one, seed 1" in conditions(QueuesSettings())
    assert "in batches of 8" in conditions(QueuesSettings(batch=8))


def test_a_quantile_is_one_of_the_times() -> None:
    times = [float(number) for number in range(1, 101)]
    assert (quantile(times, 0.5), quantile(times, 0.99), quantile(times, 1.0)) == (50.0, 99.0, 100.0)
    assert quantile([], 0.5) == 0.0
    assert quantile([7.0], 0.01) == 7.0
