"""Calls of a batch method as the columns that it takes: lists of items, or arrays with a row a call.

Purpose: a whole slice of a frame becomes columns in a few operations, whatever its length; only if its calls differ in
form, or one of them is invalid, they are converted one by one.
Calls with tensors have rows, one or many: each column has an entry for each row, and `Columns.rows` the number of rows
of each call.
Invariants: each call gets the arguments that it would get alone; an invalid one becomes a `Flaw`, and does not affect
the others. Calls in one `Columns` give their arguments in the same way (`shape`), and so may those of several whose
shapes are equal; others must not be passed together.
Owner: made with the method; it has no state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from slotmesh.codec.arguments import ArgumentsDecoder
from slotmesh.codec.arrays import used_numpy
from slotmesh.codec.content_types import JSON, MSGPACK, OCTET_STREAM, TENSORS, DecodeError
from slotmesh.codec.rows import SMALL, arrays_in, rows_of_bytes, rows_of_msgpack
from slotmesh.codec.structured import row_decoder
from slotmesh.codec.tensor_arguments import rows_in
from slotmesh.codec.tensors import map_head, name_head
from slotmesh.codec.types.array_types import array_type
from slotmesh.errors import Failure
from slotmesh.user_code import each

if TYPE_CHECKING:
    from slotmesh.codec.arrays import Array

_FEW: Final = 16
"""Calls that are taken one by one where they cannot be taken together."""
_ONE_ARGUMENT: Final = b"\x91"
_ONE: Final[Hashable] = (1, (), ())


class Columns(NamedTuple):
    """Neighbouring calls that give their arguments in the same way."""

    size: int
    """Calls."""
    shape: Hashable
    args: Sequence[list[Any]]
    """A list for each positional argument: an item a call, or, where the method takes an array, arrays of rows."""
    named: Mapping[str, list[Any]]
    rows: Sequence[int] = ()
    """Of calls with tensors, how many entries each has; empty: one a call."""


class Flaw(NamedTuple):
    """A call that cannot be executed."""

    failure: Failure


class ColumnsDecoder:
    """Makes columns for one batch method."""

    __slots__ = ("_arguments", "_each", "_lead", "_rows", "_single", "_stacked", "_takes_bytes")

    def __init__(self, arguments: ArgumentsDecoder, *, takes_bytes: bool) -> None:
        """`takes_bytes`: an octet-stream is the one argument as it is."""
        signature = arguments.signature
        self._arguments = arguments
        self._takes_bytes = takes_bytes
        self._stacked = frozenset(it.name for it in signature.parameters if it.stacked is not None)
        only = signature.parameters[0] if len(signature.parameters) == 1 else None
        self._single = only.stacked if only is not None and only.positional else None
        """Of a method that takes one array and nothing else."""
        self._lead = map_head(1) + name_head(only.name) if only is not None else b""
        """How its tensor begins."""
        self._each = array_type(only.wanted) if only is not None and only.positional else None
        """Of a method that takes a list of arrays and nothing else."""
        self._rows: dict[str, Callable[[bytes], tuple[Any, ...]]] = {}
        if not self._stacked:
            for content_type in (JSON, MSGPACK):
                if (decode := row_decoder(signature, content_type)) is not None:
                    self._rows[content_type] = decode

    def split(self, content_type: str, payloads: Sequence[bytes]) -> Iterator[Columns | Flaw]:
        """The calls with these payloads, in order: all together if possible. Columns may be kept, the list is.

        Each item is for as many calls as it states, a flaw for one.
        """
        if not payloads:
            return
        if content_type == TENSORS and (blocks := self._concatenated(payloads)) is not None:
            yield blocks
            return
        args = self._together(content_type or OCTET_STREAM, payloads)
        if args is not None:
            key = _ONE if self._single is None else (1, (), (_form(args[0][0]),))
            shape = key if len(args) == 1 else (len(args), (), ())
            yield Columns(len(payloads), shape, args, {})
            return
        if len(payloads) > _FEW:  # so that one of another form, or an unsound one, costs its neighbours little
            middle = len(payloads) // 2
            yield from self.split(content_type, payloads[:middle])
            yield from self.split(content_type, payloads[middle:])
            return
        for payload in payloads:
            try:
                given, named = self._arguments.decode(content_type, payload)
            except DecodeError as error:
                yield Flaw(error.failure)
            else:
                yield self.of_one(given, named, content_type)

    def of_one(self, args: tuple[Any, ...], named: Mapping[str, Any], content_type: str = MSGPACK) -> Columns | Flaw:
        """A call whose arguments `ArgumentsDecoder` has decoded."""
        if content_type == TENSORS:
            return self._rows_of_one(args, named)
        if not self._stacked:
            shape = (len(args), tuple(named), ())
            return Columns(1, shape, [[value] for value in args], {name: [value] for name, value in named.items()})
        parameters = self._arguments.signature.positional
        stacked = [index for index, it in enumerate(parameters[: len(args)]) if it.stacked is not None]
        columns = [[value[None] if index in stacked else value] for index, value in enumerate(args)]
        by_name = {name: [value[None] if name in self._stacked else value] for name, value in named.items()}
        forms = (
            *(_form(columns[index][0]) for index in stacked),
            *(_form(by_name[name][0]) for name in named if name in self._stacked),
        )
        return Columns(1, (len(args), tuple(named), forms), columns, by_name)

    def _rows_of_one(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> Columns | Flaw:
        """A call with tensors, whose arguments are whole blocks of rows."""
        try:
            rows = rows_in((args, named), self._arguments.signature)
        except DecodeError as error:
            return Flaw(error.failure)
        names = [each.name for each in self._arguments.signature.parameters[: len(args)]]
        is_block = [name in self._stacked for name in (*names, *named)]
        values = (*args, *named.values())
        forms = tuple(_form(value) for value, stacked in zip(values, is_block, strict=True) if stacked)
        columns = [[value] if stacked else list(value) for value, stacked in zip(values, is_block, strict=True)]
        by_name = dict(zip(named, columns[len(args) :], strict=True))
        return Columns(1, (TENSORS, len(args), tuple(named), forms), columns[: len(args)], by_name, (rows,))

    def _concatenated(self, payloads: Sequence[bytes]) -> Columns | None:
        """Tensors of one shape for a method that takes one array, in one; None if they must be looked at singly."""
        wanted = self._single
        if wanted is None:
            return None
        try:
            blocks = rows_of_msgpack(payloads, self._lead)
            if blocks is None or blocks.ndim < 2:
                return None
            blocks = wanted.fit(blocks)
        except Exception:  # noqa: BLE001 - some do not fit, or are too many: find out which
            return None
        each = blocks.shape[1]
        rows = blocks.reshape(len(payloads) * each, *blocks.shape[2:])
        shape = (TENSORS, 1, (), (_form(rows),))
        return Columns(len(payloads), shape, ([rows],), {}, [each] * len(payloads))

    def passed(self, args: Sequence[list[Any]], named: Mapping[str, list[Any]]) -> tuple[list[Any], dict[str, Any]]:
        """What the method is given for columns that were put together: as they are, or one array for many."""
        if not self._stacked:
            return list(args), dict(named)
        parameters = self._arguments.signature.positional[: len(args)]  # fewer than there are, with `*args`
        return (
            [
                _joined(column) if it is not None and it.stacked is not None else column
                for it, column in zip_longest(parameters, args)
            ],
            {name: _joined(column) if name in self._stacked else column for name, column in named.items()},
        )

    def _together(self, content_type: str, payloads: Sequence[bytes]) -> Sequence[list[Any]] | None:
        if self._single is not None:
            return self._stack(content_type, payloads)
        if self._takes_bytes and content_type == OCTET_STREAM:
            return (payloads if isinstance(payloads, list) else list(payloads),)
        decode = self._rows.get(content_type)
        if decode is None:
            return None
        try:
            if self._each is not None and content_type == MSGPACK and len(payloads[0]) <= SMALL:
                stacked = rows_of_msgpack(payloads, _ONE_ARGUMENT)
                if stacked is not None and (arrays := arrays_in(self._each.fit(stacked))) is not None:
                    return (arrays,)
            rows = each(decode, payloads)
        except BaseException:  # noqa: BLE001 - some are invalid, or a user's type raises: the caller finds which
            return None
        return list(map(list, zip(*rows, strict=True)))

    def _stack(self, content_type: str, payloads: Sequence[bytes]) -> Sequence[list[Any]] | None:
        wanted = self._single
        if wanted is None:
            return None
        try:
            if content_type == OCTET_STREAM:
                rows = None if wanted.names_no_dtype else rows_of_bytes(payloads, wanted)
            elif content_type == MSGPACK:
                rows = rows_of_msgpack(payloads, _ONE_ARGUMENT)
                rows = None if rows is None else wanted.fit(rows)
            else:
                rows = None
        except Exception:  # noqa: BLE001 - some do not fit, or are too many: find out which
            return None
        return None if rows is None else ([rows],)


def _form(rows: Array) -> Hashable:
    """What rows must have in common to come in one array, without a change to any of them."""
    return rows.dtype.str, rows.shape[1:]


def _joined(blocks: list[Any]) -> Any:
    numpy: Any = used_numpy()
    rows = blocks[0] if len(blocks) == 1 else numpy.concatenate(blocks)
    return rows if rows.flags.writeable and rows.flags.aligned else rows.copy()
