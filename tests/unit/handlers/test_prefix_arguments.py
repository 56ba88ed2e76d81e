"""`@slotmesh.prefix_argument`: what routers are told of a method's prompt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import slotmesh
from slotmesh.calls.method_outlines import MethodOutline
from slotmesh.handlers.description import outline_of


class Chat:
    @slotmesh.prefix_argument("prompt")
    async def generate(self, count: int, prompt: str) -> AsyncIterator[str]:
        yield prompt * count

    @slotmesh.batch
    @slotmesh.prefix_argument("prompt")
    async def inside(self, prompt: list[str]) -> list[str]:
        return prompt

    @slotmesh.prefix_argument("prompt")
    @slotmesh.batch
    async def outside(self, prompt: list[str]) -> list[str]:
        return prompt

    @slotmesh.prefix_argument("prompt")
    def by_name(self, count: int, *, prompt: str) -> str:
        return prompt * count

    def none(self, prompt: str) -> str:
        return prompt


def outlined(function: Callable[..., Any], *, is_batch: bool = False) -> tuple[str, int]:
    outline: MethodOutline = outline_of("method", function, yields=False, is_batch=is_batch)
    return outline.prefix_argument, outline.prefix_position


def test_the_name_and_the_position_without_self() -> None:
    chat = Chat()
    assert outlined(chat.generate) == ("prompt", 2)
    assert outlined(chat.by_name) == ("prompt", 0)
    assert outlined(chat.none) == ("", 0)


def test_above_and_below_batch() -> None:
    chat = Chat()
    assert outlined(chat.inside, is_batch=True) == outlined(chat.outside, is_batch=True) == ("prompt", 1)


def test_a_parameter_that_is_not_there_is_refused() -> None:
    def generate(prompt: str) -> str:
        return prompt

    with pytest.raises(TypeError, match=r"generate has no parameter 'promt'; did you mean .*prompt"):
        slotmesh.prefix_argument("promt")(generate)
    with pytest.raises(TypeError, match="it has prompt"):
        slotmesh.prefix_argument("other")(generate)
