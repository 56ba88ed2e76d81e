// A client of a slotmesh router, of the levels "basic" and "windowed" of docs/protocol.md.
//
//   const mesh = connect('127.0.0.1:7071');
//   const digits = mesh.endpoint('Digits');
//   const label = await digits.call('classify', [pixels]);
//   await mesh.close();

import { Routers } from './routers.js';
import { CallStream } from './stream.js';
import { Credentials } from './tls.js';

export * from './errors.js';
export { tlsOf } from './tls.js';

export const JSON_TYPE = 'application/json';
export const BYTES_TYPE = 'application/octet-stream';

const CODECS = {
  [JSON_TYPE]: {
    encode: (args) => Buffer.from(JSON.stringify(args)),
    decode: (payload) => JSON.parse(payload.toString()),
  },
  [BYTES_TYPE]: {
    encode: ([data]) => Buffer.from(data),
    decode: (payload) => payload,
  },
};

/**
 * A client of the routers at these addresses, `HOST:PORT` or a list of them. It connects when the first call is made.
 * `connectTimeout`: how long calls wait for a router that answers, milliseconds. `tls`: paths of PEM files, `{ ca, cert,
 * key }`, or `tlsOf(directory, name)`; plain text without it. `token`: a bearer token, or a function that gives one.
 */
export function connect(addresses, { connectTimeout = 10_000, tls, token } = {}) {
  return new Mesh([addresses].flat(), connectTimeout, new Credentials(tls, token));
}

class Mesh {
  #addresses;
  #connectTimeout;
  #streams = new Map();
  #routers = [];
  #credentials;

  constructor(addresses, connectTimeout, credentials) {
    this.#credentials = credentials;
    this.#addresses = addresses;
    this.#connectTimeout = connectTimeout;
  }

  /** The endpoint of that name. It need not exist yet: calls say ENDPOINT_NOT_FOUND until it does. */
  endpoint(name, options = {}) {
    let stream = this.#streams.get(name);
    if (!stream) {
      const routers = new Routers(this.#addresses, this.#credentials);
      this.#routers.push(routers);
      stream = new CallStream(name, routers, this.#connectTimeout);
      this.#streams.set(name, stream);
    }
    return new Endpoint(stream, { contentType: JSON_TYPE, ...options });
  }

  /** Makes no more calls, waits for those that are unanswered (at most `grace` milliseconds), then fails the rest. */
  async close({ grace = 30_000 } = {}) {
    await Promise.all([...this.#streams.values()].map((stream) => stream.close(grace)));
    for (const routers of this.#routers) routers.close();
  }

  async [Symbol.asyncDispose]() {
    await this.close();
  }
}

/**
 * Where calls are made. Options of all its calls: `contentType` (JSON_TYPE or BYTES_TYPE), `timeout` (milliseconds),
 * `orderingKey`, `shardKey`, `tenant`, `metadata`, `idempotent`, `noReply` (nobody wants the result: calls resolve with undefined
 * once they have ended).
 */
class Endpoint {
  #stream;
  #options;
  #codec;
  #wire = new Map();

  constructor(stream, options) {
    this.#stream = stream;
    this.#options = options;
    this.#codec = CODECS[options.contentType];
    if (!this.#codec) throw new TypeError(`contentType is ${Object.keys(CODECS).join(' or ')}, got ${options.contentType}`);
  }

  /** The same endpoint, with calls that differ in what is given here. Make it once, and keep it. */
  with(options) {
    return new Endpoint(this.#stream, { ...this.#options, ...options });
  }

  /** Calls of one ordering key: executed one after another, in the order in which they were made. */
  ordered(orderingKey) {
    return this.with({ orderingKey });
  }

  /**
   * Calls a method with positional arguments (or, as an object, named ones). Resolves with the result, rejects with a
   * SlotmeshError. The call leaves with its neighbours in one frame. `signal` gives it up: what waits never starts.
   */
  async call(method, args = [], { signal } = {}) {
    const payload = this.#codec.encode(args);
    const result = await this.#stream.submit(method, this.#wireOptions(method), payload, signal);
    return result === undefined ? undefined : this.#codec.decode(result);
  }

  /**
   * Calls a method once for each item. Resolves with the results in the order of the items; rejects with the failure of
   * the first item that failed, after all have ended.
   */
  async map(method, items, options) {
    const outcomes = await this.mapSettled(method, items, options);
    const failed = outcomes.find(({ status }) => status === 'rejected');
    if (failed) throw failed.reason;
    return outcomes.map(({ value }) => value);
  }

  /** As `map`, with outcomes as Promise.allSettled has them. */
  mapSettled(method, items, options) {
    return Promise.allSettled(Array.from(items, (item) => this.call(method, [item], options)));
  }

  /** One object a method: calls that share it share a batch. */
  #wireOptions(method) {
    let wire = this.#wire.get(method);
    if (!wire) {
      const { contentType, timeout, orderingKey, shardKey, tenant, metadata, idempotent, noReply } = this.#options;
      wire = { method, contentType, orderingKey, shardKey, tenant, metadata, idempotent, ...(noReply && { stream: { noReply } }) };
      if (timeout !== undefined) {
        wire.timeout = { seconds: Math.floor(timeout / 1_000), nanos: Math.round((timeout % 1_000) * 1e6) };
      }
      this.#wire.set(method, wire);
    }
    return wire;
  }
}
