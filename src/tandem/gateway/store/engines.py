"""SQLAlchemy engines for the two kinds of database. What differs between them is here and nowhere else."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, event, make_url
from sqlalchemy import create_engine as create
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DisconnectionError

from tandem.config.gateway_store import StoreConfig
from tandem.core.errors import ConfigError

WRITE: Final = "tandem_write"
"""Execution option of a connection that is about to write."""


def create_engine(address: str, config: StoreConfig) -> Engine:
    """Connects to nothing yet. Raises `ConfigError` for an address that can't be."""
    url = _parse(address)
    if url.get_backend_name() == "sqlite":
        return _sqlite(url, config)
    return _postgresql(url, config)


def _parse(address: str) -> URL:
    try:
        url = make_url(address)
    except ArgumentError as error:
        raise ConfigError(
            "database is not an address; it must be sqlite:///FILE or postgresql://user@host/name."
        ) from error
    name = url.get_backend_name()
    if name in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if name != "sqlite":
        raise ConfigError(f"database is of the kind {name!r:.40}; sqlite and postgresql are supported.")
    if not url.database or url.database == ":memory:":
        raise ConfigError("database is an SQLite database in memory, which would forget everything; name a file.")
    return url


def _postgresql(url: URL, config: StoreConfig) -> Engine:
    statement_ms = int(config.statement_timeout_s * 1000)
    return create(
        url,
        pool_size=config.database_threads,
        max_overflow=0,
        pool_timeout=config.connect_timeout_s,
        pool_pre_ping=True,
        connect_args={
            "connect_timeout": max(2, int(config.connect_timeout_s)),  # libpq reads 1 as 2.
            "options": f"-c statement_timeout={statement_ms} -c idle_in_transaction_session_timeout={statement_ms}",
            "application_name": "tandem-gateway",
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            # A server that has vanished without a word must not hold a thread for the kernel's quarter of an hour.
            "tcp_user_timeout": statement_ms,
        },
    )


def _sqlite(url: URL, config: StoreConfig) -> Engine:
    path = Path(str(url.database)).absolute()

    def connect() -> sqlite3.Connection:
        # mode=rw: a file that was taken away must be missed, not made anew and empty. migrate() makes it.
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode=rw", uri=True, timeout=config.statement_timeout_s, check_same_thread=False,
            isolation_level=None,
        )  # fmt: skip
        _set_pragmas(connection, config.statement_timeout_s)
        return connection

    engine = create(
        "sqlite://", creator=connect, pool_size=config.database_threads, max_overflow=0,
        pool_timeout=config.connect_timeout_s, poolclass=_queue_pool(),
    )  # fmt: skip
    event.listen(engine, "begin", _begin)
    event.listen(engine, "connect", lambda connection, record: record.info.update(file=_identity(path)))
    event.listen(engine, "checkout", lambda connection, record, proxy: _check_file(path, record.info["file"]))
    engine.dialect.tandem_path = path  # type: ignore[attr-defined]
    return engine


def _queue_pool() -> Any:
    from sqlalchemy.pool import QueuePool

    return QueuePool


def _begin(connection: Connection) -> None:
    """A reader that turns writer fails at once if another writes; so writers say so first, and wait their turn."""
    is_write = connection.get_execution_options().get(WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")


def _set_pragmas(connection: sqlite3.Connection, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError:
            # Changing the mode of a new file doesn't wait for others who do the same.
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.01)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _check_file(path: Path, known: tuple[int, int] | None) -> None:
    """SQLite would go on writing into a file that has been deleted or replaced."""
    if known is None or _identity(path) != known:
        raise DisconnectionError("the database's file is no longer the one that was opened")


def sqlite_path(engine: Engine) -> Path | None:
    """The database's file; None for PostgreSQL."""
    return getattr(engine.dialect, "tandem_path", None)
