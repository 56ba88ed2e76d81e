"""HTTP/2 in good conduct, over a socket of one's own: rpcs whose bytes, pace and end are the attacker's.

Purpose: what a gRPC library would not send, in frames that are in order; `raw_http2` has those that are not.
Invariants: what the server grants is kept to (windows, frames' sizes); its pings and settings are answered, until the
connection falls silent.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from slotmesh.units import parse_host_port
from tests.attacks.target import Target

CUT_OFF: Final = -1
"""In place of a status: the stream was reset, or the connection lost."""
READ_BYTES: Final = 65_536
_BIG_WINDOW: Final = 2**24
_LIMIT_BYTES: Final = 2**20

Headers = Sequence[tuple[str, str]]


def grpc_headers(path: str, more: Headers = (), *, scheme: str = "http") -> list[tuple[str, str]]:
    """Of an rpc, `slotmesh.v1.RouterService/Call`."""
    first = [(":method", "POST"), (":scheme", scheme), (":path", f"/{path}"), (":authority", "router")]
    return [*first, ("te", "trailers"), ("content-type", "application/grpc"), *more]


def grpc_message(body: bytes, *, flag: int = 0, length: int | None = None) -> bytes:
    """With its prefix, which says another length where told so."""
    return bytes([flag]) + (len(body) if length is None else length).to_bytes(4) + body


@dataclass(slots=True)
class Answer:
    """What came on a stream, as far as it did."""

    status: int | None = None
    """Of gRPC; None while the stream goes on."""
    text: str = ""
    data: bytearray = field(default_factory=bytearray)
    """Messages with their prefixes."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def messages(self) -> list[bytes]:
        """Those that are whole."""
        found, at = [], 0
        while at + 5 <= len(self.data):
            end = at + 5 + int.from_bytes(self.data[at + 1 : at + 5])
            if end > len(self.data):
                break
            found.append(bytes(self.data[at + 5 : end]))
            at = end
        return found


class Http2:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, scheme: str) -> None:
        self._reader = reader
        self._writer = writer
        self._scheme = scheme
        self._state = H2Connection(H2Configuration(client_side=True))
        self._answers: dict[int, Answer] = {}
        self._granted = asyncio.Event()
        self.granted_settings = asyncio.Event()
        """The server has said what it allows, and was told that this is known: it goes by that from then on."""
        self.is_lost = False
        """By the server, or for a protocol error of it."""
        self._state.initiate_connection()
        self._state.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: _BIG_WINDOW})
        self._state.increment_flow_control_window(_BIG_WINDOW)
        self._flush()
        self._reading = asyncio.create_task(self._read())

    def open(self, path: str, more: Headers = (), *, end: bool = False) -> int:
        """The id of a new stream, whose headers are sent."""
        stream_id = self._state.get_next_available_stream_id()
        self._answers[stream_id] = Answer()
        self._state.send_headers(stream_id, grpc_headers(path, more, scheme=self._scheme), end_stream=end)
        self._flush()
        return stream_id

    async def send(self, stream_id: int, data: bytes, *, end: bool = False) -> bool:
        """Returns whether all was sent: not where the stream has ended before."""
        left = memoryview(data)
        while not self.is_lost and self._answers[stream_id].status is None:
            try:
                room = min(self._state.local_flow_control_window(stream_id), self._state.max_outbound_frame_size)
                if room <= 0 and left:
                    self._granted.clear()
                    await self._granted.wait()
                    continue
                part, left = left[:room], left[room:]
                self._state.send_data(stream_id, bytes(part), end_stream=end and not left)
            except ProtocolError:
                return False
            self._flush()
            if not left:
                return True
            await self._drained()
        return False

    def reset(self, stream_id: int) -> None:
        with suppress(ProtocolError):
            self._state.reset_stream(stream_id, 8)
            self._flush()

    def forget(self, stream_id: int) -> None:
        """Nobody asks for its answer any more."""
        self._answers.pop(stream_id, None)

    async def answered(self, stream_id: int, *, messages: int | None = None) -> Answer:
        """Once the stream has ended; or once it has brought so many messages, if it is told how many."""
        answer = self._answers[stream_id]
        while answer.status is None and (messages is None or len(answer.messages()) < messages):
            answer.changed.clear()
            await answer.changed.wait()
        return answer

    def statuses(self) -> Counter[int]:
        """Of the streams that have ended."""
        return Counter(each.status for each in self._answers.values() if each.status is not None)

    def fall_silent(self) -> None:
        """Reads and answers nothing from now on."""
        self._reading.cancel()

    def cut(self) -> None:
        """Ends the connection without a word, in the middle of whatever goes on."""
        self._reading.cancel()
        self._writer.transport.abort()

    # -- within ----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        with suppress(ConnectionError, ProtocolError):
            while data := await self._reader.read(READ_BYTES):
                self._received(data)
                await self._drained()
        self.is_lost = True
        for answer in self._answers.values():
            if answer.status is None:
                self._ended(answer, CUT_OFF, "the connection was lost")
        self._granted.set()
        self.granted_settings.set()

    def _received(self, data: bytes) -> None:
        for event in self._state.receive_data(data):
            match event:
                case ResponseReceived(stream_id=int(at)) | TrailersReceived(stream_id=int(at)):
                    told = {_text(name): _text(value) for name, value in event.headers or ()}
                    if "grpc-status" in told and at in self._answers:
                        self._ended(self._answers[at], int(told["grpc-status"]), told.get("grpc-message", ""))
                case DataReceived(stream_id=int(at)):
                    self._state.acknowledge_received_data(event.flow_controlled_length or 0, at)
                    if at in self._answers:
                        self._answers[at].data += event.data or b""
                        self._answers[at].changed.set()
                case StreamReset(stream_id=int(at)) | StreamEnded(stream_id=int(at)):
                    if at in self._answers and self._answers[at].status is None:
                        self._ended(self._answers[at], CUT_OFF, "the stream was reset")
                    self._granted.set()
                case WindowUpdated():
                    self._granted.set()
                case RemoteSettingsChanged():
                    self.granted_settings.set()
                case ConnectionTerminated():
                    self.is_lost = True
                case _:
                    pass
        self._flush()

    def _ended(self, answer: Answer, status: int, text: str) -> None:
        answer.status, answer.text = status, text
        answer.changed.set()
        self._granted.set()

    def _flush(self) -> None:
        data = self._state.data_to_send()
        if data:
            self._writer.write(data)

    async def _drained(self) -> None:
        with suppress(ConnectionError):
            await self._writer.drain()


def _text(of: bytes | str) -> str:
    return of if isinstance(of, str) else of.decode("utf-8", "replace")


async def socket_of(target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connected to the router, by TLS where that is asked for; no byte of HTTP/2 was sent."""
    host, port = parse_host_port(target.router)
    context = target.ssl()
    name = None if context is None else "router"
    return await asyncio.open_connection(host, port, limit=_LIMIT_BYTES, ssl=context, server_hostname=name)


@asynccontextmanager
async def http2(target: Target) -> AsyncIterator[Http2]:
    """A connection to the router, which is cut at the end."""
    reader, writer = await socket_of(target)
    connection = Http2(reader, writer, scheme="https" if target.by_tls else "http")
    try:
        yield connection
    finally:
        connection.cut()
        await asyncio.sleep(0)
