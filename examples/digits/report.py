"""What `run` prints: plain lines that a person and a script can read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from examples.digits.data import SIDE, WHITEST, Image
from examples.digits.traffic import TrafficLoad, TrafficTally
from examples.local_mesh import ExampleMesh

_BAR = 40
_SHADES = " .:-=+*#@"


def lines(tally: TrafficTally, load: TrafficLoad, calls_of: Mapping[str, int]) -> list[str]:
    """The measurements. `calls_of`: how many calls each replica executed, by its own count."""
    p50_s, p99_s = np.percentile(np.frombuffer(tally.latencies_s), [50, 99])
    in_flight = f"{load.keys} ordering keys and {load.keys * load.window:,} calls in flight"
    return [
        f"images: {len(tally.asked):,} held out, sent {tally.calls / len(tally.asked):,.1f} times each",
        f"accuracy: {tally.accuracy:.3f}",
        f"throughput: {tally.calls_per_s:,.0f} calls/s",
        f"latency: p50 {p50_s * 1000:.1f} ms, p99 {p99_s * 1000:.1f} ms, with {in_flight}",
        "calls executed at each replica:",
        *bars(calls_of),
    ]


def bars(calls_of: Mapping[str, int]) -> list[str]:
    """A bar for each replica, as long as its part of the largest."""
    most = max(calls_of.values(), default=0) or 1
    width = max((len(name) for name in calls_of), default=0)
    return [
        f"  {name:<{width}}  {'█' * max(round(calls / most * _BAR), int(calls > 0)):<{_BAR}}  {calls:,}"
        for name, calls in sorted(calls_of.items())
    ]


def how_to_call(mesh: ExampleMesh, image: Image, label: int) -> list[str]:
    """How to call the mesh that is up, with a real image."""
    endpoint, router, controller = mesh.name, mesh.router, mesh.controller
    arguments = json.dumps([image], separators=(",", ":"))
    request = json.dumps(
        {"endpoint": endpoint, "options": {"method": "classify"}, "arguments": [image]}, separators=(",", ":")
    )
    return [
        f"The mesh is up: router {router}, controller {controller}. Ask it about this {label}:",
        "",
        *(f"    {row}" for row in drawn(image)),
        "",
        "Python:",
        "    import asyncio, slotmesh",
        f"    image = {json.dumps(image, separators=(',', ':'))}",
        "    async def main():",
        f"        async with slotmesh.connect({router!r}) as mesh:",
        f"            print(await mesh.endpoint({endpoint!r}).classify(image))",
        "    asyncio.run(main())",
        "",
        "Command line:",
        f"    slotmesh call --address {router} {endpoint} classify '{arguments}'",
        f"    slotmesh call --address {router} {endpoint} info",
        f"    slotmesh status --address {controller}",
        "",
        "Any gRPC client:",
        f"    grpcurl -plaintext -d '{request}' {router} slotmesh.v1.RouterService/Call",
        "",
        "Ctrl-C ends it.",
    ]


def drawn(image: Sequence[int]) -> list[str]:
    """The image in characters."""
    shades = [_SHADES[pixel * (len(_SHADES) - 1) // WHITEST] * 2 for pixel in image]
    return ["".join(shades[row : row + SIDE]) for row in range(0, SIDE * SIDE, SIDE)]
