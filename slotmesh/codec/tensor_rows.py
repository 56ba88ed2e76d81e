"""What a batch method returned for the rows of many calls, taken apart: a value a call.

| returned, for n rows in all | each call gets |
|---|---|
| an array of n rows | its rows |
| a list of n entries | its entries: arrays stacked, maps of one row each put together by name |
| a map, a dataclass, a tuple of arrays or lists of n rows | its rows of each |

Invariants: a call gets the rows that it gave, in order. An exception among the entries of a call is what the call has
raised, and harms no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from slotmesh.codec.arrays import is_array, used_numpy
from slotmesh.codec.tensors import tensors_by_name


def split_rows(returned: Any, rows: Sequence[int]) -> Sequence[Any] | None:
    """A value, or an exception, for each call; `rows` is how many each has. None where the numbers do not agree."""
    total = sum(rows)
    if is_array(returned):
        return _of_array(returned, rows) if returned.ndim and len(returned) == total else None
    if isinstance(returned, list) or (isinstance(returned, tuple) and not _are_columns(returned, total)):
        if len(returned) != total:
            return None
        return [_of_entries(returned[begin:end]) for begin, end in _spans(rows)]
    if isinstance(returned, tuple):
        parts = [split_rows(each, rows) for each in returned]
        return [tuple(entry) for entry in zip(*(part for part in parts if part is not None), strict=True)]
    try:
        named = tensors_by_name(returned)
    except TypeError:
        return None
    columns = {name: _column(each, rows) for name, each in named.items()}
    if not columns or any(column is None for column in columns.values()):
        return None
    return [
        dict(zip(columns, entry, strict=True))
        for entry in zip(*(column for column in columns.values() if column is not None), strict=True)
    ]


def count_of(returned: Any) -> str:
    """How much was returned, for a person."""
    if is_array(returned):
        return f"an array of shape {tuple(returned.shape)}"
    if isinstance(returned, list | tuple):
        return f"a {type(returned).__name__} of {len(returned)}"
    if isinstance(returned, Mapping):
        told = ", ".join(f"{name}: {len(each) if hasattr(each, '__len__') else '?'}" for name, each in returned.items())
        return f"rows by name ({told})"
    return f"a {type(returned).__name__}"


def _column(value: Any, rows: Sequence[int]) -> Sequence[Any] | None:
    return split_rows(value, rows) if is_array(value) or isinstance(value, list) else None


def _are_columns(returned: tuple[Any, ...], total: int) -> bool:
    """Whether these are several outputs, and not an entry a row."""
    return bool(returned) and all(
        (is_array(each) and each.ndim and len(each) == total) or (isinstance(each, list) and len(each) == total)
        for each in returned
    )


def _of_array(array: Any, rows: Sequence[int]) -> Sequence[Any]:
    if rows[0] and rows.count(rows[0]) == len(rows):
        alike: Sequence[Any] = array.reshape(len(rows), rows[0], *array.shape[1:])
        return alike
    return [array[begin:end] for begin, end in _spans(rows)]


def _spans(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    ends = list(accumulate(rows))
    return zip([0, *ends], ends, strict=False)


def _of_entries(entries: Sequence[Any]) -> Any:
    """The value of one call whose rows these are."""
    if (raised := next((each for each in entries if isinstance(each, BaseException)), None)) is not None:
        return raised
    if entries and all(map(is_array, entries)):
        return _stacked(entries)
    if entries and all(isinstance(each, Mapping) for each in entries):
        names = entries[0].keys()
        if any(each.keys() != names for each in entries):
            return TypeError("the rows of one call have outputs of different names")
        return {name: _of_entries([each[name] for each in entries]) for name in names}
    return [each.item() if hasattr(each, "item") and not is_array(each) else each for each in entries]


def _stacked(entries: Sequence[Any]) -> Any:
    numpy: Any = used_numpy()
    try:
        return numpy.stack(entries)
    except ValueError as error:
        return TypeError(f"the rows of one call cannot be one tensor: {error}")
