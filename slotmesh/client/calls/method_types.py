"""Type variables of methods: their parameters, results and values; and the columns of a `map`.

Python has no type for "an iterable for each parameter", so `map` has an overload for each number of columns, whose
`self` is a method with that number of parameters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from typing_extensions import ParamSpec, TypeVar

ResultT = TypeVar("ResultT", covariant=True)
if TYPE_CHECKING:
    P = ParamSpec("P", default=...)
else:
    # Python 3.13.0 to 3.13.7 cannot add a further default, ValueT's, behind one that is no list (cpython#138859):
    # `Method[Any]` would be a TypeError there.
    P = ParamSpec("P", default=[...])
ValueT = TypeVar("ValueT", covariant=True, default=ResultT)
"""One value of a handler that yields; the result of one that returns."""
OtherT = TypeVar("OtherT")

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
T = TypeVar("T")

Awaited1 = Callable[[A], Awaitable[T]]
Awaited2 = Callable[[A, B], Awaitable[T]]
Awaited3 = Callable[[A, B, C], Awaitable[T]]
ListFuture = asyncio.Future[list[T]]
