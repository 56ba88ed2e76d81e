"""Whether users' code asks for contexts: what was imported is looked at before the first call."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

import slotmesh
from replica_service.shell.handler.loading import asks_for_contexts
from slotmesh.handlers.context import asking, context


def module(folder: Path, source: str, **names: object) -> ModuleType:
    """One with this source, which has these names."""
    file = folder / "users.py"
    file.write_text(source, "utf-8")
    made = ModuleType("users")
    made.__file__ = str(file)
    vars(made).update(names)
    return made


@pytest.mark.parametrize(
    ("source", "names", "asks"),
    [
        pytest.param("def context(): ...", {}, False, id="nothing of slotmesh"),
        pytest.param("import slotmesh\nasync def f(): ...", {"slotmesh": slotmesh}, False, id="never a word of it"),
        pytest.param("import slotmesh as s\nasync def f(): return s.context()", {"s": slotmesh}, True, id="a function"),
        pytest.param("class A:\n  def f(self): s.contexts()", {"s": slotmesh}, True, id="a method"),
        pytest.param("from slotmesh import context as who", {"who": context}, True, id="by another name"),
        pytest.param("import slotmesh\ncontextual = 1", {"slotmesh": slotmesh}, False, id="another word"),
    ],
)
def test_whoever_has_slotmesh_and_speaks_of_contexts_may_ask(
    tmp_path: Path, source: str, names: dict[str, object], asks: bool
) -> None:
    assert asks_for_contexts([module(tmp_path, source, **names)]) is asks


def test_what_cannot_be_read_may_ask(tmp_path: Path) -> None:
    users = module(tmp_path, "", slotmesh=slotmesh)
    for nowhere in (str(tmp_path / "nowhere.py"), str(tmp_path), None):
        users.__file__ = nowhere
        assert asks_for_contexts([users])


def test_slotmeshs_own_modules_do_not_count(tmp_path: Path) -> None:
    users = module(tmp_path, "context", slotmesh=slotmesh)
    assert asks_for_contexts([users])
    users.__name__ = "slotmesh.client"
    assert not asks_for_contexts([users])


def test_all_that_was_imported_is_looked_at() -> None:
    assert asks_for_contexts(), "this module asks"


def test_whoever_asks_has_made_it_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "is_known", False)
    with pytest.raises(RuntimeError, match="outside of a call"):
        slotmesh.context()
    assert asking.is_known
