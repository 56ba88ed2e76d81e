"""How a handler ends its call: `slotmesh.abort`, and the context of a method that implements an rpc of its own proto.

Purpose: `def SayHello(self, request, context)` gets the part of gRPC's context for the end of an rpc, and its metadata.
A method may omit the parameter, and use `slotmesh.context()` and `slotmesh.abort`, as any other method does.
Invariants: incorrect use raises ValueError or TypeError where it happens, so that no call ends with a status that gRPC
does not have. What was set before a failure, however it came, is sent with it.
Owner: the replica makes one context for each call whose method takes it; tests of handlers may.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

from slotmesh.calls.result_envelopes import MAX_METADATA_BYTES, MetadataPairs, metadata_to_bytes
from slotmesh.errors import Executed, HandlerError
from slotmesh.handlers.context import CallContext, Place
from slotmesh.names import sendable_text
from slotmesh.status import STATUS_NUMBERS, name_of

MAX_ABORT_METADATA_BYTES: Final = 4096


def abort(code: str | int, message: str, metadata: Mapping[str, str] | None = None) -> NoReturn:
    """Ends the call, or all calls of the batch, that is being executed: the caller's HandlerError has this status.

    It is a decision, not a defect: the replica logs no traceback of it. It is raised as an exception, which a handler's
    own `except Exception` would catch.

    Args:
        code: a status of gRPC other than OK, by its name, as "NOT_FOUND", or its number.
        message: for the person who reads the error.
        metadata: facts for programs, found in the error's `metadata`; 4,096 bytes in all.

    Raises:
        HandlerError: always, unless it was used wrongly.
        TypeError: an argument of another type.
        ValueError: OK, a code that gRPC does not have, or too much metadata.
    """
    if not isinstance(message, str):
        raise TypeError(f"message must be a str, got {message!r}")
    raise HandlerError(message, status=status_named(code), executed=Executed.YES, metadata=_checked_map(metadata))


def status_named(code: Any) -> str:
    """The name of a status, given by name or number. Raises TypeError, ValueError."""
    if isinstance(code, bool) or not isinstance(code, str | int):
        raise TypeError(f"code must be the name or the number of a gRPC status, got {code!r}")
    if code in {"OK", 0}:
        raise ValueError(f"code {code!r}: a call that is well returns its result")
    name = name_of(code) if isinstance(code, int) else code
    if STATUS_NUMBERS.get(name) is None or (isinstance(code, int) and STATUS_NUMBERS[name] != code):
        known = ", ".join(f"{name} ({number})" for name, number in STATUS_NUMBERS.items())
        raise ValueError(f"code {code!r} is no gRPC status; it is one of {known}")
    return name


def _checked_map(metadata: Any) -> dict[str, str]:
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a mapping of str to str, got {metadata!r}")
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata must be a mapping of str to str, got {key!r}: {value!r}")
        if not key or key == "executed":
            raise ValueError(f"metadata: the key {key!r} is reserved")
    sendable = {sendable_text(key, len(key)): sendable_text(value, len(value)) for key, value in metadata.items()}
    size = sum(len(key.encode()) + len(value.encode()) for key, value in sendable.items())
    if size > MAX_ABORT_METADATA_BYTES:
        raise ValueError(f"metadata has {size} bytes; at most {MAX_ABORT_METADATA_BYTES} are allowed")
    return sendable


_KEY: Final = re.compile(r"[0-9a-z_.-]+")
_DETAILS: Final = "grpc-status-details-bin"
_RESERVED: Final = frozenset({"content-type", "te", "user-agent"})


class RpcRaised(Exception):
    """The error that a method has raised, and the trailing metadata that it had set before.

    The metadata is not kept on the exception itself, which other calls may raise, too.
    """

    def __init__(self, error: BaseException, trailers: bytes) -> None:
        super().__init__(str(type(error)))
        self.error = error
        self.trailers = trailers


class RpcContext:
    """One call of an rpc."""

    __slots__ = ("_code", "_details", "_initial", "_place", "_trailing")

    def __init__(self, place: Place) -> None:
        self._place = place
        self._code = ""
        self._details = ""
        self._initial: MetadataPairs = ()
        self._trailing: MetadataPairs = ()

    # -- the request ---------------------------------------------------------------------------------------------------

    @property
    def call(self) -> CallContext:
        """The same as `slotmesh.context()`."""
        return self._place.context()

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """What the client sent with the rpc, as far as the router's `call_metadata` lets it through."""
        return tuple(self.call.metadata.items())

    def time_remaining(self) -> float | None:
        """Seconds until the deadline; None if there is none."""
        return self.call.time_left()

    # -- how it ends -------------------------------------------------------------------------------------------------

    def set_trailing_metadata(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """What the client gets with the status: pairs of a key and a text, or bytes where the key ends with `-bin`.

        Raises:
            ValueError: a key that is none or reserved, a value that is none, or more than 4 KiB in all.
        """
        self._trailing = _checked(metadata)

    def send_initial_metadata(self, metadata: Iterable[tuple[str, str | bytes]]) -> _Done:
        """What the client gets before the first response; it leaves with that. May be awaited. Raises ValueError."""
        self._initial = _checked(metadata)
        return _Done()

    def set_code(self, code: Any) -> None:
        """The status that the rpc ends with once the method returns: a `grpc.StatusCode`, its name, or its number."""
        name = getattr(code, "name", code)
        self._code = "" if name in {"OK", 0} else status_named(name)

    def set_details(self, details: str) -> None:
        """The message of that status."""
        self._details = str(details)

    def code(self) -> str:
        """The name of the status that was set; empty: none was."""
        return self._code

    def details(self) -> str:
        """The message that was set."""
        return self._details

    def trailing_metadata(self) -> MetadataPairs:
        """What was set."""
        return self._trailing

    def abort(
        self, code: Any, details: str = "", trailing_metadata: Iterable[tuple[str, str | bytes]] | None = None
    ) -> NoReturn:
        """Ends the rpc with this status; `await context.abort(…)` does the same.

        Raises:
            HandlerError: always, unless it was used wrongly.
            ValueError: OK, a code that gRPC does not have, or metadata that is none.
        """
        if trailing_metadata is not None:
            self.set_trailing_metadata(trailing_metadata)
        raise self._failure(status_named(getattr(code, "name", code)), details)

    def abort_with_status(self, status: Any) -> NoReturn:
        """The same with a `grpc.Status`, as `grpc_status.rpc_status.to_status` makes it."""
        self.abort(status.code, status.details, (*self._trailing, *(status.trailing_metadata or ())))

    # -- for the replica ---------------------------------------------------------------------------------------------

    def end(self) -> tuple[bytes, bytes]:
        """The method has returned: initial and trailing metadata. Raises HandlerError where it has set a status."""
        if self._code:
            raise self._failure(self._code, self._details)
        return self.initial(), metadata_to_bytes(self._trailing)

    def initial(self) -> bytes:
        """The initial metadata, once."""
        initial, self._initial = self._initial, ()
        return metadata_to_bytes(initial)

    def raised(self, error: BaseException) -> None:
        """The method has raised: what was set goes with the failure, and a status that was set before it.

        Returns where nothing was set, or the method was closed.

        Raises:
            HandlerError: in place of an exception that has no status.
            RpcRaised: with either of them, where trailing metadata was set.
        """
        failed = error
        if self._code and isinstance(error, Exception) and not isinstance(error, HandlerError):
            failed = self._failure(self._code, self._details or str(error))
            failed.__cause__ = error
        if self._trailing and not isinstance(error, GeneratorExit):
            raise RpcRaised(failed, metadata_to_bytes(self._trailing)) from None
        if failed is not error:
            raise failed

    def _failure(self, status: str, details: str) -> HandlerError:
        return HandlerError(str(details), status=status, executed=Executed.YES)


class _Done:
    """What may be awaited, and is done."""

    __slots__ = ()

    def __await__(self) -> Any:
        return iter(())


def _checked(metadata: Iterable[Sequence[Any]]) -> MetadataPairs:
    pairs: list[tuple[str, str | bytes]] = []
    size = 0
    for pair in metadata:
        key, value = pair
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise ValueError(f"metadata: {key!r} is no key: it has lower case letters, digits and `_ . -`")
        if key in _RESERVED or (key.startswith("grpc-") and key != _DETAILS):
            raise ValueError(f"metadata: the key {key!r} is reserved")
        wanted = bytes if key.endswith("-bin") else str
        if not isinstance(value, wanted):
            raise TypeError(f"metadata: the value of {key} must be {wanted.__name__}, is {type(value).__name__}")
        if isinstance(value, str) and not (value.isascii() and value.isprintable()):
            raise ValueError(
                f"metadata: the value of {key} must be printable ASCII; a key that ends with -bin has bytes"
            )
        size += len(key) + len(value)
        pairs.append((key, value))
    if size > MAX_METADATA_BYTES:
        raise ValueError(f"metadata has {size} bytes; at most {MAX_METADATA_BYTES} are allowed")
    return tuple(pairs)
