from __future__ import annotations

from collections.abc import Sequence
from typing import assert_type

import slotmesh


class Words:
    @slotmesh.batch(max_batch_size=32)
    async def measure(self, words: list[str]) -> list[int]:
        return [len(word) for word in words]

    @slotmesh.batch
    async def cut(self, words: Sequence[str], sizes: list[int]) -> list[str]:
        return [word[:size] for word, size in zip(words, sizes, strict=True)]

    @slotmesh.batch
    async def place(self, words: list[str], sizes: list[int], places: list[bytes]) -> list[bool]:
        return [True for _ in words]

    @slotmesh.batch
    def blocking(self, words: list[str]) -> list[int]:
        return [len(word) for word in words]

    async def uses(self) -> None:
        assert_type(await self.measure("tea"), int)
        assert_type(await self.measure(["tea"]), list[int])
        assert_type(await self.measure(words=["tea"]), list[int])
        assert_type(await self.cut("tea", 1), str)
        assert_type(await self.cut(["tea"], [1]), list[str])
        assert_type(await self.place("tea", 1, b"here"), bool)
        assert_type(self.blocking(["tea"]), list[int])
        self.measure.set_max_batch_size(4)

        await self.mesure("tea")  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
        await self.measure(1)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]
        await self.measure([1])  # type: ignore[list-item] # pyright: ignore[reportCallIssue, reportArgumentType]
        await self.cut("tea", "two")  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]
        await self.cut("tea")  # type: ignore[call-overload] # pyright: ignore[reportCallIssue]
        await self.place("tea", 1, "here")  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]
        self.blocking("tea")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        self.measure.set_max_batch_siz(4)  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
        _: str = await self.measure("tea")  # type: ignore[assignment] # pyright: ignore[reportAssignmentType]
