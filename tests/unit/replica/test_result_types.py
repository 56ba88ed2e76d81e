"""Annotations of results: what can never be sent is refused when the replica binds the method."""

from __future__ import annotations

import dataclasses
import fractions
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pydantic
import pytest

import slotmesh
from replica_service.shell.handler.binding import bind_methods
from slotmesh.handlers import describe


class Vague:
    """Without an encoding."""


class Base:
    """Without one, but for those derived from it."""


@dataclasses.dataclass
class Derived(Base):
    x: int


class Shape(Protocol):
    x: int


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


class Text(str):
    __slots__ = ()


@dataclasses.dataclass
class Holder:
    it: list[Vague]


def bound(wanted: Any, *, is_batch: bool = False, yields: bool = False) -> None:
    async def method(self: Any, it: Any) -> Any: ...

    async def values(self: Any, it: Any) -> Any:
        yield it

    function = values if yields else method
    function.__annotations__ = {"return": wanted}
    handler = type("Handler", (), {"method": slotmesh.batch(function) if is_batch else function})
    bind_methods(handler(), describe(handler))


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (complex, "real and imag"),
        (np.complex64, "real and imag"),
        (Vague, "type Vague cannot be sent"),
        (list[Vague], "type Vague"),
        (dict[str, Vague | None], "type Vague"),
        (Holder, "type Vague"),
        (Awaitable[Vague], "type Vague"),
        (ValueError, "type ValueError"),
        (fractions.Fraction, "type Fraction"),
        (Login, "asterisks"),
    ],
    ids=str,
)
def test_a_result_that_can_never_be_sent_is_refused_at_start(wanted: Any, message: str) -> None:
    with pytest.raises(
        TypeError, match=rf"Handler\.method: .*{message}.*; if no client is to call it, name it _method"
    ):
        bound(wanted)


def test_so_are_values_and_entries_of_batches() -> None:
    with pytest.raises(TypeError, match="type Vague"):
        bound(AsyncIterator[Vague], yields=True)
    with pytest.raises(TypeError, match="type Vague"):
        bound(list[Vague], is_batch=True)


@pytest.mark.parametrize(
    "wanted",
    [
        Base,
        Derived,
        Shape,
        Text,
        Path,
        np.ndarray,
        np.longdouble,
        range,
        type,  # of its own derived classes some have a `__module__` that is no text
        object,
        Any,
        None,
        Iterable[int],
        Mapping[str, Any],
    ],
    ids=str,
)
def test_what_may_be_sent_is_not_refused(wanted: Any) -> None:
    bound(wanted)


def test_entries_of_a_batch_may_be_exceptions() -> None:
    bound(list[float | Exception], is_batch=True)
    bound(AsyncIterator[list[int | Exception]], is_batch=True, yields=True)
    bound(Iterator[int])


def test_a_method_of_a_librarys_base_class_that_cannot_be_served_is_left_out() -> None:
    class Module:
        def to(self, device: Vague) -> Vague:
            return device

        def depth(self) -> int:
            return 1

    class Handler(Module):
        async def add(self, it: int) -> int:
            return it + 1

    for handler in (Handler(), Handler):
        Module.__module__ = Handler.__module__
        with pytest.raises(TypeError, match=r"Handler\.to: "):
            bind_methods(handler, describe(Handler))
        Module.__module__ = "library.modules"
        assert set(bind_methods(handler, describe(Handler))) == {"add", "depth"}
