"""What a page of another site can make a browser send: no handler runs for it, unless the settings name its origin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from slotmesh.spec.routes import Route
from tests.contract.ingress.handlers import Kinds
from tests.support.browser import needs_browser, running_browser, served_page
from tests.support.http_client import http_connection, request_bytes
from tests.support.ingresses import ServedMesh, served_mesh

FRIEND = "https://friend.example"
EVIL = "https://evil.example"
ROUTES = (Route(path="/sum", endpoint="kinds", method="add", methods=("GET", "POST")),)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[ServedMesh]:
    async with served_mesh({"kinds": Kinds}, *ROUTES, cors_origins=FRIEND) as mesh:
        yield mesh


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize(
    ("headers", "runs"),
    [
        ({}, True),
        ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, True),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, True),
        ({"sec-fetch-site": "same-origin", "origin": "https://public.example"}, True),
        ({"origin": "http://test"}, True),
        ({"sec-fetch-site": "cross-site", "origin": FRIEND}, True),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}, False),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, False),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, False),
        ({"sec-fetch-site": "Cross-Site"}, False),
        ({"sec-fetch-site": "something-new"}, False),
        ({"sec-fetch-site": ""}, True),
        ({"sec-fetch-site": "cross-site", "origin": EVIL}, False),
        ({"sec-fetch-site": "cross-site", "origin": "null"}, False),
        ({"sec-fetch-site": "cross-site", "origin": "http://test"}, False),
        ({"origin": EVIL}, False),
        ({"origin": "null"}, False),
    ],
)
async def test_what_pages_of_other_sites_make_browsers_send(
    served: ServedMesh, method: str, headers: dict[str, str], runs: bool
) -> None:
    [kinds] = served.mesh.instances("kinds")
    before = kinds.calls
    async with http_connection(served.address) as connection:
        answer = await connection.request(method, "/sum?a=1", headers=headers)
    assert (answer.status, kinds.calls - before) == ((200, 1) if runs else (403, 0))


@pytest.mark.parametrize("path", ["/-/routes", "/-/openapi.json", "/-/docs"])
async def test_links_of_other_sites_lead_to_pages(served: ServedMesh, path: str) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert (await served.ask("GET", path, b"", link)).status == 200
    if path != "/-/docs":
        image = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
        assert (await served.ask("GET", path, b"", image)).status == 403


async def test_a_websocket_of_another_site(served: ServedMesh) -> None:
    headers = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        "sec-websocket-version": "13",
    }
    for more, status in (
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "websocket", "origin": EVIL}, 403),
        ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "websocket", "origin": "https://public.example"}, 101),
    ):
        async with http_connection(served.address) as connection:
            await connection.send(request_bytes("GET", "/kinds/count", headers={**headers, **more}))
            async with asyncio.timeout(20):
                assert (await connection.head())[0] == status


async def test_all_origins_are_named_by_a_star() -> None:
    async with served_mesh({"kinds": Kinds}, *ROUTES, cors_origins="*") as served:
        assert (await served.ask("GET", "/sum?a=1", b"", {"sec-fetch-site": "cross-site"})).status == 200


@needs_browser
async def test_an_image_of_a_real_page(served: ServedMesh) -> None:
    [kinds] = served.mesh.instances("kinds")
    before = kinds.calls
    page = f'<!doctype html><img src="http://{served.address}/sum?a=1" onerror="document.title = \'refused\'">'
    async with running_browser() as browser, served_page(page) as other, browser.page(other) as shown:
        assert await shown.holds("document.title === 'refused'")
    assert kinds.calls == before
