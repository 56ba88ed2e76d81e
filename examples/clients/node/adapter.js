// This client under the conformance suite: commands by stdin, reports by stdout, a JSON object a line.
// docs/protocol.md describes the lines.

import { createInterface } from 'node:readline';

import { BYTES_TYPE, connect, SlotmeshError } from './lib/index.js';

const say = (report) => process.stdout.write(`${JSON.stringify(report)}\n`);

let mesh;
let endpoint;
let round = 0;
let closing = false;
const views = new Map();
const given = new Map();

/** Views are kept: calls of one view and method travel together. */
function view({ key, shard_key, tenant, timeout_s, idempotent, metadata, no_reply }) {
  const options = { orderingKey: key, shardKey: shard_key, tenant, idempotent, metadata, noReply: no_reply };
  if (timeout_s !== undefined) options.timeout = timeout_s * 1_000;
  const name = JSON.stringify(options);
  if (!views.has(name)) views.set(name, endpoint.with(options));
  return views.get(name);
}

function failure(error) {
  if (closing && !(error instanceof SlotmeshError)) return { refused: true };
  if (!(error instanceof SlotmeshError)) return { error: { reason: error.name, status: '', executed: '', message: `${error}` } };
  const { reason, status, executed, message, retryDelay } = error;
  const delay = retryDelay === undefined ? {} : { retry_delay_s: retryDelay / 1_000 };
  return { error: { reason, status, executed, message, ...delay } };
}

function outcome({ status, value, reason }) {
  return status === 'fulfilled' ? { result: value.toString() } : failure(reason);
}

/** Reports what came of a command, unless the next case has begun. */
function watch(id, promise, describe) {
  const now = round;
  const tell = (report) => now === round && say({ id, ...report });
  promise.then(
    (value) => tell(describe(value)),
    (error) => tell(error.name === 'AbortError' ? { cancelled: true } : failure(error)),
  );
}

const commands = {
  connect({ addresses, endpoint: name, connect_timeout_s = 10 }) {
    mesh = connect(addresses, { connectTimeout: connect_timeout_s * 1_000 });
    endpoint = mesh.endpoint(name, { contentType: BYTES_TYPE });
  },
  call({ id, method = '', payload, ...options }) {
    const giveUp = new AbortController();
    given.set(id, giveUp);
    const { signal } = giveUp;
    watch(id, view(options).call(method, [payload], { signal }), (value) =>
      value === undefined ? { done: true } : { result: value.toString() },
    );
  },
  map({ id, method = '', payloads, ...options }) {
    const giveUp = new AbortController();
    given.set(id, giveUp);
    const { signal } = giveUp;
    watch(id, view(options).mapSettled(method, payloads, { signal }), (all) =>
      signal.aborted ? { cancelled: true } : { results: all.map(outcome) },
    );
  },
  cancel({ id }) {
    given.get(id).abort();
  },
  close() {
    closing = true;
    // The reports of the last calls come first.
    mesh.close().then(() => setImmediate(() => say({ closed: true })));
  },
  async reset() {
    round += 1;
    const old = mesh;
    mesh = undefined;
    closing = false;
    views.clear();
    given.clear();
    await old?.close({ grace: 0 });
    say({ reset: true });
  },
};

say({ ready: { client: 'slotmesh-node 0.2.0', level: 'windowed', capabilities: ['no_reply', 'tenants'] } });

for await (const line of createInterface({ input: process.stdin })) {
  const { do: name, ...command } = JSON.parse(line);
  await commands[name](command);
}
