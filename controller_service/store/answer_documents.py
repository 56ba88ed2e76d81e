"""Requests that may be repeated as JSON documents, and back."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from controller_service.core.answered_requests import AnsweredRequest, AnsweredRequests
from controller_service.store.bad_document import BadDocument


def answer_document(answer: AnsweredRequest) -> dict[str, Any]:
    """The answered request; its key stands outside."""
    return {"digest": answer.digest, "time_s": answer.time_s, "reply": b64encode(answer.reply).decode()}


def answers_from(documents: Mapping[str, object]) -> AnsweredRequests:
    """By key, oldest first. Raises BadDocument."""
    answers = [_answer(key, document) for key, document in documents.items()]
    return MappingProxyType({it.key: it for it in sorted(answers, key=lambda it: it.time_s)})


def _answer(key: str, document: object) -> AnsweredRequest:
    where = f"answered request {key}"
    if not isinstance(document, dict):
        raise BadDocument(f"{where}: must be a JSON object")
    digest, time_s, reply = (document.get(name) for name in ("digest", "time_s", "reply"))
    if not isinstance(digest, str) or isinstance(time_s, bool) or not isinstance(time_s, int | float):
        raise BadDocument(f"{where}: `digest` must be a text, `time_s` a number")
    try:
        return AnsweredRequest(key=key, digest=digest, time_s=time_s, reply=b64decode(str(reply), validate=True))
    except binascii.Error as error:
        raise BadDocument(f"{where}: `reply` must be base64: {error}") from error
