// All calls of one endpoint: sent over one stream at a time, opened when there are calls, opened again when it broke.
//
// Every call gets exactly one outcome. What was sent over a stream that broke is lost, executed 'unknown', and is never
// sent again. What was not sent goes over the next stream, in order, unless no router answers in time: executed 'no'.

import { closed, payloadTooLarge, refusal, routerLost, toError } from './errors.js';
import { openLink } from './link.js';
import { Outbox } from './outbox.js';

const FIRST_DELAY_MS = 100;
const LONGEST_DELAY_MS = 1_000;
const FIRST_ATTEMPT_MS = 1_000;

export class CallStream {
  #endpoint;
  #routers;
  #connectTimeout;
  #outbox = new Outbox();
  #ids = { next: 1 };
  #maxPayloadBytes = 4 * 1024 * 1024;
  #link;
  #running;
  #closing = false;
  #abandoned = new AbortController();

  /** `routers`: where to connect to. `connectTimeout`: how long calls wait for one that answers, milliseconds. */
  constructor(endpoint, routers, connectTimeout) {
    this.#endpoint = endpoint;
    this.#routers = routers;
    this.#connectTimeout = connectTimeout;
  }

  /** Makes a call. The promise has the result's payload. */
  submit(method, options, payload, signal) {
    if (this.#closing) throw new Error(`the mesh is closed: no more calls of ${this.#endpoint}`);
    return new Promise((resolve, reject) => {
      const call = new PendingCall(this.#endpoint, method, options, payload, resolve, reject);
      if (payload.length > this.#maxPayloadBytes) {
        call.fail(toError(payloadTooLarge(payload.length, this.#maxPayloadBytes), call));
        return;
      }
      if (signal) this.#watch(signal, call);
      if (call.settled) return;
      this.#outbox.add(call);
      if (this.#link) this.#link.wake();
      else this.#running ??= this.#run();
    });
  }

  /** Sends what waits, waits for what is unanswered, at most `grace` milliseconds; then fails the rest. */
  async close(grace) {
    this.#closing = true;
    this.#link?.finish();
    if (!this.#running) return;
    const timer = setTimeout(() => {
      this.#abandoned.abort();
      this.#link?.cancel();
    }, grace);
    await this.#running;
    clearTimeout(timer);
  }

  #watch(signal, call) {
    const giveUp = () => {
      if (call.settled) return;
      call.fail(signal.reason);
      if (call.link) call.link.takeBack(call);
      else if (call.id === 0) this.#outbox.forget();
    };
    if (signal.aborted) {
      call.fail(signal.reason);
      return;
    }
    signal.addEventListener('abort', giveUp, { once: true });
    call.onSettled = () => signal.removeEventListener('abort', giveUp);
  }

  /** One stream after the other, until nothing is left to send. */
  async #run() {
    let patience = this.#connectTimeout;
    let delay = FIRST_DELAY_MS;
    let problem = 'no answer';
    let failed = 0;
    while (this.#outbox.size > 0) {
      const began = performance.now();
      try {
        this.#link = await this.#open(Math.min(patience, this.#attempt(failed)));
      } catch (status) {
        const refused = refusal(status);
        if (refused) {
          this.#failAll({ ...refused, executed: 'no' });
          break;
        }
        problem = status.details;
        failed += 1;
        this.#routers.giveUp();
      }
      patience -= performance.now() - began;
      const answered = this.#link ? await this.#serve(this.#link) : 0;
      if (answered > 0) {
        patience = this.#connectTimeout;
        delay = FIRST_DELAY_MS;
        failed = 0;
      } else if (this.#outbox.size > 0) {
        if (this.#abandoned.signal.aborted || patience <= 0) {
          this.#failAll(this.#unsent(problem));
          break;
        }
        const pause = Math.min(delay * Math.random(), patience);
        await new Promise((resolve) => setTimeout(resolve, pause));
        patience -= pause;
        delay = Math.min(delay * 2, LONGEST_DELAY_MS);
      }
    }
    this.#running = undefined;
  }

  /** How long the next router may take to answer: with several, a second, doubled in each round through all of them. */
  #attempt(failed) {
    const { count } = this.#routers;
    return count > 1 ? FIRST_ATTEMPT_MS * 2 ** Math.floor(failed / count) : Infinity;
  }

  async #open(timeout) {
    const link = await openLink(this.#routers.current, this.#endpoint, this.#outbox, this.#ids, timeout);
    this.#maxPayloadBytes = link.maxPayloadBytes || this.#maxPayloadBytes;
    return link;
  }

  /** Uses a stream until it is over. Says how many calls it answered. */
  async #serve(link) {
    if (this.#closing) link.finish();
    link.wake();
    const status = await link.ended;
    const { code, details } = status;
    const refused = code === 0 ? undefined : refusal(status);
    this.#link = undefined;
    this.#routers.learn(link.alternates);
    const why = code === 0 ? 'the router ended the stream' : `the stream broke (${details})`;
    link.lose(
      this.#abandoned.signal.aborted
        ? closed('the mesh was closed before the call was answered', 'unknown')
        : refused
          ? { ...refused, executed: 'unknown' }
          : routerLost(`${why} before the call was answered; it may have been executed`, 'unknown'),
    );
    if (link.leaving || code !== 0) this.#routers.giveUp();
    return link.answered;
  }

  #unsent(problem) {
    return this.#abandoned.signal.aborted
      ? closed('the mesh was closed before the call was sent', 'no')
      : routerLost(
          `no router answered at ${this.#routers} within ${this.#connectTimeout} ms (${problem}): the call was not sent`,
          'no',
        );
  }

  #failAll(failure) {
    for (const call of this.#outbox.drain()) call.fail(toError(failure, call));
  }
}

/** A call that has no outcome yet. */
class PendingCall {
  id = 0;
  link = undefined;
  settled = false;
  onSettled = undefined;
  #resolve;
  #reject;

  constructor(endpoint, method, options, payload, resolve, reject) {
    this.endpoint = endpoint;
    this.method = method;
    this.options = options;
    this.payload = payload;
    this.#resolve = resolve;
    this.#reject = reject;
  }

  succeed(payload) {
    if (this.#settle()) this.#resolve(payload);
  }

  fail(error) {
    if (this.#settle()) this.#reject(error);
  }

  #settle() {
    if (this.settled) return false;
    this.settled = true;
    this.onSettled?.();
    return true;
  }
}
