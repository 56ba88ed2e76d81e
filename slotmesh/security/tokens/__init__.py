"""Bearer tokens: who their holders are.

Two kinds, told apart by their form: static ones, `smt_ID_SECRET`, of which a file has the hashes (`slotmesh token`
makes it), and JWT of an issuer that is trusted, whose public keys are in a file (JWKS). `verifier.py` is the way in.
Importing this does not import `jwt` or `cryptography`.
"""

from slotmesh.security.tokens.rules import BadToken, TokenProblem
from slotmesh.security.tokens.verifier import Tokens

__all__ = ["BadToken", "TokenProblem", "Tokens"]
