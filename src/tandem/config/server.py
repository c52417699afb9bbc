"""Settings of the HTTP front of one engine."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the front listens, what it accepts, and how it ends."""

    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 takes a free one.")] = 8000
    uds: Annotated[str | None, Meta(description="Path of a Unix socket to listen on instead of host and port.")] = None
    api_key: Annotated[
        str | None,
        Meta(description="Clients must send it as a bearer token. Better given as TANDEM_API_KEY than as a flag."),
    ] = None
    max_body_mib: Annotated[float, Meta(gt=0, description="Largest request body, in MiB; more is a 413.")] = 16.0
    strict_fields: Annotated[
        bool, Meta(description="Refuse request fields that are not known, instead of ignoring them with a warning.")
    ] = False
    parse_special_in_messages: Annotated[
        bool,
        Meta(description="Let control tokens written in message texts act as control tokens. Off: they stay text."),
    ] = False
    shutdown_timeout_s: Annotated[
        float, Meta(ge=0, description="How long running requests may finish after SIGTERM, in seconds.")
    ] = 30.0
    health_timeout_s: Annotated[
        float, Meta(gt=0, description="Silence of the engine loop after which /health answers 503, in seconds.")
    ] = 30.0
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least severe level logged.")
    ] = "info"
    log_format: Annotated[Literal["text", "json"], Meta(description="Lines for people, or JSON.")] = "text"
