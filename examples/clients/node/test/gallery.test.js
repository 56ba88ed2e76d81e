// The client against a real mesh of tests/e2e/handlers.py:Gallery, whose router SLOTMESH_ROUTER names.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { BYTES_TYPE, connect, DeadlineExceeded, HandlerError, InvalidArgument, NotFound } from '../lib/index.js';

const address = process.env.SLOTMESH_ROUTER;
const options = { skip: address ? false : 'set SLOTMESH_ROUTER to the router of a mesh that runs tests.e2e.handlers:Gallery' };

let mesh;
let gallery;
before(() => {
  if (address) mesh = connect(address);
  gallery = mesh?.endpoint('Gallery');
});
after(() => mesh?.close());

test('a call has its result', options, async () => {
  assert.equal(await gallery.call('double', [21]), 42);
  assert.equal(await gallery.call('double', { number: 4 }), 8);
});

test('ten thousand calls at once find their own results', options, async () => {
  const numbers = Array.from({ length: 10_000 }, (_, at) => at);
  assert.deepEqual(
    await gallery.map('double', numbers),
    numbers.map((number) => 2 * number),
  );
});

test('calls are batched for a handler that takes lists', options, async () => {
  assert.deepEqual(await gallery.map('squares', [1, 2, 3]), [1, 4, 9]);
});

test('bytes travel as they are', options, async () => {
  const data = Buffer.from([0, 255, 128, 10]);
  assert.deepEqual(await gallery.with({ contentType: BYTES_TYPE }).call('echo', [data]), data);
});

test('failures are typed, and say whether the call was executed', options, async () => {
  const failed = await gallery.call('fail', ['on purpose']).catch((error) => error);
  assert.ok(failed instanceof HandlerError);
  assert.match(failed.message, /^UNKNOWN\/HANDLER_ERROR: ValueError: on purpose/);
  assert.deepEqual([failed.executed, failed.endpoint, failed.method], ['yes', 'Gallery', 'fail']);

  await assert.rejects(gallery.call('double', ['x']), InvalidArgument);
  await assert.rejects(gallery.call('nothing'), NotFound);
  await assert.rejects(mesh.endpoint('Nowhere').call('x'), { reason: 'ENDPOINT_NOT_FOUND', executed: 'no' });
  await assert.rejects(gallery.with({ timeout: 50 }).call('wait', [5]), DeadlineExceeded);
});

test('a map fails with its first failure, after all have ended', options, async () => {
  const outcomes = await gallery.mapSettled('double', [1, 'x', 3]);
  assert.deepEqual(
    outcomes.map(({ status }) => status),
    ['fulfilled', 'rejected', 'fulfilled'],
  );
  await assert.rejects(gallery.map('double', [1, 'x', 3]), { reason: 'BAD_ARGUMENTS', executed: 'no' });
});

test('a call that is given up ends at once', options, async () => {
  const giveUp = new AbortController();
  const pending = gallery.call('wait', [30], { signal: giveUp.signal });
  await gallery.call('double', [1]); // it was sent by now
  giveUp.abort();
  await assert.rejects(pending, { name: 'AbortError' });
});
