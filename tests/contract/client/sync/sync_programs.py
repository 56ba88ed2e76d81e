"""Programs with a synchronous client, for what only a process of its own shows: Ctrl-C, forks, the end of a program.

Run as `python -m tests.contract.client.sync.sync_programs NAME ADDRESS`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import slotmesh


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def interrupted(address: str) -> None:
    """Ctrl-C ends a wait, and nothing else."""
    with slotmesh.connect_sync(address) as mesh:
        echo = mesh.endpoint("digits").echo
        future = echo.future("future")

        def wait_for_future() -> object:
            say("waiting")
            return future.result()

        waits: list[Callable[[], object]] = [
            lambda: echo("call"),
            lambda: echo.map(["map"]),
            lambda: list(echo.stream("stream")),
            wait_for_future,
        ]
        for wait in waits:
            try:
                wait()
            except KeyboardInterrupt:
                say("interrupted")
        say(echo("afterwards") + future.result())


def interrupted_through_another_thread(address: str) -> None:
    """The kernel gives a signal to any thread: SIGUSR1 has one that does not wait for the call get Ctrl-C."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})

    def take_signal() -> None:
        signal.sigwait({signal.SIGUSR1})
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    threading.Thread(target=take_signal, daemon=True).start()
    with slotmesh.connect_sync(address, close_grace=0) as mesh:
        try:
            mesh.endpoint("digits").echo("never answered")
        except KeyboardInterrupt:
            say("interrupted")


def interrupted_at_the_end(address: str) -> None:
    """Ctrl-C while the mesh waits for the last answers."""
    mesh = slotmesh.connect_sync(address, close_grace=60)
    future = mesh.endpoint("digits").echo.future("never answered")
    try:
        with mesh:
            say("leaving")
    except KeyboardInterrupt:
        mesh.close(0)
    say(type(future.exception(0)).__name__)


def ends_without_close(address: str) -> None:
    mesh = slotmesh.connect_sync(address)
    say(mesh.endpoint("digits").echo("answered"))
    mesh.endpoint("digits").echo.future("never answered")
    values = mesh.endpoint("digits").echo.stream("never answered")

    def wait() -> None:
        with suppress(slotmesh.CallCancelled):
            next(values)

    threading.Thread(target=wait, daemon=True).start()


def fails_without_close(address: str) -> None:
    ends_without_close(address)
    raise SystemExit(3)


def forks(address: str) -> None:
    """What a child can do with what its parent had in use: nothing, and it hears so."""
    mesh = slotmesh.connect_sync(address)
    digits = mesh.endpoint("digits")
    lane = digits.ordered("key")
    say(digits.echo("parent"))
    pending, values = digits.echo.future("never answered"), digits.echo.stream("never answered")
    uses: list[Callable[[], object]] = [
        lambda: digits.echo("child"),
        lambda: digits.echo.future("child"),
        lambda: digits.echo.map(["child"]),
        lambda: digits.echo.unary("child"),
        lambda: digits.echo.stream("child"),
        lambda: next(values),
        lambda: mesh.endpoint("other"),
        lambda: lane.__exit__(None, None, None),
        lane.reset,
        pending.result,
        lambda: slotmesh.connect_sync(address).endpoint("digits"),
    ]
    child = os.fork()
    if not child:
        heard = 0
        for use in uses:
            try:
                use()
            except RuntimeError as error:
                heard += "does not outlive a fork" in str(error)
        mesh.close()
        say(f"{heard} of {len(uses)}")
        sys.exit(0)
    say(f"child {os.waitpid(child, 0)[1]}")
    say(digits.echo("parent again"))
    mesh.close(0)


def forks_first(address: str) -> None:
    """A mesh that nobody has used is as good in a child."""
    mesh = slotmesh.connect_sync(address)
    child = os.fork()
    say(mesh.endpoint("digits").echo("child" if not child else "parent"))
    mesh.close()
    if child:
        say(f"child {os.waitpid(child, 0)[1]}")


if __name__ == "__main__":
    # A test's process may have been started by a shell that ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    globals()[sys.argv[1]](sys.argv[2])
