"""What an authority has issued, and taken back: a line each.

Purpose: all that somebody has can be taken back, lost certificates included; and a list of what was taken back is made
again where it is lost.

Invariants: lines are appended, whole ones at once, and never changed. There is nothing secret in them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
from cryptography import x509

from slotmesh.security.tls.errors import BadTls

SUFFIX: Final = ".issued"
"""In place of the `.key` of the authority's key."""


class Issued(msgspec.Struct, frozen=True, kw_only=True):
    """One certificate."""

    identity: str
    """Its URI."""
    serial: str
    """In hexadecimal digits: JSON has no integers of this size."""
    until: Annotated[datetime, msgspec.Meta(tz=True)]
    revoked: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """When it was taken back, in a line of its own behind that of its issue."""

    @classmethod
    def of(cls, certificate: x509.Certificate, identity: str = "") -> Issued:
        """The line of this certificate."""
        serial, until = f"{certificate.serial_number:x}", certificate.not_valid_after_utc
        return cls(identity=identity, serial=serial, until=until)

    @property
    def serial_number(self) -> int:
        return int(self.serial, 16)


@dataclass(frozen=True, slots=True)
class IssuedRecord:
    """The file."""

    path: Path

    @classmethod
    def beside(cls, key_path: Path) -> IssuedRecord:
        """That of the authority with this key."""
        return cls(key_path.with_name(key_path.name.removesuffix(".key") + SUFFIX))

    @property
    def is_there(self) -> bool:
        """Not where an earlier version has issued all that there is."""
        return self.path.exists()

    def add(self, *entries: Issued) -> None:
        """Raises BadTls."""
        if not entries:
            return
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                # A line that was torn before stays alone.
                file.write(b"".join(b"\n" + msgspec.json.encode(each) + b"\n" for each in entries))
                file.flush()
                os.fsync(descriptor)
        except OSError as error:
            raise BadTls(f"{self.path}: cannot be written: {error.strerror}") from None

    def of(self, identity: str, now: datetime | None = None) -> list[Issued]:
        """Those of this identity that have not ended, the newest last.

        Raises:
            BadTls: the file cannot be read.
        """
        now = datetime.now(UTC) if now is None else now
        found = (each for each in self._entries() if each.identity == identity and each.until > now)
        return [each for each in found if each.revoked is None]

    def revoked(self, now: datetime) -> list[Issued]:
        """What was taken back and has not ended. Raises BadTls."""
        return [each for each in self._entries() if each.revoked is not None and each.until > now]

    def _entries(self) -> Iterator[Issued]:
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            raise BadTls(f"{self.path}: cannot be read: {error.strerror}") from None
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                entry = msgspec.json.decode(line, type=Issued)
                if entry.serial_number <= 0:
                    raise ValueError
            except (msgspec.MsgspecError, ValueError):
                raise BadTls(
                    f"{self.path}: line {number} is no record of a certificate: mend it, or take it out"
                ) from None
            yield entry
