"""The order in which the processes of pytest-xdist run the tests, so that all of them end at about the same time.

`--dist worksteal` gives each process an equal part of the tests, in their order; a process that has none left takes
half of what another one has, from its end. So each part begins with what takes long and ends with what takes
milliseconds, and folders whose tests share something costly begin in one part, where nothing is taken from them.
Tests with processes of their own begin in every other part only: they need processors that answer soon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final, TypeVar

ItemT = TypeVar("ItemT")

PROCESSES: Final = ("kube", "compat", "e2e")
"""Folders whose tests start processes, in the order in which they begin."""
QUICK: Final = frozenset({"fuzz", "mutants", "properties", "unit"})
"""Folders whose tests end each part."""
UNDIVIDED: Final = frozenset({"arch", "kube"})
"""Their tests share syntax trees, or a control plane of Kubernetes."""


def ordered(items: Sequence[ItemT], file_of: Callable[[ItemT], Sequence[str]], parts: int) -> list[ItemT]:
    """The items, for `parts` processes. `file_of`: the parts of the path of its file, below tests/."""
    lists: list[list[ItemT]] = [[] for _ in range(parts)]
    of_folder: dict[str, list[list[ItemT]]] = {}
    for file, found in groupby(items, key=file_of):
        of_folder.setdefault(file[0], []).append(list(found))
    others = [it for it in of_folder if it not in PROCESSES and it not in QUICK]
    _deal(lists[::2], [(it, of_folder.get(it, [])) for it in PROCESSES])
    _deal(lists[1::2] or lists, [(it, of_folder[it]) for it in others])
    left = [item for it in of_folder if it in QUICK for file in of_folder[it] for item in file]
    sizes = _sizes(len(items), parts)
    for each, size in zip(lists, sizes, strict=True):
        left[:0] = each[size:]
        del each[size:]
    for each, size in zip(lists, sizes, strict=True):
        lacking = size - len(each)
        each.extend(left[:lacking])
        del left[:lacking]
    return [item for each in lists for item in each]


def _deal(lists: Sequence[list[ItemT]], folders: Iterable[tuple[str, list[list[ItemT]]]]) -> None:
    """Gives each file, or each folder that stays together, to the list with the fewest files."""
    files = [0] * len(lists)
    for folder, found in folders:
        for block in [found] if folder in UNDIVIDED else [[file] for file in found]:
            fewest = files.index(min(files))
            files[fewest] += len(block)
            lists[fewest].extend(item for file in block for item in file)


def _sizes(count: int, parts: int) -> list[int]:
    """How many items each process is given first."""
    sizes = []
    for left in range(parts, 0, -1):
        sizes.append(count // left)
        count -= count // left
    return sizes
