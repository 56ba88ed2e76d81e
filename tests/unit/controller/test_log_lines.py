"""The ring of lines against a naive one: whatever pieces the output comes in, and whatever its size."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from controller_service.shell.replica_logs import MAX_LINE_BYTES, LogLines
from tests.support.examples import examples


def of(*pieces: bytes, kept_bytes: int = 1 << 20) -> LogLines:
    lines = LogLines(kept_bytes)
    for piece in pieces:
        lines.feed(piece)
    return lines


@settings(max_examples=examples(250), deadline=None)
@given(st.lists(st.binary(max_size=30).map(lambda data: data.replace(b"\r", b"")), max_size=20), st.integers(0, 30))
def test_pieces_make_no_difference(pieces: list[bytes], number: int) -> None:
    lines, whole = of(*pieces), b"".join(pieces)
    naive = [line.decode(errors="replace") for line in whole.split(b"\n")[:-1]]
    assert lines.tail(1_000) == naive
    assert lines.end_number == len(naive)
    assert lines.since(number) == (0, naive[number:])
    lines.end()
    rest = whole.split(b"\n")[-1]
    assert lines.tail(1_000) == [*naive, *([rest.decode(errors="replace")] if rest else [])]


@settings(max_examples=examples(250), deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(0, 70))
def test_the_newest_are_kept_and_what_is_gone_is_counted(sizes: list[int], number: int) -> None:
    texts = [f"{at}:" + "x" * size for at, size in enumerate(sizes)]
    lines = of(*(f"{text}\n".encode() for text in texts), kept_bytes=500)
    kept = lines.tail(1_000)
    assert kept == texts[len(texts) - len(kept) :]
    assert len(kept) == 1 or sum(64 + len(text) for text in kept) <= 500
    missed, since = lines.since(number)
    assert since == kept[max(0, number - (len(texts) - len(kept))) :]
    assert missed == max(0, len(texts) - len(kept) - number)


def test_a_line_without_end_becomes_several() -> None:
    lines = of(b"x" * MAX_LINE_BYTES, b"y" * (MAX_LINE_BYTES + 1), b"\n" + b"z" * (2 * MAX_LINE_BYTES) + b"!\n")
    assert [line[:1] for line in lines.tail(10)] == ["x", "y", "y", "z", "z", "!"]
    assert all(len(line) <= MAX_LINE_BYTES for line in lines.tail(10))
    assert lines.tail(0) == []
