"""A scheduler and runs for it, and what it commands as a person would note it down."""

from __future__ import annotations

from math import inf

from replica_service.core.call_metadata import ReplicaCallOptions, ReservedSlot
from replica_service.core.events import (
    CallKeyHook,
    Fail,
    Grant,
    Refuse,
    ReplicaCommand,
    ReportAttach,
    ReportCapacity,
    ReportDefect,
    ReportDetached,
    ReportRenewal,
)
from replica_service.core.runs import ReplicaRun, RouterPeer, StartTurn
from replica_service.core.scheduler import DEFAULT_KEYED_WINDOW, ReplicaScheduler
from replica_service.core.work import StartBatch, StartCalls
from slotmesh.handlers import BatchControl, BatchSettings

GATHER_S = 0.5


def scheduler(
    max_ongoing: int = 4, prefetch: int = 0, keyed_window: int = DEFAULT_KEYED_WINDOW, max_batch_size: int = 3
) -> ReplicaScheduler:
    settings = BatchSettings(max_batch_size=max_batch_size, batch_wait_timeout_s=GATHER_S)
    methods = {"plain": None, "batch": BatchControl(settings)}
    return ReplicaScheduler(methods, max_ongoing=max_ongoing, prefetch=prefetch, keyed_window=keyed_window)


def run(
    link: RouterPeer,
    first: int,
    count: int,
    *,
    method: str = "plain",
    key: str = "",
    deadline: float = inf,
    epoch: int = 1,
    arrived: float = 0.0,
) -> ReplicaRun:
    made = ReplicaRun(
        link, first, [b""] * count, ReplicaCallOptions(method=method, ordering_key=key), "e", arrived, deadline
    )
    made.owner_epoch = epoch
    return made


def told(commands: list[ReplicaCommand]) -> list[str]:
    """The commands, as a person would note them down: run ids, first and last."""
    lines = []
    for command in commands:
        match command:
            case StartBatch(parts=parts):
                spans = [f"{part.first + lo}-{part.first + hi - 1}" for part, lo, hi in parts]
                lines.append("batch " + ",".join(spans))
            case ReportDefect(what=what):
                lines.append(f"defect: {what}")
            case ReportCapacity():
                lines.append("tell capacity")
            case CallKeyHook(partition=partition, epoch=epoch, is_gain=is_gain):
                lines.append(f"{'gained' if is_gain else 'lost'} {partition} at {epoch}")
            case Grant(run=run):
                lines.append(f"grant {run.first}")
            case ReportRenewal(op_id=op_id, answer=answer):
                lines.append(f"{'prolong' if isinstance(answer, ReservedSlot) else 'fail'} {op_id}")
            case ReportAttach(number=number, failure=failure):
                lines.append(f"{'attach' if failure is None else 'fail'} {number}")
            case ReportDetached(number=number):
                lines.append(f"detached {number}")
            case Refuse() | Fail():
                word = "refuse" if isinstance(command, Refuse) else "fail"
                lines.append(f"{word} {span(command)} {command.failure.reason.value}")
            case StartCalls() | StartTurn():
                lines.append(f"{'calls' if isinstance(command, StartCalls) else 'turn'} {span(command)}")
    return lines


def span(command: StartCalls | StartTurn | Refuse | Fail) -> str:
    return f"{command.run.first + command.lo}-{command.run.first + command.hi - 1}"


def turn_of(commands: list[ReplicaCommand]) -> StartTurn:
    (turn,) = [command for command in commands if isinstance(command, StartTurn)]
    return turn


def batch_of(commands: list[ReplicaCommand]) -> StartBatch:
    (batch,) = [command for command in commands if isinstance(command, StartBatch)]
    return batch
