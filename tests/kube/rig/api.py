"""The Kubernetes API in documents, as far as tests and the process kubelet need it.

Not what the product uses, so that an error of the product's client does not hide itself.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import Any, Final, Self

import httpx2

from controller_service.shell.launchers.kubernetes.api import ClosesHandshakes

Document = dict[str, Any]
RETRY_S: Final = 0.2
WATCH_S: Final = 30
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"
UNREACHABLE: Final = (httpx2.TransportError, OSError)


class ApiRefused(Exception):
    """The API server's answer is an error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text[:500]}")
        self.code = code


class Api:
    """A client; `async with` closes its connections."""

    def __init__(self, server: str, token: str, ca: str) -> None:
        self._client = httpx2.AsyncClient(
            base_url=server,
            verify=ssl.create_default_context(cafile=ca),
            headers={"Authorization": f"Bearer {token}"},
            timeout=10.0,
            limits=httpx2.Limits(max_connections=200, max_keepalive_connections=50),
            trust_env=False,
            event_hooks={"request": [ClosesHandshakes.of_requests]},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def get(self, path: str, **params: str) -> Document:
        return await self._request("GET", path, params=params)

    async def create(self, path: str, document: Document) -> Document:
        return await self._request("POST", path, content=json.dumps(document), kind="application/json")

    async def patch(self, path: str, change: Document, kind: str = MERGE, **params: str) -> Document:
        return await self._request("PATCH", path, content=json.dumps(change), kind=kind, params=params)

    async def delete(self, path: str, *, grace_s: int | None = None, uid: str = "") -> None:
        """`uid`: of the object that is meant, which another one of its name may have replaced."""
        options: Document = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid:
            options["preconditions"] = {"uid": uid}
        await self._request("DELETE", path, content=json.dumps(options), kind="application/json")

    async def observe(self, path: str, **params: str) -> AsyncGenerator[tuple[str, Document], None]:
        """Yields `LISTED` with a list of everything there is, then each change (`ADDED`, `MODIFIED`, `DELETED`).

        Lists anew after each error, and never ends by itself.
        """
        while True:
            try:
                listed = await self.get(path, **params)
                yield "LISTED", listed
                version = listed["metadata"]["resourceVersion"]
                while True:
                    async for kind, item in self._watch(path, version, params):
                        version = item["metadata"]["resourceVersion"]
                        if kind != "BOOKMARK":
                            yield kind, item
            except (ApiRefused, *UNREACHABLE):
                await asyncio.sleep(RETRY_S)

    async def _watch(self, path: str, version: str, params: dict[str, str]) -> AsyncIterator[tuple[str, Document]]:
        query = {**params, "watch": "1", "resourceVersion": version, "timeoutSeconds": str(WATCH_S)}
        query["allowWatchBookmarks"] = "true"
        timeout = httpx2.Timeout(10.0, read=WATCH_S + 5.0)
        async with self._client.stream("GET", path, params=query, timeout=timeout) as response:
            if response.status_code != 200:
                raise ApiRefused(response.status_code, (await response.aread()).decode())
            async for line in response.aiter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiRefused(event["object"].get("code", 0), line)
                yield event["type"], event["object"]

    async def _request(
        self, method: str, path: str, *, content: str = "", kind: str = "", params: dict[str, str] | None = None
    ) -> Document:
        headers = {"Content-Type": kind} if kind else {}
        response = await self._client.request(method, path, content=content or None, headers=headers, params=params)
        if response.status_code >= 300:
            raise ApiRefused(response.status_code, response.text)
        return dict(response.json())
