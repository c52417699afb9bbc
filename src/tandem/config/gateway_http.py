"""Settings of the gateway's own HTTP side: sizes, time-outs, browsers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class GatewayHttpConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the gateway accepts from clients, and how it ends."""

    max_body_mib: Annotated[float, Meta(gt=0, description="Largest request body, in MiB; more is a 413.")] = 16.0
    max_header_kib: Annotated[int, Meta(ge=1, description="Longest header line of a request, in KiB.")] = 16
    body_timeout_s: Annotated[
        float, Meta(gt=0, description="Within which a request's body must have come, in seconds; later is a 408.")
    ] = 120.0
    cors_origins: Annotated[
        tuple[str, ...], Meta(description='Web pages that may call from browsers: origins, or "*" for all.')
    ] = ()
    shutdown_timeout_s: Annotated[
        float, Meta(ge=0, description="How long running requests may finish after SIGTERM, in seconds.")
    ] = 30.0
    tls_certificate: Annotated[str | None, Meta(description="Path of the certificate chain (PEM); none: no TLS.")] = (
        None
    )
    tls_key: Annotated[str | None, Meta(description="Path of the certificate's key (PEM).")] = None
