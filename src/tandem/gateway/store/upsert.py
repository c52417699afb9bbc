"""INSERT … ON CONFLICT, which both databases have and SQLAlchemy spells twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_new(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Inserts rows whose primary key isn't there yet. The first column of the key of those that were new."""
    if not rows:
        return []
    keys = list(table.primary_key.columns)
    statement = _insert(connection, table).on_conflict_do_nothing(index_elements=keys).returning(keys[0])
    return list(connection.execute(statement, list(rows)).scalars())


def add_to(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], column: str) -> None:
    """Inserts rows; where one is there already, adds to its `column`. One primary key may be given once only."""
    if not rows:
        return
    statement = _insert(connection, table)
    total = table.c[column] + statement.excluded[column]
    keys = list(table.primary_key.columns)
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_={column: total}), list(rows))


def put(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Inserts rows; where one is there already, replaces what isn't its key."""
    if not rows:
        return
    statement = _insert(connection, table)
    keys = {column.name for column in table.primary_key.columns}
    changed = {name: statement.excluded[name] for name in rows[0] if name not in keys}
    keys_of = list(table.primary_key.columns)
    connection.execute(statement.on_conflict_do_update(index_elements=keys_of, set_=changed), list(rows))


def _insert(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)
