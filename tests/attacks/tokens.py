"""100,000 slot tokens that open nothing: made up, changed, used, given back, over, of others. By router and by replica.

Every one is refused with the reason that docs/errors.md has for it, or given back without effect; nothing is executed,
and slots that live are their callers' still.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from slotmesh.calls.slot_tokens import MAX_TOKEN_CHARS, SECRET_BYTES, SlotToken, format_token, parse_token
from slotmesh.security.identity import Role
from tests.attacks.attack import Attack, scaled
from tests.attacks.slots import OK, SlotCaller
from tests.attacks.target import Target

TOKENS: Final = 100_000
AT_ONCE: Final = 32
UNHEARD_OF: Final = 2_000
"""Tokens of replicas that the router has never heard of: each waits a second for a newer table."""
UNHEARD_OF_AT_ONCE: Final = 256
_KEPT: Final = 4
"""Slots of each kind: there are fewer permits than anybody's quota."""
_LEASE_S: Final = 300.0
_SHORT_S: Final = 0.05

UNKNOWN, USED, EXPIRED, GONE = "SLOT_UNKNOWN", "SLOT_USED", "SLOT_EXPIRED", "REPLICA_GONE"
BAD, STALE = "BAD_REQUEST", "STALE_TABLE"
EXPECTED: Final[Mapping[str, tuple[str, str]]] = {
    # What dispatch and renewal are answered, and what release is.
    "forged": (UNKNOWN, OK),
    "used": (USED, OK),
    "released": (UNKNOWN, OK),
    "expired": (EXPIRED, OK),
    "changed": (UNKNOWN, UNKNOWN),
    "long": (UNKNOWN, UNKNOWN),
    "empty": (BAD, BAD),
    "departed": (GONE, GONE),
    "another's": (UNKNOWN, OK),
    "incarnation": (GONE, OK),
    "mesh": (GONE, GONE),
}
_UNHEARD_OF: Final = ("incarnation", "mesh")


@dataclass(slots=True)
class Tokens:
    """What is tried, by kind, and slots that live on."""

    make: dict[str, Callable[[], str]] = field(default_factory=dict)
    living: list[str] = field(default_factory=list)
    of_victim: list[str] = field(default_factory=list)


async def made(target: Target, owner: SlotCaller, victim: SlotCaller, dice: random.Random) -> Tokens:
    """Slots in each state, and tokens that were never any."""
    living = [(await owner.reserve(_LEASE_S)).token for _ in range(_KEPT)]
    of_victim = [(await victim.reserve(_LEASE_S)).token for _ in range(_KEPT)] if target.by_tls else []
    used = [(await owner.reserve(_LEASE_S)).token for _ in range(_KEPT)]
    released = [(await owner.reserve(_LEASE_S)).token for _ in range(_KEPT)]
    expired = [(await owner.reserve(_SHORT_S)).token for _ in range(_KEPT)]
    assert {await owner.dispatch(each, text="owner") for each in used} == {OK}
    assert {await owner.release(each) for each in released} == {OK}
    await asyncio.sleep(2 * _SHORT_S)  # until the leases are over
    giver = parse_token(living[0])
    assert giver is not None
    make: dict[str, Callable[[], str]] = {
        "forged": lambda: _token(giver, dice),
        "used": lambda: dice.choice(used),
        "released": lambda: dice.choice(released),
        "expired": lambda: dice.choice(expired),
        "changed": lambda: _changed(dice.choice(living), dice),
        "long": lambda: "x" * (MAX_TOKEN_CHARS + 1),
        "empty": str,
        "departed": lambda: target.departed,
        "incarnation": lambda: _token(giver._replace(incarnation=f"{dice.getrandbits(64):016x}"), dice),
        "mesh": lambda: _token(giver._replace(replica_id=f"other-{dice.getrandbits(32):08x}"), dice),
    }
    if of_victim:
        make["another's"] = lambda: dice.choice(of_victim)
    return Tokens(make, living, of_victim)


async def run(target: Target, scale: float) -> str:
    dice = random.Random(7)
    before = len(target.executions())
    async with (
        target.channel() as by_router,
        target.channel(server=Role.REPLICA) as at_replica,
        target.channel("victim") as of_victim,
    ):
        router, replica, victim = SlotCaller(by_router), SlotCaller(at_replica), SlotCaller(of_victim)
        tokens = await made(target, router, victim, dice)
        answers: Counter[tuple[str, str, str, str]] = Counter()

        async def tries(where: str, caller: SlotCaller, kinds: list[str], count: int, at_once: int) -> None:
            left = iter(range(count))

            async def one() -> None:
                for _ in left:
                    kind, operation = dice.choice(kinds), dice.choice([*caller.operations])
                    answer = await caller.operations[operation](tokens.make[kind]())
                    answers[where, kind, operation, answer] += 1

            await asyncio.gather(*(one() for _ in range(at_once)))

        count, kinds = scaled(TOKENS, scale, 100), [*tokens.make]
        heard_of = [each for each in kinds if each not in _UNHEARD_OF]
        await tries("router", router, heard_of, count // 2, AT_ONCE)
        await tries("replica", replica, kinds, count // 2, AT_ONCE)
        await tries("router", router, [*_UNHEARD_OF], scaled(UNHEARD_OF, scale, 6), UNHEARD_OF_AT_ONCE)
        wrong = {key: number for key, number in answers.items() if key[3] != _expected(*key[:3])}
        assert not wrong, f"answered otherwise than the documents say: {wrong}"
        elsewhere = {await router.dispatch(each, endpoint="Elsewhere") for each in tokens.living}
        assert elsewhere == {UNKNOWN}, "a slot serves the endpoint that it was reserved for"
        assert {await router.dispatch(each, text="owner") for each in tokens.living} == {OK}, "slots that live, live on"
        assert {OK} >= {await victim.dispatch(each, text="owner") for each in tokens.of_victim}, "nobody has another's"
    executed = target.executions()[before:]
    owners = _KEPT + len(tokens.living) + len(tokens.of_victim)
    assert executed == ["owner"] * owners, f"what the tokens executed: {Counter(executed)}"
    total = sum(answers.values())
    return f"{total:,} tokens of {len(kinds)} kinds refused as documented, 0 executions: {_by_answer(answers)}"


def _expected(where: str, kind: str, operation: str) -> str:
    if where == "router" and kind in _UNHEARD_OF:
        return STALE
    if (where, kind, operation) == ("router", "departed", "release"):
        return OK  # it is free: its replica has ended
    otherwise, release = EXPECTED[kind]
    return release if operation == "release" else otherwise


def _by_answer(answers: Counter[tuple[str, str, str, str]]) -> str:
    by_answer: Counter[str] = Counter()
    for key, number in answers.items():
        by_answer[key[3]] += number
    return ", ".join(f"{number:,} {answer}" for answer, number in by_answer.most_common())


def _token(giver: SlotToken, dice: random.Random) -> str:
    return format_token(giver.replica_id, giver.incarnation, dice.randbytes(SECRET_BYTES))


def _changed(token: str, dice: random.Random) -> str:
    """With one bit in it that is another one."""
    at = dice.randrange(len(token))
    return f"{token[:at]}{chr(ord(token[at]) ^ 1 << dice.randrange(7))}{token[at + 1 :]}"


ATTACK = Attack("tokens", run)
