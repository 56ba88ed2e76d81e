"""Tokens that are not accepted, and why: for the log and the metrics, never for who has shown one."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

REFUSAL: Final = "the bearer token is not accepted"
"""All that a caller learns: whoever guesses tokens, or has found one, gets no help."""


class TokenProblem(StrEnum):
    """What is wrong with a token, as metrics have it."""

    MALFORMED = "malformed"
    """It has the form of no token that is accepted here."""
    UNKNOWN = "unknown"
    """No such static token, or it is signed with no key that is known."""
    REVOKED = "revoked"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    FORGED = "forged"
    """Its signature, or the algorithm of it, is wrong."""
    FOREIGN = "foreign"
    """Of another issuer, or for another audience."""
    CLAIMS = "claims"
    """It is genuine, and says nothing that could be used: no name, no role of a caller."""


class BadToken(Exception):
    """A token that is not accepted. The message is the same for all; `reason` is for the log.

    Neither has any part of a secret: at most a token's id, which is in the file in plain text.
    """

    def __init__(self, problem: TokenProblem, reason: str) -> None:
        super().__init__(REFUSAL)
        self.problem = problem
        self.reason = reason
