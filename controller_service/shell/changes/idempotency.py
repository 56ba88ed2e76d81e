"""Requests that are repeated after a lost reply take effect once.

Purpose: the one module that uses `request_id`. `answers_once` wraps the rpcs of a service: what changes the store finds
the request that is being served, adds it to the change (`answer_now`), and looks for it among those that were answered
before, ahead of any planning (`require_new`).
Invariants: the look and the change are of one revision: of two requests with one id that are carried out at the same
time, the store takes the change of one, and the other finds its answer.
Owner: the context of an rpc's task; what runs in the background has no request.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from controller_service.convert.checks import names_all_violations
from controller_service.core.desired.state import AnsweredRequest, AnsweredRequests, find_answer
from slotmesh.security.identity import of_caller
from slotmesh.spec.model import InvalidSpec, SpecViolation
from slotmesh.spec.rules import show

ServicerT = TypeVar("ServicerT")
Rpc = Callable[..., Awaitable[Any]]

MAX_REPLY_BYTES: Final = 16 * 1024
"""Of a longer reply its lists are not remembered: there may be thousands of names."""
_ID: Final = re.compile(r"[!-~]{1,128}")


class AlreadyAnswered(Exception):
    """The request was carried out before."""

    def __init__(self, reply: bytes) -> None:
        super().__init__("the request was carried out before")
        self.reply = reply


@dataclass(frozen=True, slots=True)
class _Asked:
    """The request that is being served, if its caller has named it."""

    request_id: str
    key: str
    digest: str
    reply: type[Message]
    """The kind of message that answers it."""


_ASKED: Final[ContextVar[_Asked | None]] = ContextVar("slotmesh_asked_request", default=None)


def answers_once(service: ServiceDescriptor) -> Callable[[type[ServicerT]], type[ServicerT]]:
    """Has the rpcs of a servicer whose requests have a `request_id` answer a repeated one with its first reply."""

    def wrap(servicer: type[ServicerT]) -> type[ServicerT]:
        for method in service.methods:
            if "request_id" in method.input_type.fields_by_name:
                reply = GetMessageClass(method.output_type)
                once = _once(getattr(servicer, method.name), method.full_name, reply)
                setattr(servicer, method.name, names_all_violations(once))
        return servicer

    return wrap


def require_new(answers: AnsweredRequests, now_s: float) -> None:
    """Raises AlreadyAnswered if the request that is being served is among these, InvalidSpec if only its id is."""
    if (asked := _ASKED.get()) is None or (known := find_answer(answers, asked.key, now_s)) is None:
        return
    if known.digest == asked.digest:
        raise AlreadyAnswered(known.reply)
    name = show(asked.request_id)
    text = f"{name} is the id of another request, which was carried out: choose a new id for each request"
    raise InvalidSpec([SpecViolation("request_id", text)])


def answer_now(make_reply: Callable[[type[Message]], Message], now_s: float) -> AnsweredRequest | None:
    """The request that is being served, with its reply: to be stored with the change. None if it has no id."""
    if (asked := _ASKED.get()) is None:
        return None
    content = (reply := make_reply(asked.reply)).SerializeToString()
    if len(content) > MAX_REPLY_BYTES:
        content = asked.reply(revision=getattr(reply, "revision", 0)).SerializeToString()
    return AnsweredRequest(key=asked.key, digest=asked.digest, time_s=now_s, reply=content)


def _once(rpc: Rpc, name: str, reply: type[Message]) -> Rpc:
    @functools.wraps(rpc)
    async def once(servicer: object, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        if not request.request_id:
            return await rpc(servicer, request, context)
        if _ID.fullmatch(request.request_id) is None:
            text = f"must be 1 … 128 printable ASCII characters without blanks, is {show(request.request_id)!r}"
            raise InvalidSpec([SpecViolation("request_id", text)])
        token = _ASKED.set(_Asked(request.request_id, of_caller(request.request_id), _digest(name, request), reply))
        try:
            return await rpc(servicer, request, context)
        except AlreadyAnswered as known:
            return reply.FromString(known.reply)
        finally:
            _ASKED.reset(token)

    return once


def _digest(name: str, request: Message) -> str:
    content = request.SerializeToString(deterministic=True)
    return blake2b(name.encode() + b"\0" + content, digest_size=16).hexdigest()
