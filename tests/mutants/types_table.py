"""Mutants of types: what handlers return and take, and what becomes of it on the way."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

CODEC: Final = "slotmesh/codec"
HANDLERS: Final = "slotmesh/handlers"
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

_AWAITABLES: Final = (
    mutant(
        "an `async def` below a decorator is taken for a `def`",
        HANDLERS,
        "for layer in layers(function) if",
        "for layer in (function,) if",
        "tests/unit/replica/test_awaitables.py",
    ),
    mutant(
        "an annotation does not say what a method returns",
        HANDLERS,
        "return _BY_ANNOTATION.get(get_origin(wanted) or wanted)",
        "return None",
        "tests/unit/replica/test_awaitables.py",
    ),
    mutant(
        "a coroutine that a `def` returns without a reply is never run",
        "replica_service/shell",
        "(type(outcome) is not bytes or run.options.no_reply) and isawaitable(value)",
        "type(outcome) is not bytes and isawaitable(value)",
        "tests/unit/replica/test_awaitables.py",
    ),
    mutant(
        "a decorator around a batch method is left out",
        HANDLERS,
        "bound.__wrapped__ is not whole",
        "False",
        "tests/unit/replica/test_awaitables.py",
    ),
    mutant(
        "a hook that yields is accepted, and never run",
        HANDLERS,
        "if kind_of(function).yields:",
        "if False:",
        "tests/unit/replica/test_awaitables.py",
    ),
)

TYPES: Final = (*_NUMBERS, *_AWAITABLES)
