from __future__ import annotations

import subprocess
import sys

import pytest

import slotmesh
from slotmesh.errors import ERROR_OF


@pytest.mark.parametrize("name", slotmesh.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(slotmesh, name) is not None


def test_every_error_is_public() -> None:
    assert {error.__name__ for error in ERROR_OF.values()} <= set(slotmesh.__all__)


def test_the_errors_of_arguments_and_results_are_public() -> None:
    assert {"DecodeError", "EncodeError"} <= set(slotmesh.__all__)
    assert issubclass(slotmesh.DecodeError, ValueError)
    assert issubclass(slotmesh.EncodeError, TypeError)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = slotmesh.nothing


def test_the_errors_alone_load_neither_grpc_nor_msgspec() -> None:
    program = "import slotmesh, sys; assert not {'grpc', 'msgspec', 'google.protobuf'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
