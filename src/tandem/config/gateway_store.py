"""Settings of the gateway's state: database, API keys and their rules, ledger, files and batches."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tandem.core.errors import ConfigError
from tandem.core.types import ServiceClass

Count = Annotated[int, Meta(ge=1, le=(1 << 53))]


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the gateway reaches its database and what it keeps on disk."""

    data_dir: Annotated[
        str,
        Meta(min_length=1, description="Folder of uploaded files, results and spooled ledger rows. Several gateways on "
             "one database need one folder that all of them see."),
    ] = "tandem-data"  # fmt: skip
    secret: Annotated[
        str | None,
        Meta(description="Secret that cache salts are made with (env:NAME or file:PATH). Default: one is drawn once "
             "and kept in the database."),
    ] = None  # fmt: skip
    database_threads: Annotated[
        int, Meta(ge=1, le=64, description="Threads, and so connections, that talk to the database.")
    ] = 4
    connect_timeout_s: Annotated[
        float, Meta(ge=1, description="Longest wait for a connection to the database, in seconds.")
    ] = 3.0
    statement_timeout_s: Annotated[
        float, Meta(gt=0, description="Longest a statement may run or wait for a lock, in seconds.")
    ] = 30.0
    retry_s: Annotated[
        float, Meta(gt=0, description="After a failure, time until the database is tried again, in seconds.")
    ] = 1.0
    keys_refresh_s: Annotated[
        float, Meta(gt=0, description="How soon a key made or revoked at another gateway is known here, in seconds.")
    ] = 2.0
    ledger_flush_s: Annotated[float, Meta(gt=0, description="Longest a ledger row waits in memory, in seconds.")] = 0.2
    ledger_batch_rows: Annotated[int, Meta(ge=1, le=10_000, description="Most ledger rows in one transaction.")] = 500
    ledger_queue_rows: Annotated[
        int, Meta(ge=1, description="Most ledger rows kept in memory while neither database nor disk takes them.")
    ] = 100_000
    limits_sync_s: Annotated[
        float, Meta(gt=0, description="How often gateways on one database divide the keys' limits anew, in seconds.")
    ] = 1.0
    lease_ttl_s: Annotated[
        float, Meta(gt=0, description="Silence after which another gateway takes over what must run once, in seconds.")
    ] = 15.0


class KeyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An API key and its rules. Keys made through /tandem/keys have the same rules."""

    name: Annotated[str, Meta(min_length=1, max_length=63, description="Unique; names the key in the ledger.")]
    key: Annotated[str, Meta(min_length=1, description="Where the key stands: env:NAME or file:PATH.")]
    tenant: Annotated[
        str, Meta(min_length=1, max_length=63, description="Whose it is. Tenants see nothing of each other.")
    ] = "default"
    service_class: (
        Annotated[ServiceClass, Meta(description="Class of all its requests, whatever they ask for.")] | None
    ) = None
    models: Annotated[
        tuple[str, ...] | None, Meta(description="Models it may use. Default: all.")
    ] = None  # fmt: skip
    requests_per_minute: Annotated[Count | None, Meta(description="Most requests in any minute.")] = None
    tokens_per_minute: Annotated[
        Count | None, Meta(description="Most tokens in any minute: used ones and those reserved by running requests.")
    ] = None
    budget_micros: Annotated[
        Count | None, Meta(description="Most it may cost in a calendar month (UTC), in millionths of the currency.")
    ] = None
    max_output_tokens: Annotated[Count | None, Meta(description="Cap on the tokens of one answer.")] = None
    weight: Annotated[float, Meta(gt=0, description="Its share when several keys wait.")] = 1.0
    admin: Annotated[bool, Meta(description="May use the routes under /tandem.")] = False

    def __post_init__(self) -> None:
        if not self.key.startswith(("env:", "file:")):
            raise ConfigError(
                f"the key {self.name!r} stands in the configuration itself; name where it is instead, "
                "as env:NAME or file:PATH."
            )


class BatchesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What /v1/files and /v1/batches accept, and how fast batches run."""

    endpoints: Annotated[
        tuple[str, ...], Meta(description="Endpoints that a batch may name.")
    ] = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")  # fmt: skip
    max_file_mib: Annotated[float, Meta(gt=0, description="Largest file, in MiB.")] = 200.0
    max_tenant_gib: Annotated[float, Meta(gt=0, description="Most a tenant's files may take, in GiB.")] = 20.0
    max_lines: Annotated[int, Meta(ge=1, description="Most requests in one batch.")] = 50_000
    max_line_mib: Annotated[float, Meta(gt=0, description="Largest request of a batch, in MiB.")] = 16.0
    max_window_h: Annotated[float, Meta(gt=0, description="Longest completion_window, in hours.")] = 168.0
    keep_days: Annotated[
        float, Meta(gt=0, description="Days until a file is deleted, where its owner didn't say otherwise.")
    ] = 30.0
    max_concurrency: Annotated[
        int, Meta(ge=1, le=10_000, description="Most lines that run at once; fewer while engines say they are full.")
    ] = 256
    max_active: Annotated[int, Meta(ge=1, description="Most batches whose lines run side by side.")] = 8
    line_attempts: Annotated[
        int, Meta(ge=1, description="Tries of a line that fails in the server. Refusals for want of room don't count.")
    ] = 3
    poll_s: Annotated[
        float, Meta(gt=0, description="How soon the runner sees what another gateway wrote, in seconds.")
    ] = 1.0
