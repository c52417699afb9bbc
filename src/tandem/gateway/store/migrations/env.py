"""How Alembic runs here: on a connection that is handed to it, inside a transaction that its caller ends."""

from __future__ import annotations

from alembic import context

from tandem.gateway.store.tables import metadata

connection = context.config.attributes.get("connection")
assert connection is not None, "run migrations through tandem.gateway.store.migrate, which holds the lock"
context.configure(
    connection=connection, target_metadata=metadata, transactional_ddl=True, version_table="tandem_version"
)
context.run_migrations()
