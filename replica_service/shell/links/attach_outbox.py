"""What a direct stream tells its client: each outcome is a frame of its own, written when it is known.

Purpose: to the engine it is one more outbox. Nothing is gathered here: one call at a time has nothing to wait for.
Invariants: frames leave in the order in which things have happened. Each counts in the backlog what it takes in memory.
Owner: the direct stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from replica_service import convert
from replica_service.convert import Issuer
from replica_service.core.commands import AnswerAttach, TellDetached
from replica_service.core.failures import CUT_OFF, ENDED
from slotmesh.errors import Failure
from slotmesh.runtime.prompt_writer import PromptWriter
from slotmesh.v1 import direct_service_pb2

FRAME_BYTES = 512
"""What a frame takes in memory besides its payload."""

Response = direct_service_pb2.AttachResponse
_Result = direct_service_pb2.SlotCallResult


class AttachOutbox:
    """Writes outcomes of calls, and what becomes of slots."""

    def __init__(self, writer: PromptWriter[Response], issuer: Issuer) -> None:
        """`issuer` names this replica."""
        self.issuer = issuer
        self._send: Callable[..., None] = writer.send

    def close(self) -> None:
        """The stream ends: its status is the outcome of the calls that have none yet."""
        self._send = _drop

    def results(self, first: int, payloads: Sequence[bytes], size: int, content_type: str) -> None:
        del size, content_type  # it is that of the call
        for call_id, payload in enumerate(payloads, first):
            self._send(Response(result=_Result(call_id=call_id, payload=payload)), FRAME_BYTES + len(payload))

    def done(self, first: int, count: int) -> None:
        """Calls have ended well without a result. Only calls without a reply do, and they are refused before."""
        for call_id in range(first, first + count):
            self._send(Response(result=_Result(call_id=call_id)), FRAME_BYTES)

    def failed(self, first: int, count: int, failure: Failure) -> None:
        # What routers see to, clients would have to.
        told = ENDED if failure is CUT_OFF else failure
        for call_id in range(first, first + count):
            self._tell(convert.slot_failure(call_id, told))

    def refused(self, first: int, count: int, failure: Failure) -> None:
        """The client may send it elsewhere."""
        self.failed(first, count, failure)

    def slot_changed(self, change: AnswerAttach | TellDetached) -> None:
        """The stream holds a slot, or does so no longer."""
        to_wire = convert.attached_to_wire if isinstance(change, AnswerAttach) else convert.detached_to_wire
        self._tell(to_wire(change.number, change.failure))

    def tell_capacity(self) -> None:
        """Clients of direct streams have their slots, and do not choose by load."""

    def _tell(self, frame: Response) -> None:
        self._send(frame, FRAME_BYTES + frame.ByteSize())


def _drop(frame: Response, nbytes: int = 0) -> None:
    """Of a stream that ends."""
