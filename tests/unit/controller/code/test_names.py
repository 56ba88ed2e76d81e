"""Whether a module has the name of a handler, as far as its source shows."""

from __future__ import annotations

import pytest

from controller_service.core.desired.handler_code import Code, HandlerCode, handler_doubts, with_code
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.shell.code.names import doubt_about
from slotmesh.spec.model import Backend, Mesh
from tests.unit.controller.code.project import HANDLER, Project

FOUND = {
    "a class": "class Shop: ...",
    "a function": "async def Shop(): ...",
    "an import": "from shop.inner import Model as Shop",
    "a whole module": "import Shop.inner",
    "a value that something makes": "Shop = make()",
    "one of several": "class Other: ...\nOther, Shop = Other, Other",
    "in a block": "try:\n    import fast\nexcept ImportError:\n    class Shop: ...",
    "with a type": "Shop: type = make()",
    "in a with": "with make() as Shop: ...",
    "assigned on the way": "if (Shop := make()): ...",
    "by a function": "def make():\n    global Shop\n    Shop = type('Shop', (), {})\nmake()",
    "made later": "Shop = None\ndef make():\n    global Shop\n    Shop = int",
    "who knows: all of another module": "from shop.inner import *",
    "who knows: globals": "globals()['Shop'] = int",
    "who knows: its own lookup": "def __getattr__(name): ...",
    "no Python": "class Shop",
    "nested": "class Shop:\n    class Inner: ...",
}


@pytest.mark.parametrize("what", FOUND)
def test_what_a_module_has_or_may_have_is_no_doubt(what: str) -> None:
    assert doubt_about(FOUND[what], "shop.app:Shop.Inner" if what == "nested" else "shop.app:Shop") == ""


@pytest.mark.parametrize(
    ("source", "doubt"),
    [
        ("class Shpo: ...", "module 'shop.app' has no Shop; did you mean Shpo?"),
        ("def make():\n    class Shop: ...", "module 'shop.app' has no Shop"),
        ("class Outer:\n    class Shop: ...", "module 'shop.app' has no Shop"),
        ("", "module 'shop.app' has no Shop"),
        ("Shop = {'a': 1}", "Shop in module 'shop.app' is neither a class nor a function"),
        ("Shop: int = 3", "Shop in module 'shop.app' is neither a class nor a function"),
    ],
)
def test_what_is_not_there_or_cannot_be_called(source: str, doubt: str) -> None:
    assert doubt_about(source, "shop.app:Shop") == doubt


def test_a_handler_whose_module_lacks_it_is_warned_of_and_has_code_all_the_same(project: Project) -> None:
    code = project.code()
    assert code.doubt == ""
    project.write("shop/app.py", "class Shpo: ...")
    lacking = project.code()
    assert lacking.code
    mesh = Mesh(backends=(Backend(name="b", handler=HANDLER),))
    assert handler_doubts(Desired(), mesh, {HANDLER: code}) == ()
    (line,) = handler_doubts(Desired(), mesh, {HANDLER: lacking})
    assert line == "backend/b will not start: module 'shop.app' has no Shop; did you mean Shpo?"
    assert handler_doubts(Desired(), mesh, {HANDLER: HandlerCode(problem="too large")}) == ()


def test_a_version_that_keeps_older_code_starts_whatever_the_module_has_now() -> None:
    mesh = Mesh(backends=(Backend(name="b", handler=HANDLER, version="1"),))
    filled, _ = with_code(Desired(), mesh, {HANDLER: HandlerCode(code="good", version="file:good")})
    desired = Desired().apply(ChangeSet(put_backends=filled.backends))
    now: Code = {HANDLER: HandlerCode(code="bad", version="file:bad", doubt="it is not there")}
    assert handler_doubts(desired, mesh, now) == ()
    assert handler_doubts(Desired(), mesh, now) == ("backend/b will not start: it is not there",)
