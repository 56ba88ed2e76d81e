"""Lines of a container's log, as reads that break and begin anew put them together."""

from __future__ import annotations

import pytest

from controller_service.core.pods.log_lines import LONGEST_LINE_BYTES, StampedLines

STAMPS = [
    "2026-11-29T12:00:00.000000001Z",
    "2026-11-29T12:00:00.1Z",  # some runtimes leave zeros out
    "2026-11-29T12:00:00.100000000Z",
    "2026-11-29T13:00:00.100000001+01:00",
    "2026-11-29T12:00:01Z",
    "2026-11-29T12:00:01.000000000Z",
]
LINES = [f"{stamp} {number}\n".encode() for number, stamp in enumerate(STAMPS)]
ALL = [str(it).encode() for it in range(len(LINES))]


@pytest.mark.parametrize("broken_after", range(sum(map(len, LINES)) + 1))
def test_each_line_is_taken_once_wherever_the_read_breaks(broken_after: int) -> None:
    """The second read begins with the first line of the second from which it is asked for."""
    lines = StampedLines()
    found = lines.feed(b"".join(LINES)[:broken_after])
    lines.resume()
    again = [it for it in LINES if it[17:19] >= lines.since[17:19].encode()]
    for piece in again:
        found += lines.feed(piece)
    assert found == ALL


def test_lines_that_come_byte_by_byte_are_the_same() -> None:
    lines, found = StampedLines(), list[bytes]()
    for at in range(len(b"".join(LINES))):
        found += lines.feed(b"".join(LINES)[at : at + 1])
    assert (found, lines.since) == (ALL, STAMPS[-1])


def test_a_clock_that_goes_back_hides_no_line() -> None:
    lines = StampedLines()
    assert lines.feed(LINES[5] + LINES[0]) == [b"5", b"0"]
    lines.resume()
    assert lines.feed(LINES[0] + LINES[1] + LINES[0]) == [b"1", b"0"]


def test_a_line_without_an_end_is_taken_in_pieces_and_at_the_end() -> None:
    lines = StampedLines()
    begin = LINES[0].rstrip() + b"x" * (LONGEST_LINE_BYTES + 100)
    assert lines.feed(begin) == [b"0" + b"x" * (LONGEST_LINE_BYTES + 100)]
    assert lines.feed(b"rest\n" + LINES[1][:-1]) == [b"rest"]
    assert lines.end() == [b"1"]
    assert lines.end() == []


@pytest.mark.parametrize("at", range(4))
def test_no_piece_of_a_line_without_an_end_divides_a_character(at: int) -> None:
    lines, text = StampedLines(), "x" * at + "é🙂" * 2_000
    stamped, found = f"{STAMPS[0]} {text}\n".encode(), list[bytes]()
    for begin in range(0, len(stamped), 1_001):
        found += lines.feed(stamped[begin : begin + 1_001])
    assert len(found) > 1
    assert "".join(it.decode() for it in found) == text


def test_the_rest_of_a_long_line_that_was_begun_before_a_break_is_left_out() -> None:
    lines = StampedLines()
    begin = LINES[0].rstrip() + b"x" * (LONGEST_LINE_BYTES + 100)
    lines.feed(begin)
    lines.resume()
    assert lines.feed(begin) == []
    assert lines.feed(b"rest\n" + LINES[1]) == [b"1"]


def test_text_without_a_time_is_a_line() -> None:
    assert StampedLines().feed(b"unable to retrieve container logs\n\n") == [b"unable to retrieve container logs", b""]
