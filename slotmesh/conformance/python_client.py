"""The adapter of slotmesh's own client: `python -m slotmesh.conformance.python_client`.

Owner: `slotmesh.conformance.adapter`, which writes to its stdin and reads its stdout.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import slotmesh
from slotmesh.codec import OCTET_STREAM

Command = dict[str, Any]

CAPABILITIES = ["no_reply", "streaming", "chunks", "ordering_keys", "stop", "tenants"]


class PythonClient:
    """One client at a time."""

    def __init__(self) -> None:
        self._mesh: slotmesh.Mesh | None = None
        self._endpoint: Any = None
        self._views: dict[str, Any] = {}
        self._lanes: dict[str, slotmesh.Lane] = {}
        self._pending: dict[str, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._paused: dict[str, asyncio.Event] = {}
        """Loops that wait for `go_on`."""
        self._is_closing = False

    async def perform(self, command: Command) -> None:
        """Performs one command."""
        if self._is_closing and "id" in command and command["do"] != "cancel":
            try:
                await self._perform(command)
            except RuntimeError:
                report_line({"id": command["id"], "refused": True})
        else:
            await self._perform(command)

    async def _perform(self, command: Command) -> None:
        match command["do"]:
            case "connect":
                timeout = command.get("connect_timeout_s", 10.0)
                self._mesh = connect(command["addresses"], timeout)
                self._endpoint = self._mesh.endpoint(command["endpoint"])
            case "call":
                method = self._method(command)
                self._watch(command["id"], method(command["payload"].encode()), many=False)
            case "map":
                payloads = [payload.encode() for payload in command["payloads"]]
                future = self._method(command).map(payloads, return_exceptions=True)
                self._watch(command["id"], future, many=True)
            case "stream":
                values = self._method(command).stream(command["payload"].encode())
                self._iterate(command["id"], values, command.get("take"))
            case "go_on":
                self._paused.pop(command["id"]).set()
            case "cancel":
                self._pending[command["id"]].cancel()
            case "reset_lane":
                self._lanes[command["key"]].reset()
            case "close":
                self._is_closing = True
                self._spawn(self._close())
                for _ in ("aclose begins", "aclose of its streams begins"):
                    await asyncio.sleep(0)  # the client refuses what the next command calls
            case "reset":
                await self._reset()
            case other:
                raise ValueError(f"no such command: {other!r}")

    def _method(self, command: Command) -> Any:
        """Views are kept: calls of one view and method travel together."""
        names = ("timeout_s", "idempotent", "metadata", "shard_key", "affinity_key", "tenant")
        changes = {name.removesuffix("_s"): command[name] for name in names if name in command}
        if command.get("no_reply"):
            changes["reply"] = False
        key, method = command.get("key", ""), command.get("method", "__call__")
        after_failure = command.get("after_failure", "continue")
        view_key = json.dumps([changes, key, method, after_failure])
        view = self._views.get(view_key)
        if view is None:
            view = self._endpoint.options(content_type=OCTET_STREAM, **changes)
            if key:
                view = view.ordered(key, after_failure=after_failure)
                self._lanes[key] = view
            view = self._views[view_key] = view.method(method)
        return view

    def _watch(self, name: str, future: asyncio.Future[Any], *, many: bool) -> None:
        self._pending[name] = future

        def on_end(done: asyncio.Future[Any]) -> None:
            failed = not done.cancelled() and done.exception()  # retrieved in any case: asyncio warns otherwise
            if self._pending.pop(name, None) is not done:
                return  # a later case has begun
            if done.cancelled():
                report_line({"id": name, "cancelled": True})
            elif many and not failed:
                report_line({"id": name, "results": [outcome(each) for each in done.result()]})
            else:
                report_line({"id": name, **outcome(failed or done.result())})

        future.add_done_callback(on_end)

    def _iterate(self, name: str, values: slotmesh.ValueStream[bytes], take: int | None) -> None:
        """Takes values in a loop; with `take` that number, and the others after `go_on`."""
        taken: list[str] = []

        async def loop() -> None:
            if take == 0:
                await self._wait_for_go_on(name)
            async for value in values:
                taken.append(value.decode())
                if len(taken) == take:
                    await self._wait_for_go_on(name)

        def on_end(done: asyncio.Task[None]) -> None:
            failed = None if done.cancelled() else done.exception()
            if self._pending.pop(name, None) is not done:
                return
            if done.cancelled():
                report_line({"id": name, "cancelled": True})
            else:
                report_line({"id": name, "values": taken, **(outcome(failed) if failed else {})})

        task = asyncio.create_task(loop())
        self._pending[name] = task
        task.add_done_callback(on_end)

    async def _wait_for_go_on(self, name: str) -> None:
        going_on = self._paused[name] = asyncio.Event()
        await going_on.wait()

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self) -> None:
        if self._mesh is not None:
            mesh, self._mesh = self._mesh, None
            await mesh.aclose()
        await asyncio.sleep(0)  # reports are callbacks of futures that are done
        report_line({"closed": True})

    async def _reset(self) -> None:
        loops = [each for each in self._pending.values() if isinstance(each, asyncio.Task)]
        self._pending.clear()
        for task in [*self._tasks, *loops]:
            task.cancel()
        if self._mesh is not None:
            mesh, self._mesh = self._mesh, None
            await mesh.aclose(0)
        self._is_closing = False
        self._views.clear()
        self._lanes.clear()
        report_line({"reset": True})


def connect(addresses: list[str], timeout: float) -> slotmesh.Mesh:
    """A client of the routers at these addresses."""
    return slotmesh.connect(addresses, connect_timeout=timeout)


def outcome(value: Any) -> dict[str, Any]:
    """A result or a failure, as reports have it."""
    if isinstance(value, slotmesh.SlotmeshError):
        error = {
            "reason": value.reason.value,
            "status": value.status,
            "executed": value.executed.name.lower(),
            "message": str(value),
        }
        if value.retry_delay_s is not None:
            error["retry_delay_s"] = value.retry_delay_s  # type: ignore[assignment]
        return {"error": error}
    if isinstance(value, BaseException):
        return {"error": {"reason": type(value).__name__, "status": "", "executed": "", "message": str(value)}}
    return {"done": True} if value is None else {"result": value.decode()}


def report_line(report: dict[str, Any]) -> None:
    """One line."""
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


async def main() -> None:
    """Performs commands until stdin ends."""
    client = f"slotmesh-python {slotmesh.__version__}"
    report_line({"ready": {"client": client, "level": "resumable", "capabilities": CAPABILITIES}})
    reader = asyncio.StreamReader(limit=16 * 1024**2)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    adapter = PythonClient()
    while line := await reader.readline():
        await adapter.perform(json.loads(line))


if __name__ == "__main__":
    asyncio.run(main())
