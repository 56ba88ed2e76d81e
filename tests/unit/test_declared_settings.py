"""Declared settings: which texts are values of which types, exact bounds, and the order of what is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Self

import pytest

from slotmesh.config.declaring import (
    Field,
    FieldBounds,
    InvalidSettings,
    SettingProblem,
    SettingsModel,
    model_validator,
    read_value,
)


class Colour(StrEnum):
    RED = "red"


def each(kind: Any, given: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    return [(kind, value) for value in given]


ARABIC_ONE = "\N{ARABIC-INDIC DIGIT ONE}"
READ: list[tuple[Any, Any, Any]] = [
    *((bool, text, True) for text in ("1", "on", "t", "true", "y", "yes", "TRUE", True, 1)),
    *((bool, text, False) for text in ("0", "off", "f", "false", "n", "no", "No", False, 0)),
    *((int, text, 7) for text in ("7", " 7 ", "+7", "7.0", "7.000", "0_7", 7, 7.0)),
    (int, "-7", -7),
    *((float, text, 0.5) for text in ("0.5", ".5", " 5e-1 ", 0.5)),
    (float, "inf", math.inf),
    (Path, "a/b", Path("a/b")),
    (Path, Path("a"), Path("a")),
    (str, "", ""),
    (timedelta, timedelta(1), timedelta(1)),
    (timedelta, 0.5, timedelta(milliseconds=500)),
    (timedelta, 2, timedelta(seconds=2)),
    (Literal["a", "b"], "b", "b"),
    (Colour, "red", Colour.RED),
]
REFUSED: list[tuple[Any, Any]] = [
    *each(bool, ("", "2", "tru", 2, None, [], 1.0)),
    *(
        (int, value)
        for value in ("", "x", "1.5", "1.", ".0", "1e3", "0x10", "\N{ARABIC-INDIC DIGIT ONE}", 1.5, None, [1])
    ),
    *each(float, ("", "x", ARABIC_ONE, None, [])),
    *each(Path, (1, None)),
    *each(str, (1, None, b"")),
    *each(timedelta, ("1s", True, math.nan, math.inf, None)),
    *each(Literal["a", "b"], ("c", "A", ["a"], None)),
    *each(Colour, ("blue", "", ["red"], None)),
]


@pytest.mark.parametrize(("kind", "given", "value"), READ)
def test_what_is_read(kind: Any, given: Any, value: Any) -> None:
    read = read_value(kind, given)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(("kind", "given"), REFUSED)
def test_what_is_refused_without_a_text(kind: Any, given: Any) -> None:
    with pytest.raises(ValueError, match=r"^$"):
        read_value(kind, given)


@pytest.mark.parametrize(
    ("bounds", "within", "beyond"),
    [
        (FieldBounds(ge=1), 1, 0),
        (FieldBounds(gt=1), 2, 1),
        (FieldBounds(le=1), 1, 2),
        (FieldBounds(lt=1), 0, 1),
        (FieldBounds(ge=0.0), 0.0, math.nan),
        (FieldBounds(min_length=1), "a", ""),
        (FieldBounds(max_length=2), "ab", "abc"),
    ],
)
def test_exact_bounds(bounds: FieldBounds, within: Any, beyond: Any) -> None:
    assert bounds.checked(within) == within
    with pytest.raises(ValueError, match=r"^$" if bounds.max_length is None else r"^at most 2 characters, got 3$"):
        bounds.checked(beyond)


class First(SettingsModel):
    one: int = Field(1, ge=1)
    two: str | None = Field(None, max_length=3)

    @model_validator
    def _adds_up(self) -> Self:
        if self.one > 100:
            raise ValueError("one is over 100")
        return self


def _check_odd(value: int, preceding: Mapping[str, Any]) -> None:
    if value % 2 == 0:
        raise ValueError(f"even, after {', '.join(preceding)}")


class Second(First):
    three: list[int] = Field(default_factory=list)
    one: int = Field(5, ge=5, check_beside=_check_odd)
    four: int = Field(check_beside=_check_odd)

    @model_validator
    def _is_small(self) -> Self:
        if self.four > 50:
            raise ValueError("four is over 50")
        return self


def problems(**given: Any) -> list[SettingProblem]:
    with pytest.raises(InvalidSettings) as caught:
        Second(**given)
    return list(caught.value.problems)


def test_fields_are_those_of_the_bases_first_and_a_class_may_declare_one_again() -> None:
    assert list(Second.model_fields) == ["one", "two", "three", "four"]
    assert Second(four=1).model_dump() == {"one": 5, "two": None, "three": [], "four": 1}
    assert Second(four=1).three is not Second(four=1).three
    assert list(First.model_fields) == ["one", "two"]
    assert First().one == 1


def test_every_field_is_looked_at_before_the_whole_is() -> None:
    assert problems(one="x", two="long", five=5) == [
        SettingProblem("five", "is no setting", 5),
        SettingProblem("one", "", "x"),
        SettingProblem("two", "at most 3 characters, got 4", "long"),
        SettingProblem("four", "", is_missing=True),
    ]
    assert problems(one=101, four=51) == [SettingProblem(None, "one is over 100")]
    assert problems(four=51) == [SettingProblem(None, "four is over 50")]


def test_text_that_utf_8_cannot_carry_is_refused_as_that_of_each_type() -> None:
    class Where(SettingsModel):
        path: Path = Field(Path("a"))
        name: str | None = Field(None)
        count: int = Field(1)

    half = "a\udcff"
    with pytest.raises(InvalidSettings) as caught:
        Where(path=half, name=half, count=half)
    why = "must be text in UTF-8, got 'a\\udcff'"
    assert caught.value.problems == tuple(SettingProblem(each, why, half) for each in ("path", "name", "count"))
    with pytest.raises(InvalidSettings, match="must be text in UTF-8"):
        Where(path=Path(half))


def test_a_check_gets_the_fields_before_it_that_are_sound() -> None:
    assert problems(four=2, two="long") == [
        SettingProblem("two", "at most 3 characters, got 4", "long"),
        SettingProblem("four", "even, after one, three", 2),
    ]


def test_what_no_field_is_given_is_its_default_unchecked_and_none_is_for_optional_fields_only() -> None:
    assert problems(four=None) == [SettingProblem("four", "", None)]
    assert Second(four=1, two=None).two is None


def test_settings_are_values() -> None:
    settings = First(one=2)
    assert settings == First(one=2)
    assert hash(settings) == hash(First(one=2))
    assert settings != First(one=3)
    assert settings != Second(four=1)
    copied = settings.model_copy(update={"two": "b"})
    assert (copied.one, copied.two, settings.two) == (2, "b", None)
    assert repr(copied) == "First(one=2, two='b')"
    with pytest.raises(AttributeError, match="frozen"):
        settings.one = 3
    with pytest.raises(AttributeError, match="frozen"):
        del settings.one
