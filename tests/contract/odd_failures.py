"""A handler that fails for odd numbers."""

from __future__ import annotations

from collections.abc import Sequence

from slotmesh.codec import MSGPACK, decode
from slotmesh.errors import Executed, Failure, Reason
from tests.support.fakes.router_batches import Batch

HANDLER_RAISED = Failure(
    reason=Reason.HANDLER_ERROR,
    message="ValueError: odd",
    executed=Executed.YES,
    metadata={"replica_id": "digits-v1-0"},
)


def odd_fails(batch: Batch) -> Sequence[bytes | Failure]:
    return [HANDLER_RAISED if decode(MSGPACK, payload)[0] % 2 else payload for payload in batch.payloads]
