"""The calls of a batch as a batch method takes them, and its results as calls take them.

Purpose: shared by both executors. Payloads that are arguments as they are pass as slices, without an object a call.
Invariants: a call whose arguments are unsound fails alone and is not executed; calls that give their arguments in
different ways (other names, fewer of them) never share an invocation, so that a default of the method is a default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from replica_service.core.calls import Run
from replica_service.core.commands import Part, StartBatch, StartCalls
from replica_service.shell.handler_errors import wrong_length
from replica_service.shell.methods import Method
from slotmesh.codec import DecodeError
from slotmesh.errors import Failure

OnFailed = Callable[[Run, int, int, Failure], None]
"""Told of calls that failed: run, first index, count, why."""
OnResults = Callable[[Run, int, Sequence[Any]], None]
"""Told of results: run, first index, values."""

_Shape = tuple[int, tuple[str, ...]]
_ONE: _Shape = (1, ())


class Invocation:
    """The arguments of one invocation of the batch method: lists, an entry a call."""

    __slots__ = ("columns", "named", "parts", "shape")

    def __init__(self, shape: _Shape) -> None:
        self.shape = shape
        """Number of positional arguments, names of the others."""
        self.columns: list[list[Any]] = [[] for _ in range(shape[0])]
        self.named: dict[str, list[Any]] = {name: [] for name in shape[1]}
        self.parts: list[Part] = []
        """Whose entries these are, in order."""

    @property
    def count(self) -> int:
        """Calls in it."""
        return sum(hi - lo for _, lo, hi in self.parts)

    def call(self, method: Method) -> Any:
        """Calls the method; a coroutine where it is `async def`."""
        return method.function(*self.columns, **self.named)

    def checked(self, returned: Any, method: Method) -> list[Any] | Failure:
        """What the method returned: a result for each call, or why there is none for any."""
        values = _as_list(returned)
        count = self.count
        if values is not None and len(values) == count:
            return values
        got = f"a list of {len(values)}" if values is not None else f"a {type(returned).__name__}"
        return wrong_length(method.name, count, got)

    def deliver(self, returned: list[Any] | Failure, on_results: OnResults, on_failed: OnFailed) -> None:
        """Gives each call its result; `returned` is what `checked` or `HandlerErrors` made of what happened."""
        if isinstance(returned, Failure):
            for run, lo, hi in self.parts:
                on_failed(run, lo, hi - lo, returned)
            return
        begin = 0
        for run, lo, hi in self.parts:
            end = begin + hi - lo
            on_results(run, lo, returned[begin:end])
            begin = end


def invocations(batch: StartBatch, method: Method, on_failed: OnFailed) -> Iterator[Invocation]:
    """The invocations that the batch takes, in order: one, unless calls differ in how they give their arguments."""
    current: Invocation | None = None
    for run, lo, hi in batch.parts:
        content_type = run.options.content_type
        if method.takes_payloads(content_type):
            if current is None or current.shape != _ONE:
                if current is not None:
                    yield current
                current = Invocation(_ONE)
            current.columns[0] += run.payloads[lo:hi]
            current.parts.append((run, lo, hi))
            continue
        for index in range(lo, hi):
            try:
                args, kwargs = method.decode(content_type, run.payloads[index])
            except DecodeError as error:
                on_failed(run, index, 1, error.failure)
                continue
            shape = (len(args), tuple(kwargs))
            if current is None or current.shape != shape:
                if current is not None:
                    yield current
                current = Invocation(shape)
            for column, value in zip(current.columns, args, strict=True):
                column.append(value)
            for name, value in kwargs.items():
                current.named[name].append(value)
            _extend(current.parts, run, index)
    if current is not None:
        yield current


def is_fresh(batch: StartBatch, now: float) -> bool:
    """Whether all of its calls may start."""
    return all(now < run.link.fresh_until for run, _, _ in batch.parts)


def is_of(work: StartCalls | StartBatch, is_wanted: Callable[[Run], bool]) -> bool:
    """Whether calls of a wanted run are in it."""
    if isinstance(work, StartCalls):
        return is_wanted(work.run)
    return any(is_wanted(run) for run, _, _ in work.parts)


def _extend(parts: list[Part], run: Run, index: int) -> None:
    if parts and parts[-1][0] is run and parts[-1][2] == index:
        parts[-1] = (run, parts[-1][1], index + 1)
    else:
        parts.append((run, index, index + 1))


def _as_list(returned: Any) -> list[Any] | None:
    """A list of what a batch method returned: lists, tuples, arrays and their like; None for anything else."""
    if isinstance(returned, list):
        return returned
    if isinstance(returned, tuple):
        return list(returned)
    tolist = getattr(returned, "tolist", None)  # an array: one result a row
    values = tolist() if callable(tolist) else None
    return values if isinstance(values, list) else None
