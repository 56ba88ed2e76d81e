"""Many calls of a batch method at once: what they are given, and what it costs."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from slotmesh.codec import (
    JSON,
    MSGPACK,
    OCTET_STREAM,
    ArgumentsDecoder,
    Columns,
    ColumnsDecoder,
    Flaw,
    encode_arguments,
    encode_arguments_of_each,
    encode_each,
)
from slotmesh.errors import Reason
from tests.support.python_calls import calls_to_python


class Handler:
    def rows(self, rows: np.ndarray) -> None: ...

    def floats(self, rows: NDArray[np.float32]) -> None: ...

    def family(self, rows: NDArray[np.floating[Any]]) -> None: ...

    def maybe(self, rows: NDArray[np.float32] | None = None) -> None: ...

    def two(self, rows: np.ndarray, names: list[str], *, scale: np.ndarray | None = None) -> None: ...

    def numbers(self, numbers: list[int], factors: list[int] | int = 2) -> None: ...

    def arrays(self, arrays: list[np.ndarray]) -> None: ...

    def more(self, rows: np.ndarray, *more: list[int]) -> None: ...

    def octets(self, payloads: list[bytes]) -> None: ...


def columns_of(name: str) -> ColumnsDecoder:
    arguments = ArgumentsDecoder.for_handler(getattr(Handler(), name), batched=True)
    return ColumnsDecoder(arguments, takes_bytes=name == "octets")


def given(name: str, content_type: str, payloads: list[bytes]) -> list[Any]:
    """What the method is given for each piece; failures by their message."""
    columns = columns_of(name)
    return [
        piece.failure.message if isinstance(piece, Flaw) else columns.passed(piece.args, piece.named)
        for piece in columns.split(content_type, payloads)
    ]


def array_in(name: str, content_type: str, payloads: list[bytes]) -> NDArray[Any]:
    """The one array that all calls together become."""
    ((args, named),) = given(name, content_type, payloads)
    assert len(args) == 1
    assert not named
    assert isinstance(args[0], np.ndarray)
    assert args[0].flags.c_contiguous
    assert args[0].flags.aligned
    assert args[0].flags.writeable
    return args[0]


ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("name", ["rows", "floats", "family", "maybe"])
def test_arrays_become_one_with_a_row_a_call(name: str) -> None:
    array = array_in(name, MSGPACK, encode_arguments_of_each(MSGPACK, [ROWS]))
    assert array.dtype == np.float32
    assert np.array_equal(array, ROWS)


def test_rows_have_any_number_of_dimensions() -> None:
    for array in (np.arange(24).reshape(2, 3, 4), np.zeros((2, 0)), np.zeros((2, 3, 0))):
        arrived = array_in("rows", MSGPACK, encode_arguments_of_each(MSGPACK, [array]))
        assert np.array_equal(arrived, array)
        assert arrived.shape == array.shape
        assert arrived.dtype == array.dtype


def test_octets_of_equal_length_are_rows() -> None:
    assert np.array_equal(array_in("rows", OCTET_STREAM, [b"\x01\x02", b"\x03\x04"]), [[1, 2], [3, 4]])
    assert np.array_equal(array_in("floats", OCTET_STREAM, [row.tobytes() for row in ROWS]), ROWS)
    assert array_in("rows", OCTET_STREAM, [b"", b""]).shape == (2, 0)


def test_numbers_and_lists_of_numbers_are_rows() -> None:
    for values in ([1.5, 2.5], [[1.5, 2.0], [3.0, float("inf")]], [[1.5] * 20] * 2, [[1.5] * 70_000] * 2):
        array = array_in("rows", MSGPACK, encode_arguments_of_each(MSGPACK, [values]))
        assert array.dtype == np.float64
        assert np.array_equal(array, values)
    assert array_in("floats", MSGPACK, encode_arguments_of_each(MSGPACK, [[1.5, 2.5]])).dtype == np.float32


def test_what_is_no_number_by_itself_is_taken_one_by_one_and_put_together_all_the_same() -> None:
    columns = columns_of("rows")
    pieces = list(columns.split(JSON, [b"[1.0]", b"[2.5]", b'{"rows": 3.0}']))
    assert [isinstance(piece, Columns) and piece.size for piece in pieces] == [1, 1, 1]
    assert len({piece.shape for piece in pieces if isinstance(piece, Columns)}) == 1
    blocks = [piece.args[0][0] for piece in pieces if isinstance(piece, Columns)]
    (array,), _ = columns.passed([blocks], {})
    assert array.tolist() == [1.0, 2.5, 3.0]


def test_integers_do_not_become_floats_because_of_their_neighbours() -> None:
    large = 2**53 + 1  # no float
    one = encode_arguments(MSGPACK, (np.array([large]),), {})
    other = encode_arguments(MSGPACK, (np.array([0.5]),), {})
    pieces = [piece for piece in columns_of("rows").split(MSGPACK, [one, other]) if isinstance(piece, Columns)]
    assert pieces[0].shape != pieces[1].shape
    assert pieces[0].args[0][0].tolist() == [[large]]


def test_more_arguments_than_parameters_are_all_there() -> None:
    assert given("more", MSGPACK, [encode_arguments(MSGPACK, (np.ones(2), 7, 8), {})])[0][0][1:] == [[7], [8]]


def test_a_single_row_is_aligned_wherever_it_was_in_its_payload() -> None:
    data = b"\x03<f8\x01" + (4).to_bytes(4, "big") + b"\0" + np.arange(4.0).tobytes()
    array = array_in("rows", MSGPACK, [msgspec.msgpack.encode([msgspec.msgpack.Ext(78, data)])])
    assert array.tolist() == [[0.0, 1.0, 2.0, 3.0]]
    assert array.flags.aligned
    assert array.flags.writeable


def test_rows_that_differ_are_kept_apart() -> None:
    columns = columns_of("rows")
    payloads = [
        *encode_arguments_of_each(MSGPACK, [[np.zeros(2), np.zeros(2), np.zeros(3)]]),
        encode_arguments(MSGPACK, (np.zeros(2, np.float32),), {}),
    ]
    shapes = [piece.shape for piece in columns.split(MSGPACK, payloads) if isinstance(piece, Columns)]
    assert shapes[0] == shapes[1]
    assert len(set(shapes)) == 3


def test_an_unsound_call_fails_alone_and_is_named() -> None:
    payloads = encode_arguments_of_each(MSGPACK, [[1.0, "x", [2.0, None]]])
    (first, _), second, third = given("rows", MSGPACK, payloads)
    assert first[0].tolist() == [1.0]
    assert second == "args[0]: expected ndarray, got str; it takes rows(rows)"
    assert third == "args[0][1]: expected a number, got NoneType; it takes rows(rows)"
    assert given("floats", OCTET_STREAM, [b"1234", b"12345"])[1].startswith("args[0]: expected 4 bytes")
    assert "gives bytes" in given("family", OCTET_STREAM, [b"1234"])[0]
    flaw = next(iter(columns_of("rows").split("text/plain", [b""])))
    assert isinstance(flaw, Flaw)
    assert flaw.failure.reason is Reason.BAD_REQUEST
    assert list(columns_of("rows").split(MSGPACK, [])) == []


def test_one_that_is_unsound_costs_few_others_the_short_way() -> None:
    payloads = encode_arguments_of_each(MSGPACK, [np.arange(1000.0).reshape(500, 2)])
    payloads[123] = payloads[123][:-1]
    pieces = list(columns_of("rows").split(MSGPACK, payloads))
    sizes = [piece.size if isinstance(piece, Columns) else 1 for piece in pieces]
    assert sum(sizes) == 500
    assert len(sizes) < 32
    assert [sum(sizes[:index]) for index, piece in enumerate(pieces) if isinstance(piece, Flaw)] == [123]
    rows = [row for piece in pieces if isinstance(piece, Columns) for row in piece.args[0][0]]
    assert np.array_equal(rows, np.delete(np.arange(1000.0).reshape(500, 2), 123, axis=0))


def test_arrays_and_lists_go_side_by_side() -> None:
    columns = columns_of("two")
    payloads = [
        encode_arguments(MSGPACK, (ROWS[0], "a"), {}),
        encode_arguments(MSGPACK, (), {"rows": ROWS[1], "names": "b"}),
        encode_arguments(MSGPACK, (), {"rows": ROWS[2], "names": "c", "scale": 2.0}),
        encode_arguments(MSGPACK, (), {"rows": ROWS[2], "names": "d", "scale": "x"}),
    ]
    first, second, third, flaw = columns.split(MSGPACK, payloads)
    assert isinstance(first, Columns)
    assert isinstance(second, Columns)
    assert isinstance(third, Columns)
    assert first.shape == second.shape != third.shape
    args, named = columns.passed([[*first.args[0], *second.args[0]], [*first.args[1], *second.args[1]]], {})
    assert np.array_equal(args[0], ROWS[:2])
    assert args[1] == ["a", "b"]
    args, named = columns.passed(third.args, third.named)
    assert np.array_equal(args[0], ROWS[2:])
    assert args[0].flags.writeable  # though the payload is not
    assert named["scale"].tolist() == [2.0]
    assert isinstance(flaw, Flaw)
    assert flaw.failure.message.startswith("scale: expected ndarray, got str")


def test_items_become_lists() -> None:
    assert given("numbers", MSGPACK, [b"\x91\x01", b"\x91\x02"]) == [([[1, 2]], {})]
    assert given("numbers", JSON, [b"[1]", b"[2]"]) == [([[1, 2]], {})]
    assert given("numbers", JSON, [b"[1]", b"[2, 3]"]) == [([[1]], {}), ([[2], [3]], {})]
    assert given("octets", OCTET_STREAM, [b"a", b"b"]) == [([[b"a", b"b"]], {})]
    assert given("numbers", JSON, [b"[1]", b'["x"]'])[1].startswith("args[0]: expected int, got str")


def test_a_list_of_arrays_has_them_as_they_came() -> None:
    ((args, _),) = given("arrays", MSGPACK, encode_arguments_of_each(MSGPACK, [ROWS]))
    assert isinstance(args[0], list)
    assert all(np.array_equal(array, row) for array, row in zip(args[0], ROWS, strict=True))
    assert not any(array.flags.writeable for array in args[0])
    ((args, _),) = given("arrays", MSGPACK, encode_arguments_of_each(MSGPACK, [[np.array(1.0), np.array(2.0)]]))
    assert [array.shape for array in args[0]] == [(), ()]


@pytest.mark.parametrize(
    ("name", "content_type", "make"),
    [
        ("rows", MSGPACK, lambda rows: encode_arguments_of_each(MSGPACK, [rows])),
        ("floats", MSGPACK, lambda rows: encode_arguments_of_each(MSGPACK, [rows])),
        ("floats", MSGPACK, lambda rows: encode_arguments_of_each(MSGPACK, [rows.tolist()])),
        ("rows", MSGPACK, lambda rows: encode_arguments_of_each(MSGPACK, [rows[:, 0].tolist()])),
        ("floats", OCTET_STREAM, lambda rows: encode_arguments_of_each(OCTET_STREAM, [rows])),
        ("octets", OCTET_STREAM, lambda rows: encode_arguments_of_each(OCTET_STREAM, [rows])),
        ("arrays", MSGPACK, lambda rows: encode_arguments_of_each(MSGPACK, [rows])),
        ("numbers", MSGPACK, lambda rows: encode_arguments_of_each(MSGPACK, [list(range(len(rows)))])),
    ],
)
def test_a_frame_costs_as_many_steps_in_python_however_long_it_is(name: str, content_type: str, make: Any) -> None:
    columns = columns_of(name)

    def steps(count: int) -> int:
        payloads = make(np.ones((count, 4), np.float32))

        def run() -> None:
            (piece,) = columns.split(content_type, payloads)
            assert isinstance(piece, Columns)
            columns.passed(piece.args, piece.named)

        run()
        return calls_to_python(run)

    assert steps(1000) == steps(2) < 60


@pytest.mark.parametrize("content_type", [MSGPACK, OCTET_STREAM])
def test_results_cost_as_many_steps_in_python_however_many_they_are(content_type: str) -> None:
    def steps(count: int) -> int:
        rows = np.ones((count, 4), np.float32)
        return calls_to_python(lambda: encode_each(content_type, rows)) + calls_to_python(
            lambda: encode_each(content_type, rows[:, 0])
        )

    steps(2)
    # A comprehension is a call of its own.
    assert steps(1000) == steps(2) < 60


@dataclasses.dataclass
class Leaver:
    x: int

    def __post_init__(self) -> None:
        if self.x < 0:
            raise SystemExit("no more")


def leavers(them: list[Leaver]) -> None: ...


@pytest.mark.parametrize("content_type", [MSGPACK, JSON])
def test_one_that_would_end_the_process_fails_alone(content_type: str) -> None:
    columns = ColumnsDecoder(ArgumentsDecoder.for_handler(leavers, batched=True), takes_bytes=False)
    payloads = [encode_arguments(content_type, ({"x": x},), {}) for x in (1, -1, 2)]
    first, flaw, last = columns.split(content_type, payloads)
    assert isinstance(first, Columns)
    assert isinstance(last, Columns)
    assert (*first.args, *last.args) == ([Leaver(1)], [Leaver(2)])
    assert isinstance(flaw, Flaw)
    assert "SystemExit: no more" in flaw.failure.message


def one_number(number: int) -> None: ...


def one_mapping(mapping: dict) -> None: ...  # type: ignore[type-arg]


def nothing() -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (one_number, r"number is annotated int, .* write list\[int\]"),
        (one_mapping, r"mapping is annotated dict"),
        (nothing, "needs a parameter at least"),
    ],
)
def test_a_batch_method_must_take_lists(function: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ArgumentsDecoder.for_handler(function, batched=True)
    ArgumentsDecoder.for_handler(function)
