"""Handlers that the end-to-end tests run. What they record goes to the file that `SLOTMESH_TEST_RECORDS` names."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import slotmesh
from tests.support.recorder import VARIABLE, Recorder, read_records


@slotmesh.deployment(max_ongoing=64)
class Ledger:
    """Records each execution, and gives the argument back."""

    def __init__(self) -> None:
        self._records = Recorder.from_environment()

    async def add(self, key: str, call: str) -> str:
        with self._records.executing(call, key=key):
            await asyncio.sleep(0)  # another call of the key could slip in here, if anything let it
        return call

    async def endlessly(self, call: str) -> str:
        """Does not end the first time that it is executed."""
        is_first = call not in {record.call for record in read_records(Path(os.environ[VARIABLE]))}
        with self._records.executing(call):
            if is_first:
                await asyncio.Event().wait()
        return call

    async def slowly(self, call: str, seconds: float) -> str:
        with self._records.executing(call):
            await asyncio.sleep(seconds)
        return call

    async def until(self, call: str, file: str) -> str:
        """Ends once there is such a file."""
        with self._records.executing(call):
            while not Path(file).exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
                await asyncio.sleep(0.05)
        return call


@slotmesh.deployment(max_ongoing=16)
class Workshop:
    """Takes the time it is given."""

    async def work(self, call: str, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return call


class Gallery:
    """One method for each way in which a call can go."""

    async def double(self, number: int) -> int:
        return 2 * number

    async def echo(self, data: bytes) -> bytes:
        return data

    async def fail(self, text: str) -> None:
        raise ValueError(text)

    async def grow(self, size: int) -> bytes:
        return bytes(size)

    async def wait(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    def block(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    @slotmesh.batch(max_batch_size=8, batch_wait_timeout_s=0.005)
    async def squares(self, numbers: list[int]) -> list[int]:
        return [number * number for number in numbers]

    @slotmesh.batch(max_batch_size=8, batch_wait_timeout_s=0.005)
    def batch_sizes(self, numbers: list[int]) -> list[int]:
        return [len(numbers)] * len(numbers)

    @slotmesh.batch(max_batch_size=4, batch_wait_timeout_s=0.005)
    async def short(self, numbers: list[int]) -> list[int]:
        return numbers[1:]


@slotmesh.deployment(max_ongoing=1)
async def doze(seconds: float) -> float:
    """Takes its time, one call after another."""
    await asyncio.sleep(seconds)
    return seconds


@slotmesh.deployment(max_ongoing=16)
class Whoami:
    """Says which process answers."""

    async def pid(self) -> int:
        return os.getpid()


class Talker:
    """Prints what it is told."""

    async def say(self, text: str) -> str:
        sys.stdout.write(f"{text}\n")
        return text


class Crasher:
    """Ends its process while it is constructed, with a last word."""

    def __init__(self) -> None:
        sys.stdout.write("there is no model here\n")
        os._exit(7)

    async def never(self) -> None: ...
