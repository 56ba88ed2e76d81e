"""`@deployment` and `@batch`: they attach settings to classes and functions, and return them unchanged.

Invariants: a decorator returns the object that it was given, so `self` has the user's type, and a decorated class can
be subclassed. The exception are `async def` batch methods that return: they are wrapped to take single items, too. A
batch method called directly takes a list and returns a list, or yields lists. Arguments of other serving frameworks are
refused with the equivalent here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from functools import partial, wraps
from types import MethodType
from typing import Any, Final, TypeVar, overload

from slotmesh.handlers.batch_settings import Batchable, BatchControl, BatchFunction, FirstT, P, ReturnedT
from slotmesh.handlers.item_batches import Gatherings
from slotmesh.handlers.kinds import MethodKind, kind_of, runnable
from slotmesh.names import did_you_mean
from slotmesh.spec.handler_settings import BatchSettings, DeploymentSettings

_OF_A_BACKEND: Final = "say `{}` of the backend in mesh.yaml"
_REPLICAS: Final = f"{_OF_A_BACKEND.format('num_replicas: {value}')}, or `slotmesh run --replicas {{value}}`"
_AUTOSCALE: Final = f"{_OF_A_BACKEND.format('autoscale: {{min: …, max: …}}')} (docs/autoscaling.md)"
_PLACEMENT: Final = f"{_OF_A_BACKEND.format('devices, cpus, memory, env and python')} (docs/placement.md)"
_METHOD_BATCH: Final = "put @slotmesh.batch on the method"
_DEPLOYMENT_ARGUMENTS: Final = {
    "name": "a backend has its name from mesh.yaml; with `slotmesh run MODULE:NAME` it is NAME",
    "num_replicas": _REPLICAS,
    "replicas": _REPLICAS,
    "min_replicas": _AUTOSCALE,
    "max_replicas": _AUTOSCALE,
    "initial_replicas": _AUTOSCALE,
    "autoscaling_config": _AUTOSCALE,
    "autoscale": _AUTOSCALE,
    "workers": _REPLICAS,
    "version": _OF_A_BACKEND.format("version: {value}"),
    "user_config": f"{_OF_A_BACKEND.format('user_config')}, or `slotmesh run --config KEY=VALUE`",
    "init_args": f"arguments of the constructor have names: {_OF_A_BACKEND.format('user_config')}",
    "init_kwargs": _OF_A_BACKEND.format("user_config"),
    "max_ongoing_requests": "it is called max_ongoing here",
    "max_concurrent_queries": "it is called max_ongoing here",
    "concurrency": "it is called max_ongoing here",
    "max_queued_requests": _OF_A_BACKEND.format("max_queued_calls: {value}"),
    "max_queued_calls": _OF_A_BACKEND.format("max_queued_calls: {value}"),
    "max_queue_time": _OF_A_BACKEND.format("max_queue_time"),
    "graceful_shutdown_timeout_s": _OF_A_BACKEND.format("graceful_timeout: {value}s"),
    "graceful_shutdown_wait_loop_s": _OF_A_BACKEND.format("graceful_timeout"),
    "graceful_timeout": _OF_A_BACKEND.format("graceful_timeout"),
    "max_batch_size": _METHOD_BATCH,
    "batch_wait_timeout_s": _METHOD_BATCH,
    "batchable": _METHOD_BATCH,
    "timeout": "callers say it: `endpoint.options(timeout=…)`",
    "traffic": "an endpoint has its traffic from mesh.yaml, or from `slotmesh traffic`",
    "route_prefix": "there are no paths: an endpoint is called by its name in mesh.yaml",
    "ray_actor_options": _PLACEMENT,
    "placement_group_bundles": _PLACEMENT,
    "resources": _PLACEMENT,
    "num_cpus": f"{_OF_A_BACKEND.format('cpus: {value}')} (docs/placement.md)",
    "num_gpus": f"{_OF_A_BACKEND.format('devices: {{cuda: {value}}}')} (docs/placement.md)",
    "runtime_env": f"{_OF_A_BACKEND.format('env, python and cwd')} (docs/placement.md)",
    "request_router_config": f"{_OF_A_BACKEND.format('balancer')} (docs/traffic.md)",
    "logging_config": "each process has `--log-level` and `--log-format` (docs/configuration.md)",
}
_BATCH_ARGUMENTS: Final = {
    "batch_size": "it is called max_batch_size here",
    "preferred_batch_size": "it is called max_batch_size here, and batches fill by themselves under load",
    "max_latency_ms": "it is called batch_wait_timeout_s here, in seconds",
    "max_wait_ms": "it is called batch_wait_timeout_s here, in seconds",
    "max_queue_delay_microseconds": "it is called batch_wait_timeout_s here, in seconds",
    "timeout": "it is called batch_wait_timeout_s here, in seconds",
    "batch_timeout": "it is called batch_wait_timeout_s here, in seconds",
    "batch_dim": "a batch is a list for each parameter, or an array with a row a call",
    "max_ongoing": "it belongs to @slotmesh.deployment on the class",
}
_PLACES: Final[Mapping[str, Mapping[str, str]]] = {
    "deployment": _DEPLOYMENT_ARGUMENTS,
    "batch": _BATCH_ARGUMENTS,
    "multiplexed": {"max_num_models_per_replica": "it is called max_models here"},
}


def refusal(decorator: str, given: Mapping[str, object], known: Collection[str]) -> TypeError:
    """The error for arguments that a decorator does not have: names the equivalent, or a similar argument.

    `known` are the arguments that it has.
    """
    return TypeError("; ".join(_problem(decorator, name, value, known) for name, value in given.items()))


def _problem(decorator: str, name: str, value: object, known: Collection[str]) -> str:
    place = _PLACES[decorator].get(name)
    if place is not None:
        shown = str(value) if isinstance(value, int | float) else "…"
        return f"@{decorator} has no {name}: {place.format(value=shown)}"
    closest = did_you_mean(name, known) or f"; it has {', '.join(known)}"
    return f"@{decorator} has no {name}{closest}"


TargetT = TypeVar("TargetT", bound=Callable[..., Any])

_DEPLOYMENT: Final = "__slotmesh_deployment__"
_BATCH: Final = "__slotmesh_batch__"


@overload
def deployment(target: TargetT, /) -> TargetT: ...


@overload
def deployment(
    *,
    max_ongoing: int | None = None,
    prefetch: int | None = None,
    own_loop: bool = False,
    blocked_after_s: float = 0.5,
    health_check_period_s: float = 10.0,
    health_check_timeout_s: float = 30.0,
) -> Callable[[TargetT], TargetT]: ...


def deployment(
    target: Any = None,
    /,
    *,
    max_ongoing: int | None = None,
    prefetch: int | None = None,
    own_loop: bool = False,
    blocked_after_s: float = 0.5,
    health_check_period_s: float = 10.0,
    health_check_timeout_s: float = 30.0,
    **others: object,
) -> Any:
    """Makes a class or a function a handler: what a replica runs.

    The public methods of a class can be called, inherited ones too, and `__call__` under the empty name; a function is
    its own only method, under the empty name. `async def` runs on the event loop, `def` in threads; either may `yield`
    several values a call. Methods that start with `_` cannot be called.

    Neither can those that the replica calls by itself, each if there is one, `async def` or `def`:
    `reconfigure(user_config)` when the configuration changes; `check_health()` now and then, which fails by raising or
    by returning False, and three times in a row has the replica replaced; `on_drain()` once, when the drain begins;
    `on_keys_gained(keys)` and `on_keys_lost(keys)` around the calls of keys that it owns. Calls go on while they run.

    Args:
        target: the class or function, where the decorator is used without parentheses.
        max_ongoing: calls that one replica executes concurrently, 1 … 1,000,000. Default: 512 if all methods are
            `async def`, else 8; never less than the batches of a batch method hold together.
        prefetch: calls without an ordering key that may wait at a replica behind the running ones. Default: one batch
            (the largest `max_batch_size`) where there are batch methods, else 0.
        own_loop: the handler, its constructor included, has an event loop of its own, in a thread of its own. One that
            keeps the loop then holds up its own calls only, and no health answers, heartbeats or `def` methods, as long
            as it lets go of the interpreter's lock. Calls that do nothing cost a tenth to a third of their throughput.
        blocked_after_s: an `async def` method that keeps its event loop for longer, in seconds, is reported with its
            stack, in the log and by `slotmesh status`; 0.05 … 3,600, or 0 for never.
        health_check_period_s: how often `check_health` is called, at least 0.01 s.
        health_check_timeout_s: how long it may take, at least 0.01 s. One that hangs has failed; it is not called anew.
        **others: refused; the error names the equivalent of other frameworks' arguments.

    Raises:
        TypeError: a value of another type, another argument, or a target that is neither class nor function.
        ValueError: a value out of range.
    """
    if others:
        raise refusal("deployment", others, _names_of(DeploymentSettings))
    settings = DeploymentSettings(
        max_ongoing=max_ongoing,
        prefetch=prefetch,
        own_loop=own_loop,
        blocked_after_s=blocked_after_s,
        health_check_period_s=health_check_period_s,
        health_check_timeout_s=health_check_timeout_s,
    )

    def decorate(handler: TargetT) -> TargetT:
        if not inspect.isclass(handler) and not inspect.isfunction(handler):
            raise TypeError(f"@deployment decorates a class or a function, got {handler!r}")
        setattr(handler, _DEPLOYMENT, settings)
        return handler

    return decorate if target is None else decorate(target)


@overload
def batch(target: Batchable[FirstT, P, ReturnedT], /) -> BatchFunction[FirstT, P, ReturnedT]: ...


@overload
def batch(
    *,
    max_batch_size: float = 10,
    batch_wait_timeout_s: float = 0.01,
    max_concurrent_batches: float = 1,
    batch_size_fn: Callable[..., int | float] | None = None,
) -> Callable[[Batchable[FirstT, P, ReturnedT]], BatchFunction[FirstT, P, ReturnedT]]: ...


def batch(
    target: Any = None,
    /,
    *,
    max_batch_size: float = 10,
    batch_wait_timeout_s: float = 0.01,
    max_concurrent_batches: float = 1,
    batch_size_fn: Callable[..., int | float] | None = None,
    **others: object,
) -> Any:
    """Makes a function or method, `async def` or `def`, take many calls together: lists in, a list of that length out.

    Callers pass one item and get one result; each parameter of the method receives a list of the callers' items; or,
    annotated as `np.ndarray` in place of a list, an array with a row a call (and such an array may be the result). A
    batch is cut when one of `max_concurrent_batches` is free and it is full or its first call has waited long enough:
    under load batches fill by themselves. Called directly, in Python, it takes a list and returns a list. One that
    yields yields such lists: a further value for each caller every time.

    An `async def` method that returns also takes single items from other methods of the handler, as in `await
    self.classify(image)`: those that arrive together become a batch, by the same settings. An argument that is neither
    a list nor an array is an item; the first parameter of a method must be called `self` or `cls`.

        @slotmesh.batch(max_batch_size=32)
        def classify(self, images: list[bytes]) -> list[int]: ...

    An exception fails all calls of its batch. In a list it fails one: an entry that is an exception is what that call
    has raised. In a list that is yielded, the entry `StopIteration` or `StopAsyncIteration` ends one call, well.

    The method has `set_max_batch_size`, `set_batch_wait_timeout_s` and `set_max_concurrent_batches`, to be called from
    anywhere in the handler (`self.classify.set_max_batch_size(8)`): the next batch is cut accordingly. `get_` in place
    of `set_` returns the current value. They belong to the function, so they hold for all handlers of the class in this
    process, which in a replica is one. `batch_state()` returns what waits and what runs, since when, and where.

    Args:
        target: the function, where the decorator is used without parentheses.
        max_batch_size: calls in a batch, 1 … 100,000; with `batch_size_fn` the sum of their weights, 1 … 2^53.
        batch_wait_timeout_s: seconds that the first call of a batch waits for others; 0 waits for none.
        max_concurrent_batches: batches that run at the same time, at least 1.
        batch_size_fn: the weight of a call, a number that is finite and not negative, from the item: the method's first
            argument, or all of them where the function takes more than one. An item that does not fit into a batch any
            more is the first of the next one; one that alone is too heavy fails with INVALID_ARGUMENT. It runs on the
            event loop of the replica, once a call, so it should be quick; where it raises, that call fails.
        **others: refused; the error names the equivalent of other frameworks' arguments.

    Raises:
        TypeError: a value of another type, another argument, or a target that is not a function.
        ValueError: a value out of range.
    """
    if others:
        raise refusal("batch", others, _names_of(BatchSettings))
    settings = BatchSettings(
        max_batch_size=max_batch_size,  # type: ignore[arg-type]  # checked and made an integer there
        batch_wait_timeout_s=batch_wait_timeout_s,
        max_concurrent_batches=max_concurrent_batches,  # type: ignore[arg-type]  # as above
        batch_size_fn=batch_size_fn,
    )

    return partial(_mark_as_batch, settings) if target is None else _mark_as_batch(settings, target)


def _names_of(settings: type[DeploymentSettings | BatchSettings]) -> list[str]:
    return [each.name for each in fields(settings)]


def _mark_as_batch(settings: BatchSettings, function: Any) -> Any:
    if not inspect.isfunction(function):
        raise TypeError(
            f"@batch decorates a function or method, below @staticmethod and @classmethod, got {function!r}"
        )
    control = BatchControl(settings)
    decorated = _with_items(function, control) if kind_of(function) is MethodKind.ASYNC else function
    setattr(decorated, _BATCH, control)
    # Attributes of the function, which a bound method has, too.
    for method in (
        control.get_max_batch_size,
        control.get_batch_wait_timeout_s,
        control.get_max_concurrent_batches,
        control.set_max_batch_size,
        control.set_batch_wait_timeout_s,
        control.set_max_concurrent_batches,
        control.batch_state,
    ):
        setattr(decorated, method.__name__, method)
    return decorated


def _with_items(function: Any, control: BatchControl) -> Any:
    """The function, which also takes single items: those of several callers become a batch."""
    first = next(iter(inspect.signature(function).parameters), "")
    function = runnable(function, MethodKind.ASYNC)
    gatherings = Gatherings(function, control, is_method=first in {"self", "cls"})

    @wraps(function)
    async def takes_items(*args: Any, **kwargs: Any) -> Any:
        if gatherings.takes_whole(args, kwargs):
            return await function(*args, **kwargs)
        return await gatherings.add(args, kwargs)

    control.whole = function
    return takes_items


def whole_batches(function: Callable[..., Any]) -> Callable[..., Any]:
    """A batch function, or a bound method, or an instance with one as `__call__`, without the wrapper for items."""
    bound: Any = function if inspect.isroutine(function) else getattr(function, "__call__")  # noqa: B004, B009 - of its class
    control = batch_control(bound)
    whole: Callable[..., Any] | None = None if control is None else control.whole
    if whole is None:
        return function
    if bound.__wrapped__ is not whole:
        return function  # another decorator wraps it, and is called with each batch
    owner = getattr(bound, "__self__", None)
    return whole if owner is None else MethodType(whole, owner)


def deployment_settings(handler: object) -> DeploymentSettings:
    """The settings of `@deployment`, or the defaults without it. A subclass has its base's settings."""
    settings = getattr(handler, _DEPLOYMENT, None)
    return settings if isinstance(settings, DeploymentSettings) else DeploymentSettings()


def batch_control(function: object) -> BatchControl | None:
    """The control that `@batch` attached to a function or a bound method; None if it is not a batch function."""
    control = getattr(function, _BATCH, None)
    return control if isinstance(control, BatchControl) else None


def batch_settings(function: object) -> BatchSettings | None:
    """The settings of `@batch`, with later changes; None if it is not a batch function."""
    control = batch_control(function)
    return None if control is None else control.settings
