"""Bearer tokens and the identities of their holders.

Two kinds, distinguished by their form: static tokens, `smt_ID_SECRET`, whose hashes are in a file that `slotmesh token`
makes; and JWTs of a trusted issuer, whose public keys are in a JWKS file. `verifier.py` is the entry point. Importing
this package does not import `jwt` or `cryptography`.
"""

from slotmesh.security.tokens.rules import BadToken, TokenProblem
from slotmesh.security.tokens.verifier import Tokens

__all__ = ["BadToken", "TokenProblem", "Tokens"]
