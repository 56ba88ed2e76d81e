"""The description of a handler, read off the class or function without constructing it.

Purpose: the one reading of a handler, for the replica that runs it, for `--describe`, and, as JSON Schemas of its
methods, for OpenAPI documents.
Invariants: names of methods are public, except `__call__`; the numbers apply unless the specification or the controller
overrides them. An annotation without a schema is left open, and does not affect the others; a schema that is too long
is left out; of users' code only their types are read, by `msgspec`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from functools import singledispatchmethod
from types import MappingProxyType
from typing import Any, Final, get_args, get_origin

import msgspec

from slotmesh.calls.method_outlines import MethodOutline
from slotmesh.codec.types.hooks import made_of
from slotmesh.codec.types.models import codec_of, is_model
from slotmesh.codec.types.signature import Signature, read_signature, resolve_annotation
from slotmesh.handlers.decorators import batch_settings, deployment_settings
from slotmesh.handlers.kinds import MethodKind, is_method, kind_of
from slotmesh.handlers.multiplexed import multiplexed_of
from slotmesh.handlers.prefix_arguments import prefix_argument_of
from slotmesh.handlers.time_formats import add_time_formats
from slotmesh.spec.handler_settings import BatchSettings

CALL: Final = "__call__"
"""The method with the empty name."""
RESERVED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "reconfigure": ("user_config",),
        "check_health": (),
        "on_drain": (),
        "on_keys_gained": ("keys",),
        "on_keys_lost": ("keys",),
    }
)
"""Methods that the replica calls, never a client, and their arguments."""

DEFAULT_MAX_ONGOING_ASYNC = 512
DEFAULT_MAX_ONGOING_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodDescription:
    """One method that can be called."""

    kind: MethodKind
    batch: BatchSettings | None = None
    """Set for a batch method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerDescription:
    """Everything about a handler that does not depend on its constructor."""

    name: str
    """The user's own name of the class or function."""
    methods: Mapping[str, MethodDescription]
    """By name; `__call__` for the one that the empty name means."""
    max_ongoing: int
    prefetch: int
    health_check_period_s: float
    health_check_timeout_s: float
    own_loop: bool
    """`async def` methods run on an event loop of their own."""
    blocked_after_s: float
    """A method that keeps its loop for longer is reported; 0: none is."""

    def as_json(self) -> dict[str, Any]:
        """As `--describe` prints it: plain values only."""
        return {
            "name": self.name,
            "max_ongoing": self.max_ongoing,
            "prefetch": self.prefetch,
            "own_loop": self.own_loop,
            "health_check_period_s": self.health_check_period_s,
            "health_check_timeout_s": self.health_check_timeout_s,
            "methods": {name: _method_as_json(method) for name, method in self.methods.items()},
        }


def describe(handler: type | Callable[..., Any]) -> HandlerDescription:
    """Reads a class or function, decorated with `@deployment` or not.

    Raises:
        TypeError: it is neither; it has no callable method; a method that the replica calls has other parameters.
    """
    if inspect.isclass(handler):
        methods = _methods_of(handler)
        for name, given in RESERVED.items():
            _check_reserved(handler, name, given)
    elif inspect.isfunction(handler):
        methods = {CALL: _describe_function(handler)}
    else:
        raise TypeError(f"a handler is a class or a function, got {handler!r}")
    if not methods:
        raise TypeError(f"{handler.__qualname__} has no public method and no __call__: there is nothing to call")
    settings = deployment_settings(handler)
    batches = [method.batch for method in methods.values() if method.batch is not None]
    max_ongoing = settings.max_ongoing
    if max_ongoing is None:
        on_loop = all(method.kind.is_async for method in methods.values())
        default = DEFAULT_MAX_ONGOING_ASYNC if on_loop else DEFAULT_MAX_ONGOING_THREADS
        max_ongoing = max([default, *(batch.most_calls for batch in batches)])
    prefetch = settings.prefetch
    if prefetch is None:
        prefetch = max((batch.calls for batch in batches), default=0)
    return HandlerDescription(
        name=handler.__name__,
        methods=methods,
        max_ongoing=max_ongoing,
        prefetch=prefetch,
        health_check_period_s=settings.health_check_period_s,
        health_check_timeout_s=settings.health_check_timeout_s,
        own_loop=settings.own_loop,
        blocked_after_s=settings.blocked_after_s,
    )


def _methods_of(handler: type) -> dict[str, MethodDescription]:
    methods = {}
    hidden = {*RESERVED, *(each.unload for each in multiplexed_of(handler))}
    for name in dir(handler):
        if name in hidden or (name.startswith("_") and name != CALL):
            continue
        found = _found(handler, name)
        function = found.__func__ if isinstance(found, staticmethod | classmethod) else found
        if isinstance(function, singledispatchmethod):
            _refuse_dispatch(handler, name)
            continue
        if is_method(function):
            methods[name] = _describe_function(function)
    return methods


def _refuse_dispatch(handler: type, name: str) -> None:
    """Refuses it: which function runs depends on the type of a Python argument. Those of base classes are ignored."""
    if name in vars(handler):
        raise TypeError(
            f"{handler.__qualname__}.{name} is a singledispatchmethod, which chooses by its first argument's type; "
            "arguments arrive as data, and the annotations of one method say their types: rename it to "
            f"`_{name}`, and write `def {name}(self, value: int | str)`, which calls it"
        )


def _check_reserved(handler: type, name: str, given: tuple[str, ...]) -> None:
    found = _found(handler, name)
    function = found.__func__ if isinstance(found, staticmethod | classmethod) else found
    if not is_method(function):
        return
    if kind_of(function).yields:
        raise TypeError(f"{handler.__qualname__}.{name} is called by the replica, and must return: it yields")
    arguments = given if isinstance(found, staticmethod) else ("self", *given)
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise TypeError(
            f"{handler.__qualname__}.{name} is called by the replica, and cannot be called like that ({error}): "
            f"write `def {name}({', '.join(arguments)})`"
        ) from None


def _found(handler: type, name: str) -> Any:
    """Found in the classes themselves: every class also has the `__call__` of its metaclass, which constructs it."""
    return next((vars(base)[name] for base in handler.__mro__ if name in vars(base)), None)


def _describe_function(function: Callable[..., Any]) -> MethodDescription:
    return MethodDescription(kind=kind_of(function), batch=batch_settings(function))


def _method_as_json(method: MethodDescription) -> dict[str, Any]:
    if (batch := method.batch) is None:
        return {"kind": method.kind.value}
    return {
        "kind": "batch",
        "batch": {
            "kind": method.kind.value,
            "max_batch_size": batch.max_batch_size,
            "batch_wait_timeout_s": batch.batch_wait_timeout_s,
            "max_concurrent_batches": batch.max_concurrent_batches,
            **({"is_weighed": True} if batch.batch_size_fn is not None else {}),
        },
    }


MAX_SCHEMA_CHARS: Final = 16 * 1024
"""Of one method."""
_AWAITED: Final = (Awaitable, Coroutine)
_YIELDING: Final = (AsyncIterator, AsyncIterable, AsyncGenerator, Iterator, Iterable, Generator)


def outline_of(name: str, function: Callable[..., Any], *, yields: bool, is_batch: bool) -> MethodOutline:
    """The outline of a function or a bound method. `is_batch`: it takes lists, with an entry for each call."""
    prefix = prefix_argument_of(function)
    return MethodOutline(
        name,
        yields,
        _schema(function, yields=yields, is_batch=is_batch),
        prefix,
        _position(function, prefix) if prefix else 0,
    )


def _position(function: Callable[..., Any], name: str) -> int:
    """The number of an argument among the positional ones, from 1; 0 if it is given by name only."""
    named_only = {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}
    parameters = [each.name for each in inspect.signature(function).parameters.values() if each.kind not in named_only]
    return parameters.index(name) + 1 if name in parameters else 0


def _schema(function: Callable[..., Any], *, yields: bool, is_batch: bool) -> str:
    """JSON text; empty if nothing is known, or if it is too long."""
    try:
        signature = read_signature(function, batched=is_batch)
    except (TypeError, ValueError):
        return ""
    definitions: dict[str, Any] = {}
    named = [it for it in signature.parameters if it.named]
    arguments = {
        "type": "object",
        "properties": {it.name: _schema_of(it.wanted, definitions) for it in named},
        "required": [it.name for it in named if it.required],
        "additionalProperties": signature.more_named is not None,
    }
    result = _schema_of(result_type(function, yields=yields, is_batch=is_batch), definitions)
    schema: dict[str, Any] = {"arguments": arguments, "result": result}
    if parameters := _parameters(signature, definitions):
        schema["parameters"] = parameters
    text = json.dumps({**schema, "$defs": definitions}, separators=(",", ":"))
    return text if len(text) <= MAX_SCHEMA_CHARS else ""


def _parameters(signature: Signature, definitions: dict[str, Any]) -> list[dict[str, Any]]:
    """The parameters in order, with their kinds; empty if each may be given by position and by name."""
    found: list[dict[str, Any]] = []
    for it in signature.parameters:
        if not it.named:
            schema = _schema_of(it.wanted, definitions)
            found.append({"kind": "positional_only", "name": it.name, "required": it.required, "schema": schema})
        elif it.positional:
            found.append({"kind": "positional_or_keyword", "name": it.name})
        else:
            found.append({"kind": "keyword_only", "name": it.name})
    if signature.more_positional is not None:
        schema = _schema_of(signature.more_positional, definitions)
        at = sum(it.positional for it in signature.parameters)
        found.insert(at, {"kind": "var_positional", "schema": schema})
    if signature.more_named is not None:
        found.append({"kind": "var_keyword", "schema": _schema_of(signature.more_named, definitions)})
    return found if any(it["kind"] != "positional_or_keyword" for it in found) else []


def result_type(function: Callable[..., Any], *, yields: bool, is_batch: bool) -> Any:
    """The annotated type of one result, or one value; Any if it is not known."""
    try:
        annotation = inspect.signature(function).return_annotation
    except (TypeError, ValueError):
        return Any
    return _given(resolve_annotation(annotation, function), yields=yields, is_batch=is_batch)


def _given(wanted: Any, *, yields: bool, is_batch: bool) -> Any:
    """The type of one result, or one value, of a return annotation."""
    if get_origin(wanted) in _AWAITED and get_args(wanted):
        wanted = get_args(wanted)[-1]
    for is_wrapped, kinds in ((yields, _YIELDING), (is_batch, (list, Sequence))):
        if is_wrapped:
            arguments = get_args(wanted)
            wanted = arguments[0] if get_origin(wanted) in kinds and arguments else Any
    return wanted


def _schema_of(wanted: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema that `msgspec` makes of it; adds what it references to `definitions`."""
    if wanted is Any:
        return {}
    named: dict[str, Any] = {}

    def schema_of(kind: Any) -> dict[str, Any]:
        """The schema of a type that msgspec leaves to its hooks."""
        if is_model(kind):
            found = codec_of(kind).json_schema()
            named.update(found.pop("$defs", {}))
            return found
        if (made := made_of(kind)) is not None:
            return schemas(made.base)
        raise NotImplementedError

    def schemas(kind: Any) -> dict[str, Any]:
        (found,), more = msgspec.json.schema_components([kind], schema_hook=schema_of, ref_template="#/$defs/{name}")
        add_time_formats(msgspec.inspect.type_info(kind), found, more)
        named.update(more)
        return found

    try:
        made = made_of(wanted)
        schema = schemas(wanted if made is None else made.base)
        json.dumps([schema, named])
    except Exception:  # noqa: BLE001 - reading a foreign type may raise anything: it has no schema then
        return {}
    for name, each in named.items():
        if definitions.setdefault(name, each) != each:
            return {}  # two types of one name: the second is left open
    return schema
