"""What a benchmark found, and what was expected of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Format = Callable[[float], str]
"""Writes a value with its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One figure."""

    name: str
    """Stable, for scripts."""
    title: str
    value: float
    text: str
    """The value with its unit, for people."""
    at_least: float | None = None
    at_most: float | None = None
    bound: str = ""
    """The bound with its unit, for people; empty where nothing is expected."""

    @property
    def holds(self) -> bool | None:
        """Whether it is as expected; None where nothing is."""
        if self.at_least is not None:
            return self.value >= self.at_least
        return None if self.at_most is None else self.value <= self.at_most


def figure(name: str, title: str, value: float, write: Format) -> Finding:
    """A figure of which nothing is expected."""
    return Finding(name=name, title=title, value=value, text=write(value))


def at_least(name: str, title: str, value: float, bound: float, write: Format) -> Finding:
    """A figure that should not be below a bound."""
    return Finding(name=name, title=title, value=value, text=write(value), at_least=bound, bound=f"≥ {write(bound)}")


def at_most(name: str, title: str, value: float, bound: float, write: Format) -> Finding:
    """A figure that should not be over a bound."""
    return Finding(name=name, title=title, value=value, text=write(value), at_most=bound, bound=f"≤ {write(bound)}")


def rate(value: float) -> str:
    return f"{value:,.0f}/s"


def ratio(value: float) -> str:
    return f"{value:.2f}"


def count(value: float) -> str:
    return f"{value:,.0f}"


def share(value: float) -> str:
    return f"{value:.1%}"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} µs"


def megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:.1f} MB"


def kilobytes(nbytes: float) -> str:
    return f"{nbytes / 1e3:.1f} KB"


def table(findings: Sequence[Finding]) -> str:
    """One line a figure, aligned."""
    widths = [
        max((len(cell) for cell in column), default=0)
        for column in zip(*((each.title, each.text, each.bound) for each in findings), strict=True)
    ]
    if not widths:
        return ""
    marks = {True: " ✓", False: " ✗", None: ""}
    return "\n".join(
        f"{each.title:<{widths[0]}}  {each.text:>{widths[1]}}  {each.bound:>{widths[2]}}{marks[each.holds]}".rstrip()
        for each in findings
    )


def document(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The same for scripts: seconds, bytes, calls a second."""
    return [
        {
            "name": each.name,
            "title": each.title,
            "value": float(f"{each.value:.6g}"),
            "at_least": each.at_least,
            "at_most": each.at_most,
            "as_expected": each.holds,
        }
        for each in findings
    ]
