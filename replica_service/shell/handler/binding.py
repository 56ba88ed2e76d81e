"""From a handler to its methods, by the names that calls give: its own, and those of users' rpcs."""

from __future__ import annotations

import inspect
from types import MethodType
from typing import Any

from replica_service.shell.handler.methods import HandlerMethod
from replica_service.shell.handler.own_rpcs import RpcMethod
from replica_service.shell.handler.own_services import found_rpcs
from slotmesh.handlers import CALL, HandlerDescription
from slotmesh.handlers.outlines import outline_of
from slotmesh.telemetry.log import get_logger

_log = get_logger(__name__)


def bind_methods(handler: Any, description: HandlerDescription) -> dict[str, HandlerMethod]:
    """The methods of a handler, by the name that calls give. `handler` may be a class: its methods cannot be called.

    A method that implements an rpc of the user's own proto is found by the name of the rpc, too, as
    `package.Service/Method`; where it can be called as that alone, by no other.

    A method whose types no payload can carry is an error. It is left out, with a warning, if a base class of another
    package has defined it: the user does not choose the methods of a library's class.

    Raises:
        TypeError: an annotation that no payload can become, or a method that cannot be called as its rpc is; the
            message names it.
    """
    methods: dict[str, HandlerMethod] = {}
    rpcs = [*found_rpcs(description.methods.keys())]
    implementing = {rpc.method for rpc in rpcs}
    for name, described in description.methods.items():
        called = "" if name == CALL else name
        try:
            function = _function_of(handler, name)
            method = methods[called] = HandlerMethod(called, function, described.kind, described.batch)
            method.outline = outline_of(
                name, function, yields=described.kind.yields, is_batch=described.batch is not None
            )
        except TypeError as error:
            if _is_of_a_library(handler, name):
                methods.pop(called, None)
                _log.warning("method of a base class is not served", method=name, reason=str(error))
            elif name not in implementing:
                hidden = "" if name == CALL else f"; if no client is to call it, name it _{name}"
                raise TypeError(f"{description.name}.{name}: {error}{hidden}") from error
    for rpc in rpcs:
        try:
            methods[rpc.path] = RpcMethod(rpc, _function_of(handler, rpc.method), description.methods[rpc.method])
        except TypeError as error:
            if rpc.is_whole:  # else it may have the name of an rpc by chance
                raise TypeError(f"{description.name}.{rpc.method}: {error}") from error
    return methods


def _is_of_a_library(handler: Any, name: str) -> bool:
    """Whether the handler inherits the method from a class of another top-level package than its own."""
    kind = handler if inspect.isclass(handler) else type(handler)
    defining = next((each for each in kind.__mro__ if name in vars(each)), kind)
    return _package(defining) != _package(kind)


def _function_of(handler: Any, name: str) -> Any:
    """The function as calls see it, without `self`; that of a class as well, which is not constructed for that."""
    if not inspect.isclass(handler):
        return handler if name == CALL else getattr(handler, name)
    found = next(vars(each)[name] for each in handler.__mro__ if name in vars(each))
    return getattr(handler, name) if isinstance(found, staticmethod | classmethod) else MethodType(found, handler)


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]
