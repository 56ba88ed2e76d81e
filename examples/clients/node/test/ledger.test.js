// Order, against a real mesh of tests/e2e/handlers.py:Ledger, whose router SLOTMESH_LEDGER_ROUTER names: the ledger
// records what it executes, and whoever starts the mesh reads the records.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { connect } from '../lib/index.js';

const address = process.env.SLOTMESH_LEDGER_ROUTER;
const options = { skip: address ? false : 'set SLOTMESH_LEDGER_ROUTER to the router of a mesh that runs tests.e2e.handlers:Ledger' };

test('calls of a key are executed in the order in which they were made', options, async () => {
  const mesh = connect(address);
  const ledger = mesh.endpoint('Ledger');
  const keys = ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'];
  const lanes = new Map(keys.map((key) => [key, ledger.ordered(key)]));
  const made = [];
  for (let number = 0; number < 500; number += 1) {
    for (const key of keys) made.push(lanes.get(key).call('add', [key, `${number}`]));
  }
  const results = await Promise.all(made);
  assert.deepEqual(results.slice(0, 9), ['0', '0', '0', '0', '0', '0', '0', '0', '1']);
  await mesh.close();
});
