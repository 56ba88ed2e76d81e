"""The parts of the digits example that need no mesh."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from examples.digits.app import Digits
from examples.digits.data import Image, split
from examples.digits.models import Model
from examples.digits.report import bars, drawn
from examples.digits.traffic import TrafficTally


@pytest.mark.slow
def test_no_image_is_both_learned_from_and_held_out_by_place() -> None:
    learn, held_out = split()
    assert len(learn.labels) + len(held_out.labels) == 1797
    assert len(held_out.images()) == len(held_out.labels) == 899


@pytest.mark.parametrize(("model", "at_least"), [("centroid", 0.88), ("logistic", 0.95), ("svc", 0.98)])
def test_models_are_as_good_as_they_say(model: Model, at_least: float) -> None:
    _learn, held_out = split()
    digits = asyncio.run(Digits(model).classify(held_out.images()))
    right = sum(digit == label for digit, label in zip(digits, held_out.labels.tolist(), strict=True))
    assert right / len(digits) > at_least


def test_an_unknown_model_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="one of centroid, logistic, svc, got 'oracle'"):
        Digits("oracle")  # type: ignore[arg-type]


@pytest.mark.parametrize("image", [[0] * 63, [0] * 65, [17, *[0] * 63], [-1, *[0] * 63], [0.5, *[0] * 63]])
def test_what_is_no_image_does_not_reach_the_handler(image: list[float]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(image, Image)


def test_a_tally_counts_each_image_once() -> None:
    tally = TrafficTally(asked=[10, 1, 0], right=[10, 0, 0])
    assert tally.accuracy == 0.5
    assert tally.unsteady == 0


def test_different_answers_for_one_image_are_noticed() -> None:
    assert TrafficTally(asked=[3, 3], right=[3, 2]).unsteady == 1


def test_bars_are_as_long_as_their_part_of_the_largest() -> None:
    assert [line.count("█") for line in bars({"a": 0, "b": 500, "c": 1000})] == [0, 20, 40]
    assert bars({}) == []


def test_an_image_is_drawn_row_by_row() -> None:
    rows = drawn([16] * 8 + [0] * 56)
    assert rows[0] == "@" * 16
    assert rows[1:] == [" " * 16] * 7
