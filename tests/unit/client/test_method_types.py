"""Types of methods can be subscripted when a program runs, with each Python that is supported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typing_extensions

import slotmesh
from slotmesh.client.calls import method_types

PYTHONS = ["python3.11", "python3.12", "python3.13", "python3.14"]
PROGRAM = """
from typing import Any, Generic
from method_types import P, ResultT, ValueT

class Method(Generic[ResultT, P, ValueT]): ...
class WithoutValues(Generic[ResultT, P]): ...
class Named(Generic[ResultT]): ...

print(Named[Method[Any]], Method[str, [int]], Method[str, ..., int], WithoutValues[Any])
"""


def test_the_default_of_parameters_is_a_list_when_a_program_runs() -> None:
    parameters: Any = method_types.P
    assert list(parameters.__default__) == [...], "Python 3.13.0 to 3.13.7 adds no further default otherwise"
    kinds: list[Any] = [slotmesh.Method[Any], slotmesh.SyncMethod[str, [int]], slotmesh.Method[str, ..., int]]
    assert [len(it.__args__) for it in kinds] == [3, 3, 3]


@pytest.mark.parametrize("name", [sys.executable, *PYTHONS])
def test_methods_have_their_defaults_in_each_python_here(name: str, tmp_path: Path) -> None:
    for module in (method_types, typing_extensions):
        assert module.__file__ is not None
        shutil.copy(module.__file__, tmp_path)
    python = shutil.which(name)
    if python is None or subprocess.run([python, "-V"], capture_output=True, check=False, timeout=60).returncode:
        pytest.skip(f"there is no {name}")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run([python, "-c", PROGRAM], capture_output=True, text=True, env=env, check=False, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
