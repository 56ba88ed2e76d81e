// The routers of a mesh: those that were configured, and those that routers name. One is in use at a time.

import { CHANNEL_OPTIONS, RouterService } from './protos.js';

export class Routers {
  #configured;
  #addresses;
  #at = 0;
  #clients = new Map();
  #credentials;

  /** `addresses`: `HOST:PORT` each. `credentials`: by what to connect. */
  constructor(addresses, credentials) {
    this.#credentials = credentials;
    this.#configured = addresses;
    this.#addresses = addresses;
  }

  /** A client of the router in use. */
  get current() {
    const address = this.#addresses[this.#at];
    const by = this.#credentials.current;
    let known = this.#clients.get(address);
    if (known?.by !== by) {
      known?.client.close(); // what runs on it goes on
      known = { by, client: new RouterService(address, by.credentials, { ...CHANNEL_OPTIONS, ...by.options }) };
      this.#clients.set(address, known);
    }
    return known.client;
  }

  /** How many are known. */
  get count() {
    return this.#addresses.length;
  }

  /** Routers named the others that serve the same mesh. */
  learn(alternates) {
    const current = this.#addresses[this.#at];
    this.#addresses = [...new Set([current, ...alternates, ...this.#configured])];
    this.#at = 0;
  }

  /** The one in use does not answer, or leaves: the next one takes its place. */
  giveUp() {
    this.#at = (this.#at + 1) % this.#addresses.length;
  }

  close() {
    for (const { client } of this.#clients.values()) client.close();
    this.#clients.clear();
  }

  toString() {
    return this.#addresses.join(', ');
  }
}
