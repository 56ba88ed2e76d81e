"""The frames in docs/protocol.md are frames."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from slotmesh.v1 import router_service_pb2

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
_BLOCKS = re.findall(r"```json\n(.*?)```", _PAGE.read_text("utf-8"), re.DOTALL)
_FROM_CLIENT = {"open", "calls", "cancel", "ack", "chunk", "take"}


@pytest.mark.parametrize("block", _BLOCKS, ids=lambda block: block[2:].partition('"')[0])
def test_a_frame_of_the_page_is_proto_json(block: str) -> None:
    frame: dict[str, Any] = json.loads(block.replace('"…"', '"WzFd"'))
    message: Any = router_service_pb2.StreamCallsResponse()
    if _FROM_CLIENT & frame.keys():
        message = router_service_pb2.StreamCallsRequest()
    json_format.ParseDict(frame, message)
    assert message.WhichOneof("frame") is not None
