"""Plays a case against a client, step by step.

Purpose: gives the client its commands, plays the routers, and compares what arrives and what the client reports.
Invariants: each step has a deadline. A breach of a rule that holds in each case fails the case, whatever its steps are.
Each call is reported once, and no call that no step expects.
Owner: the program that plays cases.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from slotmesh.conformance.adapter import AdapterProcess
from slotmesh.conformance.case import Case
from slotmesh.conformance.frames import padded, to_response
from slotmesh.conformance.record import PADDING, ClientRecord, shortened
from slotmesh.conformance.report import CaseProblem
from slotmesh.conformance.rules import MAX_WAITED_S
from slotmesh.conformance.scripted_servicer import Response, ScriptedRouter, ScriptedStream
from slotmesh.conformance.waiting import AdapterError, NotKept, until
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.status import DOMAIN
from slotmesh.v1 import call_pb2
from slotmesh.version import VERSION

STEP_TIMEOUT_S: Final = 15.0
"""Generous: only a client that does not keep the case needs it, and a busy machine."""

_ENDPOINT: Final = "e"
_ROSTER: Final[Mapping[str, Any]] = {"generation": "g", "revision": 1}
_WINDOW: Final[Mapping[str, int]] = {"calls": 1_024, "bytes": 4 * 1024 * 1024}
_MAX_PAYLOAD_BYTES: Final = 4 * 1024 * 1024


async def play(case: Case, adapter: AdapterProcess) -> CaseProblem | None:
    """Returns what the client has not kept; None if it has kept the case. `adapter.lost` is set if it was the last one.

    Raises:
        AdapterError: the adapter was lost in an earlier case.
    """
    if adapter.lost:
        raise AdapterError(adapter.lost)
    adapter.forget()
    player = _Player(case, adapter)
    for router in player.routers.values():
        await router.start()
    try:
        problem = await player.play()
        try:
            await adapter.reset()
        except AdapterError as error:
            adapter.lost = str(error)
            problem = problem or player.problem("the end")
            return replace(problem, adapter_errors=(*problem.adapter_errors, adapter.lost))
        return problem or player.problem_at_end()
    finally:
        for router in player.routers.values():
            await router.kill()


class _Player:
    """One play of one case."""

    def __init__(self, case: Case, adapter: AdapterProcess) -> None:
        self._record = ClientRecord()
        self.routers = {name: ScriptedRouter(name, self._record) for name in case.routers}
        self._case = case
        self._adapter = adapter
        adapter.on_report = lambda report: self._record.show("client reports", shortened(json.dumps(report)))
        self._streams: dict[str, ScriptedStream] = {}
        self._taken: set[ScriptedStream] = set()
        self._expected: set[str] = set()
        """Ids whose report a step has waited for."""
        self._members: dict[str, list[str]] = {}
        """Names of the calls of each command."""

    async def play(self) -> CaseProblem | None:
        """Plays all steps, until one is not kept."""
        for number, (kind, argument) in enumerate(self._case.steps, 1):
            where = f"{number} ({kind}{f' {argument}' if argument else ''})"
            try:
                await self._step(kind, argument)
            except NotKept as error:
                return self.problem(where, error.expected, error.got)
            except AdapterError as error:
                return self.problem(where, "the adapter reads the command", str(error))
            if self._record.breaches or self._adapter.errors:
                return self.problem(where)
        return None

    def problem_at_end(self) -> CaseProblem | None:
        """What is wrong once the adapter has dropped its client."""
        extra = {name: report for name, report in self._adapter.reports.items() if name not in self._expected}
        if extra:
            return self.problem("the end", "no other reports", str(extra))
        return self.problem("the end") if self._record.breaches or self._adapter.errors else None

    def problem(self, where: str, expected: str = "", got: str = "") -> CaseProblem:
        """What is wrong in this step, with all that was seen so far."""
        record = self._record
        errors = tuple(self._adapter.errors)
        return CaseProblem(
            where, shortened(expected), shortened(got), tuple(record.breaches), errors, tuple(record.frames)
        )

    async def _step(self, kind: str, argument: Any) -> None:
        arguments = argument if isinstance(argument, Mapping) else {}
        timeout_s = float(arguments.get("within_s", STEP_TIMEOUT_S))
        match kind:
            case "client":
                await self._command(dict(argument))
            case "open" | "accept":
                await self._open(arguments, timeout_s, accept=kind == "accept")
            case "calls":
                await self._calls(argument if isinstance(argument, Sequence) else argument["are"], arguments, timeout_s)
            case "send":
                self._send(arguments)
            case "report":
                await self._report(arguments, timeout_s)
            case "unreported":
                early = {name: self._adapter.reports[name] for name in argument if name in self._adapter.reports}
                _require(not early, f"no report of {argument} yet", early)
            case "absent":
                sent = [name for name in argument if name in self._record.sent]
                _require(not sent, f"{argument} are not sent", f"{sent} were sent")
            case "unclosed":
                _require(not self._adapter.closed, "the client is not closed yet", "it reported `closed`")
            case "closed":
                await self._until(lambda: self._adapter.closed, timeout_s, "the client reports that it is closed")
            case _:
                if not await self._about_routers(kind, argument, arguments):
                    await self._about_stream(kind, argument, arguments, timeout_s)

    # -- the client ------------------------------------------------------------------------------------------------

    async def _command(self, command: dict[str, Any]) -> None:
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
                names = command.pop("names", ()) or [f"{command['id']}{at}" for at in range(command.pop("count"))]
                command["payloads"] = [self._made(name, command) for name in names]
                self._members[command["id"]] = names
                command.pop("size", None)
            case _:
                pass
        self._record.show("application", shortened(json.dumps(command)))
        await self._adapter.command(command)

    def _made(self, name: str, command: dict[str, Any]) -> str:
        size = command.get("size", 0) if command["do"] == "map" else command.pop("size", 0)
        self._record.make(name, command.get("key", ""), size, _options_of(command))
        return name.ljust(size, PADDING)

    async def _report(self, wanted: Mapping[str, Any], timeout_s: float) -> None:
        name = wanted["id"]
        reports = self._adapter.reports
        named = {field: value for field, value in wanted.items() if field not in ("id", "within_s")}
        if isinstance(named.get("result"), Mapping):
            named["result"] = padded(named["result"])
        await self._until(lambda: name in reports, timeout_s, f"the client reports {name!r}: {named}")
        self._expected.add(name)
        _require(_has(reports[name], named), f"the client reports {name!r}: {named}", reports[name])
        members = self._members.get(name, [])
        for stream in self._streams.values():
            stream.rules.reported(members)
            stream.rules.caught_up()

    # -- routers ---------------------------------------------------------------------------------------------------

    async def _about_routers(self, kind: str, argument: Any, arguments: Mapping[str, Any]) -> bool:
        """Returns False if the step is none of these."""
        match kind:
            case "kill":
                await self.routers[argument].kill()
            case "start":
                await self.routers[argument].start()
            case "vanish":
                self.routers[argument].vanish()
            case "refuse":
                self.routers[arguments["at"]].refusal = _failure(arguments)
            case "untried":
                tried = [name for name in argument if not self._taken.issuperset(self.routers[name].streams)]
                _require(not tried, f"no other stream is opened at {argument}", f"streams at {tried}")
            case "openings":
                count, most = len(self.routers[arguments["at"]].streams), arguments["at_most"]
                _require(count <= most, f"at most {most} streams are opened at router {arguments['at']}", count)
            case _:
                return False
        return True

    # -- streams ---------------------------------------------------------------------------------------------------

    async def _open(self, wanted: Mapping[str, Any], timeout_s: float, *, accept: bool) -> None:
        where = wanted.get("at", "A")
        at = self.routers[where]

        def newest() -> ScriptedStream | None:
            fresh = (stream for stream in at.streams if stream not in self._taken and stream.opening is not None)
            return next(fresh, None)

        stream = await self._until(newest, timeout_s, f"the client opens a stream at router {where}")
        self._taken.add(stream)
        self._streams[wanted.get("as", "main")] = stream
        opening = stream.opening
        expected = wanted.get("endpoint", _ENDPOINT)
        _require(opening.endpoint == expected, f"open.endpoint is {expected!r}", repr(opening.endpoint))
        if missing := set(wanted.get("client_features", ())) - set(opening.features):
            raise NotKept(f"open.features names {sorted(missing)}", str(list(opening.features)))
        if "epoch" in wanted:
            _require(opening.epoch == wanted["epoch"], f"open.epoch is {wanted['epoch']}", opening.epoch)
        if accept:
            asyncio.get_running_loop().call_later(wanted.get("after_s", 0.0), stream.write, self._opened(wanted))

    def _opened(self, wanted: Mapping[str, Any]) -> Response:
        opened = {
            "router_id": wanted.get("at", "A"),
            "version": VERSION,
            "window": wanted.get("window", _WINDOW),
            "alternates": wanted.get("alternates", []),
            "features": wanted.get("features", []),
            "max_payload_bytes": wanted.get("max_payload_bytes", _MAX_PAYLOAD_BYTES),
        }
        if self._record.session_id:
            opened["roster"] = wanted.get("roster", _ROSTER)
        return to_response({"opened": opened}, self._id_of, self._address_of)

    async def _calls(self, wanted: Sequence[Any], where: Mapping[str, Any], timeout_s: float) -> None:
        stream = self._stream(where)
        calls = stream.rules.calls
        each = [item if isinstance(item, Mapping) else {"name": item} for item in wanted]
        names = [item["name"] for item in each]
        arrived = f"the calls {names} arrive"
        await self._until(lambda: calls.keys() >= set(names) or self._record.breaches, timeout_s, arrived)
        if self._record.breaches:
            return
        for item in each:
            call = calls[item["name"]]
            actual: dict[str, object] = {
                "resend": call.resend,
                "timeout_s": call.options.timeout.ToTimedelta().total_seconds(),
                "size": len(call.payload),
                "metadata": dict(call.options.metadata),
                "no_reply": call.options.stream.no_reply,
                "streaming": call.options.stream.each_value,
                "stop_generation": call.options.stream.stop_generation,
            }
            for field, value in item.items():
                if field != "name":
                    found = actual[field] if field in actual else getattr(call.options, field)
                    is_kept = found == value
                    if field == "timeout_s" and value:  # less the time that the call has waited at its client
                        is_kept = 0 <= value - found <= MAX_WAITED_S
                    _require(is_kept, f"call {call.name!r} has {field} {value!r}", repr(found))

    def _send(self, arguments: Mapping[str, Any]) -> None:
        frame = {kind: value for kind, value in arguments.items() if kind != "on"}
        if "unknown" in frame:
            frame = {}  # a frame of a newer version has none of the kinds that this one knows
        self._stream(arguments).write(to_response(frame, self._id_of, self._address_of))

    async def _about_stream(self, kind: str, argument: Any, arguments: Mapping[str, Any], timeout_s: float) -> None:
        stream = self._stream(arguments)
        rules = stream.rules
        names = set(arguments.get("are", ()) if isinstance(argument, Mapping) else argument)
        match kind:
            case "cancelled":
                await self._until(lambda: rules.cancelled >= names, timeout_s, f"{sorted(names)} are cancelled")
                _require(rules.cancelled == names, f"{sorted(names)} are cancelled", sorted(rules.cancelled))
            case "chunked":
                await self._until(lambda: rules.complete >= names, timeout_s, f"all chunks of {sorted(names)} arrive")
            case "taken":
                await self._until(lambda: rules.taken >= names, timeout_s, f"values of {sorted(names)} are taken")
            case "untaken":
                early = rules.taken & names
                _require(not early, f"no value of {sorted(names)} is taken yet", sorted(early))
            case "echo":
                await asyncio.sleep(arguments.get("after_s", 0.0))

                def reported() -> bool:
                    stream.echo()
                    return arguments["until"] in self._adapter.reports

                await self._until(reported, timeout_s, f"the client reports {arguments['until']!r}")
            case "half_close":
                await self._until(lambda: stream.half_closed, timeout_s, "the client half-closes")
            case "end":
                stream.end(_failure(arguments) if "reason" in arguments else None, arguments.get("domain", DOMAIN))
            case "silence":
                stream.silent = True
            case "acked":
                frame = arguments.get("frame", rules.frames_sent)
                await self._until(lambda: rules.acked >= frame, timeout_s, f"frame {frame} is acknowledged")
            case "roster_acked":
                version = (arguments["generation"], arguments.get("term_id", "")), arguments["revision"]
                acknowledged = f"roster {version} is acknowledged"
                await self._until(lambda: rules.rosters.acknowledged == version, timeout_s, acknowledged)
            case "heartbeats":
                count = arguments.get("count", 1)
                await self._until(lambda: stream.heartbeats >= count, timeout_s, f"{count} heartbeats arrive")
            case _:
                raise ValueError(f"no such step: {kind}")

    def _stream(self, where: Mapping[str, Any]) -> ScriptedStream:
        return self._streams[where.get("on", "main")]

    def _id_of(self, name: str) -> int:
        return self._record.sent[name].call_id

    def _address_of(self, name: str) -> str:
        return self.routers[name].address

    async def _until(self, predicate: Callable[[], Any], timeout_s: float, expected: str) -> Any:
        value = await until(lambda: predicate() or self._adapter.ended, expected, timeout_s=timeout_s)
        if self._adapter.ended:
            raise NotKept(expected, "the adapter has ended")
        return value


def _options_of(command: Mapping[str, Any]) -> call_pb2.CallOptions:
    """The options of a call that this command makes; a lane that stops has a generation of the client's."""
    options = call_pb2.CallOptions(
        method=command.get("method", ""),
        shard_key=command.get("shard_key", ""),
        affinity_key=command.get("affinity_key", ""),
        ordering_key=command.get("key", ""),
        tenant=command.get("tenant", ""),
        idempotent=command.get("idempotent", False),
        metadata=command.get("metadata", {}),
    )
    if command.get("no_reply"):
        options.stream.no_reply = True
    if command["do"] == "stream":
        options.stream.each_value = True
    if "timeout_s" in command:
        options.timeout.FromMilliseconds(round(command["timeout_s"] * 1_000))
    return options


def _failure(arguments: Mapping[str, Any]) -> Failure:
    return Failure(
        reason=Reason(arguments["reason"]),
        message=arguments.get("message", "the case ends this stream"),
        executed=Executed[arguments.get("executed", "NO")],
        code=arguments.get("code"),
    )


def _require(is_kept: bool, expected: str, got: object) -> None:
    if not is_kept:
        raise NotKept(expected, str(got))


def _has(actual: Any, wanted: Any) -> bool:
    """Whether all that `wanted` names is so; a report may have more."""
    if isinstance(wanted, Mapping):
        return isinstance(actual, Mapping) and all(
            name in actual and _has(actual[name], value) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(actual, list)
            and len(actual) == len(wanted)
            and all(_has(item, value) for item, value in zip(actual, wanted, strict=True))
        )
    return bool(actual == wanted)
