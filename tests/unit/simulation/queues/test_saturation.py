"""Many models with all permits in use, on the real cores: permits serve calls instead of loads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.queues.saturation import SaturatedMesh, SaturationSettings, settings, table

FEW = SaturationSettings(calls=1_500)


@pytest.mark.parametrize("callers", [24, 60])
@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_more_callers_than_permits_get_most_of_what_is_possible(callers: int, exponent: float) -> None:
    figures = SaturatedMesh(replace(FEW, callers=callers, exponent=exponent)).run()
    assert figures.share > 0.3
    assert figures.loads < 20, "the warm-up is longer for few calls, so the share is not that of docs/models.md"


def test_one_seed_gives_one_course_of_events() -> None:
    few = replace(FEW, calls=300)
    assert SaturatedMesh(few).run() == SaturatedMesh(few).run()


def test_the_table_has_a_line_for_each_mesh() -> None:
    figures = SaturatedMesh(replace(FEW, calls=300)).run()
    assert len(table([figures, figures]).splitlines()) == 4
    assert {each.callers for each in settings(is_quick=False)} == {16, 24, 48, 100}
