"""The failures that callers get for exceptions of a handler, and the tracebacks in the replica's log.

Invariants: every exception of a handler becomes a failure of its call, also SystemExit, KeyboardInterrupt and an
exception whose class raises when it is inspected. A message can always be sent (valid UTF-8, bounded). An exception
object keeps nothing of a call, since other calls may raise it as well. The rate of logged tracebacks is bounded, and an
exception with a status chosen by the handler is not logged. The text of an exception may quote the call's payload: it
is sent to the caller, and logged only if that is configured.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context

from replica_service.shell.handler.methods import FailedCall
from slotmesh.codec import EncodeError
from slotmesh.errors import Executed, Failure, HandlerError, Reason
from slotmesh.handlers import CALL
from slotmesh.handlers.rpc_context import RpcRaised
from slotmesh.ids import new_id
from slotmesh.logs import get_logger, without_text
from slotmesh.names import sendable_text
from slotmesh.status import STATUS_NUMBERS
from slotmesh.streams.limits import MAX_MESSAGE_CHARS
from slotmesh.telemetry.names import LOG_REF
from slotmesh.user_code import described, forget_call, text_of, type_name

MAX_TRACEBACKS_PER_S = 5

_REF_BYTES = 8

_log = get_logger(__name__)


class HandlerErrors:
    """Turns exceptions into failures, and logs a bounded rate of tracebacks."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.logs_texts = False
        """Whether exceptions are logged with their texts."""
        self._window_began = 0.0
        self._logged = 0
        self._left_out = 0
        self._left_out_ref = ""
        """The id in the log of the exceptions that were left out in this second."""

    def failure_of(self, error: BaseException, method: str) -> Failure:
        """The failure that the caller gets. Called on any thread. Raises nothing.

        Afterwards the exception, which the handler may keep and raise again, has nothing of the call.
        """
        raised, trailers = (error.error, error.trailers) if type(error) is RpcRaised else (error, b"")
        try:
            if issubclass(type(raised), FailedCall):
                failure: Failure = raised.failure  # type: ignore[attr-defined]
                return failure
            return copy_context().run(self._failure_of, raised, method, trailers)
        finally:
            forget_call(error)
            forget_call(raised)

    def _failure_of(self, error: BaseException, method: str, trailers: bytes) -> Failure:
        """Runs in a context of its own, because the exception's class is the user's."""
        code, metadata = _decision_of(error)
        text = text_of(error)
        if metadata is None:
            metadata = {LOG_REF: self._log(error, method)}
        if code is None:
            text = f"{type_name(error)}: {text}" if text else type_name(error)
        return Failure(
            reason=Reason.HANDLER_ERROR,
            message=_sendable(text),
            executed=Executed.YES,
            code=code,
            metadata=metadata,
            trailers=trailers,
        )

    def _log(self, error: BaseException, method: str) -> str:
        """Returns the id under which the exception is in the log; those that are left out of a second share one."""
        now = self._now()
        if now - self._window_began >= 1.0:
            self._window_began, self._logged, self._left_out_ref = now, 0, ""
        if self._logged >= MAX_TRACEBACKS_PER_S:
            self._left_out += 1
            if not (ref := self._left_out_ref):
                ref = self._left_out_ref = new_id(_REF_BYTES)
                _log.error("handlers raise often: more tracebacks of this second are left out", log_ref=ref)
            return ref
        self._logged += 1
        left_out, self._left_out = self._left_out, 0
        ref = new_id(_REF_BYTES)
        facts = {"method": method or CALL, "log_ref": ref, "left_out_before": left_out}
        try:
            _log.error("handler raised", **facts, exc_info=error if self.logs_texts else without_text(error))
        except BaseException:  # noqa: BLE001 - the exception's class may raise anything as its traceback is written
            _log.error("handler raised, and its exception cannot be shown", **facts, error=type_name(error))
        return ref


def unsendable(error: BaseException) -> Failure:
    """The handler returned something that the calls' content type cannot carry."""
    why = _why_unsendable(error)
    forget_call(error)
    return Failure(
        reason=Reason.HANDLER_ERROR,
        message=_sendable(f"the result cannot be sent: {why}"),
        executed=Executed.YES,
    )


def unlistable(method: str, content_type: str) -> Failure:
    """The method yields, and the call asks for one result in a content type that carries no list of values."""
    return Failure(
        reason=Reason.BAD_REQUEST,
        message=f"options.content_type: {method or CALL} yields, and {content_type} carries no list of its values; "
        "it takes streaming or another content type",
        metadata={"field": "options.content_type", "method": method},
    )


def too_large(size: int, limit: int) -> Failure:
    """The result exceeds the size limit."""
    return Failure(
        reason=Reason.PAYLOAD_TOO_LARGE,
        message=f"the result has {size} bytes, encoded; at most {limit} bytes are allowed: yield it in parts",
        executed=Executed.YES,
        metadata={"actual": str(size), "limit": str(limit)},
    )


def wrong_length(method: str, count: int, got: str) -> Failure:
    """A batch method did not return one result per call."""
    return Failure(
        reason=Reason.BATCH_SIZE_MISMATCH,
        message=f"{method or CALL} was given {count} calls and returned {got}; it must return a list as long",
        executed=Executed.YES,
        metadata={"method": method, "calls": str(count)},
    )


def _decision_of(error: BaseException) -> tuple[int | None, dict[str, str] | None]:
    """The status that the handler has chosen, and the facts if it was raised by `slotmesh.abort`, or as that does.

    Those are decisions, of which the log need not know.
    """
    if type(error) is not HandlerError:
        return None, None
    try:
        code = STATUS_NUMBERS.get(error.status)
        if code is None or error.endpoint:
            return code, None
        return code, {_sendable(name): _sendable(value) for name, value in error.metadata.items()}
    except BaseException:  # noqa: BLE001 - a handler may have put anything into its attributes
        return None, None


def _why_unsendable(error: BaseException) -> str:
    """Returns the codec's own message, or the class name of another exception."""
    return text_of(error) if type(error) is EncodeError else described(error)


def _sendable(text: str) -> str:
    return sendable_text(text, MAX_MESSAGE_CHARS)
