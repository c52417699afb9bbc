"""The gateway's own calls, over real sockets: a Unix socket, a key, a body, and a server that isn't there."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web

from tandem.gateway.replicas.fetch import upstream_fetch
from tandem.gateway.upstream.client import UpstreamClient
from tandem.gateway.upstream.failures import ConnectFailed
from tests.gateway.replicas.helpers import make_pool


async def test_fetch(tmp_path: Path) -> None:
    async def echo(request: web.Request) -> web.Response:
        text = f"{request.headers.get('Authorization')} {await request.text()}"
        return web.Response(status=503, text=text)

    app = web.Application()
    app.router.add_post("/x", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    path = str(tmp_path / "a.sock")
    await web.UnixSite(runner, path).start()
    client = UpstreamClient()
    fetch = upstream_fetch(client)
    pool = make_pool("tandem", f"unix://{path}", f"unix://{tmp_path}/none.sock", api_key="k")
    try:
        assert await fetch(pool.replicas[0], "POST", "/x", b"body", 5.0) == (503, b"Bearer k body")
        with pytest.raises(ConnectFailed):
            await fetch(pool.replicas[1], "GET", "/x", None, 5.0)
    finally:
        await client.close()
        await runner.cleanup()
