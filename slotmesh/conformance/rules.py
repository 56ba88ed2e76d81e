"""The rules of docs/protocol.md that hold in each case.

Purpose: watches the frames of all streams of one client and notes each breach. Pure.
Invariants: a breach is noted once, with the id of its rule. Frames that the client may not have read yet bind it only
after `caught_up`.
Owner: the player of one case.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any, Final

from slotmesh.conformance.record import PADDING, ClientRecord, MadeCall, SentCall, name_of
from slotmesh.conformance.rosters import RosterRules
from slotmesh.convert.batches import block_problem, list_of
from slotmesh.streams.arriving_payloads import BadChunk, JoinedAssembly
from slotmesh.v1 import call_pb2, router_service_pb2

MAX_CALL_ID = 2**53 - 1
START_CALLS = 1_024
START_BYTES = 4 * 1024 * 1024
MAX_WAITED_S = 10.0
"""By this much the timeout of a call's first sending may be shorter: the client subtracts the time that it waited."""

_SESSION_ID = re.compile(r"[0-9a-f]{32}")


class StreamRules:
    """One stream, as the router sees it."""

    def __init__(self, record: ClientRecord) -> None:
        self._record = record
        self._opened = False
        self._session_id = ""
        self._defaults = call_pb2.CallOptions()
        self._last_id = 0
        self._unanswered: dict[int, SentCall] = {}
        self._windows = [(START_CALLS, START_BYTES)]
        """Those that the client may know."""
        self._newest_of_key: dict[str, int] = {}
        self._new_calls = False
        self._owes_resent_all = False
        """The client has to mark the end of the calls that it sends again."""
        self._to_resend: set[int] = set()
        self._cancelled: set[int] = set()
        self._features: set[str] = set()
        self._values: Counter[int] = Counter()
        """Written and not taken, by call."""
        self._taken: Counter[int] = Counter()
        self._chunks: dict[int, tuple[SentCall, JoinedAssembly]] = {}
        """Payloads that were announced and are not complete."""
        self.complete: set[str] = set()
        """Names of calls of which all chunks have arrived."""
        self._leaving = False
        """GoAway was written, and the client has shown that it read it."""
        self._go_away_written = False
        self.calls: dict[str, SentCall] = {}
        """What arrived on this stream, by name."""
        self.rosters = RosterRules(record.rosters, self._breach)
        self._epoch = 0
        self.frames_sent = 0
        """Result frames written to it."""
        self.acked = 0

    # -- from the client -------------------------------------------------------------------------------------------

    def request(self, frame: router_service_pb2.StreamCallsRequest) -> None:
        """Any frame of the client."""
        kind = frame.WhichOneof("frame")
        if not self._opened and kind != "open":
            self._breach("B1", f"the first frame is open, got {kind}")
        match kind:
            case "open":
                self._open(frame.open)
            case "calls":
                if frame.calls.resent_all:
                    self._owes_resent_all = False
                for batch in frame.calls.batches:
                    self._batch(batch)
            case "cancel":
                self._cancel(frame.cancel.calls)
            case "ack":
                self._ack(frame.ack.through_frame)
            case "take":
                self._take(frame.take)
            case "chunk":
                self._chunk(frame.chunk)
            case "roster":
                self.rosters.roster(frame.roster, is_newest_stream=self._epoch == self._record.epoch)
            case "heartbeat":
                pass  # allowed on every stream
            case _:
                self._breach("B1", f"no router knows the frame {kind}")

    def _open(self, frame: router_service_pb2.OpenStream) -> None:
        record = self._record
        if self._opened:
            self._breach("B1", "open comes once")
        self._opened = True
        self._defaults = frame.default_options
        self._session_id = frame.session_id
        self._features.update(frame.features)
        if not frame.endpoint:
            self._breach("B1", "open.endpoint is required")
        if not frame.session_id:
            if frame.epoch or frame.unanswered or frame.rosters:
                self._breach("R1", "open.epoch, open.unanswered and open.rosters need a session")
            return
        if not _SESSION_ID.fullmatch(frame.session_id):
            self._breach("R1", f"a session id is 32 hexadecimal digits, got {frame.session_id!r}")
        if frame.session_id != record.session_id:
            record.session_id, record.epoch = frame.session_id, 0
            record.unanswered.clear()  # of a session that no router resumed
        if frame.epoch != record.epoch + 1:
            self._breach("R1", f"the epoch after {record.epoch} is {record.epoch + 1}, got {frame.epoch}")
        record.epoch = self._epoch = frame.epoch
        self.rosters.opened(frame)
        if frame.epoch == 1 and frame.unanswered:
            self._breach("R1", "at epoch 1 nothing was sent before")
        self._check_unanswered(frame.unanswered)

    def _check_unanswered(self, ranges: Iterable[call_pb2.IdRange]) -> None:
        listed = {number for each in ranges for number in range(each.first, each.last + 1)}
        ids = {call.call_id: name for name, call in self._record.sent.items()}
        streaming = {call.call_id for call in self._record.sent.values() if call.options.stream.each_value}
        delivered = self._record.delivered
        due = {call.call_id for name, call in self._record.unanswered.items() if name not in delivered} - streaming
        for number in sorted(listed):
            if number not in ids:
                self._breach("R7", f"open.unanswered has id {number}, which was never sent")
            if number in streaming:
                self._breach("V6", f"open.unanswered has {ids[number]!r}, whose values do not outlive their connection")
        if missing := sorted(due - listed):
            self._breach("R7", f"open.unanswered lacks {[ids[number] for number in missing]}")
        self._to_resend = listed
        self._owes_resent_all = bool(listed)

    def _batch(self, batch: router_service_pb2.CallBatch) -> None:
        options = batch.options if batch.HasField("options") else self._defaults
        if (problem := block_problem(batch)) is not None:
            self._breach("B4", " ".join(problem))
            return
        payloads = list_of(batch)
        if not payloads:
            self._breach("B4", "a batch has at least one payload")
        if batch.call_ids and len(batch.call_ids) != len(payloads):
            self._breach("B4", f"{len(batch.call_ids)} call_ids for {len(payloads)} payloads")
        if batch.resend and not self._session_id:
            self._breach("R9", "resend needs a session")
        if batch.resend and not batch.HasField("age"):
            self._breach("R9", "a batch with resend has an age")
        if self._leaving:
            self._breach("B15", "calls arrived after GoAway")
        first = batch.first_call_id
        ids: Sequence[int] = list(batch.call_ids) or range(first, first + len(payloads))
        sizes = self._column("C1", "chunked_sizes", list(batch.chunked_sizes), len(payloads)) or [0] * len(ids)
        keys = self._column("K1", "ordering_keys", list(batch.ordering_keys), len(payloads))
        names: list[str] = []
        for at, (call_id, payload, size) in enumerate(zip(ids, payloads, sizes, strict=False)):
            name = name_of(payload)
            if size:
                if payload:
                    self._breach("C1", f"the payload of call {call_id} is announced, and here")
                name = self._record.announced_name(call_id, size, resend=batch.resend)
                payload = name.encode().ljust(size, PADDING.encode())  # noqa: PLW2901 - what the chunks must have
            own = call_pb2.CallOptions()
            own.CopyFrom(options)
            if keys:
                own.ordering_key = keys[at]
            call = SentCall(name, call_id, payload, own, batch.resend)
            self._call(call)
            names.append(name)
            if size:
                self._chunks[call_id] = call, JoinedAssembly(size)
        self.rosters.calls(names, batch)
        self._check_window(ids)

    def _column(self, rule: str, name: str, column: list[Any], payloads: int) -> list[Any]:
        if column and len(column) != payloads:
            self._breach(rule, f"{len(column)} {name} for {payloads} payloads")
            return []
        return column

    def _chunk(self, chunk: call_pb2.Chunk) -> None:
        number = chunk.call_id
        if number not in self._chunks:
            if number > self._last_id or number in self._cancelled:
                self._breach("C1", f"a chunk of call {number}, which was not announced, or was cancelled")
            return
        call, assembly = self._chunks[number]
        try:
            if assembly.add(chunk.offset, chunk.total, chunk.data):
                del self._chunks[number]
                if assembly.payload() != call.payload:
                    self._breach("C1", f"the chunks of call {call.name!r} are not its payload")
                self.complete.add(call.name)
        except BadChunk as error:
            self._breach("C1", f"a chunk of call {call.name!r}: {error}")

    def _call(self, call: SentCall) -> None:
        record = self._record
        if not 1 <= call.call_id <= MAX_CALL_ID:
            self._breach("B4", f"ids are 1 … 2^53 - 1, got {call.call_id}")
        elif call.call_id <= self._last_id:
            self._breach("B4", f"ids strictly increase: {call.call_id} follows {self._last_id}")
        self._last_id = max(self._last_id, call.call_id)
        if call.name not in record.made:
            self._breach("B5", f"the application made no call {call.name!r}")
        before = record.sent.get(call.name)
        if call.resend:
            self._resent(call, before)
        else:
            if before is not None:
                self._breach("B17", f"call {call.name!r} was sent again, and not marked as resend")
            if record.session_id and any(call.call_id <= each.call_id for each in record.sent.values()):
                self._breach("R9", f"id {call.call_id} of a new call is not above those of earlier connections")
            if self._owes_resent_all:
                self._breach("R10", f"new call {call.name!r} was sent before resent_all")
            self._new_calls = True
        self._check_order(call)
        record.sent[call.name] = call
        record.unanswered[call.name] = call
        self._unanswered[call.call_id] = call
        self.calls[call.name] = call

    def _resent(self, call: SentCall, before: SentCall | None) -> None:
        if self._new_calls:
            self._breach("R9", f"call {call.name!r} is sent again after new calls; resent calls go first")
        if before is None:
            self._breach("R9", f"call {call.name!r} is marked as resend and was never sent")
        elif (before.call_id, before.payload) != (call.call_id, call.payload):
            self._breach("R9", f"call {call.name!r} is sent again with another id or payload")
        elif not _same_options(before.options, call.options):
            self._breach("R9", f"call {call.name!r} is sent again with other options")
        if call.call_id not in self._to_resend:
            self._breach("R9", f"call {call.name!r} is sent again and was not in open.unanswered")

    def _check_order(self, call: SentCall) -> None:
        place, key, wanted = self._record.made.get(call.name, _ANY_CALL)
        if wanted is not None and (problem := _options_problem(wanted, call.options)):
            self._breach("B6", f"call {call.name!r} has {problem}")
        if key and call.options.ordering_key != key:
            self._breach("B7", f"call {call.name!r} lost its ordering key {key!r}")
        if not key:
            return
        if place < self._newest_of_key.get(key, -1):
            self._breach("B7", f"call {call.name!r} was sent after a later one of its key {key!r}")
        self._newest_of_key[key] = max(place, self._newest_of_key.get(key, -1))

    def _check_window(self, newest: Sequence[int]) -> None:
        sizes = {number: len(call.payload) for number, call in self._unanswered.items()}
        calls, size = len(sizes), sum(sizes.values())
        largest = max(sizes, key=sizes.__getitem__, default=0)
        beside = sizes.get(largest, 0) if len(newest) == 1 or largest not in newest else 0
        if any(
            calls <= window_calls and size - (beside if beside > window_bytes else 0) <= window_bytes
            for window_calls, window_bytes in self._windows
        ):
            return
        most_calls, most_bytes = self._windows[-1]
        self._breach(
            "W1" if calls > most_calls else "W2",
            f"{calls} calls and {size} bytes are unanswered, the window is {most_calls} calls and {most_bytes} bytes, "
            "beside one larger call",
        )

    def _cancel(self, ranges: Iterable[call_pb2.IdRange]) -> None:
        last = 0
        for each in ranges:
            if each.first <= last:
                self._breach("B14", f"ranges of ids ascend: {each.first} … {each.last} follows {last}")
            last = each.last
            if not 1 <= each.first <= each.last:
                self._breach("B14", f"a range of ids goes up from 1, got {each.first} … {each.last}")
            for number in range(each.first, min(each.last, self._last_id) + 1):
                self._cancelled.add(number)
                self._chunks.pop(number, None)
            if each.last > self._last_id:
                self._breach("B14", f"id {each.last} is cancelled before it was sent")

    def _ack(self, through_frame: int) -> None:
        if not self._session_id:
            self._breach("R5", "acks are for streams with a session")
        if through_frame > self.frames_sent:
            self._breach("R5", f"frame {through_frame} is acknowledged, {self.frames_sent} were sent")
        if through_frame <= self.acked:
            self._breach("R5", f"acks go up: {through_frame} follows {self.acked}")
        self.acked = max(through_frame, self.acked)

    def _take(self, frame: call_pb2.TakeItems) -> None:
        if "take_items" not in self._features:
            self._breach("V5", "take needs the feature take_items in open")
        if len(frame.call_ids) != len(frame.counts):
            self._breach("V5", f"{len(frame.call_ids)} calls have {len(frame.counts)} counts of taken values")
        for call_id, count in zip(frame.call_ids, frame.counts, strict=False):
            if not 1 <= count <= self._values[call_id]:
                self._breach("V5", f"{count} values of call {call_id} are taken, {self._values[call_id]} were written")
            self._values[call_id] -= count
            self._taken[call_id] += count

    # -- to the client ---------------------------------------------------------------------------------------------

    @property
    def unanswered(self) -> list[SentCall]:
        """Calls of this stream whose outcome was not written."""
        return list(self._unanswered.values())

    @property
    def cancelled(self) -> set[str]:
        """Names of the calls that were cancelled."""
        return {call.name for call in self.calls.values() if call.call_id in self._cancelled}

    @property
    def taken(self) -> set[str]:
        """Names of the calls of which values were taken."""
        return {call.name for call in self.calls.values() if self._taken[call.call_id]}

    def values(self, ids: Iterable[int]) -> None:
        """Values of these calls are written."""
        self._values.update(ids)

    def answered(self, ids: Iterable[int]) -> None:
        """Outcomes of these calls are written."""
        for number in ids:
            call = self._unanswered.pop(number, None)
            self._chunks.pop(number, None)
            if call is not None:
                self._record.delivered.add(call.name)

    def reported(self, names: Iterable[str]) -> None:
        """The client reported outcomes: it must not list these calls as unanswered any more."""
        for name in names:
            self._record.unanswered.pop(name, None)

    def window(self, calls: int, nbytes: int) -> None:
        """A window is written. Earlier ones count until the client has it for sure."""
        self._windows.append((calls, nbytes))

    def go_away(self) -> None:
        """GoAway is written."""
        self._go_away_written = True

    def caught_up(self) -> None:
        """The client has shown that it read everything that was written."""
        self._leaving = self._go_away_written
        del self._windows[:-1]

    def _breach(self, rule: str, what: str) -> None:
        self._record.breach(rule, what)


_ANY_CALL: Final = MadeCall(0, "", None)


def _options_problem(wanted: call_pb2.CallOptions, got: call_pb2.CallOptions) -> str:
    """The first option that is not as wanted; empty if all are."""
    got = deepcopy(got)
    got.stream.stop_generation = 0  # chosen by the client
    for name in ("method", "shard_key", "affinity_key", "ordering_key", "tenant", "idempotent", "metadata", "stream"):
        if getattr(wanted, name) != getattr(got, name):
            return f"{name} {_shown(getattr(got, name))}, and was made with {_shown(getattr(wanted, name))}"
    waited_s = (wanted.timeout.ToTimedelta() - got.timeout.ToTimedelta()).total_seconds()
    if wanted.HasField("timeout") != got.HasField("timeout") or not 0 <= waited_s <= MAX_WAITED_S:
        return f"timeout {got.timeout.ToJsonString()}, and was made with {wanted.timeout.ToJsonString()}"
    return ""


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str | bool) else " ".join(str(value).split()) or "none"


def _same_options(first: call_pb2.CallOptions, again: call_pb2.CallOptions) -> bool:
    """Whether the options of two sendings are equal, but for the time that the call had waited at its client."""
    shorter_by = (again.timeout.ToTimedelta() - first.timeout.ToTimedelta()).total_seconds()
    if first.HasField("timeout") != again.HasField("timeout") or abs(shorter_by) > MAX_WAITED_S:
        return False
    first, again = deepcopy(first), deepcopy(again)
    first.ClearField("timeout")
    again.ClearField("timeout")
    return first == again
