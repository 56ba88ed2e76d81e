"""Tokens of slots: the replica that holds the slot, and the secret by which it knows the slot. Pure.

Purpose: any router finds the replica that granted a slot by its token alone, and tokens cannot be guessed.
Invariants: a token is printable and safe in URLs; what `format_token` writes, `parse_token` reads back; a text in which
a character was changed, added or lost is no token. (A checksum detects mistakes. It need not detect forgeries: without
the secret they open nothing.) A token is a secret: its `repr` does not show it, and messages have it `redacted`.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from hashlib import blake2b

SECRET_BYTES = 16
"""128 random bits, drawn by the replica for each slot."""
MAX_TOKEN_CHARS = 2048
"""Longer texts are not looked at."""
SHOWN_CHARS = 4
"""As much of a token as may be shown."""

_VERSION = 1
_CHECKSUM_BYTES = 4


@dataclass(frozen=True, slots=True)
class SlotToken:
    """The content of a token."""

    replica_id: str
    incarnation: str
    secret: bytes = field(repr=False)
    """Known to the replica and to the caller that got the slot."""

    @property
    def replica_key(self) -> tuple[str, str]:
        """The incarnation of a replica that grants slots."""
        return self.replica_id, self.incarnation


def format_token(replica_id: str, incarnation: str, secret: bytes) -> str:
    """The token of a slot of this replica.

    Raises:
        ValueError: the secret has another size, or the identity is too long.
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, got {len(secret)}")
    names = [name.encode() for name in (replica_id, incarnation)]
    body = bytes([_VERSION]) + b"".join(len(name).to_bytes(2) + name for name in names) + secret
    text = _encode(body + _checksum(body))
    if len(text) > MAX_TOKEN_CHARS:
        raise ValueError(f"replica id and incarnation make a token of {len(text)} characters, over {MAX_TOKEN_CHARS}")
    return text


def parse_token(text: str) -> SlotToken | None:
    """The content of the token; None where the text is no token."""
    if len(text) > MAX_TOKEN_CHARS:
        return None
    try:
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        return None
    body, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
    # The last character may have bits that nothing reads: only one way to write a token is right.
    if checksum != _checksum(body) or _encode(raw) != text or body[:1] != bytes([_VERSION]):
        return None
    replica_id, rest = _taken(body[1:])
    incarnation, secret = _taken(rest)
    if len(secret) != SECRET_BYTES:
        return None
    try:
        return SlotToken(replica_id.decode(), incarnation.decode(), secret)
    except UnicodeDecodeError:
        return None


def redacted(text: str) -> str:
    """As much of a token as logs, spans and errors may show."""
    token = parse_token(text)
    shown = f"{text[:SHOWN_CHARS]}…" if len(text) > SHOWN_CHARS else text
    return shown if token is None else f"{shown} of replica {token.replica_id}"


def _taken(body: bytes) -> tuple[bytes, bytes]:
    """A name with its length before it, and what follows."""
    size = int.from_bytes(body[:2])
    return body[2 : 2 + size], body[2 + size :]


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _checksum(body: bytes) -> bytes:
    return blake2b(body, digest_size=_CHECKSUM_BYTES, person=b"slotmesh-slot").digest()
