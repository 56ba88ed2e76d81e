"""Mutants of types: what handlers return and take, and what becomes of it on the way."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

CODEC: Final = "slotmesh/codec"
OIP: Final = "slotmesh/oip"

_NUMBERS: Final = (
    mutant(
        "a number that is too large for FP32 becomes infinity",
        OIP,
        'if kind.code == "f":',
        "if False:",
        "tests/unit/oip",
    ),
    mutant(
        "a number that is too large for a scalar of numpy becomes infinity",
        CODEC,
        "numpy.isinf(made) and not math.isinf(value)",
        "False",
        "tests/unit/codec/test_array_values.py",
    ),
    mutant(
        "a list without elements is an array of floats, whatever is wanted",
        CODEC,
        "if not array.size:",
        "if False:",
        "tests/unit/codec/test_array_values.py",
    ),
    mutant(
        "a parameter that is null counts as one",
        OIP,
        "(parameters or {}).items() if value is not None",
        "(parameters or {}).items()",
        "tests/unit/oip",
    ),
)

TYPES: Final = (*_NUMBERS,)
