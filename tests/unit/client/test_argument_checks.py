"""What callers give by mistake is named where they give it, in words of ours and not of Python's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import slotmesh
from slotmesh.calls.call_options import OptionChanges
from slotmesh.client.calls.options import ViewOptions
from slotmesh.client.slots.terms import AllArguments, ReserveArguments

pytestmark = pytest.mark.asyncio

WRONG: list[Any] = [5, -1, True, "x", "", None, b"x", [1], {"a": 1}, {"A": "b"}, object(), float("nan"), [["e"]]]
WRONG += [timedelta(seconds=-1), datetime(1960, 1, 1, tzinfo=UTC), datetime(2026, 1, 1), "\ud800", "k" * 1025]  # noqa: DTZ001 - that is what is wrong with it
Use = Callable[[slotmesh.Mesh, Any], object]


def option(name: str) -> Use:
    return lambda mesh, value: mesh.endpoint("e").options(**{name: value})


def argument_of_reserve(name: str) -> Use:
    return lambda mesh, value: mesh.endpoint("e").reserve(**{name: value})


def argument_of_all(name: str) -> Use:
    return lambda mesh, value: mesh.reserve_all("e", **{name: value})


def argument_of_direct(name: str) -> Use:
    return lambda mesh, value: mesh.endpoint("e").direct(**{name: value})


def argument_of_connect(name: str) -> Use:
    return lambda _, value: slotmesh.connect("127.0.0.1:1", **{name: value})


USES: dict[str, tuple[Use, str]] = {
    **{f"options({name}=…)": (option(name), name) for name in OptionChanges.__annotations__},
    **{f"reserve({name}=…)": (argument_of_reserve(name), name) for name in ReserveArguments.__annotations__},
    **{f"reserve_all({name}=…)": (argument_of_all(name), name) for name in AllArguments.__annotations__},
    **{f"direct({name}=…)": (argument_of_direct(name), name) for name in ("slots", "ttl", "idle")},
    **{f"connect({name}=…)": (argument_of_connect(name), name) for name in ("connect_timeout", "close_grace")},
    "connect(…)": (lambda _, value: slotmesh.connect(value), "HOST:PORT"),
    "endpoint(…)": (lambda mesh, value: mesh.endpoint(value), "endpoint"),
    "ordered(…)": (lambda mesh, value: mesh.endpoint("e").ordered(value), "ordering_key"),
    "after_failure": (lambda mesh, value: mesh.endpoint("e").ordered("k", after_failure=value), "after_failure"),
    "method(…)": (lambda mesh, value: mesh.endpoint("e").method(value), "method"),
    "map(…)": (lambda mesh, value: list(mesh.endpoint("e").m.pieces((value,))), "map"),
    "reserve_all(…)": (lambda mesh, value: mesh.reserve_all(value), "endpoint"),
    "returning(…)": (lambda mesh, value: mesh.endpoint("e").m.returning(value), "e.m cannot return"),
}


@pytest.mark.parametrize("use", USES)
async def test_what_is_wrong_is_named(use: str) -> None:
    act, name = USES[use]
    async with slotmesh.connect("127.0.0.1:1") as mesh:
        said = [(value, error) for value in WRONG if (error := error_of(act, mesh, value)) is not None]
    assert said, "some of it is wrong anywhere"
    assert not [(value, error) for value, error in said if not isinstance(error, (ValueError, TypeError))]
    assert not [(value, error) for value, error in said if not is_ours(name, str(error))]


def error_of(act: Use, mesh: slotmesh.Mesh, value: Any) -> Exception | None:
    try:
        act(mesh, value)
    except Exception as error:  # noqa: BLE001 - which one it is, is what is tested
        return error
    return None


def is_ours(name: str, error: str) -> bool:
    """Whether the error names the argument; or what the codec refuses; or that a list is no name of a method."""
    return any(text in error for text in (name, "application/msgpack cannot carry", "unhashable"))


@pytest.mark.parametrize(
    ("use", "value", "text"),
    [
        ("connect(…)", 5, "addresses must be HOST:PORT or dns:///NAME:PORT, or a sequence of these, got 5"),
        ("connect(…)", [5], r"addresses must be HOST:PORT or dns:///NAME:PORT, or a sequence of these, got \[5\]"),
        ("connect(…)", b"a:1", "addresses must be HOST:PORT or dns:///NAME:PORT, or a sequence of these, got b'a:1'"),
        ("connect(connect_timeout=…)", "1s", "connect_timeout must be a number of seconds or a timedelta, got '1s'"),
        ("connect(close_grace=…)", None, "close_grace must be a number of seconds or a timedelta, got None"),
        ("endpoint(…)", ["e"], r"the name of an endpoint must be a str, got \['e'\]"),
        ("method(…)", 5, "the name of a method must be a str, got 5"),
        ("ordered(…)", "", "ordering_key must not be empty: calls without an ordering key need no lane"),
        ("ordered(…)", None, "ordering_key must be a str, got None"),
        ("ordered(…)", "é" * 513, "ordering_key must have at most 1024 bytes, got 1026"),
        ("ordered(…)", "\ud800", r"ordering_key must be text that UTF-8 can carry, got '\\ud800': surrogates"),
        (
            "options(slo_at=…)",
            1,
            r"slo_at must be a datetime that is aware of its time zone, as datetime.now\(UTC\), got 1",
        ),
        ("options(slo_at=…)", datetime(1960, 1, 1, tzinfo=UTC), "slo_at must be a time from 1970 on"),
        ("options(metadata=…)", "x", "metadata must be a mapping of str to str, got 'x'"),
        ("options(metadata=…)", "", "metadata must be a mapping of str to str, got ''"),
        ("options(metadata=…)", [("a", "b")], "metadata must be a mapping of str to str, got "),
        (
            "options(metadata=…)",
            {"A": "b"},
            "metadata must be what handlers may get: key 'A' is reserved, empty or not",
        ),
        ("options(metadata=…)", {"a": "b" * 9000}, "metadata must be what handlers may get: at most 8192 bytes in all"),
        ("options(reply=…)", "no", "reply must be True or False, got 'no'"),
        ("options(idempotent=…)", 1, "idempotent must be True or False, got 1"),
        ("options(traced=…)", None, "traced must be True or False, got None"),
        ("options(shard_key=…)", "k" * 1025, "shard_key must have at most 1024 bytes, got 1025"),
        ("reserve(shard_key=…)", None, "shard_key must be a str, got None"),
        ("reserve_all(…)", 5, "reserve_all takes names of endpoints, or what mesh.endpoint gives, got 5"),
        ("reserve_all(timeout=…)", None, "timeout must be a number of seconds or a timedelta, got None"),
        ("direct(idle=…)", "x", "idle must be a number of seconds or a timedelta, got 'x'"),
        ("map(…)", 5, "e.m: argument 1 of a map must be an iterable with an item for each call, got int"),
        ("returning(…)", 5, "e.m cannot return 5: "),
    ],
)
async def test_the_words(use: str, value: Any, text: str) -> None:
    async with slotmesh.connect("127.0.0.1:1") as mesh:
        with pytest.raises((ValueError, TypeError), match=text):
            USES[use][0](mesh, value)


async def test_a_map_of_nothing_is_a_mistake_and_a_map_over_nothing_is_not() -> None:
    async with slotmesh.connect("127.0.0.1:1") as mesh:
        with pytest.raises(TypeError, match=r"e\.m: a map takes an iterable with an item for each call, or several"):
            mesh.endpoint("e").m.map()  # type: ignore[call-overload]
        assert await mesh.endpoint("e").m.map([]) == []


@pytest.mark.parametrize("grace", ["x", -1, True, float("nan")])
async def test_a_mesh_stays_open_where_the_grace_is_wrong(grace: Any) -> None:
    async with slotmesh.connect("127.0.0.1:1") as mesh:
        with pytest.raises(ValueError, match="grace must be"):
            await mesh.aclose(grace)
        mesh.endpoint("e")


def sync_uses() -> list[Callable[[slotmesh.SyncMesh], object]]:
    wrong: Any = "\ud800"
    return [
        lambda mesh: mesh.endpoint(wrong),
        lambda mesh: mesh.reserve_all(5),
        lambda mesh: mesh.endpoint("e").method(wrong),
        lambda mesh: mesh.endpoint("e").ordered(wrong),
        lambda mesh: mesh.close(wrong),
    ]


@pytest.mark.parametrize("use", sync_uses())
async def test_programs_without_asyncio_hear_the_same(use: Callable[[slotmesh.SyncMesh], object]) -> None:
    with (
        slotmesh.connect_sync("127.0.0.1:1") as mesh,
        pytest.raises((ValueError, TypeError), match=r"must be|takes names"),
    ):
        use(mesh)


async def test_what_is_right_is_taken() -> None:
    options = ViewOptions().changed(
        timeout=timedelta(seconds=1), slo_at=datetime.now(UTC), metadata={"k": "ü"}, reply=False, shard_key="é" * 512
    )
    assert (options.timeout_s, options.no_reply, options.shard_key) == (1.0, True, "é" * 512)
