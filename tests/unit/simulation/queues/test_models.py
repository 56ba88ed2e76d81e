"""Many models, on the real cores: they are loaded hardly more often than by one cache."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.__main__ import main, parse
from simulation.queues import models, saturation
from simulation.queues.models import (
    ModelMesh,
    ModelSettings,
    RoutedBy,
    least_loads,
    loads_of_one_cache,
    settings,
    simulate,
)

FEW = ModelSettings(calls=2_000)


def test_models_are_loaded_hardly_more_often_than_by_one_cache() -> None:
    by = {each.settings.routed_by: each for each in simulate(FEW)}
    assert by[RoutedBy.MODEL].is_as_expected
    assert by[RoutedBy.MODEL].share < 1.2
    assert by[RoutedBy.LEAST_LOADED].loads > 1.5 * by[RoutedBy.MODEL].loads


def test_routers_agree_on_where_models_are() -> None:
    assert ModelMesh(replace(FEW, routers=3)).run().share < 1.3


def test_models_that_all_fit_are_loaded_once() -> None:
    figures = ModelMesh(replace(FEW, models=60, busy=0.05)).run()
    assert figures.loads == figures.one_cache == 60


def test_one_seed_gives_one_course_of_events() -> None:
    assert ModelMesh(FEW).run() == ModelMesh(FEW).run()


def test_the_least_loads_of_a_known_sequence() -> None:
    calls = [1, 2, 3, 1, 2, 3, 1, 2, 3]
    assert loads_of_one_cache(calls, 2) == 9
    assert least_loads(calls, 2) == 6
    assert least_loads(calls, 3) == loads_of_one_cache(calls, 3) == 3


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = parse(["models"])
    assert (asked.settings, asked.frames_calls, asked.models) == ([], 0, settings(is_quick=False))
    monkeypatch.setattr(models, "settings", lambda *, is_quick: [FEW] if is_quick else [])
    monkeypatch.setattr(saturation, "settings", lambda *, is_quick: [])
    assert main(["models", "--quick"]) == 0
    assert "✓" in capsys.readouterr().out
