"""What batches of a frame to a client say beside payloads: sizes of what came in chunks, and who has executed calls.

Purpose: executors are said in columns, for stretches of neighbours, to clients that want to know them: so replicas that
answer in turn split no batch.
Owner: pure functions of the outbox of a client's stream.
"""

from __future__ import annotations

from router_service.core.commands import DeliverResults, DeliverValues
from slotmesh.v1 import call_pb2


def add_chunked(
    frame: call_pb2.ResultFrame, what: DeliverResults | DeliverValues, size: int, *, names_executors: bool
) -> None:
    """Adds a batch for a payload of so many bytes that chunks have brought."""
    batch = frame.batches.add(payloads=[b""], chunked_sizes=[size], content_type=what.content_type)
    batch.partial = isinstance(what, DeliverValues)
    if names_executors:
        name_executor(batch, what)
    batch.call_ids.extend(what.ids)


def add_values(
    frame: call_pb2.ResultFrame, batch: call_pb2.ResultBatch | None, values: DeliverValues, *, names_executors: bool
) -> call_pb2.ResultBatch:
    """Adds values to the batch where they fit. Returns the one to which the next values go."""
    if batch is None or batch.content_type != values.content_type:
        batch = frame.batches.add(content_type=values.content_type, partial=True)
    if names_executors:
        name_executor(batch, values)
    batch.call_ids.extend(values.ids)
    batch.payloads.extend(values.payloads)  # type: ignore[arg-type]  # what is larger was joined, or cut
    return batch


def name_executor(batch: call_pb2.ResultBatch, what: DeliverResults | DeliverValues) -> None:
    """Says who has executed the calls that are about to be added."""
    backend, replica_id = what.replica.backend.name, what.replica.replica_id
    if not batch.replica_ids or batch.replica_ids[-1] != replica_id or batch.backends[-1] != backend:
        batch.executor_starts.append(len(batch.call_ids))
        batch.backends.append(backend)
        batch.replica_ids.append(replica_id)
