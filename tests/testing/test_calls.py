"""Contexts for code of a handler that a test calls by itself."""

from __future__ import annotations

import asyncio

import pytest

import slotmesh
import slotmesh.testing


async def who() -> str:
    return slotmesh.context().metadata.get("user", "nobody")


@pytest.mark.asyncio
async def test_a_context_holds_within_its_block_and_in_tasks_begun_there() -> None:
    with slotmesh.testing.call_context(metadata={"user": "ada"}, timeout=5.0, ordering_key="k") as context:
        assert await who() == "ada"
        assert await asyncio.create_task(who()) == "ada"
        assert slotmesh.context() is context
        left_s = slotmesh.context().time_left()
        assert left_s is not None
        assert 0.0 < left_s <= 5.0
    with pytest.raises(RuntimeError, match=r"slotmesh\.testing"):
        await who()


def test_a_call_has_an_id_of_its_own_beside_that_of_its_request() -> None:
    make, metadata = slotmesh.testing.make_context, {"x-request-id": "log-1"}
    found = [
        make(own_request_id="7", metadata=metadata, http=slotmesh.HttpContext(request_id="log-2")),
        make(own_request_id="7", metadata=metadata),
        make(metadata=metadata),
    ]
    assert [(it.own_request_id, it.request_id) for it in found] == [("7", "log-2"), ("7", "7"), ("", "log-1")]


def test_contexts_of_a_batch_are_parallel_to_its_items() -> None:
    def users(items: list[int]) -> list[str]:
        return [context.metadata["user"] for context, _ in zip(slotmesh.contexts(), items, strict=True)]

    ada, bob = (slotmesh.testing.make_context(metadata={"user": user}) for user in ("ada", "bob"))
    with slotmesh.testing.batch_contexts(ada, bob):
        assert users([1, 2]) == ["ada", "bob"]
        with pytest.raises(RuntimeError, match=r"contexts\(\)\[i\]"):
            slotmesh.context()
