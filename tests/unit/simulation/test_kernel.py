"""What happens next, on virtual time."""

from __future__ import annotations

from simulation.kernel import Kernel


def test_events_happen_in_order_of_time_and_then_of_planning() -> None:
    kernel, seen = Kernel(), list[tuple[float, str]]()

    def happen(name: str) -> None:
        seen.append((kernel.now, name))
        if name == "first":
            kernel.at(kernel.now + 1.0, happen, "planned by the first")
            kernel.at(kernel.now - 1.0, happen, "overdue")

    kernel.at(2.0, happen, "second")
    kernel.at(1.0, happen, "first")
    kernel.at(2.0, happen, "third")
    kernel.run(lambda: False)
    assert seen == [(1.0, "first"), (1.0, "overdue"), (2.0, "second"), (2.0, "third"), (2.0, "planned by the first")]
    assert kernel.events == 5


def test_it_can_be_stopped_and_goes_on() -> None:
    kernel, seen = Kernel(), list[int]()
    for number in range(4):
        kernel.at(float(number), seen.append, number)
    kernel.run(lambda: len(seen) == 2)
    assert (seen, kernel.now) == ([0, 1], 1.0)
    kernel.run(lambda: False)
    assert (seen, kernel.now) == ([0, 1, 2, 3], 3.0)
