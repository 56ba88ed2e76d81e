"""Invocations of batch methods: the arguments of a batch's calls put together, and the results taken apart.

Purpose: shared by all executors. Its calls become columns as a whole (`slotmesh/codec/columns.py`), and an array
that was returned is encoded as a whole. An entry of a list that is an exception is what that one call has raised.
Invariants: a call whose arguments are unsound fails alone and is not executed; calls that give their arguments in
different ways (other names, fewer of them) never share an invocation, so that a default of the method is a default.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from math import isfinite
from typing import Any, Final

from replica_service.core.calls.call_metadata import Weighed
from replica_service.core.calls.commands import Part, StartBatch, StartCalls
from replica_service.core.calls.runs import ReplicaRun
from replica_service.core.state.batch_gathering import Weigh
from replica_service.core.state.claims import too_late
from replica_service.shell.executors.protocol import Outcome, encoded_each
from replica_service.shell.handler.failures import HandlerErrors, wrong_length
from replica_service.shell.handler.methods import HandlerMethod
from slotmesh.codec import Columns, DecodeError, Flaw, is_rows
from slotmesh.codec.tensors import count_of, split_rows
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.foreign import is_exception, shown, type_name

# What calls of a batch method weigh: the user's `batch_size_fn`, asked for the core.
#
# Purpose: decodes a call's arguments, once, and asks the function; the arguments wait with the call for its batch.
# Invariants: each call is weighed in a context of its own; an error in the arguments, in the function, or in what it
# returns, is the failure of that one call, which is not executed.
# Owner: the engine, on its event loop.

SizeFunction = Callable[..., Any]

_MOST_SHOWN: Final = 256
"""Characters of what was returned instead of a weight."""

_POSITIONAL = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}


def weighers(methods: Mapping[str, HandlerMethod], errors: HandlerErrors) -> dict[str, Weigh]:
    """For each batch method whose calls have a weight, by name, how they are weighed."""
    return {
        name: weigher(method, control.batch_size_fn, errors)
        for name, method in methods.items()
        if (control := method.control) is not None and control.batch_size_fn is not None
    }


def weigher(method: HandlerMethod, size_fn: SizeFunction, errors: HandlerErrors) -> Weigh:
    """How calls of the batch method are weighed."""
    first = _first_alone(method, size_fn)

    def weigh(run: ReplicaRun, index: int) -> Weighed:
        return copy_context().run(weigh_here, run, index)

    def weigh_here(run: ReplicaRun, index: int) -> Weighed:
        try:
            args, kwargs = method.decode(run.options.content_type, run.payloads[index])
        except DecodeError as error:
            return Weighed(0.0, failure=error.failure)
        try:
            if first is None:
                weight = size_fn(*args, **kwargs)
            else:
                weight = size_fn(args[0] if args else kwargs[first])
        except BaseException as error:  # noqa: BLE001 - nothing that a handler's function raises may end the loop
            raised = errors.failure_of(error, method.name)
            message = f"batch_size_fn raised {raised.message}"
            return Weighed(0.0, failure=_unweighable(message))
        number = _number(weight)
        if number is None:
            message = (
                f"batch_size_fn must return a number that is finite and not negative, got {shown(weight, _MOST_SHOWN)}"
            )
            return Weighed(0.0, failure=_unweighable(message))
        return Weighed(number, None if method.takes_payloads(run.options.content_type) else (args, kwargs))

    return weigh


def arguments(method: HandlerMethod, run: ReplicaRun, index: int) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The arguments of a call; those that were decoded for its weight, and then not again.

    Raises:
        DecodeError: they are unsound.
    """
    if run.weighed is not None and (each := run.weighed.pop(index, None)) is not None and each.arguments is not None:
        decoded: tuple[tuple[Any, ...], Mapping[str, Any]] = each.arguments
        return decoded
    return method.decode(run.options.content_type, run.payloads[index])


def _first_alone(method: HandlerMethod, size_fn: SizeFunction) -> str | None:
    """The name of the method's first parameter, where the size function takes that one; None where it takes all."""
    declared = method.signature.parameters
    first = declared[0].name if declared else ""
    try:
        parameters = inspect.signature(size_fn).parameters
    except (TypeError, ValueError):  # some that are written in C have no signature; they take an item
        return first
    takes_one = len(parameters) == 1 and all(each.kind in _POSITIONAL for each in parameters.values())
    return first if takes_one else None


def _number(weight: Any) -> float | None:
    """The weight, if it is one; numbers of other kinds, as numpy's, are fine."""
    try:
        number: float = weight if type(weight) in {int, float} else float(weight)
        return number if isfinite(number) and number >= 0 else None
    except BaseException:  # noqa: BLE001 - the value is the user's own; or an integer too large for `isfinite`
        return None


def _unweighable(message: str) -> Failure:
    return Failure(reason=Reason.HANDLER_ERROR, message=message, executed=Executed.NO)


OnFailed = Callable[[ReplicaRun, int, int, Failure], None]
"""Called for calls that failed: run, first index, count, failure."""
FailureOf = Callable[[BaseException, str], Failure]
"""The failure that callers of a method, by name, get for an exception."""
_ENDS: Final = (StopIteration, StopAsyncIteration)


class Invocation:
    """The arguments of one invocation of the batch method: lists, an entry a call, or arrays, a row a call."""

    __slots__ = ("args", "named", "parts", "rows", "shape")

    def __init__(self, shape: Hashable) -> None:
        self.shape = shape
        """What its calls have in common: how they give their arguments."""
        self.args: list[list[Any]] = []
        self.named: dict[str, list[Any]] = {}
        self.parts: list[Part] = []
        """The calls of these entries, in order."""
        self.rows: list[int] = []
        """Of calls with tensors, how many entries each has; empty: one a call."""

    def extend(self, columns: Columns, parts: Sequence[Part]) -> None:
        """These calls come next; their columns are made for this, and are kept."""
        self.rows += columns.rows
        if not self.parts:
            self.args, self.named = list(columns.args), dict(columns.named)
            self.parts.extend(parts)
            return
        for column, entries in zip(self.args, columns.args, strict=True):
            column.extend(entries)
        for name, entries in columns.named.items():
            self.named[name].extend(entries)
        (run, lo, hi), (last, begin, end) = parts[0], self.parts[-1]
        if run is last and lo == end:
            self.parts[-1] = (run, begin, hi)
            parts = parts[1:]
        self.parts.extend(parts)

    @property
    def count(self) -> int:
        """Calls in it."""
        return sum(hi - lo for _, lo, hi in self.parts)

    def call(self, method: HandlerMethod) -> Any:
        """Calls the method; a coroutine where it is `async def`."""
        args, named = method.columns.passed(self.args, self.named)
        return method.function(*args, **named)

    def checked(self, returned: Any, method: HandlerMethod) -> Sequence[Any] | Failure:
        """What the method returned: a result for each call, or why there is none for any."""
        if self.rows:
            by_call = split_rows(returned, self.rows)
            return by_call if by_call is not None else wrong_length(method.name, sum(self.rows), count_of(returned))
        values = _as_list(returned)
        count = self.count
        if values is not None and len(values) == count:
            return values
        got = f"a list of {len(values)}" if values is not None else f"a {type_name(returned)}"
        return wrong_length(method.name, count, got)

    def outcomes(
        self, returned: Sequence[Any] | Failure, method: HandlerMethod, failure_of: FailureOf
    ) -> Iterator[Outcome]:
        """What becomes of each call; `returned` is what `checked` or `HandlerErrors` made of what happened."""
        if isinstance(returned, Failure):
            for run, lo, hi in self.parts:
                yield run, lo, hi - lo, returned
            return
        begin = 0
        raised = _exceptions_in(returned)
        for run, lo, hi in self.parts:
            end = begin + hi - lo
            while raised and raised[-1] < end:
                index = raised.pop()
                if begin < index:
                    yield from encoded_each(run, hi - (end - begin), returned[begin:index])
                yield run, hi - (end - index), 1, failure_of(returned[index], method.name)
                begin = index + 1
            if begin < end:
                yield from encoded_each(run, hi - (end - begin), returned[begin:end])
            begin = end


def invocations(batch: StartBatch, method: HandlerMethod, on_failed: OnFailed) -> Iterator[Invocation]:
    """The invocations that the batch takes, in order: one, unless calls differ in how they give their arguments."""
    current: Invocation | None = None
    for parts, pieces in _pieces(batch, method):
        size = sum(hi - lo for _, lo, hi in parts)
        left = deque(parts)
        for columns in pieces:
            if isinstance(columns, Flaw):
                for run, lo, _ in _take(left, 1):
                    on_failed(run, lo, 1, columns.failure)
                continue
            if current is None or current.shape != columns.shape:
                if current is not None:
                    yield current
                current = Invocation(columns.shape)
            current.extend(columns, parts if columns.size == size else _take(left, columns.size))
    if current is not None:
        yield current


def _pieces(batch: StartBatch, method: HandlerMethod) -> Iterator[tuple[list[Part], Iterable[Columns | Flaw]]]:
    """The arguments of the batch's calls: of all of one content type at once, from whichever client.

    Those that were decoded before, to be weighed, are taken one by one.
    """
    alike: list[Part] = []
    for part in batch.parts:
        run, lo, hi = part
        if alike and (run.weighed is not None or run.options.content_type != alike[0][0].options.content_type):
            yield alike, _split(alike, method)
            alike = []
        if run.weighed is None:
            alike.append(part)
        else:
            yield [part], map(partial(_column_of_one, method, run), range(lo, hi))
    if alike:
        yield alike, _split(alike, method)


def _split(parts: Sequence[Part], method: HandlerMethod) -> Iterator[Columns | Flaw]:
    payloads: list[bytes] = []
    for run, lo, hi in parts:
        payloads += run.payloads[lo:hi]
    return method.columns.split(parts[0][0].options.content_type, payloads)


def _column_of_one(method: HandlerMethod, run: ReplicaRun, index: int) -> Columns | Flaw:
    try:
        return method.columns.of_one(*arguments(method, run, index), run.options.content_type)
    except DecodeError as error:
        return Flaw(error.failure)


def _take(parts: deque[Part], count: int) -> list[Part]:
    """Takes the first calls off the parts."""
    taken: list[Part] = []
    while count:
        run, lo, hi = parts.popleft()
        end = min(hi, lo + count)
        taken.append((run, lo, end))
        count -= end - lo
        if end < hi:
            parts.appendleft((run, end, hi))
    return taken


def is_of(work: StartCalls | StartBatch, is_wanted: Callable[[ReplicaRun], bool]) -> bool:
    """Whether calls of a wanted run are in it."""
    if isinstance(work, StartCalls):
        return is_wanted(work.run)
    return any(is_wanted(run) for run, _, _ in work.parts)


def ends_call(entry: Any) -> bool:
    """Whether this entry of a list that was yielded means that its call has no more values."""
    return entry is StopIteration or entry is StopAsyncIteration or issubclass(type(entry), _ENDS)


def _exceptions_in(values: Sequence[Any]) -> list[int]:
    """Where there are exceptions among the values, from the last one on."""
    if is_rows(values) or not any(issubclass(each, BaseException) for each in set(map(type, values))):
        return []
    return [index for index in range(len(values) - 1, -1, -1) if is_exception(values[index])]


def _as_list(returned: Any) -> Sequence[Any] | None:
    """What a batch method returned, one result each: lists, tuples, arrays and their like; None for anything else.

    It is a list of ours, or an array of numpy: no foreign code is called as it is taken apart.
    """
    if type(returned) is list or is_rows(returned):
        plain: Sequence[Any] = returned
        return plain
    if isinstance(returned, list | tuple):
        return list(returned)
    tolist = getattr(returned, "tolist", None)  # an array: one result a row
    values = tolist() if callable(tolist) else None
    return values if isinstance(values, list) else None


# Calls of a batch that become overdue before it is their turn.
#
# Purpose: a batch whose calls give their arguments in different ways takes several invocations of its method, one after
# another. The batch was claimed for the first one; before each other one its calls are checked again.
# Invariant: no call begins past its deadline, nor while its link is not fresh.
# Owner: shared by all executors.


def in_time(
    invocation: Invocation, batch: StartBatch, method: HandlerMethod, now: float, on_failed: OnFailed
) -> Invocation | None:
    """The invocation without those of its calls that must not begin any more, which fail; None where none is left."""
    parts = []
    for part in invocation.parts:
        run, lo, hi = part
        if (failure := too_late(run, now)) is not None:
            on_failed(run, lo, hi - lo, failure)
        else:
            parts.append(part)
    if len(parts) == len(invocation.parts):
        return invocation
    rest = StartBatch(batch.batcher, parts, (), sum(hi - lo for _, lo, hi in parts))
    return next(invocations(rest, method, on_failed), None)
