"""The gateway's own calls to replicas, over the same connections as its clients' requests."""

from __future__ import annotations

from typing import Final

from tandem.gateway.replicas.base import Fetch
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.upstream.client import UpstreamClient

_MAX_BYTES: Final = 8 << 20


def upstream_fetch(client: UpstreamClient) -> Fetch:
    """Time-outs are the caller's, by cancelling: that closes the connection."""

    async def fetch(
        replica: Replica, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> tuple[int, bytes]:
        headers = {"Accept": "*/*"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if replica.pool.api_key is not None:
            headers["Authorization"] = f"Bearer {replica.pool.api_key}"
        answer = await client.send(replica.url, method, path, headers, body)
        try:
            return answer.status, await answer.read(_MAX_BYTES)
        finally:
            answer.close()

    return fetch
