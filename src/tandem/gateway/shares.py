"""Keeps this gateway's shares of the keys' limits in step with demand here and elsewhere, in the background.

A share falls in two steps: first we grant less, then we say so; it rises the other way round. So what the gateways
grant together never exceeds what is written, which never exceeds the limit. While the database is away, shares stay
as they are; a gateway that never reached it grants the whole limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

from tandem.core.clock import Clock, SystemClock
from tandem.gateway.keys import StoredKeys
from tandem.gateway.limits import Kind, Share, StoredLimits
from tandem.gateway.store.database import Database
from tandem.gateway.store.errors import DatabaseAway
from tandem.gateway.store.share_rows import Claim, beat, divide, forget, unmet
from tandem.gateway.windows import WINDOW_S

SILENCE_S: Final = WINDOW_S + 15.0
"""After this a gateway is taken for dead, and what it granted last has left every window."""
_log = logging.getLogger(__name__)


class _Limit(NamedTuple):
    key_id: str
    kind: Kind
    limit: int


class Shares:
    """One per gateway process."""

    def __init__(
        self,
        database: Database,
        keys: StoredKeys,
        limits: StoredLimits,
        clock: Clock | None = None,
        gateway: str | None = None,
    ) -> None:
        self._database = database
        self._keys = keys
        self._limits = limits
        self._clock = clock or SystemClock()
        self.gateway = gateway or f"gw-{secrets.token_hex(8)}"
        self._seen: dict[str, tuple[int, float]] = {}
        """Gateway → its beats, and when we saw them change."""
        self._last: dict[tuple[str, Kind], int] = {}
        """(key, kind) → what was wanted when last said."""
        self._members: frozenset[str] = frozenset()
        self._task: asyncio.Task[None] | None = None

    @property
    def num_gateways(self) -> int:
        """Alive on this database, this one included."""
        return max(1, len(self._members))

    async def start(self) -> None:
        """Joins. Where other gateways live, waits a moment for them to give up a part."""
        try:
            await self.sync()
            if self.num_gateways > 1:
                await asyncio.sleep(1.5 * self._database.config.limits_sync_s)
                await self.sync()
        except DatabaseAway:
            _log.warning("limits are not divided among gateways yet, for the database is away")
        self._task = asyncio.create_task(self._sync_for_ever())

    async def close(self) -> None:
        """Leaves, so that the others have all at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(DatabaseAway):
            await self._database.write(partial(forget, gateway=self.gateway))

    async def sync(self) -> None:
        """Raises `DatabaseAway`."""
        beats = await self._database.write(partial(beat, gateway=self.gateway))
        await self._note_members(beats)
        unmet_elsewhere: set[tuple[str, str]] = set()
        if self.num_gateways > 1:
            unmet_elsewhere = await self._database.read(partial(unmet, gateway=self.gateway))
        due = [limit for limit in self._all_limits() if self._is_due(limit, unmet_elsewhere)]
        await self._divide(due)
        # What must be given up is written now, not in the next round: somebody is waiting for it.
        await self._divide([limit for limit in due if self._limits.share(*limit).fair < self._limits.share(*limit).cap])
        for limit in due:
            self._limits.share(*limit).refused.append(0)

    async def _divide(self, limits: list[_Limit]) -> None:
        if not limits:
            return
        shares = [self._limits.share(*limit) for limit in limits]
        claims = [self._claim(limit, share) for limit, share in zip(limits, shares, strict=True)]
        work = partial(divide, gateway=self.gateway, claims=claims, num_gateways=self.num_gateways)
        grants = await self._database.write(work)
        for limit, share, claim, grant in zip(limits, shares, claims, grants, strict=True):
            share.cap, share.fair = grant.amount, grant.fair
            self._last[(limit.key_id, limit.kind)] = claim.wanted

    async def _sync_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._database.config.limits_sync_s)
            try:
                await self.sync()
            except DatabaseAway:
                pass
            except Exception:
                _log.exception("the shares of limits could not be divided; the old ones stay")

    async def _note_members(self, beats: dict[str, int]) -> None:
        now_s = self._clock.now()
        for gateway, count in beats.items():
            if gateway not in self._seen or self._seen[gateway][0] != count:
                self._seen[gateway] = (count, now_s)
        dead = {g for g in beats if g != self.gateway and now_s - self._seen[g][1] > SILENCE_S}
        for gateway in dead:
            await self._database.write(partial(forget, gateway=gateway, beats=beats[gateway]))
        members = frozenset(beats) - dead
        self._seen = {gateway: self._seen[gateway] for gateway in members}
        was_forgotten = beats[self.gateway] == 1  # Also at the start; later, if others took us for dead.
        if members != self._members or was_forgotten:
            self._members = members
            self._last.clear()  # Everything must be divided anew.

    def _all_limits(self) -> Iterable[_Limit]:
        for record in self._keys.records():
            if record.rules.requests_per_minute is not None:
                yield _Limit(record.id, "requests", record.rules.requests_per_minute)
            if record.rules.tokens_per_minute is not None:
                yield _Limit(record.id, "tokens", record.rules.tokens_per_minute)

    def _wanted(self, limit: _Limit, share: Share) -> int:
        """Never nothing: who is idle here may have something to do soon."""
        demand = self._limits.occupied(limit.key_id, limit.kind, self._clock.now()) + max(share.refused)
        return max(min(demand, 4 * limit.limit), _idle(limit))

    def _is_due(self, limit: _Limit, unmet_elsewhere: set[tuple[str, str]]) -> bool:
        """Something has changed, here or elsewhere, or our share isn't what it should be. Most keys are idle."""
        share = self._limits.share(*limit)
        at = (limit.key_id, limit.kind)
        said = self._last.get(at)
        if said is None or said != self._wanted(limit, share) or said > _idle(limit):
            return True
        return share.cap != share.fair or at in unmet_elsewhere

    def _claim(self, limit: _Limit, share: Share) -> Claim:
        if (limit.key_id, limit.kind) not in self._last:
            share.fair = min(share.fair, limit.limit // self.num_gateways)
        if share.fair < share.cap:
            share.cap = max(share.fair, self._limits.occupied(limit.key_id, limit.kind, self._clock.now()))
        return Claim(limit.key_id, limit.kind, limit.limit, share.cap, self._wanted(limit, share))


def _idle(limit: _Limit) -> int:
    """What a gateway wants that has nothing to do."""
    return max(limit.limit // 100, 1)
