"""What calls of a batch method weigh: the user's `batch_size_fn`, asked for the core.

Purpose: decodes a call's arguments, once, and asks the function; the arguments wait with the call for its batch.
Invariants: each call is weighed in a context of its own; an error in the arguments, in the function, or in what it
returns, is the failure of that one call, which is not executed.
Owner: the engine, on its event loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextvars import copy_context
from math import isfinite
from typing import Any, Final

from replica_service.core.batching.batch_weight import Weighed
from replica_service.core.batching.gathering import Weigh
from replica_service.core.calls import ReplicaRun
from replica_service.shell.handler.failures import HandlerErrors
from replica_service.shell.handler.methods import HandlerMethod
from slotmesh.codec import DecodeError
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.foreign import shown

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
