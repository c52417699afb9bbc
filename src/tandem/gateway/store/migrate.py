"""Brings a database's tables up to date, with Alembic. Safe when several gateways start at once: one does it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError
from sqlalchemy import Connection, Engine, text

from tandem.core.errors import ConfigError
from tandem.gateway.store.engines import WRITE, sqlite_path

MIGRATIONS: Final = Path(__file__).parent / "migrations"
_LOCK_ID: Final = 0x74616E64656D
"""Of PostgreSQL's advisory lock, which lasts as long as the transaction."""


def migrate(engine: Engine) -> None:
    """Everything in one transaction: an upgrade that fails leaves the database as it was. Raises `ConfigError`."""
    if (path := sqlite_path(engine)) is not None:
        _create_file(path)
    with engine.connect() as connection:
        connection = connection.execution_options(**{WRITE: True})
        with connection.begin():
            if connection.dialect.name == "postgresql":
                # Waiting for whoever migrates now may take longer than a statement usually may.
                connection.execute(text("SET LOCAL statement_timeout = 0"))
                connection.execute(text("SELECT pg_advisory_xact_lock(:id)"), {"id": _LOCK_ID})
            _upgrade(connection)


def _upgrade(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise ConfigError(
            f"the database's tables can't be brought up to date: {error}. If a newer Tandem has written it, "
            "use that version, or another database."
        ) from error


def _create_file(path: Path) -> None:
    """Nobody but its owner reads a new database."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.touch(mode=0o600)
    except OSError as error:
        raise ConfigError(f"the database {path} can't be made: {error}.") from error
