"""Callers that are found for a request stay while it lasts, however many others come."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ingress_service.core.problems import RequestRefusal
from ingress_service.core.requests import RequestHeaders
from ingress_service.shell.callers import HttpCallers
from ingress_service.shell.described import Descriptions
from ingress_service.shell.mesh_view import MeshView
from tests.support.certificates import Authority

pytestmark = pytest.mark.asyncio


def shown(token: str) -> RequestHeaders:
    return RequestHeaders([(b"authorization", b"Bearer " + token.encode())])


async def test_who_is_in_use_makes_no_room_for_others(tmp_path: Path) -> None:
    tls = Authority(tmp_path).source("ingress")
    callers = HttpCallers(("127.0.0.1:1",), tls, most=1, anonymous=False, connect_timeout_s=1.0)
    view = MeshView(callers, Descriptions())
    with view.caller_of(shown("first")) as first:
        with pytest.raises(RequestRefusal, match="too many callers"), view.caller_of(shown("second")):
            pass
        with view.caller_of(shown("first")) as again:
            assert again is first
        assert first.in_use == 1
    with pytest.raises(RequestRefusal, match="no bearer token"), view.caller_of(shown("a b")):
        pass
    assert callers.of("first") is first, "what can be no token makes no room for itself"
    with view.caller_of(shown("second")) as second:
        assert second is not first
    await callers.aclose(0)
    assert not [it for it in asyncio.all_tasks() if it is not asyncio.current_task()]
