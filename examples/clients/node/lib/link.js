// One StreamCalls stream that a router has answered: frames of calls down, outcomes up.
//
// Keeps the window, gives ids, finds the call that an answer belongs to. All calls made in one turn of the event loop
// leave in one frame; while the transport is busy, more of them gather. A call that was taken back counts against the
// window until its outcome is there.

import { failureFromWire, toError, withoutResult } from './errors.js';

export class RouterLink {
  #stream;
  #outbox;
  #ids;
  #unanswered = new Map();
  #unansweredBytes = 0;
  #window = { calls: 1_024, bytes: 4 * 1024 * 1024 };
  #takenBack = [];
  #scheduled = false;
  #blocked = false;
  #ending = false;
  #halfClosed = false;

  /** Calls that got their outcome here. */
  answered = 0;
  /** Other routers of the mesh, as this one says. */
  alternates = [];
  /** Whether the router asked its clients to leave. */
  leaving = false;
  /** Largest payload of one call, bytes. */
  maxPayloadBytes = 0;
  /** Resolves with the stream's gRPC status when it is over. */
  ended;

  /** `ids`: where the numbering of calls goes on, over all streams of an endpoint. */
  constructor(stream, outbox, ids) {
    this.#stream = stream;
    this.#outbox = outbox;
    this.#ids = ids;
    stream.on('drain', () => {
      this.#blocked = false;
      this.wake();
    });
  }

  /** There is something to send, or room for it. */
  wake() {
    if (this.#scheduled || this.#blocked || this.#halfClosed) return;
    this.#scheduled = true;
    setImmediate(() => {
      this.#scheduled = false;
      this.#flush();
    });
  }

  /** No more calls will be made: half-closes when all are answered. */
  finish() {
    this.#ending = true;
    this.wake();
  }

  /** The caller gave up a call that was sent. */
  takeBack(call) {
    this.#takenBack.push(call.id);
    this.wake();
  }

  /** A frame from the router. */
  accept(message) {
    switch (message.frame) {
      case 'opened':
        this.#window = message.opened.window ?? this.#window;
        this.alternates = message.opened.alternates;
        break;
      case 'window':
        this.#window = message.window;
        break;
      case 'results':
        this.#acceptResults(message.results);
        break;
      case 'rejected': {
        const { firstCallId, count, callIds, failure } = message.rejected;
        const ids = callIds.length > 0 ? callIds : Array.from({ length: count }, (_, at) => firstCallId + at);
        this.#fail(ids, failureFromWire(failure));
        break;
      }
      case 'goAway':
        // What waits goes over the next stream once all is answered here: calls of a key must not overtake.
        this.alternates = message.goAway.alternates;
        this.leaving = true;
        break;
      default:
        return; // clients ignore frames they do not know
    }
    this.wake();
  }

  /** The stream is over: whatever is unanswered is lost. */
  lose(failure) {
    for (const call of this.#unanswered.values()) call.fail(toError(failure, call));
    this.#unanswered.clear();
    this.#halfClosed = true;
  }

  cancel() {
    this.#stream.cancel();
  }

  #acceptResults({ batches, errors, done }) {
    for (const { firstCallId, callIds, payloads, partial } of batches) {
      if (partial) continue; // the call goes on
      payloads.forEach((payload, at) => this.#settle(firstCallId ? firstCallId + at : callIds[at])?.succeed(payload));
    }
    for (const { calls, failure } of errors) {
      for (const { first, last } of calls) this.#fail(idsOf(first, last), failureFromWire(failure));
    }
    for (const { first, last } of done) {
      for (let id = first; id <= last; id += 1) {
        const call = this.#settle(id);
        if (call?.options.stream?.noReply) call.succeed(undefined);
        else call?.fail(toError(withoutResult(), call));
      }
    }
  }

  #fail(ids, failure) {
    for (const id of ids) {
      const call = this.#settle(id);
      call?.fail(toError(failure, call));
    }
  }

  #settle(id) {
    const call = this.#unanswered.get(id);
    if (call) {
      this.#unanswered.delete(id);
      this.#unansweredBytes -= call.payload.length;
      this.answered += 1;
    }
    return call; // undefined: answered before, or never sent; that changes nothing
  }

  #flush() {
    if (this.#halfClosed) return;
    if (this.#takenBack.length > 0) {
      this.#write({ cancel: { calls: ranges(this.#takenBack.filter((id) => this.#unanswered.has(id))) } });
      this.#takenBack = [];
    }
    while (!this.#blocked && !this.leaving) {
      const calls = this.#outbox.take(
        this.#window.calls - this.#unanswered.size,
        this.#window.bytes - this.#unansweredBytes,
        this.#unanswered.size === 0,
      );
      if (calls.length === 0) break;
      this.#write({ calls: { batches: this.#batches(calls) } });
    }
    // Until all is answered, calls may have to be taken back.
    const isOver = this.leaving || (this.#ending && this.#outbox.size === 0);
    if (isOver && this.#unanswered.size === 0) this.#halfClose();
  }

  /** Neighbours that share their options make one batch. */
  #batches(calls) {
    const batches = [];
    let options;
    for (const call of calls) {
      call.id = this.#ids.next++;
      call.link = this;
      this.#unanswered.set(call.id, call);
      this.#unansweredBytes += call.payload.length;
      if (call.options !== options) {
        options = call.options;
        batches.push({ firstCallId: call.id, options, payloads: [] });
      }
      batches.at(-1).payloads.push(call.payload);
    }
    return batches;
  }

  #write(frame) {
    this.#blocked = !this.#stream.write(frame);
  }

  #halfClose() {
    if (this.#halfClosed) return;
    this.#halfClosed = true;
    this.#stream.end();
  }
}

/**
 * Opens a stream and waits for `opened`: nothing is sent to a router that may not be there, so what fails here was not
 * executed. Rejects with the gRPC status.
 */
export function openLink(client, endpoint, outbox, ids, timeout) {
  return new Promise((resolve, reject) => {
    const stream = client.streamCalls();
    const link = new RouterLink(stream, outbox, ids);
    const timer = setTimeout(() => stream.cancel(), timeout);
    let finish;
    link.ended = new Promise((end) => (finish = end));

    // The status may overtake results that were read and not handed out yet.
    const over = Promise.all([
      new Promise((told) => stream.once('status', told)),
      new Promise((told) => stream.once('end', told)),
    ]);
    over.then(([status]) => {
      clearTimeout(timer);
      reject(status); // nothing, where it was opened
      finish(status);
    });
    stream.on('error', () => {}); // told by its status
    stream.on('data', (message) => {
      if (message.frame === 'opened') {
        clearTimeout(timer);
        link.maxPayloadBytes = message.opened.maxPayloadBytes;
        resolve(link);
      }
      link.accept(message);
    });
    stream.write({ open: { endpoint } });
  });
}

/** Ids as ranges, both ends included. */
function ranges(ids) {
  const found = [];
  for (const id of ids.sort((a, b) => a - b)) {
    const newest = found.at(-1);
    if (newest && newest.last === id - 1) newest.last = id;
    else found.push({ first: id, last: id });
  }
  return found;
}

/** The ids of a range, both ends included. */
function idsOf(first, last) {
  return Array.from({ length: last - first + 1 }, (_, at) => first + at);
}
