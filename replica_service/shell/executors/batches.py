"""Invocations of batch methods: combines the arguments of a batch's calls, splits the results, and weighs calls.

Purpose: shared by all executors. A batch's calls become columns as a whole (`slotmesh/codec/columns.py`), and a
returned array is encoded as a whole. An exception in a returned list is the failure of that one call.
Invariants: a call with invalid arguments fails alone and is not executed. Calls that pass their arguments in different
ways (other names, fewer of them) never share an invocation, so that the method's defaults apply. No call begins after
its deadline, nor while its link is not fresh. Each call is weighed in a context of its own; an error in its arguments,
in `batch_size_fn` or in the returned weight is the failure of that one call. Arguments are decoded once: those decoded
for the weight are kept with the run.
Owner: executors; weighing runs on the engine's event loop.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from math import isfinite
from typing import Any, Final

from replica_service.core.batch_gathering import Weigh
from replica_service.core.call_metadata import Weighed
from replica_service.core.runs import ReplicaRun
from replica_service.core.work import Part, StartBatch, StartCalls, may_begin, too_late
from replica_service.shell.executors.protocol import Outcome, encoded_each
from replica_service.shell.handler.failures import HandlerErrors, wrong_length
from replica_service.shell.handler.methods import HandlerMethod
from slotmesh.codec import Columns, DecodeError, Flaw, is_rows
from slotmesh.codec.tensors import count_of, split_rows
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.user_code import is_exception, shown, type_name

SizeFunction = Callable[..., Any]
FailureOf = Callable[[BaseException, str], Failure]
"""Returns the failure for an exception of a method, by its name."""

_MOST_SHOWN: Final = 256
"""Characters of an invalid weight that a message shows."""
_POSITIONAL = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
_ENDS: Final = (StopIteration, StopAsyncIteration)


def weighers(methods: Mapping[str, HandlerMethod], errors: HandlerErrors) -> dict[str, Weigh]:
    """Returns the weighing function of each batch method with a `batch_size_fn`, by name."""
    return {
        name: weigher(method, control.batch_size_fn, errors)
        for name, method in methods.items()
        if (control := method.control) is not None and control.batch_size_fn is not None
    }


def weigher(method: HandlerMethod, size_fn: SizeFunction, errors: HandlerErrors) -> Weigh:
    """Returns the function that weighs calls of the batch method."""
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
    """Returns the arguments of a call. Those that were decoded for its weight are returned once, without decoding.

    Raises:
        DecodeError: the arguments are invalid.
    """
    if run.weighed is not None and (each := run.weighed.pop(index, None)) is not None and each.arguments is not None:
        decoded: tuple[tuple[Any, ...], Mapping[str, Any]] = each.arguments
        return decoded
    return method.decode(run.options.content_type, run.payloads[index])


def _first_alone(method: HandlerMethod, size_fn: SizeFunction) -> str | None:
    """Returns the name of the method's first parameter if the size function takes only that; None if it takes all."""
    declared = method.signature.parameters
    first = declared[0].name if declared else ""
    try:
        parameters = inspect.signature(size_fn).parameters
    except (TypeError, ValueError):  # some C functions have no signature; they take one item
        return first
    takes_one = len(parameters) == 1 and all(each.kind in _POSITIONAL for each in parameters.values())
    return first if takes_one else None


def _number(weight: Any) -> float | None:
    """Returns the weight as a float, also from other number types such as numpy's; None if it is invalid."""
    try:
        number: float = weight if type(weight) in {int, float} else float(weight)
        return number if isfinite(number) and number >= 0 else None
    except BaseException:  # noqa: BLE001 - the value is the user's own; or an integer too large for `isfinite`
        return None


def _unweighable(message: str) -> Failure:
    return Failure(reason=Reason.HANDLER_ERROR, message=message, executed=Executed.NO)


class Invocation:
    """The arguments of one invocation of the batch method: lists with an entry per call, or arrays with a row."""

    __slots__ = ("args", "named", "parts", "rows", "shape")

    def __init__(self, shape: Hashable) -> None:
        self.shape = shape
        """How its calls pass their arguments."""
        self.args: list[list[Any]] = []
        self.named: dict[str, list[Any]] = {}
        self.parts: list[Part] = []
        """The calls of these entries, in order."""
        self.rows: list[int] = []
        """The number of rows of each call with tensors; empty: one per call."""

    def extend(self, columns: Columns, parts: Sequence[Part]) -> None:
        """Appends these calls. Takes ownership of the columns."""
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
        """Calls the method. Returns a coroutine if it is `async def`."""
        args, named = method.columns.passed(self.args, self.named)
        return method.function(*args, **named)

    def checked(self, returned: Any, method: HandlerMethod) -> Sequence[Any] | Failure:
        """Returns a result for each call, or the failure of all calls if the number of results is wrong."""
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
        """Yields the outcomes of the calls. `returned`: results from `checked`, or the failure of all calls."""
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


class BatchRun:
    """A batch under way, for all executors: its invocations one after another, and the calls that fail on the way."""

    def __init__(
        self,
        batch: StartBatch,
        method: HandlerMethod,
        now: Callable[[], float],
        refuses: Callable[[ReplicaRun], Failure | None] = lambda _run: None,
    ) -> None:
        """`refuses` returns the failure of a run's calls that the method cannot execute."""
        self.batch = batch
        self.method = method
        self._now = now
        self._failed: list[Outcome] = []
        valid: list[Part] = []
        for run, lo, hi in batch.parts:
            if (failure := refuses(run)) is not None:
                self._failed.append((run, lo, hi - lo, failure))
            else:
                valid.append((run, lo, hi))
        self._left = self._invocations(valid)

    @property
    def may_begin(self) -> bool:
        """Whether the first invocation may begin now."""
        return may_begin(self.batch.parts, self._now())

    @property
    def is_to_return(self) -> bool:
        """Whether nothing has begun, and nothing may: the batch returns to the scheduler as a whole."""
        return self.batch.began is None and not self.may_begin

    def next(self) -> Invocation | None:
        """Returns the next invocation after decoding its arguments, without calls that must not begin any more."""
        for invocation in self._left:
            if self.batch.began is None:
                return invocation
            if (left := self._in_time(invocation)) is not None:
                return left
        return None

    def begin(self, invocation: Invocation) -> Any:
        """Calls the method. Returns what it returned: a coroutine if it is `async def`."""
        self.batch.began = self._now()
        return invocation.call(self.method)

    def take_failed(self) -> list[Outcome]:
        """Returns the failures of invalid and late calls since the last time. To be delivered once a call has begun."""
        failed, self._failed = self._failed, []
        return failed

    def _in_time(self, invocation: Invocation) -> Invocation | None:
        now = self._now()
        parts: list[Part] = []
        for run, lo, hi in invocation.parts:
            if (failure := too_late(run, now)) is not None:
                self._failed.append((run, lo, hi - lo, failure))
            else:
                parts.append((run, lo, hi))
        return invocation if len(parts) == len(invocation.parts) else next(self._invocations(parts), None)

    def _invocations(self, parts: Sequence[Part]) -> Iterator[Invocation]:
        """Yields the invocations in order: one, unless calls pass their arguments in different ways."""
        current: Invocation | None = None
        for alike, pieces in _pieces(parts, self.method):
            size = sum(hi - lo for _, lo, hi in alike)
            left = deque(alike)
            for columns in pieces:
                if isinstance(columns, Flaw):
                    self._failed += [(run, lo, 1, columns.failure) for run, lo, _ in _take(left, 1)]
                    continue
                if current is None or current.shape != columns.shape:
                    if current is not None:
                        yield current
                    current = Invocation(columns.shape)
                current.extend(columns, alike if columns.size == size else _take(left, columns.size))
        if current is not None:
            yield current


def _pieces(parts: Sequence[Part], method: HandlerMethod) -> Iterator[tuple[list[Part], Iterable[Columns | Flaw]]]:
    """Yields the arguments of consecutive calls of one content type together, and those of weighed calls one by one."""
    alike: list[Part] = []
    for part in parts:
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
    """Removes the first `count` calls from the parts and returns them."""
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
    """Whether the work has calls of a wanted run."""
    if isinstance(work, StartCalls):
        return is_wanted(work.run)
    return any(is_wanted(run) for run, _, _ in work.parts)


def ends_call(entry: Any) -> bool:
    """Whether this entry of a yielded list ends its call."""
    return entry is StopIteration or entry is StopAsyncIteration or issubclass(type(entry), _ENDS)


def _exceptions_in(values: Sequence[Any]) -> list[int]:
    """Returns the indices of exceptions among the values, in descending order."""
    if is_rows(values) or not any(issubclass(each, BaseException) for each in set(map(type, values))):
        return []
    return [index for index in range(len(values) - 1, -1, -1) if is_exception(values[index])]


def _as_list(returned: Any) -> Sequence[Any] | None:
    """Returns the results of a batch method as a plain list or numpy array; None if it is no list, tuple or array.

    Splitting the returned value calls no foreign code.
    """
    if type(returned) is list or is_rows(returned):
        plain: Sequence[Any] = returned
        return plain
    if isinstance(returned, list | tuple):
        return list(returned)
    tolist = getattr(returned, "tolist", None)  # an array: one result a row
    values = tolist() if callable(tolist) else None
    return values if isinstance(values, list) else None
