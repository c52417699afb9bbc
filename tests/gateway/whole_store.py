"""The store's parts put together as a gateway does, with nothing else of a gateway: for tests of the whole of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from tandem.config.gateway_store import BatchesConfig, KeyConfig, StoreConfig
from tandem.core.clock import Clock, SystemClock
from tandem.gateway.batches.batch_routes import batch_routes
from tandem.gateway.batches.file_routes import file_routes
from tandem.gateway.batches.files import Folder
from tandem.gateway.batches.lines import Execute
from tandem.gateway.batches.runner import BatchRunner
from tandem.gateway.key_routes import key_routes
from tandem.gateway.keys import StoredKeys
from tandem.gateway.ledger import StoredLedger
from tandem.gateway.limits import StoredLimits
from tandem.gateway.shares import Shares
from tandem.gateway.spending import Spending
from tandem.gateway.store.database import Database
from tandem.gateway.store.http import Authenticate
from tandem.gateway.store.wall import WallClock
from tandem.gateway.usage import usage_routes


class Store:
    """`keys`, `limits` and `ledger` are what the proxy needs; `routes` what an application mounts."""

    def __init__(
        self,
        address: str,
        config: StoreConfig | None = None,
        batches: BatchesConfig | None = None,
        keys: Sequence[KeyConfig] = (),
        *,
        clock: Clock | None = None,
    ) -> None:
        """Raises `ConfigError`; touches neither database nor disk yet."""
        self.config = config or StoreConfig()
        self._batches = batches or BatchesConfig()
        self.clock = clock or SystemClock()
        self.wall = WallClock(self.clock)
        self.database = Database(address, self.config, self.clock)
        self.data_dir = Path(self.config.data_dir)
        self.folder = Folder(self.data_dir)
        cache = self.data_dir / "keys.json"
        self.keys = StoredKeys(self.database, keys, secret=self.config.secret, cache=cache, wall=self.wall)
        self.spending = Spending(self.clock, self.wall)
        self.ledger = StoredLedger(self.database, self.data_dir / "spool", self.spending, self.clock)
        self.limits = StoredLimits(self.keys.rules, self.spending, self.clock, self.config.limits_sync_s)
        self.shares = Shares(self.database, self.keys, self.limits, self.clock)
        self.runner: BatchRunner | None = None

    async def start(self, execute: Execute | None = None) -> None:
        """Before traffic. Without `execute`, no batches run here. A database that is away stops nothing.

        Raises `ConfigError` where the database can't be used at all.
        """
        await self.database.start()
        await self.keys.start()
        await self.ledger.start()
        await self.shares.start()
        if execute is not None:
            self.runner = BatchRunner(
                self.database, self.folder, self._batches, execute, clock=self.clock, wall=self.wall
            )
            await self.runner.start()

    async def close(self, drain_s: float = 0.0) -> None:
        """After the last request has ended: what it recorded is safe when this returns."""
        if self.runner is not None:
            await self.runner.close(drain_s)
        await self.shares.close()
        await self.keys.close()
        await self.ledger.close()
        await self.database.close()

    def routes(self, authenticate: Authenticate) -> list[web.RouteDef]:
        """Files, batches, usage and keys. Those under /tandem/keys ask for an admin key themselves."""
        return [
            *file_routes(self.database, self.folder, self._batches, authenticate, self.wall),
            *batch_routes(self.database, self._batches, authenticate, self._batch_changed, self.wall),
            *usage_routes(self.database, authenticate),
            *key_routes(self.database, self.keys, self.spending, authenticate, self.wall),
        ]

    def _batch_changed(self) -> None:
        if self.runner is not None:
            self.runner.notify()
