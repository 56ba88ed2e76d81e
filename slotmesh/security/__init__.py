"""Authentication and authorisation: TLS, identities, tokens, roles.

`identity.py` has identities and roles, `tls/` authenticates by certificates, `tokens/` by bearer tokens;
`rpc_roles.py` decides which roles may call which rpc, and `authentication.py` applies that to each rpc. Without
certificates there are no identities: every client that reaches the process may do everything, which is why it listens
on loopback only.
"""
