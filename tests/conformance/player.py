"""Plays a case against a client, step by step.

Purpose: tells the client what to do, plays the routers, looks at what arrives and at what the client reports.
Invariants: each step is awaited with a deadline; every breach of a rule that holds always fails the case, whatever its
steps say; each call is reported once, and none is reported that the case does not expect.
Owner: whoever runs cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from slotmesh.errors import Executed, Failure, Reason
from tests.conformance.case import Case
from tests.conformance.client import ClientFault, ClientProcess
from tests.conformance.frames import to_response
from tests.conformance.router import Response, ScriptedRouter, ScriptedStream
from tests.conformance.session import PADDING, Session
from tests.support.wait import wait_until

STEP_TIMEOUT_S = 5.0

_ENDPOINT = "e"
_ROSTER: Mapping[str, Any] = {"generation": "g", "revision": 1}
_WINDOW: Mapping[str, int] = {"calls": 1_024, "bytes": 4 * 1024 * 1024}
_MAX_PAYLOAD_BYTES = 4 * 1024 * 1024


async def play(case: Case, client: ClientProcess) -> None:
    """Returns when the client has kept the case.

    Raises:
        AssertionError: it has not; the message has the step and what was wrong.
    """
    client.forget()
    player = _Player(case, client)
    for router in player.routers.values():
        await router.start()
    try:
        for number, (kind, argument) in enumerate(case.steps, 1):
            try:
                await player.step(kind, argument)
                player.check()
            except AssertionError as error:
                story = "".join(f"\n  also: {breach}" for breach in player.session.breaches)
                raise AssertionError(f"{case.name}, step {number} ({kind} {argument}): {error}{story}") from None
        await client.reset()
        player.check_the_end()
    except AssertionError:
        with suppress(AssertionError):
            await client.reset()  # the next case finds the adapter ready
        raise
    finally:
        for router in player.routers.values():
            await router.kill()


class _Player:
    """One play of one case."""

    def __init__(self, case: Case, client: ClientProcess) -> None:
        self.session = Session()
        self.routers = {name: ScriptedRouter(self.session) for name in case.routers}
        self._case = case
        self._client = client
        self._streams: dict[str, ScriptedStream] = {}
        self._taken: set[ScriptedStream] = set()
        self._expected: set[str] = set()
        """Ids whose report a step has asked for."""
        self._members: dict[str, list[str]] = {}
        """Names of the calls of each command."""

    def check(self) -> None:
        """Looks for breaches of the rules that hold always."""
        if self.session.breaches or self._client.faults:
            raise AssertionError("; ".join([*self.session.breaches, *self._client.faults]))

    def check_the_end(self) -> None:
        """The case is over: nothing came that it does not speak of."""
        self.check()
        extra = {name: report for name, report in self._client.reports.items() if name not in self._expected}
        if extra:
            raise AssertionError(f"{self._case.name}: reported, and not expected: {extra}")

    async def step(self, kind: str, argument: Any) -> None:
        """Plays one step."""
        arguments = argument if isinstance(argument, Mapping) else {}
        timeout = float(arguments.get("within_s", STEP_TIMEOUT_S))
        match kind:
            case "client":
                await self._tell(dict(argument))
            case "open" | "accept":
                await self._open(arguments, timeout, accept=kind == "accept")
            case "calls":
                await self._calls(argument if isinstance(argument, Sequence) else argument["are"], arguments, timeout)
            case "send":
                self._send(arguments)
            case "report":
                await self._report(arguments, timeout)
            case "unreported":
                early = {name: self._client.reports[name] for name in argument if name in self._client.reports}
                assert not early, f"reported too early: {early}"
            case "absent":
                sent = [name for name in argument if name in self.session.sent]
                assert not sent, f"sent, and must not be: {sent}"
            case "kill":
                await self.routers[argument].kill()
            case "start":
                await self.routers[argument].start()
            case "closed":
                await self._until(lambda: self._client.closed, timeout, "the client reports that it is closed")
            case _:
                await self._about_stream(kind, argument, arguments, timeout)

    # -- the client ------------------------------------------------------------------------------------------------

    async def _tell(self, command: dict[str, Any]) -> None:
        match command["do"]:
            case "connect":
                names = command.pop("to", ["A"])
                command["addresses"] = [self.routers[name].address for name in names]
                command.setdefault("endpoint", _ENDPOINT)
            case "call" | "stream":
                name = command["id"]
                command["payload"] = self._made(name, command)
                self._members[name] = [name]
            case "map":
                names = command.pop("names")
                command["payloads"] = [self._made(name, command) for name in names]
                self._members[command["id"]] = names
                command.pop("size", None)
            case _:
                pass
        await self._client.tell(command)

    def _made(self, name: str, command: dict[str, Any]) -> str:
        size = command.get("size", 0) if command["do"] == "map" else command.pop("size", 0)
        self.session.make(name, command.get("key", ""), size)
        return name.ljust(size, PADDING)

    async def _report(self, wanted: Mapping[str, Any], timeout: float) -> None:
        name = wanted["id"]
        reports = self._client.reports
        await self._until(lambda: name in reports, timeout, f"the client reports {name!r}")
        self._expected.add(name)
        report = reports[name]
        for field, value in wanted.items():
            if field not in ("id", "within_s"):
                _compare(report, field, value)
        members = self._members.get(name, [])
        for stream in self._streams.values():
            stream.rules.heard(members)
            stream.rules.caught_up()

    # -- streams ---------------------------------------------------------------------------------------------------

    async def _open(self, wanted: Mapping[str, Any], timeout: float, *, accept: bool) -> None:
        at = self.routers[wanted.get("at", "A")]
        name = wanted.get("as", "main")

        def newest() -> ScriptedStream | None:
            fresh = (stream for stream in at.streams if stream not in self._taken and stream.opening is not None)
            return next(fresh, None)

        stream = await self._until(newest, timeout, f"the client opens a stream at {wanted.get('at', 'A')}")
        if stream is None or stream.opening is None:
            raise ClientFault("no stream")
        self._taken.add(stream)
        self._streams[name] = stream
        opening = stream.opening
        expected = wanted.get("endpoint", _ENDPOINT)
        assert opening.endpoint == expected, f"open.endpoint is {expected!r}, got {opening.endpoint!r}"
        if "epoch" in wanted:
            assert opening.epoch == wanted["epoch"], f"the epoch is {wanted['epoch']}, got {opening.epoch}"
        if accept:
            stream.say(self._opened(wanted))

    def _opened(self, wanted: Mapping[str, Any]) -> Response:
        opened = {
            "router_id": wanted.get("at", "A"),
            "version": "0.1.0",
            "window": wanted.get("window", _WINDOW),
            "alternates": wanted.get("alternates", []),
            "features": wanted.get("features", ["sessions"]),
            "max_payload_bytes": wanted.get("max_payload_bytes", _MAX_PAYLOAD_BYTES),
        }
        if "sessions" in opened["features"] and self.session.session_id:
            opened["roster"] = wanted.get("roster", _ROSTER)
        return to_response({"opened": opened}, self._id_of, self._address_of)

    async def _calls(self, wanted: Sequence[Any], where: Mapping[str, Any], timeout: float) -> None:
        stream = self._stream(where)
        calls = stream.rules.calls
        each = [item if isinstance(item, Mapping) else {"name": item} for item in wanted]
        names = [item["name"] for item in each]
        await self._until(
            lambda: calls.keys() >= set(names) or self.session.breaches, timeout, f"the calls {names} arrive"
        )
        self.check()
        for item in each:
            call = calls[item["name"]]
            for field, value in item.items():
                actual: object
                if field == "name":
                    continue
                if field == "resend":
                    actual = call.resend
                elif field == "timeout_s":
                    actual = call.options.timeout.ToTimedelta().total_seconds()
                elif field == "size":
                    actual = len(call.payload)
                elif field == "metadata":
                    actual = dict(call.options.metadata)
                else:
                    actual = getattr(call.options, field)
                assert actual == value, f"call {call.name!r} has {field} {actual!r}, not {value!r}"

    def _send(self, arguments: Mapping[str, Any]) -> None:
        frame = {kind: value for kind, value in arguments.items() if kind != "on"}
        if "unknown" in frame:
            frame = {}  # to this version, a frame of a newer one has none of the kinds
        self._stream(arguments).say(to_response(frame, self._id_of, self._address_of))

    async def _about_stream(self, kind: str, argument: Any, arguments: Mapping[str, Any], timeout: float) -> None:
        stream = self._stream(arguments)
        match kind:
            case "cancelled":
                names = set(argument if isinstance(argument, Sequence) else arguments["are"])
                await self._until(lambda: stream.rules.cancelled >= names, timeout, f"{names} are taken back")
                assert stream.rules.cancelled == names, f"taken back: {stream.rules.cancelled}, not {names}"
            case "chunked":
                names = set(argument if isinstance(argument, Sequence) else arguments["are"])
                await self._until(lambda: stream.rules.complete >= names, timeout, f"all chunks of {names} arrive")
            case "taken":
                names = set(argument)
                await self._until(lambda: stream.rules.taken >= names, timeout, f"values of {names} are taken")
            case "untaken":
                early = stream.rules.taken & set(argument)
                assert not early, f"values taken too early: {early}"
            case "half_close":
                await self._until(lambda: stream.half_closed, timeout, "the client half-closes")
            case "end":
                stream.end(_failure(arguments) if "reason" in arguments else None)
            case "silence":
                stream.silent = True
            case "acked":
                frame = arguments.get("frame", stream.rules.frames_sent)
                await self._until(lambda: stream.rules.acked >= frame, timeout, f"frame {frame} is acknowledged")
            case "roster_acked":
                version = arguments["generation"], arguments["revision"]
                rosters = stream.rules.rosters
                await self._until(lambda: rosters.acknowledged == version, timeout, f"roster {version} is acknowledged")
            case "heartbeats":
                count = arguments.get("count", 1)
                await self._until(lambda: stream.heartbeats >= count, timeout, f"{count} heartbeats arrive")
            case _:
                raise AssertionError(f"no such step: {kind}")

    def _stream(self, where: Mapping[str, Any]) -> ScriptedStream:
        return self._streams[where.get("on", "main")]

    def _id_of(self, name: str) -> int:
        return self.session.sent[name].call_id

    def _address_of(self, name: str) -> str:
        return self.routers[name].address

    async def _until(self, predicate: Callable[[], Any], timeout: float, what: str) -> Any:
        value = await wait_until(lambda: predicate() or self._client.ended, timeout=timeout, what=what)
        if self._client.ended:
            raise ClientFault(f"the adapter ended while it was waited for: {what}")
        return value


def _failure(arguments: Mapping[str, Any]) -> Failure:
    return Failure(
        reason=Reason(arguments["reason"]),
        message=arguments.get("message", "told to end"),
        executed=Executed[arguments.get("executed", "NO")],
    )


def _compare(report: Mapping[str, Any], field: str, wanted: Any) -> None:
    """Only what the case names has to be so."""
    if field not in report:
        raise AssertionError(f"expected {field} {wanted!r}, got {dict(report)}")
    actual = report[field]
    if isinstance(wanted, Mapping):
        for name, value in wanted.items():
            _compare(actual, name, value)
    elif isinstance(wanted, list) and any(isinstance(item, Mapping) for item in wanted):
        assert len(actual) == len(wanted), f"expected {len(wanted)} {field}, got {actual!r}"
        for item, value in zip(actual, wanted, strict=True):
            for name in value:
                _compare(item, name, value[name])
    else:
        assert actual == wanted, f"expected {field} {wanted!r}, got {actual!r}"
