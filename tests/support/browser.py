"""A real browser for tests: the distribution's Chromium, without a window, driven by its DevTools protocol.

Invariants: it reaches this machine's loopback only, whatever a page asks for, and all that a page asks for is written
down; its profile and its processes are gone with the block.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any, Final

import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.support.wait import within

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
WAIT_S: Final = 30.0
_FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--no-first-run",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-port=0",
)
_LISTENS: Final = re.compile(rb"DevTools listening on (ws://\S+)")

needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="NO BROWSER: there is no chromium (Debian: chromium); no page is tried in one"
)


class Browser:
    """Makes pages."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pages: dict[str, BrowserPage] = {}

    async def read(self) -> None:
        """Hands answers and events on, until the connection ends."""
        async for text in self._connection:
            message = json.loads(text)
            if (waiting := self._waiting.pop(message.get("id", 0), None)) is not None:
                if not waiting.done():
                    waiting.set_result(message)
            elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
                page.happened(message["method"], message["params"])

    async def command(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Its result. Raises AssertionError where the browser refuses it."""
        number = next(self._numbers)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        of_session = {"sessionId": session} if session else {}
        await self._connection.send(json.dumps({"id": number, "method": method, "params": parameters, **of_session}))
        async with asyncio.timeout(WAIT_S):
            answer = await waiting
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    @asynccontextmanager
    async def page(self, url: str) -> AsyncIterator[BrowserPage]:
        """A page that has loaded, until the block ends."""
        target = (await self.command("Target.createTarget", url="about:blank"))["targetId"]
        session = (await self.command("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        page = self._pages[session] = BrowserPage(self, target, session)
        try:
            for domain in ("Page", "Runtime", "Network", "Log"):
                await self.command(f"{domain}.enable", session)
            await self.command("Page.navigate", session, url=url)
            await page.holds("document.readyState === 'complete' && location.href !== 'about:blank'")
            yield page
        finally:
            with suppress(AssertionError):  # the test may have closed it
                await page.close()


class BrowserPage:
    """One page."""

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        self._browser = browser
        self._target = target
        self._session = session
        self.asked_for: list[str] = []
        """URLs of all requests."""
        self.complaints: list[str] = []
        """Exceptions that nobody has caught, and what the browser has refused to load or to run."""

    def happened(self, method: str, said: dict[str, Any]) -> None:
        """The browser says so."""
        if method == "Network.requestWillBeSent":
            self.asked_for.append(said["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(said["exceptionDetails"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.complaints.append(json.dumps(said["entry"]))

    async def value(self, expression: str) -> Any:
        """What an expression of JavaScript is in the page; awaited, where it is a promise."""
        said = await self._browser.command(
            "Runtime.evaluate", self._session, expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    async def holds(self, expression: str) -> Any:
        """Waits until the expression is true, and returns it."""
        last = None
        try:
            async with asyncio.timeout(WAIT_S):
                while not (last := await self.value(expression)):  # noqa: ASYNC110 - in another process
                    await asyncio.sleep(0.02)
        except TimeoutError:
            shown = await self.value("document.body ? document.body.innerText : ''")
            raise AssertionError(f"not within {WAIT_S} s: {expression} (last: {last!r}); {shown}") from None
        return last

    async def close(self) -> None:
        """As its user does."""
        await self._browser.command("Target.closeTarget", targetId=self._target)


@asynccontextmanager
async def running_browser() -> AsyncIterator[Browser]:
    """A browser with a profile of its own."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(prefix="slotmesh-chromium-", ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM,
            *_FLAGS,
            f"--user-data-dir={folder}",
            "about:blank",
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=PIPE,
            env={**os.environ, "HOME": folder},
            process_group=0,
        )
        try:
            async with connect(await _address(process), max_size=2**26, proxy=None) as connection:
                browser = Browser(connection)
                reading = asyncio.ensure_future(browser.read())
                try:
                    yield browser
                finally:
                    reading.cancel()
                    await asyncio.gather(reading, return_exceptions=True)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await within(process.communicate(), "the end of the process", timeout=60.0)


async def _address(process: asyncio.subprocess.Process) -> str:
    """Where its DevTools are. Raises AssertionError with what it says instead."""
    assert process.stderr is not None
    said = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(WAIT_S):
            while line := await process.stderr.readline():
                said += line
                if found := _LISTENS.search(line):
                    return found[1].decode()
    raise AssertionError(f"the browser does not start: {said.decode('utf-8', 'replace')}")


@asynccontextmanager
async def served_page(html: str) -> AsyncIterator[str]:
    """The origin of a server that answers everything with this page."""
    body = html.encode()
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    )

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head % len(body) + body)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
