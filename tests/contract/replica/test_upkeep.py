"""What a replica does for its handler besides calls: `reconfigure`, `check_health`, `on_drain`; all over real gRPC."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from replica_service.convert.reports import MAX_REPORTED_CHARS
from replica_service.shell.handler import hooks as upkeep
from slotmesh.codec import JSON
from slotmesh.convert.specification import duration_to_wire, struct_to_wire
from slotmesh.runtime.channels import open_channel
from slotmesh.runtime.exits import CannotStart
from tests.contract.replica.test_membership import DRAINING, READY, STOPPED, Attachment, at, controller
from tests.support.foreign_code import KINDS, raised_by
from tests.support.replicas import RunningReplica, running_replica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

HANDLERS = "tests.support.kept_handlers"
BOTH = pytest.mark.parametrize("name", ["Kept", "KeptInThreads"])
SELDOM = {"health_check_period": duration_to_wire(3600.0)}


@asynccontextmanager
async def kept(name: str, **first: Any) -> AsyncIterator[tuple[Any, RunningReplica, Attachment]]:
    """A handler, its replica, and what its controller hears. Whatever hangs is let go in the end."""
    async with controller(first) as (fake, server), at(server, handler=f"{HANDLERS}:{name}") as replica:
        attachment = await fake.attached()
        await wait_until(lambda: attachment.states[-1] == READY)
        handler = replica.handler
        try:
            yield handler, replica, attachment
        finally:
            handler.hangs = False
            handler.released.set()
            handler.gate.set()


async def call(replica: RunningReplica, method: str) -> Any:
    """The result of one call, or why it failed."""
    async with replica.router() as stream:
        await stream.send(stream.run([b"[]"], method=method, content_type=JSON))
        await stream.wait_answers(1)
        return stream.results.get(1) or next(iter(stream.failures.values()))


async def serving(replica: RunningReplica) -> int:
    async with open_channel(replica.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        return int((await stub.Check(health_pb2.HealthCheckRequest())).status)


# -- reconfigure -------------------------------------------------------------------------------------------------


@BOTH
async def test_a_new_configuration_reaches_a_handler_that_lives(name: str) -> None:
    async with kept(name, user_config=struct_to_wire({"name": "one"}), **SELDOM) as (handler, replica, attachment):
        assert attachment.reports[-1].reconfigures
        assert (handler.configs, handler.config) == ([], {"name": "one"})
        assert await call(replica, "greet") == b'"hello, one"'
        await attachment.configure(user_config=struct_to_wire({"name": "two"}), **SELDOM)
        await wait_until(lambda: handler.configs)
        assert await call(replica, "greet") == b'"hello, two"'
        await attachment.configure(user_config=struct_to_wire({"name": "two"}), max_ongoing=3, **SELDOM)
        await wait_until(lambda: attachment.reports[-1].max_ongoing == 3)
        assert handler.configs == [{"name": "two"}], "it has not changed"
        assert attachment.reports[-1].error == ""


@BOTH
async def test_one_that_raises_leaves_the_old_one_in_force_until_there_is_another(name: str) -> None:
    async with kept(name, user_config=struct_to_wire({"name": "one"}), **SELDOM) as (handler, replica, attachment):
        handler.problem = ValueError("I do not know two")
        await attachment.configure(user_config=struct_to_wire({"name": "two"}), **SELDOM)
        await wait_until(lambda: attachment.reports[-1].error)
        error = attachment.reports[-1].error
        assert error.startswith("Traceback")
        assert "ValueError: I do not know two" in error
        assert error.endswith("reconfigure failed: the old configuration stays in force")
        assert attachment.reports[-1].state == READY
        assert await call(replica, "greet") == b'"hello, one"'
        reports = len(attachment.reports)
        await attachment.configure(user_config=struct_to_wire({"name": "two"}), max_ongoing=4, **SELDOM)
        await wait_until(lambda: attachment.reports[-1].max_ongoing == 4 and len(attachment.reports) > reports)
        assert len(handler.configs) == 1, "it is not tried again"
        handler.problem = None
        await attachment.configure(user_config=struct_to_wire({"name": "three"}), **SELDOM)
        await wait_until(lambda: attachment.reports[-1].error == "")
        assert await call(replica, "greet") == b'"hello, three"'


async def test_of_a_long_error_the_end_is_reported_and_of_what_is_no_text_a_question_mark(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, upkeep.__name__)  # test reports cannot hold what is no text
    async with kept("Kept", **SELDOM) as (handler, _, attachment):
        handler.problem = ValueError("x" * 100_000 + "\ud800")
        await attachment.configure(user_config=struct_to_wire({"name": "two"}), **SELDOM)
        await wait_until(lambda: attachment.reports[-1].error)
        error = attachment.reports[-1].error
        assert len(error) == MAX_REPORTED_CHARS
        assert "xxx?" in error
        assert error.endswith("reconfigure failed: the old configuration stays in force")


async def test_calls_go_on_meanwhile_and_what_comes_while_it_is_busy_is_one_more_at_the_end() -> None:
    async with kept("Kept", **SELDOM) as (handler, replica, attachment):
        handler.hangs = True
        for number in range(4):
            await attachment.configure(user_config=struct_to_wire({"name": f"n{number}"}), max_ongoing=1 + number)
            await wait_until(lambda: handler.configs)
        await wait_until(lambda: attachment.reports[-1].max_ongoing == 4)
        assert await call(replica, "greet") == b'"hello, nobody"'
        assert handler.configs == [{"name": "n0"}]
        handler.hangs = False
        handler.released.set()
        await wait_until(lambda: len(handler.configs) == 2)
        assert handler.configs[1] == {"name": "n3"}
        assert await call(replica, "greet") == b'"hello, n3"'


async def test_what_it_has_already_it_is_not_told_again() -> None:
    async with kept("Kept", user_config=struct_to_wire({"name": "one"}), **SELDOM) as (handler, _, attachment):
        handler.hangs = True
        for number, name in enumerate(["two", "three", "two"], 1):
            await attachment.configure(user_config=struct_to_wire({"name": name}), max_ongoing=number)
            await wait_until(lambda number=number: attachment.reports[-1].max_ongoing == number)  # type: ignore[misc]
        handler.hangs = False
        handler.released.set()
        await wait_until(lambda: handler.config == {"name": "two"})
        await attachment.configure(user_config=struct_to_wire({"name": "one"}), max_ongoing=4)
        await wait_until(lambda: handler.config == {"name": "one"})
        assert handler.configs == [{"name": "two"}, {"name": "one"}]


@BOTH
async def test_one_that_raises_anything_ends_nothing(name: str) -> None:
    async with kept(name, **SELDOM) as (handler, replica, attachment):
        for kind in KINDS:
            handler.problem = raised_by(kind)
            await attachment.configure(user_config=struct_to_wire({"name": kind}), **SELDOM)
            await wait_until(lambda kind=kind: kind in attachment.reports[-1].error)  # type: ignore[misc]
        handler.problem = None
        assert await call(replica, "greet") == b'"hello, nobody"'


async def test_a_handler_without_it_says_so_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async with controller({}) as (fake, server), at(server, handler=f"{HANDLERS}:Plain") as replica:
        attachment = await fake.attached()
        await wait_until(lambda: attachment.states[-1] == READY)
        assert not attachment.reports[-1].reconfigures
        await attachment.configure(user_config=struct_to_wire({"name": "two"}), max_ongoing=7)
        await wait_until(lambda: attachment.reports[-1].max_ongoing == 7)
        assert await call(replica, "greet") == b'"hello, nobody"'
        assert attachment.reports[-1].error == ""


# -- check_health ------------------------------------------------------------------------------------------------


@BOTH
async def test_checks_that_pass_are_not_heard_of(name: str) -> None:
    async with kept(name) as (handler, replica, attachment):
        await wait_until(lambda: handler.checks > 5)
        assert {report.error for report in attachment.reports} == {""}
        assert not any(report.unhealthy for report in attachment.reports)
        assert await serving(replica) == health_pb2.HealthCheckResponse.SERVING


@BOTH
@pytest.mark.parametrize("how", ["raises", "says no"])
async def test_three_in_a_row_that_fail_are_reported_and_the_replica_no_longer_serves(name: str, how: str) -> None:
    async with kept(name) as (handler, replica, attachment):
        if how == "raises":
            handler.problem = ConnectionError("the accelerator is gone")
        else:
            handler.verdict = False
        await wait_until(lambda: attachment.reports[-1].unhealthy)
        error = attachment.reports[-1].error
        assert ("ConnectionError: the accelerator is gone" if how == "raises" else "returned False") in error
        assert error.endswith("health check failed: 3 of 3 in a row")
        assert attachment.reports[-1].state == READY, "whoever replaces it says when it goes"
        assert await serving(replica) == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await call(replica, "greet") == b'"hello, nobody"', "better than nobody"
        checks = handler.checks
        assert checks >= 3, "a slow machine may have seen one more"
        replica.app.replica.drain("another one is there")
        assert await asyncio.wait_for(replica.task, 10) == 1
        assert attachment.states[-1] == STOPPED
        assert handler.checks == checks, "it is not asked any more"


@BOTH
async def test_two_that_fail_and_one_that_does_not_are_well(name: str) -> None:
    async with kept(name) as (handler, _, attachment):
        handler.verdicts += [False, False]
        await wait_until(lambda: not handler.verdicts)
        checks = handler.checks
        await wait_until(lambda: handler.checks > checks + 2)
        await wait_until(lambda: attachment.reports[-1].error == "")
        assert not any(report.unhealthy for report in attachment.reports)


@BOTH
async def test_one_that_hangs_has_failed_and_is_not_started_twice(name: str) -> None:
    """Not even where it does not let itself be cancelled."""
    async with kept(name) as (handler, _, attachment):
        handler.hangs = True
        await wait_until(lambda: attachment.reports[-1].unhealthy)
        assert "check_health has not answered for" in attachment.reports[-1].error
        assert (handler.checking, handler.most_checking) == (1, 1)


async def test_it_takes_no_permit() -> None:
    async with kept("KeptInThreads") as (handler, replica, _), replica.router() as stream:
        await stream.send(stream.run([b"[]"], method="wait", content_type=JSON))
        await wait_until(lambda: handler.waiting == 1)
        checks = handler.checks
        await wait_until(lambda: handler.checks > checks + 2)
        handler.gate.set()
        await stream.wait_answers(1)


async def test_without_a_controller_it_drains_at_once() -> None:
    async with running_replica(f"{HANDLERS}:Kept") as replica, replica.router() as stream:
        handler = replica.handler
        await stream.send(stream.run([b"[]"], method="wait", content_type=JSON))
        await wait_until(lambda: handler.waiting == 1)
        handler.problem = RuntimeError("no more")
        await wait_until(lambda: "go_away" in stream.frames)
        handler.problem = None
        handler.gate.set()
        await stream.wait_answers(1)
        assert stream.results == {1: b'"waited"'}, "what runs ends"
        await stream.call.done_writing()
        assert await asyncio.wait_for(replica.task, 10) == 1


# -- on_drain ----------------------------------------------------------------------------------------------------


@BOTH
async def test_it_hears_of_the_drain_before_its_calls_have_ended(name: str) -> None:
    async with kept(name, **SELDOM) as (handler, replica, attachment), replica.router() as stream:
        await stream.send(stream.run([b"[]"], method="wait", content_type=JSON))
        await wait_until(lambda: handler.waiting == 1)
        replica.app.replica.drain("now")
        await wait_until(lambda: handler.drains == 1)
        assert stream.answered == 0
        assert attachment.states[-1] in {READY, DRAINING}
        handler.gate.set()
        await stream.wait_answers(1)
        await stream.call.done_writing()
        assert await asyncio.wait_for(replica.task, 10) == 0
        assert handler.drains == 1


@BOTH
async def test_one_that_raises_is_logged_and_no_more_than_that(name: str, caplog: pytest.LogCaptureFixture) -> None:
    async with kept(name, **SELDOM) as (handler, replica, attachment):
        handler.problem = OSError("cannot flush")
        replica.app.replica.drain("now")
        assert await asyncio.wait_for(replica.task, 10) == 0
        assert handler.drains == 1
        assert attachment.states[-1] == STOPPED


@BOTH
async def test_it_is_waited_for_and_no_longer_than_the_grace(name: str) -> None:
    grace = duration_to_wire(0.3)
    async with kept(name, graceful_timeout=grace, **SELDOM) as (handler, replica, _):
        handler.hangs = True
        began = asyncio.get_running_loop().time()
        replica.app.replica.drain("now")
        assert await asyncio.wait_for(replica.task, 10) == 0
        assert 0.25 < asyncio.get_running_loop().time() - began < 5
        assert handler.drains == 1


# -- all of them -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["reconfigure", "check_health", "on_drain", "_secret", "__init__", "__class__", "_Kept__x", "config"]
)
async def test_nobody_outside_can_call_them_nor_what_is_private(method: str) -> None:
    async with kept("Kept", **SELDOM) as (handler, replica, _):
        failure = await call(replica, method)
        assert failure.reason == "METHOD_NOT_FOUND"
        assert (handler.configs, handler.checks, handler.drains) == ([], 0, 0)


@pytest.mark.parametrize("own_loop", [False, True])
async def test_async_ones_run_where_calls_run(own_loop: bool) -> None:
    async with kept("Kept", own_loop=own_loop) as (handler, replica, attachment):
        await call(replica, "greet")
        await attachment.configure(user_config=struct_to_wire({"name": "two"}), own_loop=own_loop)
        await wait_until(lambda: handler.checks and handler.configs)
        replica.app.replica.drain("now")
        await asyncio.wait_for(replica.task, 10)
        assert handler.drains == 1
        (loop,) = handler.loops
        assert (loop is asyncio.get_running_loop()) is not own_loop


async def test_def_ones_run_in_threads_of_their_own() -> None:
    async with kept("KeptInThreads") as (handler, replica, attachment):
        await attachment.configure(user_config=struct_to_wire({"name": "two"}))
        await wait_until(lambda: handler.checks and handler.configs)
        replica.app.replica.drain("now")
        await asyncio.wait_for(replica.task, 10)
        assert handler.threads == {"reconfigure", "check_health", "on_drain"}


async def test_one_that_is_no_method_is_told_at_the_start() -> None:
    words = r"Misshapen\.check_health must be a method, which the replica calls; got True"
    with pytest.raises(CannotStart, match=words):
        async with running_replica(f"{HANDLERS}:Misshapen") as replica:
            await replica.task
