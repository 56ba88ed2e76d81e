"""Lines of a container's log, each behind its time, as a read that begins anew continues behind the last one.

The API server takes the time from which it sends lines in whole seconds, so it repeats lines that were taken: they are
known by their times, and by how many had the newest one. Times are compared for that only: a clock may go back.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, TypeAlias

LONGEST_LINE_BYTES: Final = 8_192
"""What a longer line has beyond is taken in pieces: a read that breaks in the middle of it loses the rest."""
_STAMP_BYTES: Final = 40
_Moment: TypeAlias = tuple[float, str]
"""Seconds since 1970, and the digits behind the point."""


class StampedLines:
    """What one container has written, as far as it was fed."""

    def __init__(self) -> None:
        self.since = ""
        """The time of the newest line, from which to read on; empty: there was none."""
        self._newest: _Moment = (0.0, "")
        self._newest_count = 0
        self._begun = b""
        self._is_inside = False
        """A piece of the present line was taken, or left out."""
        self._leaves_out = False
        """That line was taken before."""
        self._known = 0
        """Lines of the newest time that will be repeated."""
        self._resumes = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are new, without their times and ends."""
        *whole, rest = (self._begun + data).split(b"\n")
        found: list[bytes] = []
        for line in whole:
            self._take(line, found)
            self._is_inside = False
        if len(rest) > LONGEST_LINE_BYTES + _STAMP_BYTES:
            cut = len(rest) if rest[-1] < 0x80 else end_of_character(rest, len(rest) - 4)
            self._take(rest[:cut], found)
            self._is_inside, rest = True, rest[cut:]
        self._begun = rest
        return found

    def resume(self) -> None:
        """Reading begins anew, from `since` on."""
        self._begun, self._is_inside = b"", False
        self._resumes, self._known = True, self._newest_count

    def end(self) -> list[bytes]:
        """A line that has begun, and will not end."""
        found: list[bytes] = []
        if self._begun:
            self._take(self._begun, found)
        self._begun = b""
        return found

    def _take(self, line: bytes, found: list[bytes]) -> None:
        if self._is_inside:
            if not self._leaves_out:
                found.append(line)
            return
        stamp, _, text = line.partition(b" ")
        moment = _moment(stamp)
        self._leaves_out = moment is not None and self._was_taken(moment)
        if self._leaves_out:
            return
        if moment is None:
            found.append(line)
            return
        self._newest_count = self._newest_count + 1 if moment == self._newest else 1
        self._newest, self.since, self._resumes = moment, stamp.decode(), False
        found.append(text)

    def _was_taken(self, moment: _Moment) -> bool:
        if not self._resumes:
            return False
        if moment == self._newest and self._known:
            self._known -= 1
            return True
        return moment < self._newest


def end_of_character(text: bytes, at: int) -> int:
    """Where to cut UTF-8 at `at`, or up to three bytes before it, so that no character is divided."""
    return next((end for end in range(at, max(0, at - 4), -1) if text[end] & 0xC0 != 0x80), at)


def _moment(stamp: bytes) -> _Moment | None:
    """Of a time as RFC 3339 has it, with any number of digits behind the point; None if it is none."""
    head, _, rest = stamp.decode(errors="replace").partition(".")
    digits = rest[: next((at for at, it in enumerate(rest) if not it.isdigit()), len(rest))]
    try:
        return datetime.fromisoformat(f"{head}{rest[len(digits) :]}").timestamp(), digits.ljust(9, "0")
    except ValueError:
        return None
