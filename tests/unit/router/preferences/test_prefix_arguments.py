"""The blocks of a named argument are found in payloads of each content type, without decoding the rest of them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_service.core.preferences.prefix_arguments import (
    MAX_ARGUMENT_BLOCKS,
    MAX_BYTES,
    MAX_STEPS,
    PrefixArgument,
    blocks_of_argument,
)
from slotmesh.calls.prefix_hashes import BLOCK_BYTES, prefix_blocks
from slotmesh.codec import JSON, MSGPACK, OCTET_STREAM, PROTOBUF
from slotmesh.streams.chunks import Announced, Payload, PayloadParts
from tests.support.examples import examples

PROMPT = PrefixArgument("prompt", 1)
TEXT = 'Grüße, "slotmesh" \\ 😀\n' * 40
ENCODERS: dict[str, Any] = {MSGPACK: msgspec.msgpack.encode, JSON: msgspec.json.encode}
each_form = pytest.mark.parametrize("content_type", ENCODERS)


def blocks_in(
    payload: Payload | Announced, content_type: str, argument: PrefixArgument, most: int = MAX_ARGUMENT_BLOCKS
) -> tuple[int, ...]:
    return blocks_of_argument(payload, content_type, argument, most)[0]


def blocks(value: Any, content_type: str, argument: PrefixArgument = PROMPT) -> tuple[int, ...]:
    return blocks_in(ENCODERS[content_type](value), content_type, argument)


@each_form
@pytest.mark.parametrize(
    "prompt", [TEXT, list(range(100_000, 100_100)), [0, 127, 128, 255, 256, 65_535, 2**32 - 1] * 7]
)
def test_by_position_and_by_name(content_type: str, prompt: str | list[int]) -> None:
    before = {"a": [1, {"prompt": None}], "b": [True, -5, 1.5, "x" * 300, 2**40]}
    assert blocks([before, prompt, "more"], content_type) == prefix_blocks(prompt)
    assert blocks({"prompts": 1, "before": before, "prompt": prompt, "z": 0}, content_type) == prefix_blocks(prompt)


def test_json_of_any_writer() -> None:
    for text in (json.dumps([0, TEXT]), json.dumps([0, TEXT], ensure_ascii=False), json.dumps([0, TEXT], indent=2)):
        assert blocks_in(text.encode(), JSON, PROMPT) == prefix_blocks(TEXT)
    spaced = b' { "x" : [ 1 , {"y" : "}"} ] ,\n"prompt"\t: [ 1 , ' + b"2 , " * 30 + b"3 ] } "
    assert blocks_in(spaced, JSON, PROMPT) == prefix_blocks([1, *[2] * 30, 3])


def test_the_whole_payload_where_it_is_the_argument() -> None:
    for content_type in ("", OCTET_STREAM):
        assert blocks_in(TEXT.encode(), content_type, PrefixArgument("prompt", 0)) == prefix_blocks(TEXT)
    assert blocks_in(TEXT.encode(), PROTOBUF, PROMPT) == ()


@each_form
def test_what_is_not_there_or_no_prompt_has_none(content_type: str) -> None:
    by_name_only = PrefixArgument("prompt", -1)
    value: Any
    for value in ([0], {"x": TEXT}, [0, {"a": 1}], [0, None], [0, 5], [0, ["a"] * 20], [0, [1.5] * 20], [0, [-1] * 20]):
        assert blocks(value, content_type) == ()
    for value in (0, "x", None, [TEXT]):
        assert blocks(value, content_type, by_name_only) == ()
    assert blocks({"prompt": TEXT}, content_type, by_name_only) == prefix_blocks(TEXT)


@each_form
def test_a_prompt_counts_up_to_what_is_no_token(content_type: str) -> None:
    good = list(range(1_000, 1_032))
    for wrong in (-1, 2**32, 1.5, None, "x"):
        assert blocks([0, [*good, wrong, *good]], content_type) == prefix_blocks(good)


@each_form
def test_of_a_long_prompt_the_first_blocks_count(content_type: str) -> None:
    text, tokens = "ü€😀x" * MAX_BYTES, [70_000] * MAX_BYTES
    for prompt in (text, tokens):
        found = blocks([0, prompt], content_type)
        assert found == prefix_blocks(prompt, MAX_ARGUMENT_BLOCKS)
        assert blocks_in(ENCODERS[content_type]([0, prompt]), content_type, PROMPT, 3) == found[:3]


@each_form
def test_what_is_too_far_behind_is_not_looked_for(content_type: str) -> None:
    assert blocks(["x" * MAX_BYTES, TEXT], content_type) == ()
    assert blocks([[0] * (MAX_STEPS + 1), TEXT], content_type) == ()


def test_payloads_in_parts_and_to_come() -> None:
    payload = msgspec.msgpack.encode([0, TEXT])
    assert blocks_in(PayloadParts([payload, b"more"]), MSGPACK, PROMPT) == prefix_blocks(TEXT)
    assert blocks_in(PayloadParts([]), MSGPACK, PROMPT) == ()
    assert blocks_in(Announced(100), MSGPACK, PROMPT) == ()


@each_form
def test_a_payload_that_ends_anywhere_gives_the_beginning_of_the_same_blocks(content_type: str) -> None:
    payload = ENCODERS[content_type]({"x": [1, "y"], "prompt": TEXT})
    for end in range(len(payload)):
        found = blocks_in(payload[:end], content_type, PROMPT)
        assert found == prefix_blocks(TEXT)[: len(found)]


@settings(max_examples=examples(500))
@given(st.binary(max_size=200), st.sampled_from([b"", b"\x92\x00", b"\x81\xa6prompt", b"[0,", b'{"prompt":']))
def test_no_payload_raises(noise: bytes, begin: bytes) -> None:
    for content_type in (MSGPACK, JSON):
        blocks_in(begin + noise, content_type, PROMPT)


@pytest.mark.parametrize(
    ("payload", "content_type", "least"),
    [
        (b'{"x":"' + b"a" * MAX_BYTES, JSON, 1_000),
        (b'{"x":' + b"[" * MAX_BYTES, JSON, 1_000),
        (json.dumps({"x": [1] * 500}).encode(), JSON, 250),
        (json.dumps({"x": [1] * 500, "prompt": TEXT}).encode(), JSON, 250),
        (b'{"prompt":[' + b"1," * 16 + b"1" * 60_000 + b"]}", JSON, 900),
        (msgspec.msgpack.encode({"x": [1] * 1_000}), MSGPACK, 250),
        (b"\xdf\xff\xff\xff\xff" + b"\xa1a\xc4\x00" * 16_000, MSGPACK, 1_000),
    ],
)
def test_what_is_passed_over_counts_as_work_as_blocks_do(payload: bytes, content_type: str, least: int) -> None:
    assert blocks_of_argument(payload, content_type, PROMPT)[1] >= least


@each_form
def test_the_work_of_a_prompt_is_its_blocks_whatever_follows(content_type: str) -> None:
    payload = ENCODERS[content_type]({"prompt": TEXT, "image": "x" * MAX_BYTES})
    found, work = blocks_of_argument(payload, content_type, PROMPT)
    assert len(found) < work <= len(found) + 8
    assert blocks_of_argument(b"x" * 6_400, "", PROMPT)[1] == 101
    assert blocks_of_argument(ENCODERS[content_type]({"x": 1}), content_type, PROMPT)[1] <= 3


@pytest.mark.parametrize("prompt", ["x" * 16_000, [1_000_000] * 2_000], ids=["text", "tokens"])
def test_the_work_of_a_prompt_of_which_few_blocks_are_wanted_is_that_of_reading_it(prompt: str | list[int]) -> None:
    found, work = blocks_of_argument(json.dumps({"prompt": prompt}).encode(), JSON, PROMPT, 1)
    assert len(found) == 1
    assert work >= 16_000 // BLOCK_BYTES
