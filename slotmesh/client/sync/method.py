"""A handler's method, as threads use it, and the values of a handler that yields.

Invariant: a call is made when the method is called, in any thread: arguments are encoded there, so that errors are
raised there, and a lane's calls are in the order in which they were passed to the client's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from math import inf
from time import monotonic
from typing import Any, ClassVar, Final, Generic, Literal, Unpack, overload

from slotmesh.calls.call_options import OptionChanges
from slotmesh.client.calls.call_spec import MethodSignature
from slotmesh.client.calls.method_types import A, B, C, OtherT, P, ResultT, T, ValueT
from slotmesh.client.calls.named_methods import MethodT, NamedMethods
from slotmesh.client.calls.values import ValueStream
from slotmesh.client.method import InheritingMethod, Method
from slotmesh.client.sync.call_future import CallFuture
from slotmesh.client.sync.client_thread import ClientThread, ThreadMap


class SyncMethod(Generic[ResultT, P, ValueT]):
    """Calls one method of an endpoint's handler. Get it as an attribute: `digits.classify`."""

    __slots__ = ("_inherits", "_method", "_share", "_thread")

    def __init__(self, thread: ClientThread, method: Method[ResultT, P, ValueT]) -> None:
        self._thread = thread
        self._method = method
        self._inherits = isinstance(method, InheritingMethod)
        self._share = method.share

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        """Makes a call and waits for its result. Ctrl-C while it waits cancels the call.

        Arguments are positional, or named. `options(timeout=…)` limits the time that it may take.

        Raises:
            TypeError: the content type cannot carry the arguments.
            SlotmeshError: the call failed, and how.
            RuntimeError: the mesh is closed, or used where waiting would never end.
        """
        method = self._in_call()
        payload = method.encode(args, kwargs)
        self._thread.work.check_may_wait()
        future: CallFuture[ResultT] = CallFuture(self._thread.work)
        try:
            self._make(method, future, payload, waits=True)
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def send(self, *args: P.args, **kwargs: P.kwargs) -> Future[ResultT]:
        """Makes a call once the client has room for it, and does not wait for its result.

        Raises:
            TypeError: the content type cannot carry the arguments.
            RuntimeError: the mesh is closed, or used where waiting would never end.
            SlotmeshError: from the future: the call failed, and how.
        """
        method = self._in_call()
        payload = method.encode(args, kwargs)
        self._thread.work.check_may_wait()
        return self._make(method, CallFuture(self._thread.work), payload, waits=True)

    def future(self, *args: P.args, **kwargs: P.kwargs) -> Future[ResultT]:
        """Makes a call and does not wait. It leaves with its neighbours in one frame.

        If as many calls wait in the client as `slotmesh.connect_sync` allows, it fails with CLIENT_BUFFER_FULL; `send`
        waits for room. `cancel()` of the future cancels the call: one that waits at the router never starts, the
        replica of a running one is notified.

        Raises:
            TypeError: the content type cannot carry the arguments.
            RuntimeError: the mesh is closed, or belongs to another process.
            SlotmeshError: from the future: the call failed, and how.
        """
        method = self._in_call()
        return self._make(method, CallFuture(self._thread.work), method.encode(args, kwargs), waits=False)

    @overload
    def map(
        self: Callable[[A], T],
        a: Iterable[A],
        /,
        *,
        return_exceptions: Literal[False] = False,
        timeout: float | None = None,
    ) -> list[T]: ...
    @overload
    def map(
        self: Callable[[A], T], a: Iterable[A], /, *, return_exceptions: bool, timeout: float | None = None
    ) -> list[T | Exception]: ...
    @overload
    def map(
        self: Callable[[A, B], T],
        a: Iterable[A],
        b: Iterable[B],
        /,
        *,
        return_exceptions: Literal[False] = False,
        timeout: float | None = None,
    ) -> list[T]: ...
    @overload
    def map(
        self: Callable[[A, B], T],
        a: Iterable[A],
        b: Iterable[B],
        /,
        *,
        return_exceptions: bool,
        timeout: float | None = None,
    ) -> list[T | Exception]: ...
    @overload
    def map(
        self: Callable[[A, B, C], T],
        a: Iterable[A],
        b: Iterable[B],
        c: Iterable[C],
        /,
        *,
        return_exceptions: Literal[False] = False,
        timeout: float | None = None,
    ) -> list[T]: ...
    @overload
    def map(
        self,
        a: Iterable[Any],
        b: Iterable[Any],
        c: Iterable[Any],
        /,
        *more: Iterable[Any],
        return_exceptions: bool,
        timeout: float | None = None,
    ) -> list[Any]: ...
    @overload
    def map(
        self,
        a: Iterable[Any],
        b: Iterable[Any],
        c: Iterable[Any],
        d: Iterable[Any],
        /,
        *more: Iterable[Any],
        timeout: float | None = None,
    ) -> list[Any]: ...
    def map(self, *columns: Iterable[Any], return_exceptions: bool = False, timeout: float | None = None) -> list[Any]:
        """Makes a call for each item, and waits; the results come as one list, in the order of the items.

        Takes an iterable for each positional argument, all of the same length, as the builtin `map` does. All calls end
        before the failure of the first one (by input order) is raised; with `return_exceptions` failures stand in the
        list instead.

        If the client has no room for all calls, these are made as others leave, and items are read as calls are
        made: errors of later items are raised after all calls that were made have ended.

        Raises:
            TypeError: the content type cannot carry an item, or an iterable is a str or bytes. No call was made.
            ValueError: the iterables differ in length. No call was made.
            TimeoutError: there are calls that have not ended within `timeout` seconds. They were taken back.
            SlotmeshError: a call failed.
            RuntimeError: the mesh is closed, or used where waiting would never end.
        """
        self._thread.work.check_may_wait()
        until = inf if timeout is None else monotonic() + timeout
        method = self._in_call()
        calls = ThreadMap(self._thread, method, keeps_failures=return_exceptions)
        try:
            calls.make(method.pieces(columns), until)
            results: list[Any] = calls.future.result(None if timeout is None else max(until - monotonic(), 0.0))
        except BaseException:
            calls.future.cancel()
            raise
        return results

    def unary(self, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        """Makes a call by a unary rpc of its own, and waits: many times the cost, and no order among calls.

        Raises:
            TypeError: the content type cannot carry the arguments.
            SlotmeshError: the call failed, and how.
            RuntimeError: the mesh is closed, or used where waiting would never end.
        """
        return self._thread.run(partial(self._method.unary, *args, **kwargs), copy_context())

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> SyncValueStream[ValueT]:
        """Makes a call of a handler that yields: `for value in method.stream(…)`.

        The call is made here, in line with the others, not when the loop begins. Each value is a result of the type set
        by `returning`; a method that returns has one. Leaving the loop early cancels the call. Such a call does not
        outlive the router that it went to: it fails with ROUTER_LOST then.

        Raises:
            TypeError: the content type cannot carry the arguments, or the view's calls have no reply.
            RuntimeError: the mesh is closed, or used where waiting would never end.
            SlotmeshError: from the iterator, after the values before it: the call failed, and how.
        """
        return self._values(self._method.stream, args, kwargs)

    def unary_stream(self, *args: P.args, **kwargs: P.kwargs) -> SyncValueStream[ValueT]:
        """As `stream`, by an rpc of its own: no order among calls, and the transport holds the handler back.

        Raises:
            TypeError: the content type cannot carry the arguments, or the view's calls have no reply.
            PayloadTooLarge: the arguments do not fit into an rpc.
            RuntimeError: the mesh is closed, or used where waiting would never end.
            SlotmeshError: from the iterator: the call failed, and how.
        """
        return self._values(self._method.unary_stream, args, kwargs)

    def options(self, **changes: Unpack[OptionChanges]) -> SyncMethod[ResultT, P, ValueT]:
        """The same method, with some options changed; `slotmesh.OptionChanges` documents them.

        Raises:
            BadRequest: an invalid value. It is a ValueError, too.
            TypeError: an unknown option, or the new content type cannot carry results of the requested type.
        """
        with self._thread.lock:
            return SyncMethod(self._thread, self._method.options(**changes))

    def returning(self, result_type: type[OtherT]) -> SyncMethod[OtherT, P, OtherT]:
        """The same method, with results of this type: a Struct, a dataclass, any annotation; a protobuf message class.

        A result that is not of the type raises DecodeError (a ValueError).

        Raises:
            TypeError: the view's content type cannot carry this type.
        """
        with self._thread.lock:
            return SyncMethod(self._thread, self._method.returning(result_type))

    def _in_call(self) -> Method[ResultT, P, ValueT]:
        """The method with what calls inherit here: that is known in the thread that makes them."""
        if not self._inherits:
            return self._method
        with self._thread.lock:
            return self._method.in_call()

    def _values(
        self, make: Callable[..., ValueStream[ValueT]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> SyncValueStream[ValueT]:
        """Makes a call in the client's thread, as if that were this one."""
        values = self._thread.call(partial(copy_context().run, make, *args, **kwargs))
        return SyncValueStream(self._thread, values)

    def _make(
        self, method: Method[ResultT, P, ValueT], future: CallFuture[ResultT], payload: bytes, *, waits: bool
    ) -> CallFuture[ResultT]:
        """Hands the call over, once it has its place in the client, or fails it. `waits`: for the place.

        It waits no longer than the call may take in all.
        """
        thread, share, size = self._thread, self._share, len(payload)
        thread.check_open()
        if not share.take(1, size):
            timeout_s = method.timeout_s
            until = inf if timeout_s is None else monotonic() + timeout_s
            if not waits or not share.wait_for_room(size, until):
                thread.hand_over(future, method.refuse, payload)
                return future
        try:
            thread.hand_over(future, method.submit, payload)
        except BaseException:
            share.give(1, size)
            raise
        return future

    def __repr__(self) -> str:
        return repr(self._method)


class SyncNamedMethods(NamedMethods[MethodT]):
    """As `NamedMethods`, for threads, which share them."""

    _for_threads: ClassVar[type[Any]]
    """Makes the method of a method that is awaited."""

    def __init__(self, thread: ClientThread, awaited: Any) -> None:
        """`awaited`: what the client's event loop has, a `NamedMethods`."""
        super().__init__()
        self._thread = thread
        self._awaited = awaited

    def _new_method(self, name: str, signature: MethodSignature) -> MethodT:
        with self._thread.lock:
            method: MethodT = self._for_threads(self._thread, self._awaited.method(name, signature))
            return method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the handler itself, a function or an object with `__call__`, and waits for its result."""
        return self.method("__call__")(*args, **kwargs)

    def __repr__(self) -> str:
        return repr(self._awaited)


FETCHED_VALUES: Final = 64
"""Values that are fetched at a time."""


class SyncValueStream(Iterator[ResultT], Generic[ResultT]):
    """The values of one call: `for value in digits.explain.stream(pixels)`.

    The handler runs ahead of the loop by 256 values or 1 MiB at most, and waits then. Leaving the loop cancels the
    call; if the iterator is kept after that, use `close`, or `with`.

    Iterating raises SlotmeshError if the call failed, and DecodeError if a value is not of the requested type.

    Invariants: values are fetched when the loop needs one: all that have arrived, and at most `FETCHED_VALUES`, so that
    one wait for the client's thread is shared by many. The handler continues only as they are fetched: the client
    buffers a bounded number of values, however slow the loop is. Owner: the application; one thread at a time.
    """

    __slots__ = ("__weakref__", "_failure", "_fetched", "_over", "_thread", "_values")

    def __init__(self, thread: ClientThread, values: ValueStream[ResultT]) -> None:
        self._thread = thread
        self._values = values
        self._fetched: deque[ResultT] = deque()
        self._failure: Exception | None = None
        """Comes after what was fetched."""
        self._over = False

    def __next__(self) -> ResultT:
        fetched = self._fetched
        while not fetched:
            self._fetch()
        return fetched.popleft()

    def close(self) -> None:
        """Cancels the call, unless it has ended: its handler is closed where it waits. There are no more values."""
        if not self._over:
            self._over = True
            self._thread.go_on(CallFuture(self._thread.work), self._values.aclose)
        self._fetched.clear()
        self._failure = None

    def __enter__(self) -> SyncValueStream[ResultT]:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.close()

    def _fetch(self) -> None:
        """Waits for a value or more; raises StopIteration where there are no more."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._over:
            raise StopIteration
        self._thread.work.check_may_wait()
        try:
            values = self._thread.outcome_of_more(self._take_some)
        except BaseException:  # also Ctrl-C: that ends the iteration, and takes the call back
            self._over = True
            raise
        self._fetched.extend(values)
        if not values:
            self._over = True
            raise StopIteration

    async def _take_some(self) -> list[ResultT]:
        """In the client's thread."""
        some: list[ResultT] = []
        try:
            async for value in self._values:
                some.append(value)
                if len(some) >= FETCHED_VALUES or not self._values.has_next:
                    break
        except Exception as failure:
            if not some:
                raise
            self._failure, self._over = failure, True
        return some

    def __repr__(self) -> str:
        return repr(self._values)
