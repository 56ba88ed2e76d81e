"""Encodes what handlers return as payloads: at once, on the thread that runs the handler.

Invariant: a result that cannot be sent fails its own call, and no other.
Owner: a base class of result sinks, and not a part of them: results are the hot path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from replica_service.core.calls import ReplicaRun
from replica_service.shell.handler.failures import unsendable
from slotmesh.codec import OCTET_STREAM, encode_each, encoder, is_rows
from slotmesh.errors import Failure
from slotmesh.foreign import each

_BYTES = {bytes}
_PLAIN = {list, tuple}


class Encoding(ABC):
    """The part of a sink that encodes."""

    def results(self, run: ReplicaRun, lo: int, values: Sequence[Any]) -> None:
        if run.options.no_reply:
            self._done(run, lo, len(values))
            return
        content_type = run.options.content_type
        payloads: Sequence[bytes] | None = None
        are_rows = type(values) not in _PLAIN and is_rows(values)
        if not are_rows and content_type == OCTET_STREAM and set(map(type, values)) == _BYTES:
            payloads = values
        else:
            try:
                payloads = encode_each(content_type, values) if are_rows else each(encoder(content_type), values)
            except BaseException:  # noqa: BLE001 - a foreign object may fail in any way when it is read; see below
                payloads = None
        if payloads is not None and len(payloads) == len(values):
            self.payloads(run, lo, payloads)
            return
        for index in range(len(values)):
            try:
                payload = encoder(content_type)(values[index])
            except BaseException as error:  # noqa: BLE001 - as above: this call fails, and no other
                self.failed(run, lo + index, 1, unsendable(error))
            else:
                self.payloads(run, lo + index, (payload,))

    @abstractmethod
    def payloads(self, run: ReplicaRun, lo: int, payloads: Sequence[bytes]) -> None:
        """What consecutive calls from index `lo` on returned, encoded."""

    @abstractmethod
    def failed(self, run: ReplicaRun, lo: int, count: int, failure: Failure) -> None:
        """Consecutive calls from index `lo` on failed alike."""

    @abstractmethod
    def _done(self, run: ReplicaRun, lo: int, count: int) -> None:
        """Consecutive calls from index `lo` on have ended well, and were made with no_reply."""
