"""The guard for foreign code: it words whatever was raised, and loses no value."""

from __future__ import annotations

import pytest

from slotmesh.user_code import NO_TEXT, StoppedEarly, described, each, is_exception, shown, text_of, type_name
from tests.support.foreign_code import KINDS, Unreadable, raised_by


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_was_raised_can_be_described(kind: str) -> None:
    text = described(raised_by(kind))
    assert type(text) is str
    assert text.startswith(f"{kind}: ")
    assert (text == f"{kind}: {NO_TEXT}") == (kind == "Unreadable")


def test_texts_are_plain_and_bounded() -> None:
    class Text(str):
        __slots__ = ()

        def __getitem__(self, _: object) -> str:
            raise SystemExit

    class Odd(Exception):
        def __str__(self) -> str:
            return Text("odd")

        def __repr__(self) -> str:
            return Text("odd" * 100)

    assert type(text_of(Odd())) is str
    assert shown(Odd(), 5) == "oddod"
    assert shown(Unreadable(), 5) == "a value of type Unreadable"
    assert described(ValueError()) == "ValueError"


def test_the_name_of_a_class_is_found_by_no_means_of_its_own() -> None:
    class Meta(type):
        @property
        def __name__(cls) -> str:  # type: ignore[override]
            raise KeyboardInterrupt

    class Nameless(metaclass=Meta):
        @property  # type: ignore[misc]
        def __class__(self) -> type:
            raise SystemExit

    assert type_name(Nameless()) == "object"
    assert not is_exception(Nameless())
    assert is_exception(GeneratorExit())


def test_a_stop_iteration_shortens_nothing() -> None:
    def double(number: int) -> int:
        if number == 2:
            raise StopIteration
        return 2 * number

    assert list(map(double, [1, 2, 3])) == [2], "this is what it is about"
    with pytest.raises(StoppedEarly, match="for value 2 of 3"):
        each(double, [1, 2, 3])
    assert each(double, (1, 3)) == [2, 6]
    with pytest.raises(ZeroDivisionError):
        each(lambda number: 1 // number, [1, 0])
