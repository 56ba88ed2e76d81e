"""Interfaces: the methods of an endpoint with their types, for editors and type checkers, and for decoding results.

Purpose: `mesh.endpoint("carts", Carts)` has the methods of the class `Carts`, which names their parameters and results
and imports nothing of the handler. One class serves asyncio and threads, endpoints, lanes, slots and direct lanes: its
type parameter is what calls are made by, and chooses the type of each method.
Invariants: an interface has no state but what it makes calls by. Results are decoded as the types that it declares, so
that these are true; one that is not of its type raises DecodeError.
Owner: the application.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from functools import update_wrapper
from typing import Any, Concatenate, Generic, Self, TypeVar, Unpack, cast, get_type_hints, overload

from slotmesh.calls.call_options import OptionChanges
from slotmesh.client.broadcast import Broadcast, BroadcastMethod
from slotmesh.client.calls.call_spec import MethodSignature
from slotmesh.client.calls.method_types import P, ResultT, T, ValueT
from slotmesh.client.calls.named_methods import NamedMethods
from slotmesh.client.calls.options import AfterFailure
from slotmesh.client.endpoint import Endpoint, Lane, MethodSpace
from slotmesh.client.method import Method
from slotmesh.client.slots.direct_lanes import DirectLanes, DirectMethod
from slotmesh.client.slots.slot import Slot, SlotMethod
from slotmesh.client.sync.broadcast import SyncBroadcast, SyncBroadcastMethod
from slotmesh.client.sync.mesh import SyncEndpoint, SyncLane, SyncMethodSpace
from slotmesh.client.sync.method import SyncMethod
from slotmesh.client.sync.slots import SyncDirectLanes, SyncDirectMethod, SyncSlot, SyncSlotMethod
from slotmesh.handlers.decorators import batch_settings
from slotmesh.handlers.description import result_type
from slotmesh.handlers.kinds import kind_of

ClientT = TypeVar("ClientT", covariant=True)
"""What calls are made by: `Endpoint`, `SyncEndpoint`, `Slot`, …"""
AsyncT = TypeVar("AsyncT", bound="Interface[MethodSpace]")
SyncT = TypeVar("SyncT", bound="Interface[SyncMethodSpace]")


class InterfaceMethod(Generic[ResultT, P, ValueT]):
    """A method of an interface. Made by `slotmesh.method`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if batch_settings(function) is not None:
            raise TypeError(
                f"{function.__qualname__} is a batch method, whose callers pass one item and get one result: "
                "write a method of the interface that does, as `def measure(self, word: str) -> int`"
            )
        update_wrapper(cast("Any", self), function)
        self._function = function
        self._name = ""
        self._signature: MethodSignature | None = None

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Interface[MethodSpace], owner: type) -> Method[ResultT, P, ValueT]: ...
    @overload
    def __get__(self, instance: Interface[SyncMethodSpace], owner: type) -> SyncMethod[ResultT, P, ValueT]: ...
    @overload
    def __get__(self, instance: Interface[Slot], owner: type) -> SlotMethod[ResultT, P, ValueT]: ...
    @overload
    def __get__(self, instance: Interface[SyncSlot], owner: type) -> SyncSlotMethod[ResultT, P, ValueT]: ...
    @overload
    def __get__(self, instance: Interface[DirectLanes], owner: type) -> DirectMethod[ResultT, P]: ...
    @overload
    def __get__(self, instance: Interface[SyncDirectLanes], owner: type) -> SyncDirectMethod[ResultT, P]: ...
    @overload
    def __get__(self, instance: Interface[Broadcast], owner: type) -> BroadcastMethod[ResultT, P]: ...
    @overload
    def __get__(self, instance: Interface[SyncBroadcast], owner: type) -> SyncBroadcastMethod[ResultT, P]: ...
    def __get__(self, instance: Interface[Any] | None, owner: type) -> Any:
        if instance is None:
            return self
        if self._signature is None:
            self._signature = _signature_of(self._function)
        method = instance._client.method(_name_of(self._name), self._signature)
        instance.__dict__[self._name] = method  # later look-ups do not get here
        return method

    def __repr__(self) -> str:
        return f"<slotmesh method {self._function.__qualname__}>"


@overload
def method(function: Callable[Concatenate[Any, P], AsyncIterable[T]], /) -> InterfaceMethod[list[T], P, T]: ...
@overload
def method(function: Callable[Concatenate[Any, P], Iterator[T]], /) -> InterfaceMethod[list[T], P, T]: ...
@overload
def method(function: Callable[Concatenate[Any, P], Awaitable[T]], /) -> InterfaceMethod[T, P]: ...
@overload
def method(function: Callable[Concatenate[Any, P], T], /) -> InterfaceMethod[T, P]: ...
def method(function: Callable[..., Any], /) -> Any:
    """Declares a method of an `Interface`: its parameters, and the type of its results. The body is never run.

    It may be `def` or `async def`, whatever the handler's is. A method that yields is annotated as `Iterator[T]` or
    `AsyncIterator[T]`; one of a batch takes one item and returns one result. A trailing underscore is not part of the
    name: `options_` is the handler's `options`. A method of a handler's class may be given: `add = method(Carts.add)`.

    Raises:
        TypeError: it is a batch method of a handler.
    """
    return InterfaceMethod(function)


class Interface(Generic[ClientT]):
    """The methods of an endpoint, with their types: derive a class from `Interface[ClientT]`.

        class Carts(slotmesh.Interface[slotmesh.ClientT]):
            @slotmesh.method
            def add(self, item: str, count: int = 1) -> int:
                raise NotImplementedError


        carts = mesh.endpoint("carts", Carts)
        total = await carts.add("tea", count=2)

    `slotmesh stubs ENDPOINT` writes one from a running mesh. Its methods are those of `slotmesh.Method`, or of
    `slotmesh.SyncMethod` without asyncio; `Carts(slot)` has those of a slot, `Carts(lanes)` of direct lanes,
    `Carts(endpoint.broadcast)` calls every replica.
    """

    __slotmesh_interface__ = True

    def __init__(self, client: ClientT) -> None:
        """`client`: what calls are made by: an endpoint or a view of it, a lane, a slot, direct lanes.

        Raises:
            TypeError: it is something else.
        """
        if not isinstance(client, NamedMethods):
            raise TypeError(f"{type(self).__name__} takes an endpoint, a lane, a slot or direct lanes, got {client!r}")
        self._client: NamedMethods[Any] = client

    def options(self, **changes: Unpack[OptionChanges]) -> Self:
        """A view whose calls differ in what is given here; `slotmesh.OptionChanges` documents the options."""
        return type(self)(self._endpoint("options").options(**changes))

    def ordered(self, key: str, *, after_failure: AfterFailure = "continue") -> Self:
        """A lane: calls of one ordering key, as `Endpoint.ordered`. It may be the target of `async with`, or `with`."""
        return type(self)(self._endpoint("ordered").ordered(key, after_failure=after_failure))

    def reset(self) -> None:
        """Calls of this lane made from now on are executed, whatever failed before, as `Lane.reset`."""
        self._lane("reset").reset()

    async def __aenter__(self: AsyncT) -> AsyncT:
        await self._lane("async with").__aenter__()
        return self

    async def __aexit__(self: AsyncT, kind: object, error: BaseException | None, trace: object) -> None:
        await self._lane("async with").__aexit__(kind, error, trace)

    def __enter__(self: SyncT) -> SyncT:
        self._lane("with").__enter__()
        return self

    def __exit__(self: SyncT, kind: object, error: BaseException | None, trace: object) -> None:
        self._lane("with").__exit__(kind, error, trace)

    def _endpoint(self, what: str) -> Any:
        """What calls are made by. Raises TypeError if it is no endpoint."""
        if not isinstance(self._client, Endpoint | SyncEndpoint):
            raise TypeError(f"{what} is of an endpoint, and this is {self._client!r}")
        return self._client

    def _lane(self, what: str) -> Any:
        """What calls are made by. Raises TypeError if it is no lane."""
        if not isinstance(self._client, Lane | SyncLane):
            raise TypeError(f"{what} is of a lane, as `ordered(key)` makes it, and this is {self._client!r}")
        return self._client

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._client!r}>"


def _name_of(attribute: str) -> str:
    """The handler's name of a method."""
    return attribute[:-1] if attribute.endswith("_") and not attribute.endswith("__") else attribute


def _signature_of(function: Callable[..., Any]) -> MethodSignature:
    """Reads the annotations. Raises TypeError if they cannot be resolved."""
    try:
        get_type_hints(function)
    except NameError as error:
        raise TypeError(
            f"the annotations of {function.__qualname__} cannot be resolved: {error}; results are decoded by them: "
            "import the name in that module, also at run time"
        ) from None
    yields = kind_of(function).yields
    value = result_type(function, yields=yields, is_batch=False)
    parameters = [*inspect.signature(function).parameters.values()][1:]
    names = [it.name for it in parameters if it.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    if any(it.kind is inspect.Parameter.POSITIONAL_ONLY for it in parameters):
        names = []
    return MethodSignature(types.GenericAlias(list, value) if yields else value, value, tuple(names))
