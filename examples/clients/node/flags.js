// Where and by what a program connects, from the flags and variables that slotmesh's own commands have.

import { readFileSync, statSync } from 'node:fs';
import { parseArgs } from 'node:util';

import { tlsOf } from './lib/index.js';

const FLAGS = ['tls-dir', 'tls-ca', 'tls-cert', 'tls-key', 'token-file', 'name'];

/** `{ address, options }` for `connect`. What was typed goes before what the environment says. */
export function connectionOf(args, env) {
  const { values, positionals } = parseArgs({
    args,
    allowPositionals: true,
    options: Object.fromEntries(FLAGS.map((flag) => [flag, { type: 'string' }])),
  });
  const given = (flag) => values[flag] ?? (env[`SLOTMESH_${flag.toUpperCase().replace('-', '_')}`] || undefined);
  const directory = given('tls-dir');
  const files = { ca: given('tls-ca'), cert: given('tls-cert'), key: given('tls-key') };
  const tls = { ...(directory && tlsOf(directory, values.name)), ...Object.fromEntries(Object.entries(files).filter(([, path]) => path)) };
  const file = given('token-file');
  return {
    address: positionals[0] ?? env.SLOTMESH_ADDRESS ?? '127.0.0.1:7071',
    options: { tls: tls.ca ? tls : undefined, token: file ? readToken(file) : env.SLOTMESH_TOKEN || undefined },
  };
}

function readToken(path) {
  if (statSync(path).mode & 0o077) throw new Error(`others can read ${path}; chmod 600 ${path}`);
  return readFileSync(path, 'utf8').trim();
}
