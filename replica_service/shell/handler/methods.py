"""The handler's methods, ready to be called: the bound function, how it runs, and the codecs of its calls.

Purpose: computes everything about a method once, so that a call needs no lookups.
Owner: made when the handler has been constructed; executors read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from slotmesh.calls.method_outlines import MethodOutline, MethodTensors
from slotmesh.codec import OCTET_STREAM, ArgumentsDecoder, ColumnsDecoder, DecodeError, Signature
from slotmesh.codec.tensor_arguments import method_tensors
from slotmesh.codec.types.signature import check_result
from slotmesh.errors import Failure
from slotmesh.handlers import (
    CALL,
    BatchControl,
    BatchSettings,
    MethodKind,
    batch_control,
    whole_batches,
)
from slotmesh.handlers.description import result_type
from slotmesh.handlers.kinds import layers, runnable

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
        """What it takes and gives as tensors, as far as its annotations say."""
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
