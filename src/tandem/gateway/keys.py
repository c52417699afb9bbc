"""Whose key a request carries, answered from memory. The database is read in the background, never on the way.

What is known is also kept in a file (hashes, no keys), so that a gateway which starts while the database is away still
lets its users in.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy import Connection

from tandem.config.gateway_store import KeyConfig
from tandem.config.secrets import resolve_secret
from tandem.core.errors import ConfigError, Unauthorized, Unavailable
from tandem.gateway.context import Caller
from tandem.gateway.store import key_rows, settings
from tandem.gateway.store.database import Database
from tandem.gateway.store.errors import DatabaseAway
from tandem.gateway.store.key_rows import KeyRecord, KeyRules, digest_of
from tandem.gateway.store.wall import WallClock

ANONYMOUS: Final = Caller()
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the database said last."""

    version: int = -1
    secret: str = ""
    records: tuple[KeyRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class _Entry:
    record: KeyRecord
    caller: Caller


@dataclass(slots=True)
class _Snapshot:
    by_digest: dict[str, _Entry] = field(default_factory=dict)
    by_id: dict[str, _Entry] = field(default_factory=dict)


class StoredKeys:
    """`Keys`. Call `start` and `close` from the event loop; `caller` may be called at any time."""

    def __init__(
        self,
        database: Database,
        configured: Sequence[KeyConfig] = (),
        *,
        secret: str | None = None,
        cache: Path | None = None,
        wall: WallClock | None = None,
        anonymous: Caller = ANONYMOUS,
    ) -> None:
        """`anonymous`: everybody, where there are no keys. Raises `ConfigError` for a key that can't be read."""
        self._database = database
        self._wall = wall or WallClock()
        self._given_secret = resolve_secret(secret)
        self._stopgap_secret = secrets.token_hex(32)
        self._cache = cache
        self._anonymous = anonymous
        self._known: Known | None = None
        self._configured = _configured_records(configured)
        self._snapshot = _Snapshot()
        self._task: asyncio.Task[None] | None = None
        self._watchers: list[Callable[[], None]] = []
        self._rebuild()

    def caller(self, token: str | None) -> Caller:
        """Raises `Unauthorized`; `Unavailable` where it can't be known yet whether keys are asked for."""
        if token is None:
            return self._without_key()
        entry = self._snapshot.by_digest.get(digest_of(token))
        if entry is not None and entry.record.is_valid(self._wall.now()):
            return entry.caller
        if entry is None and self._is_open():
            return self._anonymous
        self._refuse_if_unknown()
        raise Unauthorized("The API key is wrong, revoked or expired: send one as 'Authorization: Bearer <key>'.")

    def caller_of(self, key_id: str) -> Caller:
        """The owner of a key by its id, for work that outlives the request (batches). Raises `Unauthorized`."""
        if key_id == self._anonymous.key_id and self._is_open():
            return self._anonymous
        entry = self._snapshot.by_id.get(key_id)
        if entry is None or not entry.record.is_valid(self._wall.now()):
            self._refuse_if_unknown()
            raise Unauthorized("The API key that asked for this has been revoked or has expired.")
        return entry.caller

    def rules(self, key_id: str) -> KeyRules | None:
        """None for anonymous callers and keys that are gone."""
        entry = self._snapshot.by_id.get(key_id)
        return entry.record.rules if entry else None

    def records(self) -> list[KeyRecord]:
        return [entry.record for entry in self._snapshot.by_id.values()]

    def watch(self, changed: Callable[[], None]) -> None:
        """`changed` is called after keys or rules have changed."""
        self._watchers.append(changed)

    def configure(self, configured: Sequence[KeyConfig]) -> None:
        """Takes the keys of a reloaded configuration. Raises `ConfigError`, and then keeps the old ones."""
        self._configured = _configured_records(configured)
        self._rebuild()

    async def start(self) -> None:
        """Reads the database, or the file if that is away; then looks for changes until closed."""
        if not await self.refresh() and self._known is None:
            self._known = await asyncio.to_thread(self._read_cache)
            self._rebuild()
        self._task = asyncio.create_task(self._refresh_for_ever())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def refresh(self) -> bool:
        """Looks for changes now. False if the database is away."""
        version = self._known.version if self._known else -1
        try:
            found = await self._database.read(lambda connection: _read(connection, version))
            if found is not None and not found.secret:
                found = await self._with_secret(found)
        except DatabaseAway:
            return False
        if found is not None:
            self._known = found
            self._rebuild()
            await asyncio.to_thread(self._write_cache, found)
        return True

    async def _with_secret(self, found: Known) -> Known:
        secret = await self._database.write(settings.drawn_secret)
        return Known(version=found.version, secret=secret, records=found.records)

    async def _refresh_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._database.config.keys_refresh_s)
            try:
                await self.refresh()
            except Exception:
                _log.exception("the API keys could not be read anew; those known stay")

    def _without_key(self) -> Caller:
        if self._is_open():
            return self._anonymous
        self._refuse_if_unknown()
        raise Unauthorized("An API key is needed: send it as 'Authorization: Bearer <key>'.")

    def _is_open(self) -> bool:
        """No key was ever made. That the last one was revoked doesn't open the door."""
        return not self._configured and self._known is not None and not self._known.records

    def _refuse_if_unknown(self) -> None:
        if self._known is None and not self._configured:
            raise Unavailable("The API keys are not read yet, for the database is away.", retry_after_s=2.0)

    def _rebuild(self) -> None:
        secret = self._given_secret or (self._known.secret if self._known else self._stopgap_secret)
        snapshot = _Snapshot()
        for record in (*(self._known.records if self._known else ()), *self._configured):
            entry = _Entry(record, _caller(record, secret))
            snapshot.by_digest[record.digest] = entry
            snapshot.by_id[record.id] = entry
        self._snapshot = snapshot
        for changed in self._watchers:
            changed()

    def _read_cache(self) -> Known | None:
        if self._cache is None:
            return None
        try:
            return msgspec.json.decode(self._cache.read_bytes(), type=Known)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("the keys kept in %s can't be read: %s", self._cache, error)
            return None

    def _write_cache(self, known: Known) -> None:
        if self._cache is None:
            return
        fresh = self._cache.with_suffix(f".{os.getpid()}.new")
        try:
            fresh.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(known))
            fresh.replace(self._cache)
        except OSError as error:
            _log.warning("the keys can't be kept in %s: %s", self._cache, error)


def _read(connection: Connection, version: int) -> Known | None:
    """None if nothing has changed since `version`."""
    found = key_rows.keys_version(connection)
    if found == version:
        return None
    secret = settings.text_of(connection, settings.SECRET) or ""
    return Known(version=found, secret=secret, records=tuple(key_rows.list_keys(connection)))


def _configured_records(configured: Sequence[KeyConfig]) -> tuple[KeyRecord, ...]:
    records = [_configured_record(key) for key in configured]
    for name, values in (("name", [r.id for r in records]), ("key", [r.digest for r in records])):
        if len(set(values)) < len(values):
            raise ConfigError(f"two API keys have the same {name}; each needs its own.")
    return tuple(records)


def _configured_record(key: KeyConfig) -> KeyRecord:
    token = resolve_secret(key.key)
    assert token is not None
    if len(token) < 16:
        raise ConfigError(f"the API key {key.name!r} has {len(token)} characters; it must have 16 or more.")
    rules = KeyRules(
        tenant=key.tenant,
        service_class=key.service_class,
        models=key.models,
        requests_per_minute=key.requests_per_minute,
        tokens_per_minute=key.tokens_per_minute,
        budget_micros=key.budget_micros,
        max_output_tokens=key.max_output_tokens,
        weight=key.weight,
        is_admin=key.admin,
    )
    # The name is the id: it stays the same over restarts and gateways, and tells people more than a hash.
    return KeyRecord(id=key.name, name=key.name, digest=digest_of(token), hint=token[-4:], rules=rules, created_at=0)


def _caller(record: KeyRecord, secret: str) -> Caller:
    rules = record.rules
    return Caller(
        tenant=rules.tenant,
        key_id=record.id,
        forced_class=rules.service_class,
        allowed_models=None if rules.models is None else frozenset(rules.models),
        max_output_tokens=rules.max_output_tokens,
        cache_salt=salt_of(rules.tenant, secret),
        weight=rules.weight,
        is_admin=rules.is_admin,
    )


def salt_of(tenant: str, secret: str) -> str:
    """The same at every gateway of a deployment, and of no use to guess another tenant's."""
    return hmac.new(secret.encode(), tenant.encode(), hashlib.sha256).hexdigest()
