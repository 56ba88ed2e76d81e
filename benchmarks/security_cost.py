"""What TLS and tokens cost: how many calls fewer the same processor time is good for than in plain text.

Two meshes of one router and one replica stand side by side, one of which has TLS on all connections. The loads take
turns, forwards and backwards, so that a drift of the machine cancels out; what counts is the ratio within a round, of
the processor time a call of router, replica and client together: where processors are what is short, calls a second
differ by as much. Two processes of the same program differ by a few per cent for their whole life, by where their
memory happens to lie, which is as much as TLS costs; so there are several such pairs of meshes, and the mean of their
medians counts. A token is checked once a stream, and once a unary call.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Final

import slotmesh
from benchmarks import findings, workloads
from benchmarks.findings import Finding
from benchmarks.loads import HANDLER
from benchmarks.marked import MARK, cpu_s, members
from benchmarks.progress import show
from benchmarks.statistics import Sample
from benchmarks.workloads import ENDPOINT, METHOD, STREAM_IN_FLIGHT, UNARY_IN_FLIGHT
from examples.local_mesh import local_mesh
from slotmesh.cli.certificates import CertificatePlace, initialise
from slotmesh.client.tls import dialer_of
from slotmesh.codec import OCTET_STREAM
from slotmesh.security.identity import Identity, Role
from slotmesh.security.tokens.rules import roles_of
from slotmesh.security.tokens.static_tokens import new_secret
from slotmesh.security.tokens.token_file import change_tokens, with_created
from slotmesh.v1.router_service_pb2_grpc import RouterServiceStub

MOST_COST: Final = {"stream": 0.10, "unary": 0.25}
"""Of the calls in plain text."""
PLAIN, BY_CERTIFICATE, BY_TOKEN = "plain", "tls", "token"
_TITLES: Final = {BY_CERTIFICATE: "TLS with certificates", BY_TOKEN: "TLS with a token"}
_WARM_UP_S: Final = 0.5

Load = Callable[[float], Awaitable[Sample]]
"""Runs for about that many seconds."""


async def measure(*, pairs: int, rounds: int, seconds: float) -> list[Finding]:
    """`seconds` for each turn of each load, of which a round has six; `rounds` for each pair of meshes.

    Raises:
        CannotStart: a mesh did not get ready.
    """
    fewer: dict[tuple[str, str], list[float]] = {(load, way): [] for load in MOST_COST for way in _TITLES}
    with TemporaryDirectory() as root:
        for pair in range(pairs):
            directory = Path(root, str(pair))
            async with _ways(directory) as ways:
                show(f"security: pair {pair + 1} of {pairs}")
                for each, share in (await _compare(ways, directory, rounds, seconds)).items():
                    fewer[each].append(share)
    show("")
    return [
        findings.at_most(
            f"security_{load}_{way}",
            f"fewer calls by {title} than in plain text, {load}",
            mean(fewer[load, way]),
            bound,
            findings.share,
        )
        for load, bound in MOST_COST.items()
        for way, title in _TITLES.items()
    ]


async def _compare(
    ways: dict[str, dict[str, Load]], directory: Path, rounds: int, seconds: float
) -> dict[tuple[str, str], float]:
    """By load and way, how many calls fewer one pair of meshes does: the median of its rounds."""
    ratios: dict[tuple[str, str], list[float]] = {(load, way): [] for load in MOST_COST for way in _TITLES}
    secured = members(f"{directory}/secured")
    known = {PLAIN: members(f"{directory}/plain"), BY_CERTIFICATE: secured, BY_TOKEN: secured}
    for loads in ways.values():
        for run in loads.values():
            await run(_WARM_UP_S)
    for _ in range(rounds):
        for load in MOST_COST:
            costs_s = dict.fromkeys(ways, 0.0)
            for way in (*ways, *reversed(ways)):
                before = cpu_s(known[way])
                sample = await ways[way][load](seconds)
                costs_s[way] += (cpu_s(known[way]) - before) / sample.calls
            for way in _TITLES:
                ratios[load, way].append(costs_s[PLAIN] / costs_s[way])
    return {each: 1 - median(found) for each, found in ratios.items()}


@asynccontextmanager
async def _ways(directory: Path) -> AsyncIterator[dict[str, dict[str, Load]]]:
    """The loads of each way to connect."""
    certs, tokens = directory / "certs", directory / "certs" / "tokens.json"
    initialise(CertificatePlace.of(certs, None), "bench.local", "bench", timedelta(days=1))
    token = _new_token(tokens)
    tls = slotmesh.Tls.from_dir(certs, "operator-bench")
    plain_env = {MARK: f"{directory}/plain"}
    env = {"SLOTMESH_TLS_DIR": str(certs), "SLOTMESH_TOKENS": str(tokens), MARK: f"{directory}/secured"}
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(local_mesh(HANDLER, env=plain_env))
        secured = await stack.enter_async_context(local_mesh(HANDLER, env=env))
        yield {
            PLAIN: await _loads(stack, plain.router),
            BY_CERTIFICATE: await _loads(stack, secured.router, tls),
            BY_TOKEN: await _loads(stack, secured.router, tls, token),
        }


async def _loads(
    stack: AsyncExitStack, router: str, tls: slotmesh.Tls | None = None, token: str | None = None
) -> dict[str, Load]:
    channel = await stack.enter_async_context(dialer_of(tls, token).open(router, Role.ROUTER))
    mesh = await stack.enter_async_context(slotmesh.connect(router, tls=tls, token=token))
    method = mesh.endpoint(ENDPOINT).options(content_type=OCTET_STREAM).method(METHOD)
    return {
        "stream": partial(workloads.futures, [method], STREAM_IN_FLIGHT),
        "unary": partial(workloads.unary, RouterServiceStub(channel), UNARY_IN_FLIGHT),
    }


def _new_token(path: Path) -> str:
    secret, token_id = new_secret()
    identity = Identity(name="client/bench", roles=roles_of("client"))
    change_tokens(path, lambda read: with_created(read, secret, token_id, identity, time.time()), create=True)
    return secret
