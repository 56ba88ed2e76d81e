"""`python -m simulation`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulation.__main__ import main, parse
from simulation.queues.settings import QueuesSettings
from slotmesh.spec.model import BUILT_IN_BALANCERS


def test_by_default_all_balancers_with_eight_slots_and_with_one() -> None:
    asked = parse([])
    assert asked.settings == [
        QueuesSettings(slots=slots, balancer=balancer) for slots in (8, 1) for balancer in BUILT_IN_BALANCERS
    ]
    assert asked.path is None
    assert asked.frames_calls > 0


def test_a_part_may_be_named() -> None:
    assert parse(["queues"]).frames_calls == 0
    assert parse(["frames"]).settings == []
    with pytest.raises(SystemExit):
        parse(["everything"])


def test_subsets_are_compared_with_links_to_all() -> None:
    asked = parse(["subsets"])
    assert asked.settings == []
    assert {(each.routers, each.replicas, each.subset_size) for each in asked.subsets} == {(100, 10_000, 200)}


def test_every_setting_is_an_option() -> None:
    given = "--slots 3 --balancers round_robin --routers 2 --replicas 5 --load 0.5 --link-delay 0.1 --capacity-gap 0.2"
    more = "--batch 4 --calls 100 --warm-up 1.5 --seed 7 --subset-size 3"
    (settings,) = parse([*given.split(), *more.split()]).settings
    assert settings == QueuesSettings(
        routers=2,
        replicas=5,
        slots=3,
        balancer="round_robin",
        load=0.5,
        link_delay=0.1,
        capacity_gap=0.2,
        batch=4,
        calls=100,
        warm_up=1.5,
        seed=7,
        subset_size=3,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--load 1.5", "--load: must be above 0 and below 1, is 1.5"),
        ("--link-delay -1", "--link-delay: must not be negative"),
        ("--slots 0", "--slots: must be at least 1, is 0"),
        (
            "--balancers nearest",
            f"no balancer is named nearest; there are {', '.join(BUILT_IN_BALANCERS)}",
        ),
    ],
)
def test_what_makes_no_sense_is_told_with_the_option(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments.split())
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_it_prints_a_table_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    arguments = ["queues", "--replicas", "10", "--routers", "2", "--load", "0.5", "--calls", "200", "--warm-up", "1"]
    assert main([*arguments, "--slots", "1", "--balancers", "least_loaded,round_robin", "--json", str(path)]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1].split()[:2] == ["1", "least_loaded"]
    assert printed.err.splitlines() == [
        "least_loaded, slots a replica: 1: done",
        "round_robin, slots a replica: 1: done",
    ]
    assert [result["settings"]["slots"] for result in json.loads(path.read_text())["results"]] == [1, 1]
