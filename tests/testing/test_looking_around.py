"""What can be called: `mesh.endpoints()`, and `dir` of endpoints, which shells complete."""

from __future__ import annotations

import asyncio
import threading

import pytest

import slotmesh
import slotmesh.testing
from slotmesh.spec.model import TrafficPolicy
from slotmesh.testing import Backend
from tests.support.fakes.router import FakeRouter


class Digits:
    async def classify(self, pixels: list[float]) -> int:
        return len(pixels)

    def warm_up(self) -> None: ...

    async def _inner(self) -> None: ...


class Next(Digits):
    async def explain(self, pixels: list[float]) -> str:
        return "so"


async def shout(text: str) -> str:
    return text.upper()


BACKENDS = {"digits": Backend(Digits, num_replicas=2), "next": Backend(Next), "shout": Backend(shout)}
TRAFFIC = {
    "digits": TrafficPolicy(weights={"digits": 1.0}),
    "both": TrafficPolicy(weights={"digits": 0.5, "next": 0.5}),
    "shout": TrafficPolicy(weights={"shout": 1.0}),
}
ALL = {
    "both": ("classify", "explain", "warm_up"),
    "digits": ("classify", "warm_up"),
    "shout": ("__call__",),
}


@pytest.mark.asyncio
async def test_endpoints_are_listed_with_the_methods_of_all_their_backends() -> None:
    async with slotmesh.testing.mesh(BACKENDS, traffic=TRAFFIC) as mesh:
        digits = mesh.endpoint("digits")
        assert "classify" not in dir(digits)
        assert await mesh.endpoints() == ALL
        for view in (digits, digits.options(timeout=1), digits.ordered("key"), mesh.endpoint("both")):
            assert {"classify", "warm_up", "ordered" if view is digits else "method"} <= set(dir(view))
            assert "_inner" not in dir(view)
        assert "explain" in dir(mesh.endpoint("both"))
        assert "explain" not in dir(digits)
        assert await getattr(digits, "classify")([1.0]) == 1  # noqa: B009 - as a completed name is used


@pytest.mark.asyncio
async def test_what_has_changed_is_told_when_it_is_asked_for_again() -> None:
    async with slotmesh.testing.mesh({"digits": Digits}) as mesh:
        assert await mesh.endpoints() == {"digits": ("classify", "warm_up")}
        await mesh.apply({"next": Next}, {"digits": {"next": 1.0}, "idle": {"next": 1.0}})
        assert await mesh.endpoints() == {
            "digits": ("classify", "explain", "warm_up"),
            "idle": ("classify", "explain", "warm_up"),
        }


@pytest.mark.asyncio
async def test_threads_list_them_too_and_tab_asks_by_itself() -> None:
    async with slotmesh.testing.mesh(BACKENDS, traffic=TRAFFIC) as mesh:

        def look() -> None:
            with slotmesh.connect_sync(mesh.router_addresses) as looking:
                assert {"classify", "warm_up", "ordered"} <= set(dir(looking.endpoint("digits")))
                assert "explain" not in dir(looking.endpoint("digits"))
                with looking.endpoint("both").ordered("key") as lane:
                    assert "explain" in dir(lane)
                assert looking.endpoints() == ALL

        await asyncio.to_thread(look)


def test_tab_where_no_router_answers_has_our_own_names_and_does_not_fail() -> None:
    with slotmesh.connect_sync("127.0.0.1:1") as mesh:
        digits = mesh.endpoint("digits")
        assert "ordered" in dir(digits)
        with pytest.raises(slotmesh.Unavailable):
            mesh.endpoints()


@pytest.mark.asyncio
async def test_a_router_that_cannot_say_is_told_by_the_error() -> None:
    async with FakeRouter() as router, slotmesh.connect(router.address) as mesh:
        with pytest.raises(slotmesh.NotImplementedByPeer):
            await mesh.endpoints()
        assert "ordered" in dir(mesh.endpoint("digits"))
    with pytest.raises(RuntimeError, match="the mesh is closed"):
        await mesh.endpoints()


@pytest.mark.asyncio
async def test_tab_in_the_thread_of_the_client_waits_for_nobody() -> None:
    async with slotmesh.testing.mesh(BACKENDS, traffic=TRAFFIC) as mesh:

        def look() -> list[str]:
            found: list[str] = []
            told = threading.Event()
            with slotmesh.connect_sync(mesh.router_addresses) as looking:
                digits = looking.endpoint("digits")

                def on_result(_future: object) -> None:
                    found.extend(dir(digits))
                    told.set()

                digits.classify.future([1.0]).add_done_callback(on_result)
                assert told.wait(30)
            return found

        assert "ordered" in await asyncio.to_thread(look)
