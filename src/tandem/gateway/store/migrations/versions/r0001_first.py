"""The first tables.

Frozen: later changes are migrations of their own, so this file doesn't follow tables.py.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Float, Integer, LargeBinary, String, Text, UniqueConstraint, text

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "settings",
        Column("name", String(63), primary_key=True),
        Column("value", Text, nullable=False),
    )
    op.create_table(
        "leases",
        Column("name", String(63), primary_key=True),
        Column("holder", String(127), nullable=False),
        Column("token", BigInteger, nullable=False),
        Column("renewals", BigInteger, nullable=False),
    )
    op.create_table(
        "api_keys",
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
    op.create_table(
        "limit_shares",
        Column("key_id", String(63), primary_key=True),
        Column("kind", String(15), primary_key=True),
        Column("gateway", String(63), primary_key=True),
        Column("amount", BigInteger, nullable=False),
        Column("wanted", BigInteger, nullable=False),
    )
    op.create_table(
        "gateways",
        Column("id", String(63), primary_key=True),
        Column("beats", BigInteger, nullable=False),
    )
    op.create_table(
        "spend",
        Column("key_id", String(63), primary_key=True),
        Column("month", Integer, primary_key=True),
        Column("micros", BigInteger, nullable=False),
    )
    op.create_table(
        "ledger",
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
    )
    op.create_table(
        "files",
        Column("id", String(63), primary_key=True),
        Column("tenant", String(63), nullable=False),
        Column("purpose", String(31), nullable=False),
        Column("filename", String(255), nullable=False),
        Column("size_bytes", BigInteger, nullable=False),
        Column("created_us", BigInteger, nullable=False),
        Column("expires_at", BigInteger),
        Column("deleted_at", BigInteger),
    )
    op.create_table(
        "batches",
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
    )
    op.create_table(
        "batch_results",
        Column("batch_id", String(63), primary_key=True),
        Column("line", Integer, primary_key=True),
        Column("is_success", Boolean, nullable=False),
        Column("result", LargeBinary, nullable=False),
    )
    unmet = text("wanted > amount")
    op.create_index("limit_shares_unmet", "limit_shares", ["key_id"], sqlite_where=unmet, postgresql_where=unmet)
    op.create_index("ledger_time", "ledger", ["time_us"])
    op.create_index("ledger_tenant_time", "ledger", ["tenant", "time_us"])
    op.create_index("files_tenant_created", "files", ["tenant", "created_us"])
    op.create_index("batches_tenant_created", "batches", ["tenant", "created_us"])
    op.create_index("batches_status", "batches", ["status"])
