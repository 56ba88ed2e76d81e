"""Arrays on the wire, and processes that have no numpy."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from slotmesh.codec import (
    MSGPACK,
    encode,
    encode_arguments,
)


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nobody_imports_numpy_for_those_who_do_not_use_it() -> None:
    payload = encode_arguments(MSGPACK, ([1.5],), {})
    assert (
        python(f"""
import sys, slotmesh
from slotmesh.codec import *
def numbers(numbers: list[float]): ...
ArgumentsDecoder.for_handler(numbers).decode(MSGPACK, {payload!r})
encode(MSGPACK, {{"a": [1, b"2"]}})
print("numpy" in sys.modules)
""")
        == "False"
    )


def test_a_handler_without_numpy_gets_lists_where_it_wants_lists() -> None:
    payload = encode_arguments(MSGPACK, (np.array([[1.5, 2.5]]), np.array([1, 2], np.uint8), np.array([True])), {})
    assert (
        python(f"""
import sys
from slotmesh.codec import *
def numbers(rows: list[list[float]], more: list[int], flags: list[bool]): ...
print(ArgumentsDecoder.for_handler(numbers).decode(MSGPACK, {payload!r})[0], "numpy" in sys.modules)
""")
        == "([[1.5, 2.5]], [1, 2], [True]) False"
    )


def test_a_handler_without_numpy_hears_what_to_do_about_an_array() -> None:
    payload = encode_arguments(MSGPACK, (1, {"a": np.ones(2)}), {})
    assert python(f"""
import sys
from slotmesh.codec import *
def anything(number, value): ...
try:
    ArgumentsDecoder.for_handler(anything).decode(MSGPACK, {payload!r})
except DecodeError as error:
    print(error, "numpy" in sys.modules)
""") == (
        "args[1].a: got an array of numpy, but nothing here uses numpy: annotate a list, or import it; "
        "it takes anything(number, value) False"
    )


def test_a_client_imports_numpy_for_the_first_array_or_says_that_there_is_none() -> None:
    payload = encode(MSGPACK, [np.ones(2)])
    assert (
        python(f"""
import sys
from slotmesh.codec import *
print("numpy" in sys.modules, decode(MSGPACK, {payload!r}))
""")
        == "False [array([1., 1.])]"
    )
    assert python(f"""
import sys
sys.modules["numpy"] = None
from slotmesh.codec import *
try:
    decode(MSGPACK, {payload!r})
except DecodeError as error:
    print(error)
print(decoder(MSGPACK, list[list[float]])({payload!r}))
""").splitlines() == [
        "value[0]: got an array of numpy, but numpy is not installed: install it, or want lists",
        "[[1.0, 1.0]]",
    ]
