"""Bodies that are compressed, large, too large, or without end: bounded, and let go of."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.contract.inference.handlers import Model
from tests.contract.inference_http.bodies import LENGTH, arrays, body_of, infer
from tests.contract.inference_http.conftest import MAX_BODY
from tests.support.http_client import HttpAnswer
from tests.support.ingresses import ServedMesh, served_mesh

pytestmark = pytest.mark.asyncio(loop_scope="module")

INFER = "/v2/models/model/infer"
PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
UNPACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "deflate": zlib.decompress}


async def sent(served: ServedMesh, body: bytes, coding: str, **headers: str) -> HttpAnswer:
    """The body as it is, said to be compressed so."""
    return await served.ask("POST", INFER, body, {"content-encoding": coding, **headers})


@pytest.mark.parametrize("coding", PACK)
@pytest.mark.parametrize("binary", [True, False])
async def test_compressed_both_ways(served: ServedMesh, coding: str, binary: bool) -> None:
    x = np.arange(40_000, dtype=np.int64)
    body, headers = body_of({"x": x}, binary=binary, parameters={"binary_data_output": binary})
    answer = await served.ask(
        "POST", INFER, PACK[coding](body), {"content-encoding": coding, "accept-encoding": coding, **headers}
    )
    assert (answer.headers["content-encoding"], answer.headers["vary"]) == (coding, "accept-encoding")
    plain = HttpAnswer(answer.status, answer.headers, UNPACK[coding](answer.body))
    assert len(answer.body) < len(plain.body) / 2
    assert (arrays(plain)["output"] == x).all()
    assert served.ingress.bodies.held == 0


async def test_small_answers_and_failures_go_as_they_are(served: ServedMesh) -> None:
    answer = await infer(served, "model", {"x": [1]}, headers={"accept-encoding": "gzip, deflate"})
    assert "content-encoding" not in answer.headers
    assert arrays(answer)["output"].tolist() == [1]
    failed = await infer(served, "nowhere", {"x": [1]}, headers={"accept-encoding": "gzip"})
    assert "nowhere" in failed.json["error"]


async def test_what_is_no_compressed_body(served: ServedMesh) -> None:
    body, _ = body_of({"x": [1]})
    cases = [
        (415, "Content-Encoding must be one of gzip, deflate", body, "br"),
        (415, "Content-Encoding must be one of gzip, deflate", body, "gzip, gzip"),
        (400, "the body is no gzip", body, "gzip"),
        (400, "the body is no deflate", gzip.compress(body), "deflate"),
        (400, "the gzip of the body was cut off", gzip.compress(body)[:-9], "gzip"),
        (400, "the gzip of the body was cut off", b"", "gzip"),
        (400, "something is left behind the end of the gzip", gzip.compress(body) + b"x", "gzip"),
        (400, "something is left behind the end of the gzip", 2 * gzip.compress(body), "gzip"),
    ]
    for status, words, data, coding in cases:
        answer = await sent(served, data, coding)
        assert (answer.status, answer.json["error"]) == (status, words)
        assert served.ingress.bodies.held == 0
    assert (await sent(served, body, "identity")).status == 200


async def test_a_bomb_ends_at_the_bound(served: ServedMesh) -> None:
    bomb = gzip.compress(bytes(64 * MAX_BODY), 9)
    assert len(bomb) < MAX_BODY / 10
    worst = 0.0
    asked = asyncio.ensure_future(sent(served, bomb, "gzip"))
    loop = asyncio.get_running_loop()
    while not asked.done():
        began = loop.time()
        await asyncio.sleep(0)
        worst = max(worst, loop.time() - began)
    answer = asked.result()
    assert (answer.status, answer.json["reason"], answer.json["executed"]) == (413, "PAYLOAD_TOO_LARGE", "no")
    assert served.ingress.bodies.held == 0
    assert worst < 1.0, "others had to wait for the bomb"


async def test_bodies_of_all_requests_are_bounded_as_they_are_uncompressed() -> None:
    async with served_mesh({"model": Model}, max_held_size="1MiB") as served:
        answer = await sent(served, gzip.compress(bytes(2 * 2**20)), "gzip")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.json["error"] == "the ingress holds too many bytes of requests (--max-held-size)"
        assert served.ingress.bodies.held == 0


async def test_a_body_larger_than_an_rpc_goes_by_the_stream_and_not_to_a_version(served: ServedMesh) -> None:
    x = np.arange(5 * 2**20, dtype=np.uint8)
    more: dict[str, Any] = {"binary": True, "parameters": {"binary_data_output": True}}
    assert (arrays(await infer(served, "model", {"x": x}, **more))["output"] == x).all()
    refused = await infer(served, "model", {"x": x}, version="model-v1", **more)
    assert (refused.status, refused.json["reason"], refused.json["executed"]) == (413, "PAYLOAD_TOO_LARGE", "no")


async def test_a_size_that_is_only_declared_takes_no_memory(served: ServedMesh) -> None:
    said = {"name": "x", "datatype": "FP64", "shape": [2**31], "parameters": {"binary_data_size": 2**34}}
    text = json.dumps({"inputs": [said]}).encode()
    answer = await served.ask("POST", INFER, text, {LENGTH: str(len(text))})
    assert answer.json["error"].startswith("inputs[0].parameters.binary_data_size: must be from 0 to 0")
    head = {LENGTH: "5", "content-length": str(2**50)}
    answer = await served.ask("POST", INFER, b"{}", head)
    assert (answer.status, answer.json["reason"]) == (413, "PAYLOAD_TOO_LARGE")
    assert "--max-body-size" in answer.json["error"]


async def test_too_much_json_says_to_send_binary(served: ServedMesh) -> None:
    x = np.zeros(65_537, np.uint8)
    answer = await infer(served, "model", {"x": x})
    assert answer.json["error"] == "inputs[0].data: at most 65536 elements in all, of BYTES 16384: send more in binary"
    unasked = await infer(served, "model", {"x": x}, binary=True)
    assert (arrays(unasked)["output"] == x).all()
    assert LENGTH in unasked.headers
