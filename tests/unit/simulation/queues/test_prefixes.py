"""Conversations whose prompts are cached, on the real cores: prefix affinity hits, and makes no call wait for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.__main__ import main, parse
from simulation.queues import prefixes
from simulation.queues.prefixes import PrefixChoice, PrefixMesh, PrefixSettings, compare, settings, table

FEW = PrefixSettings(conversations=150, cache=0.05)


def test_prefix_affinity_hits_twice_as_often_and_queues_are_no_longer() -> None:
    found = compare(FEW)
    assert found.is_as_expected, table([found])
    figures = found.figures
    assert (
        figures[PrefixChoice.PREFIX].hits
        > figures[PrefixChoice.AFFINITY_KEY].hits
        > figures[PrefixChoice.LEAST_LOADED].hits
    )
    assert figures[PrefixChoice.PREFIX].service < figures[PrefixChoice.LEAST_LOADED].service
    assert figures[PrefixChoice.PREFIX].busiest < 1.25
    assert {each.calls for each in figures.values()} == {figures[PrefixChoice.PREFIX].calls}


def test_queues_are_no_longer_even_if_hits_save_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "_FIXED", 1.0)
    found = compare(replace(FEW, load=1.1, slots=2))
    assert found.figures[PrefixChoice.LEAST_LOADED].p99 > 0.1, "calls wait"
    assert found.ratio <= 1.3


def test_each_of_several_routers_learns_from_its_own_calls() -> None:
    found = compare(replace(FEW, routers=3))
    assert found.hits >= 2.0


def test_one_seed_gives_one_course_of_events() -> None:
    assert PrefixMesh(FEW).run() == PrefixMesh(FEW).run()


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = parse(["prefixes"])
    assert (asked.settings, asked.frames_calls, asked.prefixes) == ([], 0, settings(is_quick=False))
    monkeypatch.setattr(prefixes, "settings", lambda *, is_quick: [FEW] if is_quick else [])
    assert main(["prefixes", "--quick"]) == 0
    assert "hits × " in capsys.readouterr().out
