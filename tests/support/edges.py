"""Bounds: what is exactly at one passes, and one more is refused. Tables of them, by area, say each bound by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Edge:
    """One bound."""

    what: str
    bound: int
    """The most that passes."""
    passes: Callable[[int], bool]
    """Whether so much passes."""

    def check(self) -> None:
        """The bound, and what is just below it, pass; what is just above it does not."""
        found = {amount: self.passes(amount) for amount in (self.bound - 1, self.bound, self.bound + 1)}
        assert found == {self.bound - 1: True, self.bound: True, self.bound + 1: False}, self.what


def each_edge(edges: Sequence[Edge]) -> pytest.MarkDecorator:
    """A test for each row of a table."""
    assert len({it.what for it in edges}) == len(edges)
    return pytest.mark.parametrize("edge", edges, ids=lambda edge: edge.what)
