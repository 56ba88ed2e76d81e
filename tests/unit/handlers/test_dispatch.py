"""A method that chooses by the type of a Python argument is refused at start: arguments arrive as data."""

from __future__ import annotations

from functools import singledispatchmethod

import pytest

from slotmesh.handlers import describe


class FromElsewhere:
    @singledispatchmethod
    def show(self, value: object) -> str:
        return "object"


def test_a_dispatching_method_is_refused_with_the_way_out() -> None:
    class Handler:
        @singledispatchmethod
        def show(self, value: object) -> str:
            return "object"

        @show.register
        def _(self, value: int) -> str:
            return "int"

    with pytest.raises(TypeError, match=r"Handler.show is a singledispatchmethod.*rename it to `_show`"):
        describe(Handler)


def test_that_of_a_base_class_is_no_method_of_the_handler() -> None:
    class Handler(FromElsewhere):
        def answer(self) -> str:
            return "answer"

    assert set(describe(Handler).methods) == {"answer"}


def test_one_that_is_private_is_the_handlers_own_business() -> None:
    class Handler:
        @singledispatchmethod
        def _show(self, value: object) -> str:
            return "object"

        def show(self, value: int | str) -> str:
            return self._show(value)

    assert set(describe(Handler).methods) == {"show"}
