"""The ingress as a browser has it: the page of the OpenAPI document, and pages that take values as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from slotmesh.spec.routes import Route
from tests.contract.ingress.handlers import Kinds
from tests.support.browser import Browser, needs_browser, running_browser, served_page
from tests.support.ingresses import ServedMesh, served_mesh
from tests.support.wait import wait_until

ROUTES = (
    Route(path="/numbers/{to}", endpoint="kinds", method="count", methods=("GET",)),
    Route(path="/drops", endpoint="kinds", method="drip", methods=("GET",)),
    Route(path="/sum/{a}", endpoint="kinds", method="add", methods=("GET",)),
)
PAGE = "<!doctype html><title>of somebody else</title><p>a page"
ASK = """
const values = [];
const events = new EventSource("http://%s%s");
events.onmessage = event => values.push(JSON.parse(event.data));
events.addEventListener("end", () => { events.close(); values.push("end"); });
"""
LATE_TEXT = """
const text = Response.prototype.text;
Response.prototype.text = function() { return new Promise(it => setTimeout(it, 200)).then(() => text.call(this)); };
"""
ENTRY = "[...document.querySelectorAll('details')].find(it => it.querySelector('summary').textContent === %r)"

pytestmark = [needs_browser, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with running_browser() as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def origin() -> AsyncIterator[str]:
    """Of a page that may call."""
    async with served_page(PAGE) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(origin: str) -> AsyncIterator[ServedMesh]:
    async with served_mesh({"kinds": Kinds}, *ROUTES, cors_origins=origin) as mesh:
        yield mesh


async def test_the_page_lists_what_can_be_called_and_calls_it(browser: Browser, served: ServedMesh) -> None:
    async with browser.page(f"http://{served.address}/-/docs") as page:
        await page.value("document.getElementById('load').click()")
        listed = await page.holds("[...document.querySelectorAll('summary')].map(it => it.textContent)")
        assert {"POST/kinds/add", "POST/kinds/count", "GET/numbers/{to}", "GET/sum/{a}"} <= {*listed}

        add = ENTRY % "POST/kinds/add"
        assert await page.value(f"JSON.parse({add}.querySelector('textarea').value)") is not None
        await page.value(f"{add}.querySelector('textarea').value = '{{\"a\": 2, \"b\": 40}}'")
        await page.value(f"{add}.querySelector('button').click()")
        assert await page.holds(f"{add}.querySelector('pre').textContent.startsWith('200') && {add}.innerText !== ''")
        assert await page.value(f"{add}.querySelector('pre').textContent") == "200\n42"

        by_path = ENTRY % "GET/sum/{a}"
        await page.value(f"{by_path}.querySelectorAll('input')[0].value = '41'")
        await page.value(f"{by_path}.querySelector('button').click()")
        assert await page.holds(f"{by_path}.querySelector('pre').textContent.length > 1")
        assert await page.value(f"{by_path}.querySelector('pre').textContent") == "200\n42"

        assert page.asked_for, "what the page asks for is seen"
        elsewhere = [it for it in page.asked_for if not it.startswith((f"http://{served.address}/", "data:"))]
        assert not elsewhere, "the page needs somebody else"
        assert not page.complaints


async def test_what_fails_is_shown_as_it_is(browser: Browser, served: ServedMesh) -> None:
    async with browser.page(f"http://{served.address}/-/docs") as page:
        await page.value("document.getElementById('load').click()")
        await page.holds("document.querySelectorAll('details').length")
        await page.value(LATE_TEXT)  # what failed is known before the words about it are here
        fail = ENTRY % "POST/kinds/fail"
        await page.value(f"{fail}.querySelector('button').click()")
        shown = await page.holds(f"{fail}.querySelector('pre.bad') && {fail}.querySelector('pre').textContent")
        assert shown.startswith("500\n")
        assert "no such digit" in shown


async def test_a_page_of_another_origin_gets_values_in_order(browser: Browser, served: ServedMesh, origin: str) -> None:
    async with browser.page(origin) as page:
        await page.value(ASK % (served.address, "/numbers/1000"))
        await page.holds("values.includes('end')")
        assert await page.value("values") == [*range(1000), "end"], "once, and each in its place"
        # A POST with JSON is one about which the browser asks first.
        asked = f"fetch('http://{served.address}/kinds/add', {{method: 'POST', body: '[2, 3]', headers: %s}})"
        answered = asked % "{'content-type': 'application/json', 'x-slotmesh-timeout': '5s'}"
        assert await page.value(f"{answered}.then(it => it.json())") == 5


async def test_a_page_that_may_not_call_gets_nothing(browser: Browser, served: ServedMesh) -> None:
    [kinds] = served.mesh.instances("kinds")
    async with served_page(PAGE) as other, browser.page(other) as page:
        before = kinds.calls
        asked = f"fetch('http://{served.address}/kinds/add', {{method: 'POST', body: '[1]'}})"
        assert await page.value(f"{asked}.then(it => 'answered', it => 'refused')") == "refused"
        assert kinds.calls == before, "it was not called either"


async def test_closing_the_page_takes_the_call_back(browser: Browser, served: ServedMesh, origin: str) -> None:
    [kinds] = served.mesh.instances("kinds")
    kinds.__init__()
    async with browser.page(origin) as page:
        await page.value(ASK % (served.address, "/drops"))
        await page.holds("values.length")
        assert await page.value("values") == ["first"]
        assert not kinds.closed.is_set(), "it goes on while the page is open"
        await page.close()
        await wait_until(kinds.closed.is_set, timeout=20.0, what="the handler's generator is closed")
    await wait_until(lambda: served.ingress.counters.in_flight == 0, timeout=20.0, what="no request is in flight")
    assert served.ingress.counters.left["/drops"] == 1
