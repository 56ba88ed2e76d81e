"""Prefix affinity in the whole core: which replica gets the calls whose prompts begin alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from router_service import convert
from router_service.convert import options_from_wire
from router_service.core.calls import RouterCallOptions
from router_service.core.events import CallsSubmitted, HandlerStateReported, LinkOpened
from router_service.core.preferences import prefix_arguments, prefixes
from router_service.core.preferences.prefix_arguments import MAX_ARGUMENT_BLOCKS, MAX_BYTES
from router_service.core.preferences.prefixes import EVENT_BLOCKS, LEFT_FOR_PICKS
from router_service.core.runs import Caller
from slotmesh.calls.handler_figures import MAX_EVICTED, Evicted
from slotmesh.calls.method_outlines import MethodOutline
from slotmesh.calls.prefix_hashes import BLOCK_BYTES, prefix_blocks
from slotmesh.codec import JSON
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.spec.model import Affinity
from slotmesh.v1 import call_pb2
from tests.unit.router.slot_world import SlotWorld
from tests.unit.router.world import World
from tests.unit.router.world_callers import options

NAMES = [f"r{number}" for number in range(4)]
OUTLINES = (MethodOutline("generate", prefix_argument="prompt", prefix_position=1), MethodOutline("other"))


def text(conversation: int, blocks: int = 8) -> bytes:
    return (b"%d " % conversation * BLOCK_BYTES * blocks)[: BLOCK_BYTES * blocks]


def world(affinity: Affinity = Affinity.PREFIX, slots: int = 8) -> World:
    """Handlers have a method with a prompt."""
    each = World({"b": NAMES}, slots=slots, settings={"affinity": affinity})
    for name in NAMES:
        outlined(each, name)
    return each


def outlined(each: World, name: str, outlines: Sequence[MethodOutline] = OUTLINES) -> None:
    replica = each.replicas[name]
    each.step(LinkOpened(replica, replica.capacity, "", ["generate", "other"], outlines))


def say(
    each: World,
    prompts: dict[int, bytes],
    method: str = "generate",
    content_type: str = "",
    by: Caller | None = None,
) -> None:
    """One batch of calls, by their ids; of a new caller unless `by` is stated."""
    caller = by or next((known for known in each.named), None) or each.connect()
    each.step(
        CallsSubmitted(
            caller, "e", [(options(method=method, content_type=content_type), [*prompts], [*prompts.values()])]
        )
    )


def place(each: World, call: int) -> str:
    return next(name for name in NAMES if call in each.at_replica(name))


def test_calls_of_one_prompt_go_to_one_replica_and_those_of_others_elsewhere() -> None:
    each = world()
    for turn in range(3):
        for conversation in range(4):
            say(each, {turn * 4 + conversation + 1: text(conversation, 8 + turn)})
    homes = [place(each, conversation + 1) for conversation in range(4)]
    assert sorted(homes) == NAMES
    for call in range(5, 13):
        assert place(each, call) == homes[(call - 1) % 4]


def test_calls_of_one_frame_each_go_where_their_prompt_was() -> None:
    each = world()
    say(each, {number: text(number) for number in range(1, 5)})
    homes = {number: place(each, number) for number in range(1, 5)}
    assert sorted(homes.values()) == NAMES
    say(each, {10 + number: text(number) for number in (3, 1, 4, 2)})
    assert {number: place(each, 10 + number) for number in range(1, 5)} == homes


def test_a_balancer_places_what_has_no_prompt_or_is_of_another_backend() -> None:
    for each, method in ((world(), "other"), (world(Affinity.NONE), "generate")):
        for number in range(1, 5):
            say(each, {number: text(1)}, method)
        assert all(len(each.at_replica(name)) == 1 for name in NAMES)
        assert each.scheduler.topology.backends["b"].preferences is None, "nothing is kept for them"


def test_the_setting_and_the_outlines_may_change() -> None:
    each = world(Affinity.NONE)
    each.settings = {"affinity": Affinity.PREFIX}
    each.push()
    say(each, {1: text(1)})
    say(each, {2: text(1)})
    assert place(each, 1) == place(each, 2)
    outlined(each, "r0", [MethodOutline("__call__", prefix_argument="prompt", prefix_position=1)])
    say(each, {3: text(1)})
    assert place(each, 3) != place(each, 1)
    say(each, {4: text(1)}, "")
    assert place(each, 4) == place(each, 1)


def test_an_overloaded_replica_spills_and_what_waits_goes_where_there_is_room() -> None:
    each = world(slots=2)
    for number in range(1, 10):
        say(each, {number: text(1)})
    assert all(len(each.at_replica(name)) == 2 for name in NAMES)
    home = place(each, 1)
    other = next(name for name in NAMES if name != home)
    each.complete(other, each.at_replica(other)[0])
    assert 9 in each.at_replica(other)


def test_blocks_that_callers_state() -> None:
    each = world(Affinity.NONE)
    blocks = {number: prefix_blocks(text(number)) for number in range(1, 5)}
    for turn in range(3):
        for number, of_prompt in blocks.items():
            each.submit([10 * turn + number], prefix_blocks=of_prompt[: 6 + turn])
    for number in blocks:
        assert len({place(each, 10 * turn + number) for turn in range(3)}) == 1
    each.submit([100, 101], prefix_blocks=blocks[1])
    assert place(each, 100) == place(each, 1)


def test_reservations_go_the_same_way() -> None:
    each = SlotWorld({"b": NAMES}, slots=8)
    blocks = {number: prefix_blocks(text(number)) for number in range(1, 5)}
    for _ in range(2):
        for of_prompt in blocks.values():
            each.reserve(prefix_blocks=of_prompt)
    assert [len(each.ops[name]) for name in NAMES] == [2, 2, 2, 2]


def test_an_affinity_key_decides_where_unknown_prompts_go() -> None:
    each = World({"b": NAMES}, slots=64)
    for number in range(1, 9):
        each.submit([number], affinity_key="k", prefix_blocks=prefix_blocks(text(number)))
    homes = {place(each, number) for number in range(1, 9)}
    assert len(homes) == 1
    each.submit([20], prefix_blocks=prefix_blocks(text(20)))
    each.submit([21], affinity_key="k", prefix_blocks=prefix_blocks(text(20)))
    assert place(each, 20) == place(each, 21), "the prefix goes before the key"
    assert {place(each, 21)} != homes


def test_what_replicas_report_as_evicted() -> None:
    each = world()
    say(each, {1: text(1)})
    home = place(each, 1)
    evicted = Evicted(prefix_blocks(text(1))[:1])
    each.step(HandlerStateReported(each.replicas[home], {}, None, evicted))
    say(each, {2: text(1)})
    assert place(each, 2) != home
    each.step(HandlerStateReported(each.replicas[place(each, 2)], {}, None, Evicted(is_all=True)))
    say(each, {3: text(1)})
    assert place(each, 3) not in {home, place(each, 2)}


def test_one_event_reads_a_bounded_number_of_blocks() -> None:
    each = world(slots=64)
    read = EVENT_BLOCKS // MAX_ARGUMENT_BLOCKS
    size = MAX_ARGUMENT_BLOCKS + 1
    for number in range(1, read + 9):
        each.at(float(number))
        say(each, {number: text(number, size)})
    homes = {number: place(each, number) for number in range(1, read + 9)}
    each.at(100.0)
    say(each, {1_000 + number: text(number, size) for number in homes})
    right = [number for number, home in homes.items() if place(each, 1_000 + number) == home]
    assert right[: read - 1] == [*range(1, read)]
    assert len(right) < len(homes)
    each.at(101.0)
    say(each, {2_001: text(1, size)})
    assert place(each, 2_001) == homes[1]


def test_payloads_that_are_read_in_vain_count_for_their_event() -> None:
    prompts = {number: json.dumps({"prompt": text(number).decode()}).encode() for number in range(1, 13)}
    for size, is_read in ((1, True), (MAX_BYTES, False)):
        each = world(slots=64)
        say(each, prompts, content_type=JSON)
        each.at(1.0)
        others = {100 + number: json.dumps({"x": "a" * size}).encode() for number in range(4)}
        again = {1_000 - number: prompt for number, prompt in prompts.items()}
        say(each, {**others, **again}, content_type=JSON)
        assert all(place(each, 1_000 - number) == place(each, number) for number in prompts) is is_read


def test_calls_with_an_owner_have_no_prefix() -> None:
    routed = options_from_wire(call_pb2.CallOptions(ordering_key="k", prefix_blocks=[1, 2]))
    assert isinstance(routed, RouterCallOptions)
    assert (routed.prefix_blocks, routed.prefers) == ((), False)
    each = world()
    each.owner = "r0", 1
    each.push()
    say(each, {1: text(1)})
    each.submit([2], ordering_key="k", method="generate")
    assert place(each, 2) == "r0"


def test_blocks_are_counted_by_whether_their_replica_had_them() -> None:
    each = world()
    say(each, {1: text(1, 8)})
    say(each, {2: text(1, 10)})
    assert each.scheduler.counters.prefix_blocks() == {("b", "known"): 8, ("b", "new"): 10}


def test_what_a_replica_reports_is_bounded() -> None:
    wire = replica_service_pb2.HandlerState(evicted_blocks=range(MAX_EVICTED + 1), all_evicted=True)
    assert convert.evicted_of(wire) == Evicted(tuple(range(MAX_EVICTED)), is_all=True)


def test_waiting_calls_go_where_their_prompts_were_and_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[bytes] = []

    def blocks_of_argument(payload: bytes, *rest: Any) -> tuple[tuple[int, ...], int]:
        reads.append(payload)
        return prefix_arguments.blocks_of_argument(payload, *rest)

    monkeypatch.setattr(prefixes, "blocks_of_argument", blocks_of_argument)
    each = world(slots=1)
    mine = each.connect()
    for conversation in range(4):
        say(each, {conversation + 1: text(conversation)})
    homes = [place(each, conversation + 1) for conversation in range(4)]
    waiting = {10 + 4 * turn + at: (3 - at, 9 + turn) for turn in range(2) for at in range(4)}
    for call, (conversation, length) in waiting.items():
        say(each, {call: text(conversation, length)}, by=mine)
    for turn in range(2):
        for conversation, home in enumerate(homes):
            each.complete(home)
            assert each.at_replica(home) == [10 + 4 * turn + 3 - conversation]
    assert sorted(reads) == sorted([*(text(at) for at in range(4)), *(text(*prompt) for prompt in waiting.values())])


def test_an_event_reads_a_limited_part_of_the_prompts_that_wait() -> None:
    each = world(slots=1)
    mine = each.connect()
    for conversation in range(4):
        say(each, {conversation + 1: text(conversation)})
    home = place(each, 1)
    most = MAX_ARGUMENT_BLOCKS
    for call in range(LEFT_FOR_PICKS // most + 1):
        say(each, {10 + call: text(1 if call else 3, most)}, by=mine)
    say(each, {99: text(0, most)}, by=mine)
    each.complete(home)
    prompts = each.scheduler.topology.backends["b"].prompts
    assert prompts.left >= LEFT_FOR_PICKS - 2 * most
    assert each.at_replica(home) == [10], "99 was not read in this event"
    each.at(1.0)
    each.complete(home)
    assert each.at_replica(home) == [99]
