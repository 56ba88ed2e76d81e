// Why a call has no result. `reason` is the stable name of the condition, `executed` says whether the call ran:
// 'no' (a retry is always safe), 'unknown' (retry only what is idempotent) or 'yes'.
// All reasons: docs/errors.md.

import grpc from '@grpc/grpc-js';
import protobuf from 'protobufjs';

const { status: Status } = grpc;

export class SlotmeshError extends Error {
  constructor({ code, reason, message, executed, retryDelay, metadata = {} }, call) {
    super(`${Status[code] ?? 'UNKNOWN'}/${reason}: ${message}`);
    this.name = new.target.name;
    /** Name of the gRPC status, as `UNAVAILABLE`. */
    this.status = Status[code] ?? 'UNKNOWN';
    this.reason = reason;
    this.executed = executed;
    /** When a retry may succeed, milliseconds; undefined where that is not known. */
    this.retryDelay = retryDelay;
    this.metadata = metadata;
    this.endpoint = call?.endpoint ?? '';
    this.method = call?.method ?? '';
    /** The call's id on its stream; 0 where it was never sent. */
    this.callId = call?.id ?? 0;
  }
}

export class NotFound extends SlotmeshError {}
export class InvalidArgument extends SlotmeshError {}
export class ResourceExhausted extends SlotmeshError {}
export class Unavailable extends SlotmeshError {}
export class DeadlineExceeded extends SlotmeshError {}
export class Aborted extends SlotmeshError {}
export class CallCancelled extends SlotmeshError {}
/** The handler raised; its message has the exception's type and text. */
export class HandlerError extends SlotmeshError {}

const CLASS_OF_STATUS = {
  NOT_FOUND: NotFound,
  INVALID_ARGUMENT: InvalidArgument,
  RESOURCE_EXHAUSTED: ResourceExhausted,
  UNAVAILABLE: Unavailable,
  DEADLINE_EXCEEDED: DeadlineExceeded,
  ABORTED: Aborted,
  CANCELLED: CallCancelled,
};

/** The error of a call that failed this way. */
export function toError(failure, call) {
  // A handler may choose any status: its failures are told by their reason.
  const ErrorClass =
    failure.reason === 'HANDLER_ERROR' ? HandlerError : (CLASS_OF_STATUS[Status[failure.code]] ?? SlotmeshError);
  return new ErrorClass(failure, call);
}

const EXECUTED = { EXECUTED_NO: 'no', EXECUTED_UNKNOWN: 'unknown', EXECUTED_YES: 'yes' };

/** A `Failure` message of a frame. */
export function failureFromWire({ code, reason, message, executed, retryDelay, metadata }) {
  return {
    code,
    reason,
    message,
    executed: EXECUTED[executed] ?? 'unknown',
    retryDelay: retryDelay ? retryDelay.seconds * 1_000 + retryDelay.nanos / 1e6 : undefined,
    metadata,
  };
}

export function payloadTooLarge(actual, limit) {
  return {
    code: Status.INVALID_ARGUMENT,
    reason: 'PAYLOAD_TOO_LARGE',
    message: `the payload has ${actual} bytes, the limit is ${limit} bytes`,
    executed: 'no',
    metadata: { limit: `${limit}`, actual: `${actual}` },
  };
}

export function routerLost(message, executed) {
  return { code: Status.UNAVAILABLE, reason: 'ROUTER_LOST', message, executed };
}

/** The router reported the end of a call that has a result, and no result. */
export function withoutResult() {
  const message = 'the router reported the end of the call, and no result';
  return { code: Status.INTERNAL, reason: 'INTERNAL', message, executed: 'yes' };
}

export function closed(message, executed) {
  return { code: Status.CANCELLED, reason: 'CANCELLED', message, executed };
}

const { root } = protobuf.parse(`
  syntax = "proto3";
  message Any { string type_url = 1; bytes value = 2; }
  message RichStatus { int32 code = 1; string message = 2; repeated Any details = 3; }
  message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }
`);
const RichStatus = root.lookupType('RichStatus');
const ErrorInfo = root.lookupType('ErrorInfo');

/** What the transport's own statuses stand for where another try is not worth it. */
const FINAL = { 7: 'PERMISSION_DENIED', 8: 'PAYLOAD_TOO_LARGE', 12: 'NOT_IMPLEMENTED', 16: 'UNAUTHENTICATED' };

/** How a router refused a stream; undefined where it was the transport that failed: then another try is worth it. */
export function refusal({ code, details, metadata }) {
  const [rich] = metadata.get('grpc-status-details-bin');
  for (const detail of rich ? RichStatus.decode(rich).details : []) {
    if (!detail.typeUrl.endsWith('/google.rpc.ErrorInfo')) continue;
    const { domain, reason, metadata: facts } = ErrorInfo.decode(detail.value);
    if (domain !== 'slotmesh.dev' || reason === 'DRAINING' || reason === 'ROUTER_LOST') continue;
    return { code, reason, message: details, executed: facts.executed ?? 'unknown', metadata: facts };
  }
  return FINAL[code] && { code, reason: FINAL[code], message: details, executed: 'unknown', metadata: {} };
}
