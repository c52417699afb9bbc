"""What each key has cost this month, from memory: what the database said, and what it doesn't know yet.

Budgets are checked against it on the way of every request, so it must neither wait for the database nor count a row
twice when one has arrived there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime

from tandem.core.clock import Clock, SystemClock
from tandem.gateway.store.ledger_rows import month_of
from tandem.gateway.store.wall import WallClock
from tandem.protocol.ledger import LedgerRow

REFRESH_S = 5.0
"""How soon the spending at other gateways is known here."""


class Spending:
    """Changed by the ledger, read by the limits; both on the event loop's thread."""

    def __init__(self, clock: Clock | None = None, wall: WallClock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._wall = wall or WallClock(self._clock)
        self._in_database: dict[tuple[str, int], int] = defaultdict(int)
        self._pending: dict[tuple[str, int], int] = defaultdict(int)
        self._refresh_at_s = 0.0

    def month(self) -> int:
        """202612 in December 2026, UTC."""
        return month_of(self._time())

    def until_next_month_s(self) -> float:
        time = self._time()
        following = datetime(time.year + time.month // 12, time.month % 12 + 1, 1, tzinfo=UTC)
        return (following - time).total_seconds()

    def micros(self, key_id: str) -> int:
        at = (key_id, self.month())
        return self._in_database.get(at, 0) + self._pending.get(at, 0)

    def add(self, row: LedgerRow) -> None:
        if row.cost_micros:
            self._pending[(row.key_id, month_of(row.time))] += row.cost_micros

    def written(self, rows: Iterable[LedgerRow]) -> None:
        """These rows, added here before, are in the database now."""
        for row in rows:
            if row.cost_micros:
                at = (row.key_id, month_of(row.time))
                self._in_database[at] += row.cost_micros
                self._pending[at] -= row.cost_micros
                if not self._pending[at]:
                    del self._pending[at]

    def is_due(self) -> bool:
        return self._clock.now() >= self._refresh_at_s

    def refreshed(self, month: int, spent: dict[str, int]) -> None:
        """All that the database has of a month."""
        self._refresh_at_s = self._clock.now() + REFRESH_S
        self._in_database = defaultdict(int, {(key_id, month): micros for key_id, micros in spent.items()})

    def _time(self) -> datetime:
        return datetime.fromtimestamp(self._wall.now(), UTC)
