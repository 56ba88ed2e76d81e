"""Arguments and results of the rpcs for single calls: payload bytes, or JSON values.

Purpose: the requests of `Call`, `CallStreaming`, `Dispatch` and `DispatchStreaming` have the same `input`, and their
responses the same `output`, in the form of the input. A call itself has a payload always. They also have the same
`request_id`.
Invariants: a payload that is too large is refused before the call is made. JSON values are converted in steps, between
those of other calls. A request without `input` has no arguments, in JSON.
Owner: the servicers of routers and replicas.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TypeAlias

from slotmesh.calls.request_ids import CallIdentity, ReservationIdentity, reservation_digest
from slotmesh.codec import JSON
from slotmesh.convert.json_values import json_arguments, put_json_result
from slotmesh.convert.slot_requests import oversized, ttl_of
from slotmesh.errors import Failure, at_field, bad_field
from slotmesh.runtime.loop_slices import StepQueue
from slotmesh.security.identity import caller_name, of_caller
from slotmesh.spec.rules import request_id_problem, show
from slotmesh.v1 import router_service_pb2, slot_service_pb2

CallInput: TypeAlias = (
    router_service_pb2.CallRequest
    | router_service_pb2.CallStreamingRequest
    | slot_service_pb2.DispatchRequest
    | slot_service_pb2.DispatchStreamingRequest
)
AnyInput: TypeAlias = CallInput | router_service_pb2.BroadcastRequest
CallOutput: TypeAlias = (
    router_service_pb2.CallResponse
    | router_service_pb2.CallStreamingResponse
    | slot_service_pb2.DispatchResponse
    | slot_service_pb2.DispatchStreamingResponse
    | router_service_pb2.BroadcastResponse
)


async def payload_of(request: AnyInput, turns: StepQueue) -> bytes | Failure:
    """The payload of the call. Of JSON arguments it is JSON text, and `options.content_type` is set to that."""
    if request.HasField("payload"):
        payload = request.payload
        return oversized(len(payload)) or payload
    options = request.options
    if options.content_type not in ("", JSON):
        what = f"must be empty or {JSON} unless `payload` is set, got {show(options.content_type)!r}"
        return bad_field("options.content_type", what)
    options.content_type = JSON
    encoded = await turns.take(json_arguments(request.arguments))
    return encoded if isinstance(encoded, Failure) else oversized(len(encoded)) or encoded


def identity_of(request: CallInput) -> CallIdentity | Failure | None:
    """The identity of a call with a `request_id`; None without one. Of a call whose input has been checked."""
    if not request.request_id:
        return None
    if problem := request_id_problem(request.request_id):
        return bad_field("request_id", problem)
    options = request.options
    form = "payload" if request.HasField("payload") else "arguments"
    if options.model_id:  # another model gives another result
        form = f"{form} for {options.model_id}"
    common = (type(request).__name__, options.method, options.ordering_key, options.content_type, form)
    digest = blake2b("\0".join(common).encode() + b"\0", digest_size=16)
    digest.update(request.payload or request.arguments.SerializeToString(deterministic=True))
    return CallIdentity(request.request_id, digest.digest(), caller_name())


def reservation_identity(wire: slot_service_pb2.ReserveSlotRequest) -> ReservationIdentity | None:
    """What identifies a reservation of the caller; None without a `request_id`. Of a request that has been checked."""
    if not wire.request_id:
        return None
    terms = [wire.endpoint, str(ttl_of(wire)), wire.replica_id]
    if wire.HasField("options"):
        options = wire.options
        chosen = options.shard_key, options.affinity_key, options.model_id
        if any(chosen) or options.prefix_blocks:
            terms += (*chosen, str(list(options.prefix_blocks)))
    if wire.excluded_replica_ids:
        terms += ("without", *sorted(wire.excluded_replica_ids))
    return ReservationIdentity(of_caller(wire.request_id), reservation_digest(terms), caller_name(), wire.attempt)


def identity_of_own_rpc(request_id: str, path: str, ordering_key: str, model_id: str, request: bytes) -> CallIdentity:
    """The identity of a call by an rpc of a user's own, which has one request."""
    kind = f"own for {model_id}" if model_id else "own"
    digest = blake2b(f"{kind}\0{path}\0{ordering_key}\0".encode() + request, digest_size=16)
    return CallIdentity(request_id, digest.digest(), caller_name())


def failed(failure: Failure, request: AnyInput) -> Failure:
    """The failure of the call, with the field of this request: the payload of JSON arguments is no field of it."""
    is_json = failure.metadata.get("field") == "payload" and not request.HasField("payload")
    return at_field(failure, "arguments") if is_json else failure


async def put_output(
    response: CallOutput, request: AnyInput, payload: bytes, content_type: str, turns: StepQueue
) -> Failure | None:
    """Sets the output of a response. Returns the failure of a payload that does not fit into a JSON value."""
    if request.HasField("payload"):
        response.payload, response.content_type = payload, content_type
        return None
    return await turns.take(put_json_result(payload, response.result))
