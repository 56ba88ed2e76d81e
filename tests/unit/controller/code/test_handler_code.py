"""Which code a backend runs: the one that was applied under its version."""

from __future__ import annotations

from dataclasses import replace

from controller_service.core.desired.handler_code import (
    HandlerCode,
    kept_code_warnings,
    needed_code,
    template_of,
    with_code,
)
from controller_service.core.desired.state import ChangeSet, Desired
from slotmesh.spec.model import Backend, Mesh

OLD, NEW = HandlerCode(code="1", version="file:1"), HandlerCode(code="2", version="file:2")


def applied(desired: Desired, backend: Backend, code: HandlerCode) -> Desired:
    mesh, mistakes = with_code(desired, Mesh(backends=(backend,)), {"a:B": code})
    assert not mistakes
    return desired.apply(ChangeSet(put_backends=mesh.backends))


def test_a_version_that_has_a_name_keeps_its_code_and_has_it_again_when_it_comes_back() -> None:
    backend = Backend(name="b", handler="a:B", version="v1")
    desired = applied(Desired(), backend, OLD)
    assert desired.backends["b"].code == "1"
    desired = applied(desired, backend, NEW)
    assert desired.backends["b"].code == "1", "a name means one code"
    desired = applied(desired, replace(backend, version="v2"), NEW)
    assert desired.backends["b"].code == "2"
    desired = applied(desired, replace(backend, version="v1", code="of a request"), HandlerCode(code="3"))
    assert desired.backends["b"].code == "1"
    assert set(needed_code(desired)) == {"1", "2"}
    assert applied(desired, replace(backend, handler="a:C"), OLD).backends["b"].code == "", "of another handler"


def test_a_version_that_keeps_other_code_than_the_files_have_is_warned_of() -> None:
    named, unnamed = Backend(name="b", handler="a:B", version="v1"), Backend(name="c", handler="a:B")
    desired = applied(applied(Desired(), named, OLD), unnamed, OLD)
    both = Mesh(backends=(unnamed, named))
    assert kept_code_warnings(desired, both, {"a:B": OLD}) == ()
    (warning,) = kept_code_warnings(desired, both, {"a:B": NEW})
    assert warning.startswith("backend/b runs the code that was stored for version 'v1'; the files of a:B have changed")
    assert kept_code_warnings(desired, Mesh(backends=(replace(named, version="v2"),)), {"a:B": NEW}) == ()
    assert kept_code_warnings(desired, both, {}) == (), "no controller that launches processes: images are the code"
    assert kept_code_warnings(desired, both, {"a:B": HandlerCode(is_absent=True)}) == ()


def test_a_backend_of_before_there_were_snapshots_is_started_with_the_same_settings() -> None:
    assert template_of(Backend(name="b", handler="a:B")) == "3c9f181e19af789597a001f3ebd12c27"


def test_why_there_is_no_code_is_a_mistake_of_the_backend() -> None:
    _, (mistake,) = with_code(
        Desired(), Mesh(backends=(Backend(name="b", handler="a:B"),)), {"a:B": HandlerCode(problem="too large")}
    )
    assert str(mistake) == "backends.b.handler: too large"
