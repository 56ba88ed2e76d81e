"""Whether a client of any language keeps the protocol: cases as data, a scripted router, an adapter for each client."""
