"""Single values that all gateways of a deployment share."""

from __future__ import annotations

import secrets
from typing import Final

from sqlalchemy import Connection, select, update

from tandem.gateway.store.tables import settings
from tandem.gateway.store.upsert import insert_new

SECRET: Final = "secret"


def text_of(connection: Connection, name: str) -> str | None:
    return connection.execute(select(settings.c.value).where(settings.c.name == name)).scalar_one_or_none()


def number(connection: Connection, name: str) -> int:
    """0 where nothing was ever written."""
    return int(text_of(connection, name) or 0)


def bump(connection: Connection, name: str) -> None:
    """Makes the number one larger. Two at once: the second waits for the first."""
    insert_new(connection, settings, [{"name": name, "value": "0"}])
    row = connection.execute(select(settings.c.value).where(settings.c.name == name).with_for_update()).scalar_one()
    connection.execute(update(settings).where(settings.c.name == name).values(value=str(int(row) + 1)))


def drawn_secret(connection: Connection) -> str:
    """The deployment's own secret, drawn by whoever asks first."""
    insert_new(connection, settings, [{"name": SECRET, "value": secrets.token_hex(32)}])
    value = text_of(connection, SECRET)
    assert value is not None
    return value
