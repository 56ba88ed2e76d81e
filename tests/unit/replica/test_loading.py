"""`MODULE:NAME`, and what is said where it is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from replica_service.shell.handler.loading import construct, load_handler
from slotmesh.runtime.exits import CannotStart

SOURCE = """
import math
from dataclasses import dataclass

class Model:
    def __init__(self, name="none"):
        self.name = name
    async def hello(self): ...

class Outer:
    class Inner:
        async def hello(self): ...
    async def hello(self): ...

class Nothing: ...

def function(payload): ...

value = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with modules; neither it nor they stay known."""
    (tmp_path / "users_app.py").write_text(SOURCE)
    (tmp_path / "users_broken.py").write_text("import users_missing")
    (tmp_path / "users_package").mkdir()
    (tmp_path / "users_package" / "__init__.py").write_text("")
    (tmp_path / "users_package" / "inner.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in [name for name in sys.modules if name.startswith("users_")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "path", ["users_app:Model", "users_app:function", "users_app:Outer.Inner", "users_package.inner:Model"]
)
def test_handlers_in_the_working_directory_are_found(path: str) -> None:
    assert load_handler(path).__name__ == path.rpartition(":")[2].rpartition(".")[2]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("users_app", "it is written MODULE:NAME"),
        (":Model", "it is written MODULE:NAME"),
        ("users_app:", "it is written MODULE:NAME"),
        ("users_app:.Model", "it is written MODULE:NAME"),
        ("users_nowhere:Model", "there is no module users_nowhere; run in the folder that has it"),
        ("users_app.py:Model", "'users_app.py:Model': there is no module users_app.py; did you mean users_app:Model?"),
        ("users_package/inner.py:Model", "; did you mean users_package.inner:Model?"),
        ("./users_app.py:Model", "; did you mean users_app:Model?"),
        ("users_nowhere.py:Model", "there is no module users_nowhere.py; run in the folder that has it"),
        ("users_package.nowhere:Model", "there is no module users_package.nowhere"),
        ("users_app.inner:Model", "there is no module users_app.inner"),
        ("users..app:Model", "there is no module users..app"),
        ("users_app:Modell", "users_app has no Modell; it has Model, Outer, function"),
        ("users_app:Outer.Nowhere", "users_app has no Outer.Nowhere"),
        ("users_app:Model.hello", "is a method of a class: write users_app:Model, all of whose methods are served"),
        ("users_app:value", "is 3; a handler is a class or a function"),
        ("users_app:math", "a handler is a class or a function"),
    ],
)
def test_a_wrong_name_is_told_with_the_way_out(path: str, message: str) -> None:
    with pytest.raises(CannotStart) as caught:
        load_handler(path)
    assert message in str(caught.value)


@pytest.mark.usefixtures("here")
def test_what_the_module_raises_passes() -> None:
    with pytest.raises(ModuleNotFoundError, match="users_missing"):
        load_handler("users_broken:Model")


@pytest.mark.usefixtures("here")
def test_user_config_goes_to_the_constructor() -> None:
    assert construct(load_handler("users_app:Model"), {"name": "it"}).name == "it"
    assert construct(load_handler("users_app:Model"), {}).name == "none"
    with pytest.raises(TypeError, match="unexpected keyword argument 'size'"):
        construct(load_handler("users_app:Model"), {"size": 3})


@pytest.mark.usefixtures("here")
def test_a_function_takes_no_user_config() -> None:
    function = load_handler("users_app:function")
    assert construct(function, {}) is function
    with pytest.raises(TypeError, match=r"user_config \(size\) goes to a constructor"):
        construct(function, {"size": 3})
