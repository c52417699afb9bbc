"""The time of day goes on steadily when the machine's clock jumps."""

from __future__ import annotations

from tandem.core.clock import ManualClock
from tandem.gateway.store.wall import PATIENCE_S, WallClock


class Machine:
    def __init__(self) -> None:
        self.monotonic = ManualClock(50.0)
        self.error_s = 0.0

    def wall(self) -> float:
        return 1e9 + self.monotonic.now() + self.error_s


def test_it_follows_small_corrections_at_once_and_jumps_only_when_they_last() -> None:
    machine = Machine()
    clock = WallClock(machine.monotonic, machine.wall)
    start_s = clock.now()
    machine.error_s = 1.5
    assert clock.now() == start_s + 1.5
    machine.error_s = 86_400.0
    machine.monotonic.advance(10.0)
    assert clock.now() == start_s + 11.5
    machine.error_s = 1.5
    machine.monotonic.advance(PATIENCE_S)
    assert clock.now() == start_s + 11.5 + PATIENCE_S
    machine.error_s = 86_400.0
    clock.now()
    machine.monotonic.advance(PATIENCE_S)
    assert clock.now() == machine.wall()
