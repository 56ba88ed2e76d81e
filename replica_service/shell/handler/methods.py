"""The handler's methods, ready to be called: the bound function, how it runs, the codecs of its calls, its batches.

Purpose: computes everything about a method once, so that a call needs no lookups. `BatchHosts` is the replica's side of
`@batch` methods: a handler may change their settings and read the state of their batches, from any thread.
Invariants: a change applies to the next batch that is cut, because the core reads the settings when it cuts;
`settings_changed` only ends waits under the old ones. A method that can never fill its batches is logged once for each
pair of numbers. A stack shows only the handler's frames: of a coroutine or generator from its outermost frame on, of a
thread those below the replica's own.
Owner: methods are made when the handler has been constructed; executors read. The engine has the batch hosts, on its
event loop; `batch_state` and `settings_changed` are called on any thread.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from types import FrameType
from typing import Any, Final

from replica_service.core.batch_gathering import Batcher
from replica_service.core.work import StartBatch
from slotmesh.calls.method_outlines import MethodOutline, MethodTensors
from slotmesh.codec import OCTET_STREAM, ArgumentsDecoder, ColumnsDecoder, DecodeError, Signature
from slotmesh.codec.tensor_arguments import method_tensors
from slotmesh.codec.types.signature import check_result
from slotmesh.errors import Failure
from slotmesh.handlers import (
    CALL,
    BatchControl,
    BatchSettings,
    BatchState,
    MethodKind,
    RunningBatch,
    batch_control,
    whole_batches,
)
from slotmesh.handlers.description import result_type
from slotmesh.handlers.kinds import layers, runnable
from slotmesh.logs import get_logger
from slotmesh.runtime.tasks import call_on

StartFunction = Callable[[bytes], Any]
"""Calls the method with the arguments in a payload. Raises BadCall where they are unsound."""


class FailedCall(Exception):
    """A call ends with this failure, which is not an exception of the method."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class BadCall(FailedCall):
    """The arguments of a call are unsound; the method was not called."""


class HandlerMethod:
    """One method of the constructed handler."""

    def __init__(self, name: str, function: Callable[..., Any], kind: MethodKind, batch: BatchSettings | None) -> None:
        """`name` is as calls give it: empty for `__call__`.

        Raises:
            TypeError: an annotation that no payload can become, or that no payload can carry as a result.
        """
        self.name = name
        self._annotated = function
        self.function = runnable(function if batch is None else whole_batches(function), kind)
        self.kind = kind
        self.batch = batch
        self.control = None if batch is None else _control_of(function, batch)
        """The settings of a batch method, as they are in force."""
        self._decoder = self._make_decoder(function, batch)
        is_batch = batch is not None
        check_result(result_type(function, yields=kind.yields, is_batch=is_batch), batched=is_batch)
        self._takes_bytes = _takes_bytes(self._decoder)
        self.columns = ColumnsDecoder(self._decoder, takes_bytes=self._takes_bytes)
        """What a batch method is given for many calls."""
        self._starts: dict[str, StartFunction] = {}
        self.outline = MethodOutline(name or CALL)
        """The description that routers receive."""

    @property
    def signature(self) -> Signature:
        """What a call gives."""
        return self._decoder.signature

    def _make_decoder(self, function: Callable[..., Any], batch: BatchSettings | None) -> ArgumentsDecoder:
        """Raises TypeError."""
        return ArgumentsDecoder.for_handler(function, batched=batch is not None)

    @property
    def layers(self) -> Iterator[Any]:
        """The user's function, and what it wraps, from the outside in."""
        return layers(self._annotated)

    @cached_property
    def tensors(self) -> MethodTensors:
        """Its inputs and outputs as tensors, according to its annotations."""
        yields = self.kind in {MethodKind.ASYNC_GENERATOR, MethodKind.GENERATOR}
        calls = 0 if self.batch is None else self.batch.most_calls
        return method_tensors(self._annotated, self.signature, yields=yields, batch_size=calls)

    def takes_payloads(self, content_type: str) -> bool:
        """Whether the payload itself is the one argument."""
        return self._takes_bytes and content_type == OCTET_STREAM

    def decode(self, content_type: str, payload: bytes) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The arguments of one call.

        Raises:
            DecodeError: they are invalid; `failure` names the place.
        """
        return self._decoder.decode(content_type, payload)

    def opened(self, content_type: str, payload: bytes) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The arguments of one call.

        Raises:
            BadCall: they are unsound.
        """
        if self.takes_payloads(content_type):
            return (payload,), {}
        try:
            return self._decoder.decode(content_type, payload)
        except DecodeError as error:
            raise BadCall(error.failure) from None

    def start(self, content_type: str) -> StartFunction:
        """Returns the function that starts one call and returns its result, coroutine or generator, by `kind`."""
        start = self._starts.get(content_type)
        if start is None:
            start = self._starts[content_type] = self._make_start(content_type)
        return start

    def _make_start(self, content_type: str) -> StartFunction:
        function = self.function
        if self.takes_payloads(content_type):
            return function
        decode = self._decoder.of(content_type)

        def start(payload: bytes) -> Any:
            try:
                args, kwargs = decode(payload)
            except DecodeError as error:
                raise BadCall(error.failure) from None
            return function(*args, **kwargs) if kwargs else function(*args)

        return start


def _control_of(function: Callable[..., Any], batch: BatchSettings) -> BatchControl:
    """What `@batch` left on the function, or on the `__call__` of an instance."""
    return batch_control(function) or batch_control(getattr(function, "__call__", None)) or BatchControl(batch)  # noqa: B004


def _takes_bytes(decoder: ArgumentsDecoder) -> bool:
    """Whether decoding octet-stream changes nothing, so that it can be left out."""
    probe = b"probe"
    try:
        args, kwargs = decoder.decode(OCTET_STREAM, probe)
    except DecodeError:
        return False
    return not kwargs and len(args) == 1 and args[0] is probe


MAX_FRAMES = 64
"""Outermost frames of a coroutine's awaits that are shown."""

_FRAMES: Final = ("cr_frame", "gi_frame", "ag_frame")
_INNER: Final = ("cr_await", "gi_yieldfrom", "ag_await")

_OURS: Final = __name__.partition(".")[0]


def stack_of(runner: Any) -> str:
    """Returns the stack of a coroutine, a generator or the thread with this ident, formatted like a traceback.

    Empty if it has ended, or is of another type.
    """
    if isinstance(runner, int):
        frame = sys._current_frames().get(runner)  # documented, in spite of its name
        return "" if frame is None else "".join(traceback.format_list(_of_thread(frame)))
    frames: list[FrameType] = []
    while runner is not None and len(frames) < MAX_FRAMES:
        frame = _first(runner, _FRAMES)
        if frame is not None:
            frames.append(frame)
        runner = _first(runner, _INNER)
    summaries = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames)
    return "".join(summaries.format())


def _of_thread(frame: FrameType) -> traceback.StackSummary:
    """Below the last frame of the replica."""
    frames = list(traceback.walk_stack(frame))[::-1]
    ours = [index for index, (each, _) in enumerate(frames) if str(each.f_globals.get("__name__")).startswith(_OURS)]
    begin = ours[-1] + 1 if ours else 0
    return traceback.StackSummary.extract(iter(frames[begin:]))


def _first(runner: Any, names: tuple[str, ...]) -> Any:
    return next((value for name in names if (value := getattr(runner, name, None)) is not None), None)


_log = get_logger(__name__)


class BatchHosts:
    """All batch methods of a replica."""

    def __init__(
        self,
        methods: Mapping[str, HandlerMethod],
        batchers: Mapping[str, Batcher],
        now: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called on the running event loop after settings have changed."""
        self._loop = asyncio.get_running_loop()
        self._on_change = on_change
        self._now = now
        self._batchers = batchers
        self._warned: set[tuple[str, int, int]] = set()
        self._controls: dict[str, BatchControl] = {}
        self._hosts: list[tuple[BatchControl, _Host]] = []
        for name, batcher in batchers.items():
            control = methods[name].control
            if control is not None:
                host = _Host(batcher, now, self._loop.is_running, self._changed)
                control.attach(host)
                self._controls[name] = control
                self._hosts.append((control, host))

    def warn_of_unfillable(self, max_ongoing: int, prefetch: int) -> None:
        """Warns of methods that can never fill a batch: their calls need a permit each."""
        for name, control in self._controls.items():
            size = control.max_batch_size
            if control.batch_size_fn is None and size > max_ongoing and (name, size, max_ongoing) not in self._warned:
                self._warned.add((name, size, max_ongoing))
                _log.warning(
                    "batches never fill: at most max_ongoing calls are in them, prefetch calls only wait behind; "
                    "raise max_ongoing, or lower max_batch_size",
                    method=name or CALL,
                    max_batch_size=size,
                    max_ongoing=max_ongoing,
                    prefetch=prefetch,
                )

    def oldest_s(self) -> float:
        """How long the oldest batch has run; 0 while none does."""
        began = [batch.began for batcher in self._batchers.values() for batch in list(batcher.running)]
        return max((self._now() - each for each in began if each is not None), default=0.0)

    def close(self) -> None:
        """The engine stops."""
        for control, host in self._hosts:
            control.detach(host)

    def _changed(self) -> None:
        call_on(self._loop, self._on_change)


class _Host:
    """One batch method in one replica."""

    def __init__(
        self,
        batcher: Batcher,
        now: Callable[[], float],
        is_alive: Callable[[], bool],
        settings_changed: Callable[[], None],
    ) -> None:
        self._batcher = batcher
        self._now = now
        self._is_alive = is_alive
        self.settings_changed = settings_changed

    def batch_state(self) -> BatchState:
        running = list(self._batcher.running)  # in one step: the loop may be about to change it
        return BatchState(
            is_alive=self._is_alive(),
            waiting=self._batcher.gathered.waiting,
            running=tuple(map(self._see, running)),
        )

    def _see(self, batch: StartBatch) -> RunningBatch:
        running_s = 0.0 if batch.began is None else max(self._now() - batch.began, 0.0)
        return RunningBatch(calls=batch.count, running_s=running_s, stack=stack_of(batch.runner))
