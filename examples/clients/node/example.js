// Against the mesh of `make run`: node examples/clients/node/example.js [HOST:PORT]
//
// By TLS with --tls-dir DIR (and --name client-alice), or --tls-ca, --tls-cert and --tls-key; SLOTMESH_TLS_DIR and so on
// say the same. With a token by SLOTMESH_TOKEN, or --token-file.

import { connectionOf } from './flags.js';
import { connect, SlotmeshError } from './lib/index.js';

const { address, options } = connectionOf(process.argv.slice(2), process.env);
const mesh = connect(address, options);
const digits = mesh.endpoint('Digits');

console.log('runs', await digits.call('info'));

// Six images of 8 × 8 pixels, 0 … 16 each: a vertical bar that gets brighter. Single calls, one frame.
const images = [1, 4, 7, 10, 13, 16].map((ink) => Array.from({ length: 64 }, (_, at) => (at % 8 === 3 ? ink : 0)));
console.log('bars look like', await digits.map('classify', images));

// Calls of one ordering key are executed one after another, in the order of these lines.
const lane = digits.ordered('example');
console.log('in order', await Promise.all(images.map((image) => lane.call('classify', [image]))));

// A failure says what went wrong, and whether the call was executed.
try {
  await digits.call('classify', ['not an image']);
} catch (error) {
  if (!(error instanceof SlotmeshError)) throw error;
  console.log(`${error.name}: ${error.message} (executed: ${error.executed})`);
}

// Nobody waits for it any more: it is taken back.
const pending = digits.with({ timeout: 5_000 }).call('info', [], { signal: AbortSignal.timeout(0) });
console.log('taken back:', await pending.catch((error) => error.name));

await mesh.close();
