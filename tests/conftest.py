"""Profiles of hypothesis, which tests run in which order, their bounds and costs, what the garbage collector sees."""

from __future__ import annotations

import gc
import inspect
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import Phase, settings

from tests.support import wait
from tests.support.order import ordered
from tests.support.tiers import ALL, FORMS, chosen

QUICK: Final = "quick"
SLOW_S: Final = 1.0
"""Processor time of a test that the inner loop should not wait for."""
REPORTED_S: Final = 60.0
"""pytest-timeout ends an asynchronous test so much later than its own bound: what fails is the wait, and there is time
to end fixtures and describe the failure. In the midst of that description the timeout would end all of pytest."""
FROZEN_EACH: Final = 300
"""Tests after which the garbage collector leaves alone what there is by then."""
_SINCE: Final = pytest.StashKey[int]()
"""Tests that have run since then."""
_TESTS: Final = Path(__file__).parent

# What is collected stays to the end: a fifth of the time would go into looking for garbage among it.
gc.disable()

settings.register_profile("usual", deadline=None)
"""An example may take as long as a busy machine makes it take."""
settings.register_profile(QUICK, deadline=None, max_examples=10)
"""A tenth of what is drawn as a rule."""
settings.register_profile("gate", deadline=None, max_examples=12, derandomize=True)
"""Of `make test`: the same examples each time, so that no change is blamed for what it has not broken. All tests,
`LONG=all`, draw other ones."""
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.register_profile("mutants", deadline=None, phases=[Phase.explicit, Phase.generate], database=None)
"""Whether something fails, not the smallest example of it."""
settings.load_profile("usual")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", default=ALL, metavar="CHOICE", help=f"which tests marked `long` run: {FORMS}")
    parser.addoption(
        "--late-waits",
        default=0.0,
        type=float,
        metavar="SECONDS",
        help="let waits of tests go on for so long, as on a busy machine: tests that need them to be prompt fail",
    )


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell ignores it for what it starts in the background, and so would the processes that tests send it to.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Refuses a wrong `--long` before any worker starts; passes `--late-waits` on."""
    wait.late_s = config.getoption("--late-waits")
    try:
        chosen(config.getoption("--long"), ())
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the long tests that were not chosen, bounds asynchronous tests, orders all for several processes."""
    choose_long(config, items)
    bound_each(config, items)
    if processes := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
        items[:] = ordered(items, lambda item: item.path.relative_to(_TESTS).parts, processes)


def choose_long(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests marked `long` that `--long` does not choose."""
    long = {item.nodeid for item in items if item.get_closest_marker("long") is not None}
    left_out = long - chosen(config.getoption("--long"), long)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]


def bound_each(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test that hangs fails with the line at which it waits, after its timeout, or the usual one if that is longer.

    Not under a debugger.
    """
    if config.getoption("usepdb"):
        return
    usual_s = float(config.getini("timeout"))
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            mark = item.get_closest_marker("timeout")
            seconds = max(usual_s, float(mark.args[0]) if mark is not None else usual_s)
            item.obj = wait.bounded(item.obj, seconds)
            item.add_marker(pytest.mark.timeout(seconds + REPORTED_S), append=False)


def pytest_collection_finish() -> None:
    """The garbage collector leaves alone what has been collected: thousands of tests, which stay to the end.

    Otherwise each full collection, which tests of references ask for, walks through all of them.
    """
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, bool, bool]:
    """Between two files, now and then, it is made to leave alone what tests have imported, and what pytest keeps."""
    done = yield
    item.config.stash[_SINCE] = since = item.config.stash.get(_SINCE, 0) + 1
    if since >= FROZEN_EACH and nextitem is not None and nextitem.path != item.path:
        item.config.stash[_SINCE] = 0
        gc.collect()
        gc.freeze()
    return done


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Notes the processor time of each test and of the processes that it has waited for: load does not change it."""
    begin = sum(os.times()[:4])
    try:
        yield
    finally:
        item.user_properties.append(("cpu_s", sum(os.times()[:4]) - begin))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Names the tests that do not belong into a quick run, where this was one."""
    if config.getoption("--hypothesis-profile") != QUICK:
        return
    slow = [
        (cost_s, report.nodeid)
        for report in terminalreporter.stats.get("passed", [])
        if (cost_s := dict(report.user_properties).get("cpu_s", 0.0)) >= SLOW_S
    ]
    if slow:
        terminalreporter.section("too slow for the quick run: mark them `slow`")
        for cost_s, nodeid in sorted(slow, reverse=True):
            terminalreporter.write_line(f"{cost_s:5.1f} s of processor time  {nodeid}")
