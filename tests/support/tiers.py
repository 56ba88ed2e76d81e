"""Which tests marked `long` run: `make test` leaves them out, `make test-all` runs all, `.ci/run` a part of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final

import pytest

NONE: Final = "none"
ALL: Final = "all"
FORMS: Final = "none, all, or N/SEED: one part of N, another one for each SEED"
_PART: Final = re.compile(r"([1-9]\d{0,3})/(\d{1,12})")


def chosen(choice: str, tests: Iterable[str]) -> set[str]:
    """The long tests to run. Of N seeds that follow a multiple of N, each runs every test once; the next N divide anew.

    Raises:
        ValueError: `choice` has none of the FORMS.
    """
    if choice == NONE:
        return set()
    if choice == ALL:
        return set(tests)
    if not (part := _PART.fullmatch(choice)):
        raise ValueError(f"--long is {FORMS}; it cannot be {choice!r}")
    count, seed = int(part[1]), int(part[2])
    division, number = divmod(seed, count)
    return {test for test in tests if _digest(f"{division} {test}") % count == number}


def long(*values: object) -> Any:
    """The values of a parametrized test that is long with these."""
    return pytest.param(*values, marks=pytest.mark.long)


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
