"""API keys in the database: made, listed, changed, revoked. Of a key itself only its hash is kept.

A plain SHA-256 is enough: keys are 256 random bits that we draw, so there is nothing to guess as with passwords.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec
from sqlalchemy import Connection, Row, insert, select, update

from tandem.core.errors import NotFound
from tandem.core.types import ServiceClass
from tandem.gateway.store import settings
from tandem.gateway.store.tables import api_keys

PREFIX: Final = "sk-tandem-"
VERSION: Final = "keys_version"
"""The setting that changes with every change of a key, so that others needn't read them all to notice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRules:
    """What a key may do. None: no such rule."""

    tenant: str = "default"
    service_class: ServiceClass | None = None
    models: tuple[str, ...] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    budget_micros: int | None = None
    max_output_tokens: int | None = None
    weight: float = 1.0
    is_admin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A key without the key. Times in Unix seconds."""

    id: str
    name: str
    digest: str
    """SHA-256 of the token, in hex."""
    hint: str
    """The token's last characters, for people who look for theirs."""
    rules: KeyRules
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None

    @property
    def is_configured(self) -> bool:
        """From the configuration, not from the database."""
        return self.created_at == 0

    def is_valid(self, now_s: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now_s < self.expires_at)


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def create_key(
    connection: Connection, name: str, rules: KeyRules, now_s: float, expires_at: int | None = None
) -> tuple[str, KeyRecord]:
    """The token, which nobody can read again, and the record."""
    token = PREFIX + secrets.token_urlsafe(32)
    record = KeyRecord(
        id=f"key-{secrets.token_hex(8)}", name=name, digest=digest_of(token), hint=token[-4:], rules=rules,
        created_at=int(now_s), expires_at=expires_at,
    )  # fmt: skip
    connection.execute(insert(api_keys).values(_columns(record)))
    settings.bump(connection, VERSION)
    return token, record


def revoke_key(connection: Connection, key_id: str, now_s: float) -> KeyRecord:
    """Revoking twice is no error: the first time stays. Raises `NotFound`."""
    record = find_key(connection, key_id)
    if record.revoked_at is None:
        connection.execute(update(api_keys).where(api_keys.c.id == key_id).values(revoked_at=int(now_s)))
        settings.bump(connection, VERSION)
    return find_key(connection, key_id)


def change_rules(connection: Connection, key_id: str, rules: KeyRules) -> KeyRecord:
    """Raises `NotFound`."""
    find_key(connection, key_id)
    connection.execute(update(api_keys).where(api_keys.c.id == key_id).values(_rule_columns(rules)))
    settings.bump(connection, VERSION)
    return find_key(connection, key_id)


def find_key(connection: Connection, key_id: str) -> KeyRecord:
    row = connection.execute(select(api_keys).where(api_keys.c.id == key_id)).one_or_none()
    if row is None:
        raise NotFound(f"There is no key {key_id!r:.80}.")
    return _record(row)


def list_keys(connection: Connection) -> list[KeyRecord]:
    """All, revoked ones too: that there ever was a key means that keys are asked for."""
    return [_record(row) for row in connection.execute(select(api_keys).order_by(api_keys.c.created_at, api_keys.c.id))]


def keys_version(connection: Connection) -> int:
    return settings.number(connection, VERSION)


def _rule_columns(rules: KeyRules) -> dict[str, Any]:
    models = None if rules.models is None else msgspec.json.encode(rules.models).decode()
    names = [name for name in KeyRules.__dataclass_fields__ if name != "models"]
    return {name: getattr(rules, name) for name in names} | {"models": models}


def _columns(record: KeyRecord) -> dict[str, Any]:
    return _rule_columns(record.rules) | {
        "id": record.id, "name": record.name, "token_sha256": record.digest, "hint": record.hint,
        "created_at": record.created_at, "expires_at": record.expires_at, "revoked_at": record.revoked_at,
    }  # fmt: skip


def _record(row: Row[Any]) -> KeyRecord:
    rules = KeyRules(
        tenant=row.tenant,
        service_class=cast("ServiceClass | None", row.service_class),
        models=None if row.models is None else tuple(msgspec.json.decode(row.models, type=list[str])),
        requests_per_minute=row.requests_per_minute,
        tokens_per_minute=row.tokens_per_minute,
        budget_micros=row.budget_micros,
        max_output_tokens=row.max_output_tokens,
        weight=row.weight,
        is_admin=row.is_admin,
    )
    return KeyRecord(
        id=row.id, name=row.name, digest=row.token_sha256, hint=row.hint, rules=rules,
        created_at=row.created_at, expires_at=row.expires_at, revoked_at=row.revoked_at,
    )  # fmt: skip
