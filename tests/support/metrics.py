"""Reads the metrics endpoint of a process."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Final
from urllib.request import urlopen

_LINE: Final = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


class Metrics:
    """The values of one scrape."""

    def __init__(self, text: str) -> None:
        self._values = [*_read(text)]

    def total(self, name: str, **labels: str) -> float:
        """The sum of all values of a metric that have these labels, which are named without `slotmesh_`."""
        wanted = {(f"slotmesh_{label}", value) for label, value in labels.items()}
        return sum(value for each, found, value in self._values if each == name and wanted <= found)


async def scraped(address: str) -> Metrics:
    """What the process says at this `HOST:PORT`."""
    return Metrics(await scraped_text(address))


async def scraped_text(address: str) -> str:
    """The same, as it is written."""
    return await asyncio.to_thread(_scrape, address)


def _scrape(address: str) -> str:
    with urlopen(f"http://{address}/metrics", timeout=30) as response:
        return str(response.read(), "utf-8")


def _read(text: str) -> Iterator[tuple[str, set[tuple[str, str]], float]]:
    for line in text.splitlines():
        if found := _LINE.fullmatch(line):
            yield found[1], {*_LABEL.findall(found[2] or "")}, float(found[3])
