"""Devices: the amounts that backends want, the pools of a machine, and what a replica holds, as text. Pure.

An amount is a whole number of devices, or a share of one; inside, a number of thousandths, so that sums are exact.
As text a device is `POOL=NAME`, a share of one `POOL=NAME@SHARE`; a list is separated by commas, and names that follow
without a pool belong to the pool before: `cuda=0-3,fpga=a,b`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

WHOLE: Final = 1_000
"""Thousandths in a device."""
MAX_DEVICES: Final = 256
"""The limit of devices of one pool, and of one replica."""
MAX_POOLS: Final = 16
AUTO: Final = "auto"
"""In place of a pool's devices: they are found."""

_POOL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_DEVICE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,99}")
_RANGE: Final = re.compile(r"(\d{1,6})-(\d{1,6})")
_NO_RANGE: Final = re.compile(r"\d+(-|\.\.+)\d*")
"""A range that lacks an end, or has other signs: hardly the name of a device."""
_EXACT: Final = 1e-6
_MAX_CHARS: Final = 200
"""Of one device as text."""


@dataclass(frozen=True, slots=True, order=True)
class HeldDevice:
    """A device, or a share of one, that a replica holds."""

    pool: str
    name: str
    thousandths: int = WHOLE

    def __str__(self) -> str:
        share = "" if self.thousandths == WHOLE else f"@{shown_amount(self.thousandths)}"
        return f"{self.pool}={self.name}{share}"


def thousandths_of(amount: float) -> int:
    """The amount in thousandths of a device. Raises ValueError with what is required of it."""
    thousandths = round(amount * WHOLE) if 0 < amount <= MAX_DEVICES else 0  # not for NaN either
    if not thousandths or abs(amount * WHOLE - thousandths) > _EXACT or (amount >= 1 and thousandths % WHOLE):
        raise ValueError(
            f"must be a whole number, 1 … {MAX_DEVICES}, or a share of a device, 0.001 … 0.999 in thousandths, is"
            f" {amount:g}"
        )
    return thousandths


def shown_amount(thousandths: int) -> str:
    """An amount for a person: `2`, `0.25`."""
    return f"{thousandths / WHOLE:g}"


def amount_problems(amounts: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """What is wrong with the devices that a backend wants, by pool; the pool is empty if it is of all."""
    if len(amounts) > MAX_POOLS:
        yield "", f"{len(amounts)} pools are named, at most {MAX_POOLS} can be"
        return
    for pool, amount in amounts.items():
        if not _POOL.fullmatch(pool):
            yield pool, "the name of a pool has 1 to 63 of `a-z A-Z 0-9 _ . -` and starts with a letter or digit"
            continue
        try:
            thousandths_of(amount)
        except ValueError as error:
            yield pool, str(error)


def read_devices(text: str) -> tuple[HeldDevice, ...]:
    """The devices of a list, in its order. Raises ValueError."""
    found: dict[tuple[str, str], HeldDevice] = {}
    pool = ""
    for token in filter(None, (it.strip() for it in text.split(","))):
        named, equals, rest = token.partition("=")
        if equals:
            pool = named
        if not _POOL.fullmatch(pool):
            raise ValueError(f"{token!r}: write POOL=DEVICE, as cuda=0-3 or fpga=a,b")
        name, at, share = (rest if equals else token).partition("@")
        for each in _names(name):
            device = HeldDevice(pool, each, _share(token, share) if at else WHOLE)
            if (pool, each) in found:
                raise ValueError(f"{pool}={each} is named twice")
            found[pool, each] = device
            if len(found) > MAX_DEVICES * MAX_POOLS:
                raise ValueError(f"names more than {MAX_DEVICES * MAX_POOLS:,} devices")
    return tuple(found.values())


def is_device(text: str) -> bool:
    """Whether it is one device, or a share of one."""
    try:
        return len(text) <= _MAX_CHARS and [*map(str, read_devices(text))] == [text]
    except ValueError:
        return False


def read_pools(text: str) -> dict[str, tuple[str, ...]]:
    """The devices of each pool, by its name. Raises ValueError."""
    pools: dict[str, list[str]] = {}
    for device in read_devices(text):
        if device.thousandths != WHOLE:
            raise ValueError(f"{device}: a pool has whole devices; backends take shares of them")
        pools.setdefault(device.pool, []).append(device.name)
    for pool, names in pools.items():
        if AUTO in names and len(names) > 1:
            raise ValueError(f"{pool} has {AUTO} and other devices: give one of them")
        if len(names) > MAX_DEVICES:
            raise ValueError(f"{pool} has {len(names)} devices; a pool has at most {MAX_DEVICES}")
    if len(pools) > MAX_POOLS:
        raise ValueError(f"{len(pools)} pools are named, at most {MAX_POOLS} can be")
    return {pool: tuple(names) for pool, names in pools.items()}


def read_pairs(text: str) -> dict[str, str]:
    """From `POOL=NAME,POOL=NAME`. Raises ValueError."""
    pairs: dict[str, str] = {}
    for token in filter(None, (it.strip() for it in text.split(","))):
        pool, _, name = token.partition("=")
        if not _POOL.fullmatch(pool) or not _DEVICE.fullmatch(name) or pool in pairs:
            raise ValueError(f"{token!r}: write POOL=NAME, each pool once")
        pairs[pool] = name
    return pairs


def variables_of(pools: Iterable[str], named: Mapping[str, str]) -> dict[str, str]:
    """The environment variable in which a replica finds its devices, by pool: that of `named`, or one like the pool.

    Raises ValueError: two pools have the same one.
    """
    found: dict[str, str] = {}
    for pool in pools:
        name = named.get(pool) or f"{re.sub('[^A-Z0-9]', '_', pool.upper())}_VISIBLE_DEVICES"
        if rival := next((it for it, taken in found.items() if taken == name), ""):
            raise ValueError(f"pools {rival} and {pool} both have the variable {name}: name another for one of them")
        found[pool] = name
    return found


def written(devices: Iterable[HeldDevice]) -> str:
    """The list as text, which `read_devices` reads."""
    return ",".join(map(str, devices))


def amounts_of(devices: Iterable[HeldDevice]) -> dict[str, int]:
    """How much a replica holds of each pool, in thousandths."""
    amounts: dict[str, int] = {}
    for device in devices:
        amounts[device.pool] = amounts.get(device.pool, 0) + device.thousandths
    return amounts


def shown_amounts(amounts: Mapping[str, float]) -> str:
    """What a backend wants, for a person: `cuda: 1, fpga: 0.5`; `none`."""
    return ", ".join(f"{pool}: {amount:g}" for pool, amount in sorted(amounts.items())) or "none"


DIFFER: Final = "its --devices ("
"""With it, the warning of a replica begins that holds other devices than its backend wants."""


def difference(wanted: Mapping[str, float], held: Iterable[str]) -> str:
    """That a replica holds other devices than its backend wants, for a person; empty if not, or if that wants none."""
    holds = amounts_of(it for text in held for it in read_devices(text))  # a stranger's list may name one twice
    if not wanted or holds == {pool: thousandths_of(amount) for pool, amount in wanted.items()}:
        return ""
    shown = shown_amounts({pool: amount / WHOLE for pool, amount in holds.items()})
    return f"{DIFFER}{shown}) differ from what its backend wants ({shown_amounts(wanted)})"


def _names(name: str) -> Iterable[str]:
    """A name, or the numbers of a range."""
    if (numbers := _RANGE.fullmatch(name)) is not None:
        first, last = map(int, numbers.groups())
        if not 0 <= last - first < MAX_DEVICES:
            raise ValueError(f"{name}: a range has 1 to {MAX_DEVICES} numbers, the smaller one first")
        return map(str, range(first, last + 1))
    if _NO_RANGE.fullmatch(name):
        raise ValueError(f"{name!r}: write a range with both ends, as 0-3")
    if not _DEVICE.fullmatch(name):
        raise ValueError(f"{name!r}: the name of a device has 1 to 100 of `a-z A-Z 0-9 _ . : / -`")
    return (name,)


def _share(token: str, share: str) -> int:
    try:
        return thousandths_of(float(share)) if 0.0 < float(share) <= 1.0 else thousandths_of(0.0)
    except ValueError as error:
        raise ValueError(f"{token}: {error}") from None
