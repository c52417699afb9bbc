"""The tables, as SQLAlchemy sees them. `migrations/` makes them; a test compares the two.

Times are whole numbers, so that SQLite and PostgreSQL agree: Unix seconds, or microseconds where the name ends in _us.
Money is whole micro-units.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata: Final = MetaData()

settings: Final = Table(
    "settings",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("value", Text, nullable=False),
)
"""Of the deployment: the drawn secret, the version of the keys."""

leases: Final = Table(
    "leases",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("holder", String(127), nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("renewals", BigInteger, nullable=False),
)
"""`token` grows with each new holder, `renewals` with each sign of life. No times: see leases.py."""

api_keys: Final = Table(
    "api_keys",
    metadata,
    Column("id", String(63), primary_key=True),
    Column("name", String(63), nullable=False),
    Column("token_sha256", String(64), nullable=False),
    Column("hint", String(8), nullable=False),
    Column("tenant", String(63), nullable=False),
    Column("service_class", String(15)),
    Column("models", Text),
    Column("requests_per_minute", BigInteger),
    Column("tokens_per_minute", BigInteger),
    Column("budget_micros", BigInteger),
    Column("max_output_tokens", BigInteger),
    Column("weight", Float, nullable=False),
    Column("is_admin", Boolean, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    UniqueConstraint("token_sha256", name="api_keys_token"),
)
"""`hint` is the token's last four characters; the token itself is nowhere. `models` is a JSON list."""

limit_shares: Final = Table(
    "limit_shares",
    metadata,
    Column("key_id", String(63), primary_key=True),
    Column("kind", String(15), primary_key=True),
    Column("gateway", String(63), primary_key=True),
    Column("amount", BigInteger, nullable=False),
    Column("wanted", BigInteger, nullable=False),
    Index(
        "limit_shares_unmet",
        "key_id",
        sqlite_where=text("wanted > amount"),
        postgresql_where=text("wanted > amount"),
    ),
)
"""What of a key's limit each gateway may grant. The amounts of one key and kind never add up to more than its limit."""

gateways: Final = Table(
    "gateways",
    metadata,
    Column("id", String(63), primary_key=True),
    Column("beats", BigInteger, nullable=False),
)

spend: Final = Table(
    "spend",
    metadata,
    Column("key_id", String(63), primary_key=True),
    Column("month", Integer, primary_key=True),
    Column("micros", BigInteger, nullable=False),
)
"""Sum of the ledger by key and calendar month (202612), kept with it: a budget can't wait for a sum over the ledger."""

ledger: Final = Table(
    "ledger",
    metadata,
    Column("request_id", String(127), primary_key=True),
    Column("time_us", BigInteger, nullable=False),
    Column("tenant", String(63), nullable=False),
    Column("key_id", String(63), nullable=False),
    Column("service_class", String(15), nullable=False),
    Column("model", String(255), nullable=False),
    Column("pool", String(63), nullable=False),
    Column("replica", String(127), nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("queue_s", Float, nullable=False),
    Column("prefill_s", Float, nullable=False),
    Column("decode_s", Float, nullable=False),
    Column("engine_s", Float, nullable=False),
    Column("kv_block_s", Float, nullable=False),
    Column("cost_micros", BigInteger, nullable=False),
    Column("currency", String(15), nullable=False),
    Column("price_version", String(63), nullable=False),
    Column("is_estimated", Boolean, nullable=False),
    Column("status", String(15), nullable=False),
    Index("ledger_time", "time_us"),
    Index("ledger_tenant_time", "tenant", "time_us"),
)

files: Final = Table(
    "files",
    metadata,
    Column("id", String(63), primary_key=True),
    Column("tenant", String(63), nullable=False),
    Column("purpose", String(31), nullable=False),
    Column("filename", String(255), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("deleted_at", BigInteger),
    Index("files_tenant_created", "tenant", "created_us"),
)
"""The bytes lie in the data folder under the id. A deleted file stays until no running batch reads it."""

batches: Final = Table(
    "batches",
    metadata,
    Column("id", String(63), primary_key=True),
    Column("tenant", String(63), nullable=False),
    Column("key_id", String(63), nullable=False),
    Column("endpoint", String(63), nullable=False),
    Column("input_file_id", String(63), nullable=False),
    Column("completion_window", String(15), nullable=False),
    Column("status", String(15), nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("in_progress_at", BigInteger),
    Column("expires_at", BigInteger, nullable=False),
    Column("finalizing_at", BigInteger),
    Column("completed_at", BigInteger),
    Column("failed_at", BigInteger),
    Column("expired_at", BigInteger),
    Column("cancelling_at", BigInteger),
    Column("cancelled_at", BigInteger),
    Column("total", Integer, nullable=False),
    Column("completed", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("model", String(255)),
    Column("input_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("errors", Text),
    Column("metadata", Text),
    Column("output_file_id", String(63)),
    Column("error_file_id", String(63)),
    Column("output_keep_s", BigInteger),
    Index("batches_tenant_created", "tenant", "created_us"),
    Index("batches_status", "status"),
)

batch_results: Final = Table(
    "batch_results",
    metadata,
    Column("batch_id", String(63), primary_key=True),
    Column("line", Integer, primary_key=True),
    Column("is_success", Boolean, nullable=False),
    Column("result", LargeBinary, nullable=False),
)
"""A line's place in its input file → its line of the output or error file. Emptied when the files are written."""
