"""What is wrong with files of certificates."""

from __future__ import annotations


class BadTls(Exception):
    """Files of certificates that cannot be used; the message names the file and the way out, and nothing of a key."""


class BadLists(BadTls):
    """Lists of revoked certificates that cannot be used."""


class UnmatchedPair(BadTls):
    """The key is not that of the certificate: perhaps one of the two was replaced, and the other one soon will be."""
