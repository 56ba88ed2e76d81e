"""Requests to the API server of Kubernetes, for the pods of one namespace.

Purpose: `lightkube` finds the server and authenticates; requests and watches are made here, with JSON as it is: a pod
template may have fields that this version's models lack, and its own watch has no read timeout.
Invariants: each request ends within a bounded time, a watch too; each failure is `ApiRefused` or `ApiAway`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import httpx2
import msgspec
from lightkube import KubeConfig
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.core.exceptions import ConfigError

from slotmesh.runtime.exits import CannotStart

WATCH_S: Final = 8.0
"""A watch is renewed after this time: one that hangs half-open is found soon."""
WATCH_SLACK_S: Final = 2.0
"""Beyond it, the watch counts as broken."""
PAGE: Final = 500
"""Pods of one page of a list."""
_TIMEOUT: Final = httpx2.Timeout(5.0, connect=2.0)
_WATCH_TIMEOUT: Final = httpx2.Timeout(5.0, connect=2.0, read=WATCH_S + WATCH_SLACK_S)
LOG_READ_S: Final = 5.0
"""A log that is not followed is read as a whole within this time."""
LOG_SILENT_S: Final = 45.0
"""A log that is followed is requested anew after this time without a line: its connection may be half-open. Kubelets
send no header before the first line. The API server reports one that it cannot reach within 30 s."""
_LOG_TIMEOUT: Final = httpx2.Timeout(5.0, connect=2.0, read=LOG_SILENT_S)
_CREATE_TIMEOUT: Final = httpx2.Timeout(2 * WATCH_S, connect=2.0)
"""Webhooks may take 10 s, and longer if that is configured."""
_NO_ANSWER: Final = (httpx2.HTTPError, httpx2.StreamError, OSError, ConfigError, KeyError, ValueError)
"""What requests raise if the API server does not answer, or if credentials cannot be read: the token's file, or the
output of the program that a kubeconfig names."""
_CONFIG_HINT: Final = (
    "give the pod a service account whose token is mounted, or a kubeconfig (KUBECONFIG); --launcher kubernetes and "
    "--watch-pods need the API server"
)


class ApiAway(Exception):
    """The API server has not answered: whether the request was carried out is unknown."""


class LogSilent(ApiAway):
    """Nothing was written to a log that is followed, for `LOG_SILENT_S`, or its connection is half-open."""


class ApiRefused(Exception):
    """The API server has answered with an error."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message or reason or str(code))
        self.code = code
        self.reason = reason

    @property
    def is_temporary(self) -> bool:
        """The same request may succeed later, without any change."""
        is_conflict = self.code == HTTPStatus.CONFLICT and self.reason != "AlreadyExists"
        return is_conflict or self.code == HTTPStatus.TOO_MANY_REQUESTS or self.code >= HTTPStatus.INTERNAL_SERVER_ERROR


class ClosesHandshakes:
    """Closes the connection of a request that is cancelled during the TLS handshake, which httpcore leaves open.

    Use `ClosesHandshakes.of_requests` as a hook of the requests of a client.
    """

    __slots__ = ("_close",)

    def __init__(self) -> None:
        self._close: Callable[[], Awaitable[None]] | None = None

    @classmethod
    async def of_requests(cls, request: httpx2.Request) -> None:
        """The hook: one connection at most is opened for a request at a time."""
        request.extensions["trace"] = cls().trace

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """A step of the request, as httpcore reports it."""
        if event == "connection.connect_tcp.complete":
            self._close = info["return_value"].aclose
        elif event == "connection.start_tls.failed" and self._close is not None:
            await self._close()


class PodApi:
    """Pods of a namespace, and those among them that have certain labels."""

    def __init__(self, client: httpx2.AsyncClient, namespace: str, selector: str) -> None:
        """`selector`: of labels, as `kubectl -l` takes it."""
        self.namespace = namespace
        client.event_hooks = {"request": [ClosesHandshakes.of_requests]}
        self._client = client
        self._core = f"api/v1/namespaces/{namespace}"
        self._selector = selector

    @classmethod
    def connect(cls, namespace: str | None, selector: str) -> PodApi:
        """With the service account of this pod, or a kubeconfig. Raises CannotStart."""
        try:
            config = KubeConfig.from_env().get()
            if config is None:
                raise CannotStart(f"the kubeconfig names no context: {_CONFIG_HINT}")
            client = AsyncClient(config, ConnectionParams(timeout=_TIMEOUT, trust_env=False))
        except (ConfigError, OSError, KeyError, ValueError) as error:
            raise CannotStart(f"no access to the API server of Kubernetes: {error}: {_CONFIG_HINT}") from error
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs each request
        return cls(client, namespace or config.namespace, selector)

    async def list(self) -> tuple[list[Mapping[str, Any]], str]:
        """All pods, and the version of the list. A list whose pages have expired begins anew with the caller."""
        pods: list[Mapping[str, Any]] = []
        params: dict[str, Any] = {"labelSelector": self._selector, "limit": PAGE}
        while True:
            page = await self._request("GET", "pods", params=params)
            pods += page.get("items") or ()
            if not (more := page["metadata"].get("continue")):
                return pods, page["metadata"]["resourceVersion"]
            params["continue"] = more

    async def version(self) -> str:
        """The present version of the API server's state."""
        page = await self._request("GET", "pods", params={"labelSelector": self._selector, "limit": 1})
        return str(page["metadata"]["resourceVersion"])

    async def watch(self, version: str) -> AsyncGenerator[Mapping[str, Any], None]:
        """Events after this version, bookmarks too, until the watch ends. The first one is empty: the watch is open.

        An error is raised, not yielded.
        """
        params: dict[str, Any] = {
            "labelSelector": self._selector,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": round(WATCH_S),
        }
        try:
            async with (
                asyncio.timeout(WATCH_S + WATCH_SLACK_S),
                self._client.stream("GET", f"{self._core}/pods", params=params, timeout=_WATCH_TIMEOUT) as response,
            ):
                if response.is_error:
                    raise _refusal(response.status_code, await response.aread())
                yield {}
                rest = b""
                async for chunk in response.aiter_bytes():  # `aiter_lines` also splits at U+0085, which JSON may have
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        event = _decode(line)
                        if event.get("type") == "ERROR":
                            raise _refused(event.get("object") or {})
                        yield event
        except _NO_ANSWER as error:
            raise ApiAway(_named(error)) from error

    async def create(self, pod: Mapping[str, Any]) -> Mapping[str, Any]:
        """The pod as the API server has it."""
        return await self._request("POST", "pods", body=pod, timeout=_CREATE_TIMEOUT)

    async def get(self, name: str) -> Mapping[str, Any]:
        """One pod."""
        return await self._request("GET", f"pods/{name}")

    async def delete(self, name: str, uid: str, grace_s: int) -> None:
        """Requests the end of the pod with this uid, and of no other one under its name."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions"}
        body = {**options, "gracePeriodSeconds": grace_s, "preconditions": {"uid": uid}}
        await self._request("DELETE", f"pods/{name}", body=body)

    async def log(
        self, name: str, container: str, *, lines: int | None, since: str = "", follow: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """What a container has written, in pieces; each line behind its time. The first one is empty: it can be read.

        `lines`: at most this number, the newest ones. `since`: lines of that time, and later ones.
        """
        options = {"tailLines": lines, "sinceTime": since or None, "follow": "true" if follow else None}
        params: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        params |= {"timestamps": "true"} | ({"container": container} if container else {})
        url = f"{self._core}/pods/{name}/log"
        try:
            async with (
                asyncio.timeout(None if follow else LOG_READ_S),
                self._client.stream("GET", url, params=params, timeout=_LOG_TIMEOUT) as response,
            ):
                if response.is_error:
                    raise _refusal(response.status_code, await response.aread())
                yield b""
                async for piece in response.aiter_bytes():
                    yield piece
        except _NO_ANSWER as error:
            is_silent = follow and isinstance(error, httpx2.ReadTimeout)
            raise (LogSilent if is_silent else ApiAway)(_named(error)) from error

    async def uid_of_config_map(self, name: str) -> str:
        """The uid of a ConfigMap."""
        found = await self._request("GET", f"configmaps/{name}")
        return str(found["metadata"]["uid"])

    async def aclose(self) -> None:
        """Ends all connections."""
        await self._client.aclose()

    async def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        timeout: httpx2.Timeout = _TIMEOUT,
    ) -> Mapping[str, Any]:
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        url = f"{self._core}/{path}"
        try:
            async with asyncio.timeout(2 * WATCH_S):
                response = await self._client.request(
                    method, url, params=params, content=content, headers=headers, timeout=timeout
                )
        except _NO_ANSWER as error:
            raise ApiAway(_named(error)) from error
        if response.is_error:
            raise _refusal(response.status_code, response.content)
        return _decode(response.content)


def _decode(text: str | bytes) -> Mapping[str, Any]:
    try:
        decoded = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ApiAway(f"the answer is no JSON: {error}") from error
    return decoded if isinstance(decoded, dict) else {}


def _refusal(code: int, content: bytes) -> ApiRefused:
    try:
        return _refused({"code": code, **msgspec.json.decode(content)})
    except (msgspec.DecodeError, TypeError):  # a proxy has answered
        return ApiRefused(code, "", content[:200].decode(errors="replace"))


def _refused(status: Mapping[str, Any]) -> ApiRefused:
    return ApiRefused(status.get("code") or 0, status.get("reason") or "", status.get("message") or "")


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
