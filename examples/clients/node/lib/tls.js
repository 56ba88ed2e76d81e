// By what the client connects: certificates from files, which are read again when they change, and tokens.

import { X509Certificate } from 'node:crypto';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';

import grpc from '@grpc/grpc-js';

/** The files of a directory as `slotmesh certs` makes it; `name`, as `client-alice`, is whose certificate is shown. */
export function tlsOf(directory, name) {
  const file = (end) => join(directory, end);
  return { ca: file('ca.crt'), ...(name && { cert: file(`${name}.crt`), key: file(`${name}.key`) }) };
}

export class Credentials {
  #tls;
  #token;
  #read;
  #stamp;

  /**
   * `tls`: paths `ca`, `cert` and `key` of PEM files, the latter two only where a certificate is shown; without it the
   * connection is in plain text. `token`: a bearer token, or a function that gives one, called for each rpc.
   */
  constructor(tls, token) {
    if (token !== undefined && !tls) throw new TypeError('a token is sent by TLS only: give the authority, tls.ca');
    if (tls && !tls.cert !== !tls.key) throw new TypeError('tls.cert and tls.key go together');
    for (const path of tls ? [tls.ca, tls.cert, tls.key] : []) {
      if (path && !existsSync(path)) throw new TypeError(`${path} is missing; \`slotmesh certs\` makes certificates`);
    }
    this.#tls = tls;
    this.#token = token;
  }

  /** `{ credentials, options }` of a channel to a router: the same object for as long as the files are the same. */
  get current() {
    const stamp = this.#tls ? [this.#tls.ca, this.#tls.cert, this.#tls.key].map((path) => path && statSync(path).mtimeMs).join() : '';
    if (stamp !== this.#stamp) {
      this.#read = this.#tls ? this.#open() : { credentials: grpc.credentials.createInsecure(), options: {} };
      this.#stamp = stamp;
    }
    return this.#read;
  }

  #open() {
    const [ca, cert, key] = [this.#tls.ca, this.#tls.cert, this.#tls.key].map((path) => path && readFileSync(path));
    const channel = grpc.credentials.createSsl(ca, key ?? null, cert ?? null);
    const domain = trustDomain(cert ?? ca);
    return {
      credentials: this.#token === undefined ? channel : grpc.credentials.combineChannelCredentials(channel, this.#bearer()),
      // A router has the name of its role, wherever it listens.
      options: domain ? { 'grpc.ssl_target_name_override': `router.${domain}` } : {},
    };
  }

  #bearer() {
    return grpc.credentials.createFromMetadataGenerator((_, done) => {
      try {
        const metadata = new grpc.Metadata();
        metadata.set('authorization', `Bearer ${typeof this.#token === 'function' ? this.#token() : this.#token}`);
        done(null, metadata);
      } catch (error) {
        done(new Error(`there is no token to be had (${error.name})`)); // its words may hold the token
      }
    });
  }
}

/** The mesh that a certificate's URI names, as spiffe://TRUST_DOMAIN/...; undefined where it names none. */
function trustDomain(pem) {
  return /URI:spiffe:\/\/([a-z0-9._-]+)/.exec(new X509Certificate(pem).subjectAltName ?? '')?.[1];
}
