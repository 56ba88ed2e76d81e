"""Who is at the other end of a connection, and what they may do: TLS, identities, tokens, roles.

`identity.py` says who somebody is, `tls/` proves it by certificates, `tokens/` by bearer tokens; `rules.py` has who may
call which rpc, and `authorizer.py` asks. Without certificates there are no identities: everybody who reaches the
process may do everything, which is why it listens on loopback only.
"""
