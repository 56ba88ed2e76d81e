"""Tokens of slots: the replica that holds the slot, and the secret by which it knows the slot. Pure.

Purpose: any router finds the replica that granted a slot by its token alone, and tokens cannot be guessed.
Invariants: a token is printable and safe in URLs; what `format_token` writes, `parse_token` reads back; a text in which
a character was changed, added or lost is no token. (A checksum detects errors. It need not detect forgeries: without
the secret they open nothing.) A token is a secret: its `repr` does not show it, and messages have it `redacted`.
"""

from __future__ import annotations

import binascii
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

DEFAULT_LEASE_S: Final = 10.0
"""The default, for clients, routers and replicas."""
MAX_LEASE_S: Final = 300.0
"""Of one lease, and of a slot in all, renewed or not."""


SECRET_BYTES = 16
"""128 random bits, drawn by the replica for each slot."""
MAX_TOKEN_CHARS = 2048
"""Longer texts are not parsed."""
SHOWN_CHARS = 4
"""As much of a token as may be shown."""

_VERSION = 1
_CHECKSUM_BYTES = 4
_SECRET_AT = -SECRET_BYTES - _CHECKSUM_BYTES
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
"""The alphabet of URLs is another one than that of the standard library's C code."""
_FROM_STANDARD = bytes.maketrans(b"+/", b"-_")


class SlotToken(NamedTuple):
    """The content of a token."""

    replica_id: str
    incarnation: str
    secret: bytes
    """Known to the replica and to the caller that got the slot."""

    @property
    def replica_key(self) -> tuple[str, str]:
        """The incarnation of a replica that grants slots."""
        return self.replica_id, self.incarnation

    def __repr__(self) -> str:
        return f"SlotToken(replica_id={self.replica_id!r}, incarnation={self.incarnation!r})"


def format_token(replica_id: str, incarnation: str, secret: bytes) -> str:
    """The token of a slot of this replica.

    Raises:
        ValueError: the secret has another size, or the identity is too long.
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, got {len(secret)}")
    body = _head_of(replica_id, incarnation) + secret
    text = _encode(body + _checksum(body))
    if len(text) > MAX_TOKEN_CHARS:
        raise ValueError(f"replica id and incarnation make a token of {len(text)} characters, over {MAX_TOKEN_CHARS}")
    return text


def parse_token(text: str) -> SlotToken | None:
    """The content of the token; None if the text is no token."""
    if len(text) > MAX_TOKEN_CHARS:
        return None
    try:
        raw = binascii.a2b_base64(text.encode("ascii").translate(_TO_STANDARD) + b"=" * (-len(text) % 4))
    except (UnicodeEncodeError, binascii.Error):
        return None
    # The decoder passes over much, and there may be bits that nothing reads: only one way to write a token is right.
    if _encode(raw) != text or _checksum(raw[:-_CHECKSUM_BYTES]) != raw[-_CHECKSUM_BYTES:]:
        return None
    replica = _replica_of(raw[:_SECRET_AT])
    if replica is None:
        return None
    return SlotToken(*replica, raw[_SECRET_AT:-_CHECKSUM_BYTES])


def redacted(text: str) -> str:
    """As much of a token as logs, spans and errors may show."""
    token = parse_token(text)
    shown = f"{text[:SHOWN_CHARS]}…" if len(text) > SHOWN_CHARS else text
    return shown if token is None else f"{shown} of replica {token.replica_id}"


@lru_cache(maxsize=64)
def _head_of(replica_id: str, incarnation: str) -> bytes:
    """A token's first bytes: version and names. A replica has one."""
    names = [name.encode() for name in (replica_id, incarnation)]
    return bytes([_VERSION]) + b"".join(len(name).to_bytes(2) + name for name in names)


@lru_cache(maxsize=4096)
def _replica_of(head: bytes) -> tuple[str, str] | None:
    """Replica id and incarnation, by a token's first bytes; None if they are not those of a token."""
    if head[:1] != bytes([_VERSION]):
        return None
    replica_id, rest = _taken(head[1:])
    incarnation, rest = _taken(rest)
    try:
        names = replica_id.decode(), incarnation.decode()
    except UnicodeDecodeError:
        return None
    return names if _head_of(*names) == head else None


def _taken(body: bytes) -> tuple[bytes, bytes]:
    """A name with its length before it, and what follows."""
    size = int.from_bytes(body[:2])
    return body[2 : 2 + size], body[2 + size :]


def _encode(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).rstrip(b"=").translate(_FROM_STANDARD).decode()


def _checksum(body: bytes) -> bytes:
    return blake2b(body, digest_size=_CHECKSUM_BYTES, person=b"slotmesh-slot").digest()
